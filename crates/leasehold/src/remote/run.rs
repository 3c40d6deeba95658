//! `leasehold run` through a daemon.
//!
//! The daemon decides what the flags may be: policy, tenant and tool have their say. A host directory
//! never goes over HTTP: to a daemon on this machine its descriptor is passed over the local socket, to
//! one elsewhere its content is sent as an archive.

use std::ffi::OsString;
use std::io::Read;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use leasehold_core::id::RunId;
use leasehold_core::spec::base_environment;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Map, Value, json};
use signal_hook::consts::signal::SIGINT;

use super::Remote;
use super::directory::{self, Offered};
use super::module;
use super::runs::{Printer, follow, status, tell, tell_failure};
use crate::cli::{LimitFlags, RunFlags};
use crate::fault::Fault;
use crate::run::export::Destination;
use crate::run::program;
use crate::run::request::{self, Caller, StdinKind, Telling};
use crate::run::signals::Signals;
use crate::voice;

/// Most bytes of standard input that are sent with a request.
const STDIN_MAX: u64 = leasehold_control::request::STDIN_MAX as u64;

/// Runs the command or the tool through a daemon and returns the exit status.
///
/// # Errors
/// When it was refused or the daemon cannot be reached; an end of the run itself is no error.
pub(crate) fn main(remote: &Remote, flags: &RunFlags, caller: &Caller<'_>) -> Result<u8, Fault> {
    let begun = Instant::now();
    let (body, ticket) = body(remote, flags, caller)?;
    let telling = request::telling(flags);
    if telling == Telling::Line {
        voice::note(&format!("through the daemon at {}", remote.url()));
    }
    let signals =
        Signals::take().map_err(|error| Fault::host("cannot take signals").because(&error))?;
    let key = crate::run::new_run()?.to_string();
    let mut headers = vec![("idempotency-key", key.as_str())];
    headers.extend(
        ticket
            .iter()
            .map(|ticket| ("leasehold-directory", ticket.as_str())),
    );
    let view: Value = remote.send_with("POST", "/v1/runs?wait=none", &body, &headers)?;
    for warning in view["warnings"].as_array().into_iter().flatten() {
        voice::note(&format!("warning: {}", super::text(warning)));
    }
    let run = RunId::parse(view["run"].as_str().unwrap_or_default())
        .map_err(|error| Fault::host("the daemon named no run").because(&error))?;
    cancel_by_signal(signals, remote.clone(), run.clone());
    let mut printer = Printer {
        talk: telling == Telling::Line,
        print: telling != Telling::Json,
        workspace: false,
    };
    let mut view = follow(remote, &run, &mut printer)?;
    if flags.wait_cleanup || telling == Telling::Json {
        view = sealed(remote, &run)?;
    }
    match &flags.out {
        Some(out) => {
            let destination = Destination::open(out, flags.unsafe_artifacts)?;
            let artifacts = directory::artifacts(remote, &run)?;
            directory::take(remote, &run, &artifacts, &destination)?.tell();
        }
        None if telling == Telling::Line => tell_artifacts(&view, &run),
        None => {}
    }
    match telling {
        Telling::Json => voice::json(&view)?,
        Telling::Quiet => tell_failure(&view),
        Telling::Line => {
            tell(
                &view,
                u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
            );
        }
    }
    let status = status(&view);
    if status != 0 && printer.workspace && telling == Telling::Line && has_no_tree(flags) {
        voice::hint(
            "it had no /workspace: a module shares a process with others of its tenant unless --workspace DIR, \
             --artifact GLOB or --workdir /workspace asks for a sandbox of its own",
        );
    }
    Ok(status)
}

/// Whether a module was asked for in the way that has no directory.
fn has_no_tree(flags: &RunFlags) -> bool {
    let asked = flags.workspace.is_some() || flags.workdir.is_some() || !flags.artifact.is_empty();
    program::wanted(flags) && !asked
}

/// Says where the files are that nobody named a directory for.
fn tell_artifacts(view: &Value, run: &RunId) {
    let files = view["outcome"]["artifacts"].as_array();
    let kept = files.map_or(0, |files| {
        files
            .iter()
            .filter(|file| file["sha256"].is_string())
            .count()
    });
    if kept > 0 {
        voice::note(&format!(
            "artifacts ({kept}) are kept: `leasehold artifacts {run} --out DIR` writes them to a directory"
        ));
    }
}

