//! From flags to a typed request: one pure function, so that every flag is tested as a table.
//!
//! It reads no file, no clock and no environment: what it needs to know of the caller is in
//! [`Caller`].

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use leasehold_core::isolation::{Isolation, TrustClass, effective};
use leasehold_core::limits::{Limit, LimitError, Limits, OnOutputLimit};
use leasehold_core::quantity::{self, QuantityError};
use leasehold_core::spec::{ExecSpec, SandboxSpec, TtySize, Warm, WorkspaceMode, base_environment};

use super::image::Start;
use super::program::Program;
use crate::cli::{BoundaryFlags, LimitFlags, RunFlags};
use crate::fault::Fault;

/// What standard input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StdinKind {
    /// A terminal.
    Terminal,
    /// Nothing can come from it.
    Empty,
    /// A pipe, file or socket.
    Stream,
}

/// What must be known of the caller.
pub(crate) struct Caller<'a> {
    /// Reads a variable of the caller's environment.
    pub(crate) env: &'a dyn Fn(&str) -> Option<OsString>,
    /// What standard input is.
    pub(crate) stdin: StdinKind,
    /// Size of the terminal at standard input and output, if both are one.
    pub(crate) terminal: Option<TtySize>,
}

/// What the caller wants to read at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Telling {
    /// The command's output, then one line on standard error.
    Line,
    /// The command's output alone.
    Quiet,
    /// The record alone.
    Json,
}

/// A typed request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    /// The computer.
    pub(crate) sandbox: SandboxSpec,
    /// The command.
    pub(crate) exec: ExecSpec,
    /// Host directory at `/workspace`.
    pub(crate) workspace: Option<PathBuf>,
    /// Directory that artifacts are written to.
    pub(crate) out: Option<PathBuf>,
    /// Whether artifacts that this host's tools may execute are written, too.
    pub(crate) unsafe_artifacts: bool,
    /// What to tell.
    pub(crate) telling: Telling,
    /// Whether to return only when removal was observed.
    pub(crate) wait_cleanup: bool,
}

/// Makes the request; of a module or in an image, where there is one.
///
/// # Errors
/// Names the flag, its value and the mend.
pub(crate) fn build(
    flags: &RunFlags,
    caller: &Caller<'_>,
    program: Option<&Program>,
    image: Option<&Start>,
) -> Result<Plan, Fault> {
    boundary(&flags.boundary, program.is_some())?;
    let (mode, workspace) = workspace(flags.workspace.as_deref())?;
    let tty = match (flags.tty, caller.terminal) {
        (false, _) => None,
        (true, Some(size)) => Some(size),
        (true, None) => {
            return Err(
                Fault::usage("`--tty` needs a terminal here, and this is none")
                    .hint("leave --tty away, or add --stdin to pass standard input on"),
            );
        }
    };
    if tty.is_some() && flags.json {
        return Err(Fault::usage("`--tty` and `--json` exclude each other"));
    }
    if let Some(directory) = flags.workdir.as_deref()
        && !directory.starts_with('/')
    {
        return Err(Fault::usage(format!(
            "`--workdir` is {directory:?}: an absolute path inside the sandbox is needed"
        )));
    }
    let base = image.map_or_else(base_environment, Start::environment);
    let exec = ExecSpec {
        argv: match (program, image) {
            (Some(program), _) => program.argv.clone(),
            (None, Some(image)) if flags.command.is_empty() => image.command()?,
            (None, _) => texts(&flags.command, "command")?,
        },
        env: environment(base, &flags.env, caller, tty.is_some())?,
        cwd: flags.workdir.clone().or_else(|| image?.directory()),
        tty,
        stdin: tty.is_none() && feeds_stdin(flags, caller.stdin),
        artifacts: flags.artifact.clone(),
        module: program.map(|program| program.spec.clone()),
    };
    exec.check()?;
    let mut sandbox = sandbox(&flags.limits, flags.warm.as_deref(), mode)?;
    sandbox.image = image.map(|image| image.spec.clone());
    Ok(Plan {
        sandbox,
        exec,
        workspace,
        out: flags.out.clone(),
        unsafe_artifacts: flags.unsafe_artifacts,
        telling: telling(flags),
        wait_cleanup: flags.wait_cleanup || flags.json,
    })
}

