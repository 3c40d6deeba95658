//! A host for one run, and no owner that talks to it: what it is told comes in files, its streams are its own.

use leasehold_core::limits::{Limits, OnDenied, OnOutputLimit};
use serde::{Deserialize, Serialize};

use super::{Load, RunLimits, Start};

impl RunLimits {
    /// What a host holds a module to, of the limits of its run and its bound on instructions.
    #[must_use]
    pub fn of(limits: &Limits, fuel: Option<u64>) -> Self {
        Self {
            memory_bytes: limits.memory_bytes.value,
            memory_kill: limits.on_denied == OnDenied::Kill,
            handles: limits.files.value,
            wall_ms: limits.wall_ms.value,
            cpu_time_ms: limits.cpu_time_ms.map(|limit| limit.value),
            fuel,
            output_bytes: limits.output_bytes.value,
            output_kill: limits.on_output_limit == OnOutputLimit::Kill,
            ..Self::default()
        }
    }
}

/// What a host that runs one module reads from [`ONE_CONFIG_FD`], as JSON: everything of a run but its streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct One {
    /// What the code is, and how it was compiled.
    pub load: Load,
    /// The run. Its `module` means nothing; a directory is the one of that name in the sandbox; output is not
    /// bounded here but by whoever reads it.
    pub start: Start,
}

/// Where a host that runs one module finds [`One`] in a sealed memory file.
pub const ONE_CONFIG_FD: i32 = 3;
/// Where it finds the compiled code in another.
pub const ONE_CODE_FD: i32 = 4;
/// Where it writes its [`super::Report`], from the beginning of the file, which has [`REPORT_LEN`] bytes of zero.
pub const ONE_REPORT_FD: i32 = 5;
/// Bytes of a file for a report; what is not used of it stays zero.
pub const REPORT_LEN: usize = 64 << 10;
/// Most bytes of [`One`] as JSON.
pub const ONE_BYTES_MAX: u64 = 4 << 20;

/// Arguments of a host that runs one module. `workspace` is whether it may write in the sandbox's `/workspace`;
/// without it there are no directories.
#[must_use]
pub fn one_argv(workspace: Option<bool>) -> Vec<String> {
    let access = workspace.map(|writable| if writable { "write" } else { "read" });
    ["leasehold-wasm-host", "one"]
        .into_iter()
        .chain(access)
        .map(str::to_owned)
        .collect()
}

/// What such a host keeps access to by its own rules, in words, where these are its arguments.
#[must_use]
pub fn one_place(argv: &[String]) -> Option<&'static str> {
    match argv {
        [_, one, access] if one == "one" && access == "read" => Some("/workspace (read)"),
        [_, one, access] if one == "one" && access == "write" => Some("/workspace (write)"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_say_what_is_kept_access_to() {
        assert_eq!(one_place(&one_argv(None)), None);
        assert_eq!(one_place(&one_argv(Some(false))), Some("/workspace (read)"));
        assert_eq!(one_place(&one_argv(Some(true))), Some("/workspace (write)"));
        for other in [
            &["host", "3"][..],
            &["host", "3", "files"],
            &["host", "two", "read"],
        ] {
            let argv: Vec<String> = other.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(one_place(&argv), None);
        }
    }

    #[test]
    fn the_limits_of_a_run_are_those_of_its_module() {
        let mut limits = Limits {
            on_denied: OnDenied::Kill,
            ..Limits::default()
        };
        limits.files.value = 77;
        let of = RunLimits::of(&limits, Some(5));
        assert_eq!((of.memory_bytes, of.memory_kill), (512 << 20, true));
        assert_eq!((of.handles, of.fuel, of.output_kill), (77, Some(5), false));
        assert_eq!((of.wall_ms, of.cpu_time_ms), (600_000, None));
    }
}
