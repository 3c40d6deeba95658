//! What bounds a sandbox, with units, bounds and where each number came from.

use serde::{Deserialize, Serialize};

use crate::quantity::format_bytes;

/// Whether somebody wanted a limit or it is merely our default.
///
/// An asked limit is a promise: a host that cannot enforce it refuses (invariant I6). A default that
/// cannot be enforced is best effort and recorded as such.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Origin {
    /// The caller, a manifest or a policy named it.
    Asked,
    /// Nobody named it.
    Defaulted,
}

/// One limit and its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Limit<T> {
    /// The bound, in the unit its field names.
    pub value: T,
    /// Who set it.
    pub origin: Origin,
}

impl<T> Limit<T> {
    /// A limit somebody named.
    pub const fn asked(value: T) -> Self {
        Self {
            value,
            origin: Origin::Asked,
        }
    }

    /// A limit nobody named.
    pub const fn defaulted(value: T) -> Self {
        Self {
            value,
            origin: Origin::Defaulted,
        }
    }

    /// Whether it is a promise.
    pub fn is_asked(&self) -> bool {
        self.origin == Origin::Asked
    }
}

/// The resources that have a limit. Closed; the word is used in ends, flags, records and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Resource {
    /// Processor share (a rate; it slows, it never ends a run).
    Cpu,
    /// Processor time used by the whole sandbox.
    CpuTime,
    /// Memory of the whole sandbox, its tmpfs pages included.
    Memory,
    /// Bytes written below `/workspace` and `/tmp`.
    Disk,
    /// Files and directories below `/workspace` and `/tmp`.
    Inodes,
    /// Processes and threads at one time.
    Pids,
    /// Open files of one process.
    Files,
    /// Time from execution to end.
    Wall,
    /// Bytes written to each of standard output and standard error.
    Output,
    /// Bytes sent out of the sandbox.
    Egress,
    /// WebAssembly instructions, as the engine weighs them.
    Fuel,
    /// Call stack of a WebAssembly run, in bytes.
    Stack,
    /// Things of the host that a WebAssembly run holds at one time.
    Handles,
    /// What compiling one module may take: milliseconds, or bytes of memory, module or code, whichever bound it is.
    Compile,
}

impl Resource {
    /// Every resource.
    pub const ALL: [Self; 14] = [
        Self::Cpu,
        Self::CpuTime,
        Self::Memory,
        Self::Disk,
        Self::Inodes,
        Self::Pids,
        Self::Files,
        Self::Wall,
        Self::Output,
        Self::Egress,
        Self::Fuel,
        Self::Stack,
        Self::Handles,
        Self::Compile,
    ];

    /// The word used in records and texts.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::CpuTime => "cpu_time",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
            Self::Files => "files",
            Self::Wall => "wall",
            Self::Output => "output",
            Self::Egress => "egress",
            Self::Fuel => "fuel",
            Self::Stack => "stack",
            Self::Handles => "handles",
            Self::Compile => "compile",
        }
    }

    /// Writes an amount of this resource for people.
    #[must_use]
    pub fn amount(self, value: u64) -> String {
        match self {
            Self::Memory | Self::Disk | Self::Output | Self::Egress | Self::Stack => {
                format_bytes(value)
            }
            Self::CpuTime | Self::Wall => {
                crate::quantity::format_micros(value.saturating_mul(1000))
            }
            Self::Cpu => format!("{:.2} cores", value as f64 / 1000.0),
            Self::Inodes
            | Self::Pids
            | Self::Files
            | Self::Fuel
            | Self::Handles
            | Self::Compile => value.to_string(),
        }
    }
}

/// What happens when a sandbox reaches its output limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OnOutputLimit {
    /// Further bytes are counted and dropped; the record says how many.
    #[default]
    Cut,
    /// The sandbox ends as `resource_exceeded: output`.
    Kill,
}

/// What happens when a limit denies something: a process, a file, a byte of disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OnDenied {
    /// The program sees the failure and may handle it; the record lists the limit.
    #[default]
    Note,
    /// The sandbox ends as `resource_exceeded`, at the latest 250 ms after it.
    Kill,
}

/// Everything that bounds one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Limits {
    /// Processor share in thousandths of a core; 10 to 1,024,000.
    pub cpu_milli: Limit<u32>,
    /// Memory in bytes, swap none; from 8 MiB.
    pub memory_bytes: Limit<u64>,
    /// Bytes for `/workspace` and `/tmp` together; from 64 KiB.
    pub disk_bytes: Limit<u64>,
    /// Files and directories below `/workspace` and `/tmp`; from 16.
    pub inodes: Limit<u64>,
    /// Processes and threads; 1 to 1,000,000. Our own two are counted beside it, not in it.
    pub pids: Limit<u32>,
    /// Open files of one process; 16 to 1,048,576.
    pub files: Limit<u32>,
    /// Wall time of one execution in milliseconds; from 1.
    pub wall_ms: Limit<u64>,
    /// Processor time of the whole sandbox in milliseconds; none means only the wall limit holds.
    pub cpu_time_ms: Option<Limit<u64>>,
    /// Time between TERM and KILL in milliseconds.
    pub grace_ms: u64,
    /// Bytes kept of each of standard output and standard error.
    pub output_bytes: Limit<u64>,
    /// What reaching `output_bytes` does.
    pub on_output_limit: OnOutputLimit,
    /// What a limit that denies something does.
    #[serde(default)]
    pub on_denied: OnDenied,
}