/// Asks for the end at the first signal; at the second we leave, and the daemon ends the run.
fn cancel_by_signal(signals: Signals, remote: Remote, run: RunId) {
    std::thread::spawn(move || {
        let mut asked = 0;
        loop {
            let mut polled = [PollFd::new(&signals, PollFlags::IN)];
            let waited = poll(&mut polled, None);
            if waited.is_err_and(|errno| errno != rustix::io::Errno::INTR) {
                return;
            }
            if !signals.asked().end {
                continue;
            }
            asked += 1;
            if asked > 1 {
                voice::note(&format!("left run {run}; the daemon ends it"));
                // The one way out of a read that is under way; nothing is held that must be given back.
                let _ = signal_hook::low_level::emulate_default_handler(SIGINT);
                return;
            }
            let path = format!("/v1/runs/{run}/cancel");
            if let Err(fault) = remote.send::<Value>("POST", &path, &json!({})) {
                voice::fault(&fault);
            }
        }
    });
}

/// Waits until the removal was observed and the evidence is signed.
fn sealed(remote: &Remote, run: &RunId) -> Result<Value, Fault> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let view: Value = remote.get(&format!("/v1/runs/{run}"))?;
        if view["state"] == "sealed" || Instant::now() > end {
            return Ok(view);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What does not go through a daemon.
fn check(flags: &RunFlags) -> Result<(), Fault> {
    if flags.tty {
        return Err(Fault::usage("`--tty` does not go through a daemon")
            .hint("add --alone to run it without the daemon"));
    }
    if let Some(word) = flags.boundary.trust.as_deref() {
        request::trust(Some(word))?;
        return Err(Fault::usage(format!(
            "`--trust {word}` is for runs without a daemon: with one, policy says what is trusted",
        ))
        .hint("add --alone, or name the boundary with --isolation"));
    }
    if flags.tool.is_some() && (flags.fuel.is_some() || flags.deterministic.is_some()) {
        let message =
            "`--fuel` and `--deterministic` do not go with `--tool`: its manifest says them";
        return Err(Fault::usage(message));
    }
    if flags.tool.is_none() && !program::wanted(flags) {
        program::for_modules_alone(flags)?;
    }
    if flags.image.is_some() && flags.command.is_empty() {
        return Err(Fault::usage(
            "`--image` through a daemon needs a command: the contract has it before the image is there",
        )
        .hint("name one: leasehold run --image IMAGE -- CMD; or add --alone"));
    }
    if flags.warm.is_some() || flags.limits.allow_unenforced {
        return Err(Fault::usage(
            "`--warm` and `--allow-unenforced` are for runs without a daemon",
        )
        .hint("add --alone"));
    }
    Ok(())
}

/// The request, and the ticket of the directory that was passed beside it.
fn body(
    remote: &Remote,
    flags: &RunFlags,
    caller: &Caller<'_>,
) -> Result<(Value, Option<String>), Fault> {
    check(flags)?;
    let mut body = Map::new();
    match &flags.tool {
        Some(tool) => {
            body.insert("tool".into(), json!(tool));
            body.insert("input".into(), input(flags.input.as_deref())?);
        }
        None => {
            match program::wanted(flags) {
                true => module::put(remote, flags, &mut body)?,
                false => {
                    let command = request::texts(&flags.command, "command")?;
                    body.insert("command".into(), json!(command));
                }
            }
            if let Some((name, stdin)) = stdin(flags, caller)? {
                body.insert(name.into(), stdin);
            }
        }
    }
    let environment = request::environment(base_environment(), &flags.env, caller, false)?;
    if !flags.env.is_empty() {
        let named: Map<String, Value> = environment
            .into_iter()
            .filter(|(name, _)| is_named(&flags.env, name))
            .map(|(name, value)| (name, json!(value)))
            .collect();
        body.insert("env".into(), Value::Object(named));
    }
    let optional = [
        ("cwd", &flags.workdir),
        ("isolation", &flags.boundary.isolation),
        ("image", &flags.image),
        ("pull", &flags.daemon.pull),
        ("max_wait", &flags.daemon.max_wait),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            body.insert(name.into(), json!(value));
        }
    }
    if let Some(priority) = flags.daemon.priority {
        body.insert("priority".into(), json!(priority));
    }
    if !flags.artifact.is_empty() {
        body.insert("artifacts".into(), json!(flags.artifact));
    }
    let limits = limits(&flags.limits);
    if !limits.is_empty() {
        body.insert("limits".into(), Value::Object(limits));
    }
    let (mode, path) = request::workspace(flags.workspace.as_deref())?;
    let mut ticket = None;
    if let Some(path) = path {
        match directory::offer(remote, &path, mode)? {
            Offered::Ticket(named) => ticket = Some(named),
            Offered::Content(content) => {
                body.insert("workspace".into(), content);
            }
        }
    }
    Ok((Value::Object(body), ticket))
}

