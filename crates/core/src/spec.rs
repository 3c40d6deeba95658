//! What is asked: a sandbox, and a command in it. Builder types for what does not run yet.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, PublicError};
use crate::limits::Limits;

/// How the tree at `/workspace` comes to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum WorkspaceMode {
    /// Empty, gone afterwards.
    #[default]
    Ephemeral,
    /// A host directory, readable only. Its sockets and pipes are dead inside.
    ReadOnly,
    /// A disposable copy-on-write view of a host directory; the directory itself never changes.
    Clone,
    /// The host directory itself, writable. Must be said aloud. Files made inside belong to its
    /// owner outside; a socket in it that the owner may connect to can be connected to from inside.
    ReadWrite,
}

impl WorkspaceMode {
    /// Every mode.
    pub const ALL: [Self; 4] = [
        Self::Ephemeral,
        Self::ReadOnly,
        Self::Clone,
        Self::ReadWrite,
    ];

    /// The word used in policies and records.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ephemeral => "ephemeral",
            Self::ReadOnly => "read_only",
            Self::Clone => "clone",
            Self::ReadWrite => "read_write",
        }
    }

    /// Whether a directory descriptor comes with the request.
    #[must_use]
    pub fn needs_directory(self) -> bool {
        match self {
            Self::Ephemeral => false,
            Self::ReadOnly | Self::Clone | Self::ReadWrite => true,
        }
    }
}

/// A pre-warmed program that waits in a parked sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Warm {
    /// `python3` with the usual modules of its library imported.
    Python,
}

/// One bounded computer, as asked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// What bounds it.
    pub limits: Limits,
    /// Its writable tree.
    #[serde(default)]
    pub workspace: WorkspaceMode,
    /// A pre-warmed interpreter instead of the plain stub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<Warm>,
    /// Defaulted or asked limits that this host cannot enforce are let through and recorded.
    /// Only the local single-user command line may set it.
    #[serde(default)]
    pub allow_unenforced: bool,
}

/// Size of a terminal, in character cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TtySize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// One command, as asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    /// Program and arguments; at least one, none with a NUL byte.
    pub argv: Vec<String>,
    /// The whole declared environment; nothing is inherited.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Absolute working directory inside; `/workspace` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// A terminal of the sandbox's own instead of pipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TtySize>,
    /// Whether standard input is a pipe that the caller feeds; else it reads as empty.
    #[serde(default)]
    pub stdin: bool,
    /// Globs below `/workspace` of files to keep, such as `out/*.csv`.
    #[serde(default)]
    pub artifacts: Vec<String>,
}

/// Search path inside.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment of a command when nobody names another: nothing of the host's.
#[must_use]
pub fn base_environment() -> BTreeMap<String, String> {
    [
        ("PATH", PATH),
        ("HOME", "/home/user"),
        ("USER", "user"),
        ("LOGNAME", "user"),
        ("LANG", "C.UTF-8"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// Most bytes of arguments and environment together.
pub const EXEC_BYTES_MAX: usize = 1 << 20;
/// Most arguments.
pub const ARGS_MAX: usize = 4_096;
/// Most environment entries.
pub const ENV_MAX: usize = 1_024;
/// Most artifact globs.
pub const GLOBS_MAX: usize = 64;

fn invalid(message: String) -> PublicError {
    PublicError::new(ErrorKind::Invalid, message)
}

impl ExecSpec {
    /// A command with nothing else asked.
    #[must_use]
    pub fn command<I: IntoIterator<Item = S>, S: Into<String>>(argv: I) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            cwd: None,
            tty: None,
            stdin: false,
            artifacts: Vec::new(),
        }
    }

    /// Checks every bound of DESIGN I10 that concerns a command.
    ///
    /// # Errors
    /// Names the field, the value and the limit.
    pub fn check(&self) -> Result<(), PublicError> {
        if self.argv.first().is_none_or(String::is_empty) {
            return Err(invalid(
                "`command` is empty: name the program to run".to_owned(),
            ));
        }
        if self.argv.len() > ARGS_MAX {
            return Err(invalid(format!(
                "`command` has {} arguments: most is {ARGS_MAX}",
                self.argv.len()
            )));
        }
        if self.env.len() > ENV_MAX {
            return Err(invalid(format!(
                "`env` has {} entries: most is {ENV_MAX}",
                self.env.len()
            )));
        }
        if self.artifacts.len() > GLOBS_MAX {
            return Err(invalid(format!(
                "`artifact` has {} globs: most is {GLOBS_MAX}",
                self.artifacts.len()
            )));
        }
        self.check_texts()
    }

    fn check_texts(&self) -> Result<(), PublicError> {
        for (at, argument) in self.argv.iter().enumerate() {
            if argument.contains('\0') {
                return Err(invalid(format!("`command` argument {at} has a NUL byte")));
            }
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(invalid(format!(
                    "`env` name {name:?} is empty or has `=` or a NUL byte"
                )));
            }
            if value.contains('\0') {
                return Err(invalid(format!("`env` value of {name:?} has a NUL byte")));
            }
        }
        if let Some(cwd) = &self.cwd
            && (!cwd.starts_with('/') || cwd.contains('\0'))
        {
            return Err(invalid(format!(
                "`cwd` {cwd:?} is not an absolute path inside the sandbox"
            )));
        }
        for glob in &self.artifacts {
            let climbs = glob.split('/').any(|part| part == "..");
            if glob.is_empty() || glob.len() > 4_096 || glob.contains('\0') || climbs {
                return Err(invalid(format!(
                    "`artifact` {glob:?} must be a relative glob without `..`, at most 4096 bytes"
                )));
            }
        }
        let bytes: usize = self.argv.iter().map(|a| a.len() + 1).sum::<usize>()
            + self
                .env
                .iter()
                .map(|(n, v)| n.len() + v.len() + 2)
                .sum::<usize>();
        if bytes > EXEC_BYTES_MAX {
            return Err(invalid(format!(
                "`command` and `env` have {bytes} bytes: most is {EXEC_BYTES_MAX}"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_commands_are_refused_with_the_field_named() {
        let good = ExecSpec::command(["true"]);
        assert_eq!(good.check(), Ok(()));
        let cases: [(ExecSpec, &str); 6] = [
            (ExecSpec::command([""; 0]), "command"),
            (ExecSpec::command(["a\0b"]), "command"),
            (
                ExecSpec {
                    env: [("A=".to_owned(), String::new())].into(),
                    ..good.clone()
                },
                "env",
            ),
            (
                ExecSpec {
                    cwd: Some("x".into()),
                    ..good.clone()
                },
                "cwd",
            ),
            (
                ExecSpec {
                    artifacts: vec!["a/../b".into()],
                    ..good.clone()
                },
                "artifact",
            ),
            (
                ExecSpec {
                    argv: vec!["x".repeat(EXEC_BYTES_MAX)],
                    ..good
                },
                "command",
            ),
        ];
        for (spec, field) in cases {
            let error = spec.check().unwrap_err();
            assert!(error.message.contains(field), "{error}");
        }
    }
}