/// Memory when nobody names it.
pub const DEFAULT_MEMORY_BYTES: u64 = 512 << 20;
/// Disk when nobody names it; never more than half the memory, since it is a tmpfs.
pub const DEFAULT_DISK_BYTES: u64 = 256 << 20;

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpu_milli: Limit::defaulted(1_000),
            memory_bytes: Limit::defaulted(DEFAULT_MEMORY_BYTES),
            disk_bytes: Limit::defaulted(DEFAULT_DISK_BYTES),
            inodes: Limit::defaulted(65_536),
            pids: Limit::defaulted(256),
            files: Limit::defaulted(1_024),
            wall_ms: Limit::defaulted(600_000),
            cpu_time_ms: None,
            grace_ms: 2_000,
            output_bytes: Limit::defaulted(64 << 20),
            on_output_limit: OnOutputLimit::Cut,
            on_denied: OnDenied::Note,
        }
    }
}

/// A limit outside its bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("limit `{field}` is {value}: allowed is {low} to {high}")]
pub struct LimitError {
    /// The field, as the flag and the manifest name it.
    pub field: &'static str,
    /// What was asked.
    pub value: u64,
    /// Least allowed.
    pub low: u64,
    /// Most allowed.
    pub high: u64,
}

impl Limits {
    /// Checks every bound.
    ///
    /// # Errors
    /// Names the first field that is out of its bounds.
    pub fn check(&self) -> Result<(), LimitError> {
        const TEN_YEARS_MS: u64 = 315_360_000_000;
        const MAX_BYTES: u64 = 1 << 50;
        let rows: [(&'static str, u64, u64, u64); 10] = [
            ("cpu", self.cpu_milli.value.into(), 10, 1_024_000),
            ("memory", self.memory_bytes.value, 8 << 20, MAX_BYTES),
            ("disk", self.disk_bytes.value, 64 << 10, MAX_BYTES),
            ("inodes", self.inodes.value, 16, 1 << 32),
            ("pids", self.pids.value.into(), 1, 1_000_000),
            ("files", self.files.value.into(), 16, 1 << 20),
            ("timeout", self.wall_ms.value, 1, TEN_YEARS_MS),
            (
                "cpu-time",
                self.cpu_time_ms.map_or(1, |limit| limit.value),
                1,
                TEN_YEARS_MS,
            ),
            ("grace", self.grace_ms, 0, 3_600_000),
            ("output-limit", self.output_bytes.value, 0, MAX_BYTES),
        ];
        for (field, value, low, high) in rows {
            if value < low || value > high {
                return Err(LimitError {
                    field,
                    value,
                    low,
                    high,
                });
            }
        }
        Ok(())
    }

    /// Cores the sandbox sees: its share rounded up (`nproc` inside).
    #[must_use]
    pub fn visible_cores(&self) -> u32 {
        self.cpu_milli.value.div_ceil(1_000).max(1)
    }

    /// Whether a computer that was made with these can serve a run that is given `wanted`: what is fixed when
    /// it is made is equal; the rest is applied when it is claimed.
    #[must_use]
    pub fn same_slot(&self, wanted: &Self) -> bool {
        self.memory_bytes.value == wanted.memory_bytes.value
            && self.disk_bytes.value == wanted.disk_bytes.value
            && self.inodes.value == wanted.inodes.value
            && self.visible_cores() == wanted.visible_cores()
    }

    /// Whether the disk fits a tmpfs that is charged to the memory group: at most half the memory.
    #[must_use]
    pub fn disk_fits_memory(&self) -> bool {
        self.disk_bytes.value <= self.memory_bytes.value / 2
    }

    /// Shrinks a defaulted disk to what the memory can hold, so that a small memory alone is a
    /// complete request.
    #[must_use]
    pub fn settled(mut self) -> Self {
        if !self.disk_bytes.is_asked() {
            let most = (self.memory_bytes.value / 2).max(64 << 10);
            self.disk_bytes.value = self.disk_bytes.value.min(most);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_hold_their_own_bounds() {
        assert_eq!(Limits::default().check(), Ok(()));
        assert!(Limits::default().disk_fits_memory());
    }

    #[test]
    fn a_bad_limit_is_named_with_its_bounds() {
        let limits = Limits {
            memory_bytes: Limit::asked(5),
            ..Limits::default()
        };
        let error = limits.check().unwrap_err();
        assert_eq!(error.field, "memory");
        assert_eq!(
            error.to_string(),
            "limit `memory` is 5: allowed is 8388608 to 1125899906842624"
        );
    }

    #[test]
    fn a_small_memory_shrinks_only_a_defaulted_disk() {
        let small = Limits {
            memory_bytes: Limit::asked(64 << 20),
            ..Limits::default()
        };
        assert_eq!(small.clone().settled().disk_bytes.value, 32 << 20);
        let asked = Limits {
            disk_bytes: Limit::asked(1 << 30),
            ..small
        };
        assert_eq!(asked.settled().disk_bytes.value, 1 << 30);
    }

    #[test]
    fn cores_seen_are_the_share_rounded_up() {
        for (milli, cores) in [(10, 1), (1000, 1), (1001, 2), (2500, 3)] {
            let limits = Limits {
                cpu_milli: Limit::asked(milli),
                ..Limits::default()
            };
            assert_eq!(limits.visible_cores(), cores);
        }
    }
}