/// What the flags say of telling.
pub(crate) fn telling(flags: &RunFlags) -> Telling {
    match (flags.json, flags.quiet) {
        (true, _) => Telling::Json,
        (false, true) => Telling::Quiet,
        (false, false) => Telling::Line,
    }
}

/// Makes the sandbox half of a request; a pool has only this.
///
/// # Errors
/// As [`build`].
pub(crate) fn sandbox(
    flags: &LimitFlags,
    warm: Option<&str>,
    workspace: WorkspaceMode,
) -> Result<SandboxSpec, Fault> {
    let warm = match warm {
        None => None,
        Some("python") => Some(Warm::Python),
        Some(other) => {
            return Err(Fault::usage(format!(
                "`--warm` is {other:?}: known is python"
            )));
        }
    };
    Ok(SandboxSpec {
        limits: limits(flags)?,
        workspace,
        warm,
        image: None,
        allow_unenforced: flags.allow_unenforced,
    })
}

fn feeds_stdin(flags: &RunFlags, kind: StdinKind) -> bool {
    match kind {
        StdinKind::Empty => false,
        StdinKind::Terminal => flags.stdin,
        StdinKind::Stream => !flags.no_stdin,
    }
}

fn named<T>(flag: &str, value: Result<T, QuantityError>) -> Result<T, Fault> {
    value.map_err(|error| Fault::usage(format!("`--{flag}`: {error}")))
}

pub(super) fn count<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, Fault> {
    text.parse().map_err(|_| {
        Fault::usage(format!(
            "`--{flag}`: `{}` is not a whole number",
            text.chars().take(64).collect::<String>()
        ))
    })
}

fn limits(flags: &LimitFlags) -> Result<Limits, Fault> {
    let mut limits = Limits::default();
    if let Some(text) = &flags.cpu {
        limits.cpu_milli = Limit::asked(named("cpu", quantity::parse_cpu(text))?);
    }
    let sizes = [
        ("memory", &flags.memory, &mut limits.memory_bytes),
        ("disk", &flags.disk, &mut limits.disk_bytes),
        (
            "output-limit",
            &flags.output_limit,
            &mut limits.output_bytes,
        ),
    ];
    for (flag, text, limit) in sizes {
        if let Some(text) = text {
            *limit = Limit::asked(named(flag, quantity::parse_bytes(text))?);
        }
    }
    if let Some(text) = &flags.inodes {
        limits.inodes = Limit::asked(count("inodes", text)?);
    }
    if let Some(text) = &flags.pids {
        limits.pids = Limit::asked(count("pids", text)?);
    }
    if let Some(text) = &flags.files {
        limits.files = Limit::asked(count("files", text)?);
    }
    if let Some(text) = &flags.timeout {
        limits.wall_ms = Limit::asked(millis("timeout", text)?);
    }
    if let Some(text) = &flags.cpu_time {
        limits.cpu_time_ms = Some(Limit::asked(millis("cpu-time", text)?));
    }
    if let Some(text) = &flags.grace {
        limits.grace_ms = millis("grace", text)?;
    }
    limits.on_output_limit = match flags.on_output_limit.as_deref() {
        None | Some("cut") => OnOutputLimit::Cut,
        Some("kill") => OnOutputLimit::Kill,
        Some(other) => {
            return Err(Fault::usage(format!(
                "`--on-output-limit` is {other:?}: allowed are cut and kill"
            )));
        }
    };
    let limits = limits.settled();
    limits
        .check()
        .map_err(|error| Fault::usage(beyond(&error)))?;
    Ok(limits)
}

/// A limit out of its bounds, in the units in which the flag is typed.
fn beyond(error: &LimitError) -> String {
    let typed: fn(u64) -> String = match error.field {
        "memory" | "disk" | "output-limit" => quantity::write_bytes,
        "timeout" | "cpu-time" | "grace" => quantity::write_millis,
        "cpu" => |milli| format!("{}.{:03}", milli / 1_000, milli % 1_000),
        _ => |count| count.to_string(),
    };
    format!(
        "`--{}` is {}: allowed is {} to {}",
        error.field,
        typed(error.value),
        typed(error.low),
        typed(error.high)
    )
}

