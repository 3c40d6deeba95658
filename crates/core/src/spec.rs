//! What is asked: a sandbox, and a command in it. Builder types for what does not run yet.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{ErrorKind, PublicError};
use crate::image::ImageSpec;
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
    /// The image whose file system is its root, in the place of the host's system directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSpec>,
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

/// What makes a run the same each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Determinism {
    /// Of every random number. Not for keys: whoever knows the seed knows them.
    pub seed: u64,
    /// What the wall clock stands at, in milliseconds since 1970.
    pub clock_ms: u64,
}

/// What the wall clock of a deterministic run stands at where nobody says: the beginning of the year 2000.
pub const FIXED_CLOCK_MS: u64 = 946_684_800_000;

impl Determinism {
    /// Random numbers of this seed, the clock at [`FIXED_CLOCK_MS`].
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        Self {
            seed,
            clock_ms: FIXED_CLOCK_MS,
        }
    }
}

/// The WebAssembly module of a run: what a host runs in the place of a program of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModuleSpec {
    /// Of the bytes of the module, as they were before they were compiled.
    pub digest: Digest,
    /// What people call it: a file name, or that of a template. 1 to 255 bytes without control characters.
    pub name: String,
    /// Of the script, where the module is an interpreter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Digest>,
    /// Fixed clocks and seeded random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub determinism: Option<Determinism>,
    /// Most instructions, as the engine weighs them; from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuel: Option<u64>,
}

/// Most bytes of [`ModuleSpec::name`].
pub const MODULE_NAME_MAX: usize = 255;

impl ModuleSpec {
    /// Checks its bounds.
    ///
    /// # Errors
    /// Names the field, the value and the limit.
    pub fn check(&self) -> Result<(), PublicError> {
        let name = &self.name;
        if !(1..=MODULE_NAME_MAX).contains(&name.len()) || name.chars().any(char::is_control) {
            return Err(invalid(format!(
                "`module` name {:?} must have 1 to {MODULE_NAME_MAX} bytes and no control characters",
                name.chars().take(80).collect::<String>()
            )));
        }
        if self.fuel == Some(0) {
            return Err(invalid("`fuel` is 0: at least 1 is needed".to_owned()));
        }
        Ok(())
    }
}

/// A script for an interpreter in WebAssembly, handed over as text, since there need be no directory to find it
/// in. Arguments, contract and record have its name, [`ModuleSpec::script`] its digest; its text is in neither.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// The place of its name among the arguments; from 1, since the interpreter's own name comes first.
    pub at: usize,
    /// What it says; at most [`SCRIPT_BYTES_MAX`], no NUL byte.
    pub text: String,
}

/// Longest script in bytes.
pub const SCRIPT_BYTES_MAX: usize = 512 << 10;

impl std::fmt::Debug for Script {
    /// Without the text, which is nobody's but the caller's.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Script({}, {} bytes)", self.at, self.text.len())
    }
}

impl Script {
    /// Digest of its text.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(self.text.as_bytes())
    }

    /// Checks it against the arguments it comes with.
    ///
    /// # Errors
    /// Names the value and the limit.
    pub fn check(&self, argv: &[String]) -> Result<(), PublicError> {
        if self.at == 0 || self.at >= argv.len() {
            return Err(invalid(format!(
                "`script` is argument {} of {}: it comes behind the interpreter's name",
                self.at,
                argv.len()
            )));
        }
        if self.text.len() > SCRIPT_BYTES_MAX {
            return Err(invalid(format!(
                "`script` has {} bytes: most is {SCRIPT_BYTES_MAX}",
                self.text.len()
            )));
        }
        if self.text.contains('\0') {
            return Err(invalid("`script` has a NUL byte".to_owned()));
        }
        Ok(())
    }

    /// The arguments as the interpreter gets them: `--script NAME TEXT` in the place of the name.
    #[must_use]
    pub fn argv(&self, argv: &[String]) -> Vec<String> {
        let (before, rest) = argv.split_at(self.at.min(argv.len()));
        let mut whole = before.to_vec();
        whole.push("--script".to_owned());
        whole.extend(rest.first().cloned());
        whole.push(self.text.clone());
        whole.extend(rest.iter().skip(1).cloned());
        whole
    }
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
    /// The module that is run with these arguments, where it is no program of the sandbox that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<ModuleSpec>,
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
            module: None,
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
        self.module.as_ref().map_or(Ok(()), ModuleSpec::check)?;
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
    fn a_module_is_checked_and_its_absence_is_not_written() {
        let module = ModuleSpec {
            digest: Digest::of(b"wasm"),
            name: "tool.wasm".to_owned(),
            script: None,
            determinism: None,
            fuel: Some(1),
        };
        let plain = ExecSpec::command(["tool.wasm"]);
        assert!(!serde_json::to_string(&plain).unwrap().contains("module"));
        let with = |module| ExecSpec {
            module: Some(module),
            ..plain.clone()
        };
        let good = with(module.clone());
        assert_eq!(good.check(), Ok(()));
        let text = serde_json::to_string(&good).unwrap();
        assert_eq!(serde_json::from_str::<ExecSpec>(&text).unwrap(), good);
        let named = |name: &str| ModuleSpec {
            name: name.to_owned(),
            ..module.clone()
        };
        let idle = ModuleSpec {
            fuel: Some(0),
            ..module.clone()
        };
        for bad in [named(""), named("a\nb"), named(&"x".repeat(256)), idle] {
            assert!(with(bad.clone()).check().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_script_comes_as_text_in_the_place_of_its_name() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let argv: Vec<String> = words(&["python", "-u", "a.py", "x"]);
        let script = Script {
            at: 2,
            text: "print(1)".to_owned(),
        };
        assert_eq!(script.check(&argv), Ok(()));
        let given: Vec<String> = words(&["python", "-u", "--script", "a.py", "print(1)", "x"]);
        assert_eq!(script.argv(&argv), given);
        assert_eq!(script.digest(), Digest::of(b"print(1)"));
        assert!(!format!("{script:?}").contains("print"));
        for (at, text, word) in [
            (0, String::new(), "behind the interpreter"),
            (4, String::new(), "argument 4 of 4"),
            (2, "x".repeat(SCRIPT_BYTES_MAX + 1), "most is 524288"),
            (2, "\0".to_owned(), "NUL"),
        ] {
            let error = Script { at, text }.check(&argv).unwrap_err();
            assert!(error.message.contains(word), "{error}");
        }
    }

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