/// Whether `--env` names a variable; the base environment is the daemon's affair.
fn is_named(flags: &[OsString], name: &str) -> bool {
    let of = |flag: &OsString| {
        flag.to_str().map(|text| {
            text.split_once('=')
                .map_or(text, |(name, _)| name)
                .to_owned()
        })
    };
    flags.iter().filter_map(of).any(|named| named == name)
}

fn limits(flags: &LimitFlags) -> Map<String, Value> {
    let named = [
        ("cpu", &flags.cpu),
        ("memory", &flags.memory),
        ("disk", &flags.disk),
        ("inodes", &flags.inodes),
        ("pids", &flags.pids),
        ("files", &flags.files),
        ("timeout", &flags.timeout),
        ("cpu_time", &flags.cpu_time),
        ("grace", &flags.grace),
        ("output", &flags.output_limit),
        ("on_output", &flags.on_output_limit),
    ];
    let all = named.into_iter().filter_map(|(name, value)| {
        let text = value.as_ref()?;
        // Counts are numbers in a request; what is none is told by whoever reads it.
        let number = match name {
            "inodes" | "pids" | "files" => text.parse::<u64>().ok(),
            _ => None,
        };
        let value = number.map_or_else(|| json!(text), |number| json!(number));
        Some((name.to_owned(), value))
    });
    all.collect()
}

/// Input of a tool: JSON as typed, `@FILE`, or `-` for standard input.
fn input(text: Option<&str>) -> Result<Value, Fault> {
    let text = match text {
        None => return Ok(json!({})),
        Some("-") => {
            let mut text = String::new();
            std::io::stdin()
                .take(STDIN_MAX)
                .read_to_string(&mut text)
                .map_err(|error| Fault::usage("cannot read the input").because(&error))?;
            text
        }
        Some(text) => match text.strip_prefix('@') {
            Some(path) => super::read_text(std::path::Path::new(path))?,
            None => text.to_owned(),
        },
    };
    serde_json::from_str(&text).map_err(|error| {
        Fault::usage("`--input` is no JSON")
            .because(&error)
            .hint("such as --input '{\"text\": \"a b\"}', --input @file.json, or --input -")
    })
}

fn stdin(flags: &RunFlags, caller: &Caller<'_>) -> Result<Option<(&'static str, Value)>, Fault> {
    if flags.no_stdin || caller.stdin == StdinKind::Empty {
        return Ok(None);
    }
    if caller.stdin == StdinKind::Terminal {
        return match flags.stdin {
            false => Ok(None),
            true => Err(Fault::usage(
                "standard input is a terminal, which does not go through a daemon",
            )
            .hint("add --alone to run it without the daemon")),
        };
    }
    let mut bytes = Vec::new();
    std::io::stdin()
        .take(STDIN_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Fault::usage("cannot read standard input").because(&error))?;
    if bytes.len() as u64 > STDIN_MAX {
        return Err(Fault::usage(format!(
            "standard input is longer than {STDIN_MAX} bytes, which is the most a request takes"
        ))
        .hint("give it as a file of the workspace, or add --alone"));
    }
    Ok(Some(match String::from_utf8(bytes) {
        Ok(text) => ("stdin", json!(text)),
        Err(error) => ("stdin_base64", json!(BASE64.encode(error.as_bytes()))),
    }))
}