fn millis(flag: &str, text: &str) -> Result<u64, Fault> {
    let duration = named(flag, quantity::parse_duration(text))?;
    Ok(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Invariant I2 for a bare command: what is asked, or what the caller's word on trust demands; a
/// stronger boundary than there is here is refused, never replaced.
fn boundary(flags: &BoundaryFlags, module: bool) -> Result<(), Fault> {
    let preference = match flags.isolation.as_deref() {
        None => Isolation::Process,
        Some(word) => Isolation::ALL
            .into_iter()
            .find(|isolation| isolation.word() == word)
            .ok_or_else(|| {
                let known: Vec<_> = Isolation::ALL.iter().map(|each| each.word()).collect();
                Fault::usage(format!(
                    "`--isolation` is {word:?}: allowed are {}",
                    known.join(", ")
                ))
            })?,
    };
    let trust = trust(flags.trust.as_deref())?;
    let wanted = effective(preference, Isolation::Process, trust);
    let there = match module {
        true => Isolation::Wasm,
        false => Isolation::Process,
    };
    if wanted <= there {
        return Ok(());
    }
    let why = if trust.required() > preference {
        format!(
            "trust class `{}` demands it",
            flags.trust.as_deref().unwrap_or("first-party")
        )
    } else {
        "it was asked for".to_owned()
    };
    Err(Fault::host(format!(
        "sandbox unavailable: isolation `{}` is not built yet ({why}), and nothing weaker is used instead",
        wanted.word()
    ))
    .hint(match module {
        true => "isolation `wasm` is what there is for WebAssembly; it fits only what you vouch for yourself",
        false => "isolation `process` is what there is; it fits only what you vouch for yourself",
    }))
}

/// The class that `--trust` names.
///
/// # Errors
/// When it names none.
pub(crate) fn trust(word: Option<&str>) -> Result<TrustClass, Fault> {
    match word {
        None | Some("first-party" | "first_party") => Ok(TrustClass::FirstParty),
        Some("verified") => Ok(TrustClass::Verified),
        Some("untrusted") => Ok(TrustClass::Untrusted),
        Some(other) => Err(Fault::usage(format!(
            "`--trust` is {other:?}: allowed are first-party, verified and untrusted"
        ))),
    }
}

/// The directory and mode that `--workspace` names.
///
/// # Errors
/// Names the mode and what is allowed.
pub(crate) fn workspace(text: Option<&OsStr>) -> Result<(WorkspaceMode, Option<PathBuf>), Fault> {
    let Some(text) = text else {
        return Ok((WorkspaceMode::Ephemeral, None));
    };
    let bytes = text.as_bytes();
    let (path, mode) = match bytes.iter().rposition(|byte| *byte == b':') {
        Some(at) => match &bytes[at + 1..] {
            b"ro" => (&bytes[..at], WorkspaceMode::ReadOnly),
            b"clone" => (&bytes[..at], WorkspaceMode::Clone),
            b"rw" => (&bytes[..at], WorkspaceMode::ReadWrite),
            other if other.contains(&b'/') => (bytes, WorkspaceMode::Clone),
            other => {
                return Err(Fault::usage(format!(
                    "`--workspace` mode is {:?}: allowed are ro, clone and rw",
                    String::from_utf8_lossy(other)
                ))
                .hint("for a directory whose name has a colon, name the mode: DIR:clone"));
            }
        },
        None => (bytes, WorkspaceMode::Clone),
    };
    if path.is_empty() {
        return Err(Fault::usage("`--workspace` names no directory"));
    }
    Ok((mode, Some(PathBuf::from(OsString::from_vec(path.to_vec())))))
}

fn text(value: &OsStr, field: &str) -> Result<String, Fault> {
    value.to_str().map(str::to_owned).ok_or_else(|| {
        Fault::usage(format!(
            "`{field}` {:?} is not UTF-8",
            value.to_string_lossy()
        ))
    })
}

/// Arguments as text.
///
/// # Errors
/// Names the one that is no UTF-8.
pub(crate) fn texts(values: &[OsString], field: &str) -> Result<Vec<String>, Fault> {
    values.iter().map(|value| text(value, field)).collect()
}

/// The declared environment, over what is there without a word.
///
/// # Errors
/// Names the entry and the mend.
pub(crate) fn environment(
    base: BTreeMap<String, String>,
    named: &[OsString],
    caller: &Caller<'_>,
    tty: bool,
) -> Result<BTreeMap<String, String>, Fault> {
    let mut env = base;
    if tty {
        let term = (caller.env)(crate::env::TERM.name).and_then(|term| term.into_string().ok());
        env.insert(
            "TERM".to_owned(),
            term.unwrap_or_else(|| "xterm-256color".to_owned()),
        );
    }
    for entry in named {
        let entry = text(entry, "--env")?;
        let (name, value) = match entry.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => {
                let value = (caller.env)(&entry).ok_or_else(|| {
                    Fault::usage(format!("`--env {entry}`: there is no such variable here"))
                        .hint(format!("give the value: --env {entry}=VALUE"))
                })?;
                let value = text(&value, "--env")?;
                (entry, value)
            }
        };
        env.insert(name, value);
    }
    Ok(env)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn plan_as(stdin: StdinKind, terminal: Option<TtySize>, flags: &[&str]) -> Result<Plan, Fault> {
        let argv = ["leasehold", "run"].iter().chain(flags).copied();
        let cli = Cli::try_parse_from(argv.chain(["--", "true"])).unwrap();
        let Command::Run(flags) = cli.command else {
            panic!("not a run");
        };
        let env = |name: &str| match name {
            "TOKEN" => Some(OsString::from("s3")),
            "TERM" => Some(OsString::from("vt100")),
            "BAD" => Some(OsString::from_vec(vec![0xff])),
            _ => None,
        };
        build(
            &flags,
            &Caller {
                env: &env,
                stdin,
                terminal,
            },
            None,
            None,
        )
    }

    fn plan(flags: &[&str]) -> Result<Plan, Fault> {
        plan_as(StdinKind::Empty, None, flags)
    }

    const SIZE: TtySize = TtySize { rows: 24, cols: 80 };

    #[test]
    fn nothing_asked_is_all_defaults() {
        let plan = plan(&[]).unwrap();
        assert_eq!(plan.sandbox, SandboxSpec::default());
        assert_eq!(plan.exec.argv, ["true"]);
        assert!(!plan.exec.stdin && plan.exec.tty.is_none() && !plan.wait_cleanup);
        assert_eq!(plan.telling, Telling::Line);
    }

    #[test]
    fn every_limit_flag_reaches_its_field_as_a_promise() {
        let plan = plan(&[
            "--cpu=0.5",
            "--memory=64M",
            "--disk=1M",
            "--inodes=100",
            "--pids=7",
            "--files=64",
            "--timeout=3s",
            "--cpu-time=2s",
            "--grace=100ms",
            "--output-limit=1K",
            "--on-output-limit=kill",
            "--allow-unenforced",
        ])
        .unwrap();
        let want = Limits {
            cpu_milli: Limit::asked(500),
            memory_bytes: Limit::asked(64 << 20),
            disk_bytes: Limit::asked(1 << 20),
            inodes: Limit::asked(100),
            pids: Limit::asked(7),
            files: Limit::asked(64),
            wall_ms: Limit::asked(3_000),
            cpu_time_ms: Some(Limit::asked(2_000)),
            grace_ms: 100,
            output_bytes: Limit::asked(1_024),
            on_output_limit: OnOutputLimit::Kill,
            ..Limits::default()
        };
        assert_eq!(plan.sandbox.limits, want);
        assert!(plan.sandbox.allow_unenforced);
    }

    #[test]
    fn a_small_memory_alone_is_a_whole_request() {
        let limits = plan(&["--memory=32M"]).unwrap().sandbox.limits;
        assert_eq!(limits.disk_bytes, Limit::defaulted(16 << 20));
    }

    #[test]
    fn wrong_values_name_flag_and_value() {
        for (flags, words) in [
            (&["--memory=lots"][..], &["--memory", "lots", "512M"][..]),
            (&["--memory=1"], &["--memory", "is 1:", "8M to 1024T"]),
            (&["--cpu=0"], &["--cpu"]),
            (&["--cpu=0.001"], &["--cpu", "0.001", "0.01 to 1024"]),
            (&["--pids=many"], &["--pids", "many"]),
            (&["--pids=0"], &["--pids", "1000000"]),
            (&["--timeout=0"], &["--timeout", "is 0", "1ms"]),
            (&["--on-output-limit=sigh"], &["--on-output-limit", "sigh"]),
            (&["--isolation=jail"], &["--isolation", "jail", "microvm"]),
            (&["--trust=me"], &["--trust", "me"]),
            (&["--warm=perl"], &["--warm", "perl", "python"]),
            (&["--workspace=x:rx"], &["--workspace", "rx", "clone"]),
            (&["--workspace=:rw"], &["--workspace"]),
            (&["--env=NOPE"], &["NOPE"]),
            (&["--env=BAD"], &["--env"]),
            (&["--env==x"], &["env"]),
            (&["--workdir=x"], &["--workdir", "x", "absolute"]),
            (&["--artifact=../x"], &["artifact"]),
            (&["--tty"], &["--tty"]),
        ] {
            let fault = plan(flags).unwrap_err();
            assert_eq!(fault.status(), 2, "{flags:?}");
            for word in words {
                assert!(fault.chain().contains(word), "{flags:?}: {}", fault.chain());
            }
        }
    }

    #[test]
    fn i2_a_stronger_boundary_is_refused_not_replaced() {
        for (flags, word) in [
            (&["--isolation=microvm"][..], "microvm"),
            (&["--trust=untrusted"], "gvisor"),
            (&["--trust=verified"], "container"),
            (&["--trust=untrusted", "--isolation=process"], "gvisor"),
        ] {
            let fault = plan(flags).unwrap_err();
            assert_eq!(fault.status(), 125, "{flags:?}");
            assert!(fault.chain().contains(word), "{}", fault.chain());
        }
        assert!(plan(&["--trust=first-party", "--isolation=process"]).is_ok());
    }

    #[test]
    fn workspaces() {
        use WorkspaceMode as W;
        for (text, mode, path) in [
            ("d", W::Clone, "d"),
            ("d:clone", W::Clone, "d"),
            ("d:ro", W::ReadOnly, "d"),
            ("d:rw", W::ReadWrite, "d"),
            ("a:b/c", W::Clone, "a:b/c"),
            ("a:b:ro", W::ReadOnly, "a:b"),
        ] {
            let plan = plan(&["--workspace", text]).unwrap();
            assert_eq!(plan.sandbox.workspace, mode, "{text}");
            assert_eq!(plan.workspace, Some(PathBuf::from(path)), "{text}");
        }
    }

    #[test]
    fn nothing_of_the_environment_is_inherited_but_what_is_named() {
        let env = plan(&["--env=TOKEN", "--env=A=b=c", "--env=LANG=de"]).unwrap();
        let names: Vec<_> = env.exec.env.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["A", "HOME", "LANG", "LOGNAME", "PATH", "TOKEN", "USER"]
        );
        assert_eq!(env.exec.env["TOKEN"], "s3");
        assert_eq!(env.exec.env["A"], "b=c");
        assert_eq!(env.exec.env["LANG"], "de");
        let tty = plan_as(StdinKind::Terminal, Some(SIZE), &["--tty"]).unwrap();
        assert_eq!(tty.exec.env["TERM"], "vt100");
        assert_eq!(tty.exec.tty, Some(SIZE));
    }

    #[test]
    fn standard_input_is_passed_on_by_what_it_is() {
        use StdinKind as S;
        for (kind, flags, passed) in [
            (S::Stream, &[][..], true),
            (S::Stream, &["-n"], false),
            (S::Terminal, &[], false),
            (S::Terminal, &["-i"], true),
            (S::Empty, &[], false),
            (S::Empty, &["-i"], false),
        ] {
            let plan = plan_as(kind, None, flags).unwrap();
            assert_eq!(plan.exec.stdin, passed, "{kind:?} {flags:?}");
        }
    }

    #[test]
    fn json_waits_for_the_whole_record() {
        assert!(plan(&["--json"]).unwrap().wait_cleanup);
        assert!(plan(&["--wait-cleanup"]).unwrap().wait_cleanup);
    }
}
