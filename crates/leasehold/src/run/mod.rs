//! `leasehold run`: one command in a sandbox of its own, followed to its end.
//!
//! Start with [`request`] for what the flags mean and [`follow`] for what happens meanwhile. How the
//! run ended is the supervisor's word; nothing here decides it.

pub(crate) mod export;
pub(crate) mod follow;
pub(crate) mod image;
pub(crate) mod module;
pub(crate) mod program;
pub(crate) mod request;
pub(crate) mod screen;
pub(crate) mod signals;
pub(crate) mod stream;
pub(crate) mod summary;
pub(crate) mod supply;
pub(crate) mod tty;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold_backend::process::start::Begun;
use leasehold_core::error::ErrorKind;
use leasehold_core::id::RunId;
use leasehold_core::isolation::Isolation;
use leasehold_core::record::RunRecord;
use leasehold_protocol::supervisor::{Request, Target};
use leasehold_supervisor::paths::Paths;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use serde::Serialize;

use crate::cli::{AttachFlags, RunFlags};
use crate::fault::Fault;
use crate::remote::{Remote, no_daemon};
use crate::{env, place, template, voice};
use follow::{Follow, From, Joint, Outcome};
use image::Chosen;
use program::Program;
use request::{Caller, Plan, StdinKind, Telling};
use signals::Signals;

/// How many supervisors may be lost under one run before we give up.
const SUPERVISORS_MAX: u32 = 3;

/// Status of a run that nobody waited for to the end.
const LEFT: u8 = 130;

/// Runs the command and returns the exit status. A supervisor that was begun is told to go on where it is
/// wanted.
///
/// # Errors
/// When it could not be run; an end of the run itself is no error.
pub(crate) fn main(flags: &RunFlags, supervisor: Option<Begun>) -> Result<u8, Fault> {
    let begun = Instant::now();
    let caller = Caller {
        env: &env::read,
        stdin: stdin_kind(),
        terminal: tty::size(),
    };
    if !flags.alone
        && let Some(remote) = Remote::find(&place::paths()?)?
    {
        return crate::remote::run::main(&remote, flags, &caller);
    }
    if flags.tool.is_some() {
        return Err(no_daemon());
    }
    for_a_daemon_alone(flags)?;
    let paths = place::paths()?;
    let (image, program) = named(flags, &paths)?;
    let start = image.as_ref().map(|image| &image.start);
    let plan = request::build(flags, &caller, program.as_ref(), start)?;
    let workspace = plan.workspace.as_deref().map(open_workspace).transpose()?;
    let out = plan
        .out
        .as_deref()
        .map(|path| export::Destination::open(path, plan.unsafe_artifacts))
        .transpose()?;
    let talk = plan.telling == Telling::Line;
    if talk && program.is_some() {
        program::idle_limits(&flags.limits)
            .iter()
            .for_each(|told| voice::note(told));
    }
    // A module is compiled in a sandbox, so the supervisor comes first.
    let mut client = place::connect_or_go_on(&paths, supervisor)?;
    let single = program
        .as_ref()
        .map(|program| supply::make(&paths, &plan, program, talk))
        .transpose()?;
    let signals =
        Signals::take().map_err(|error| Fault::host("cannot take signals").because(&error))?;
    let run = new_run()?;
    let (target, exec) = (Target::New(plan.sandbox.clone()), plan.exec.clone());
    let (request, supplied) = match &single {
        Some(single) => single.ordered(run.clone(), target, exec),
        None => (Request::run(run.clone(), target, exec), Vec::new()),
    };
    let of_image = image.iter().flat_map(Chosen::descriptors);
    let fds: Vec<BorrowedFd<'_>> = workspace
        .iter()
        .map(AsFd::as_fd)
        .chain(of_image)
        .chain(supplied)
        .collect();
    let tag = client.call(request, &fds).map_err(place::client_fault)?;
    // The supervisor has the lease now, and gives it up when it has seen the sandbox gone.
    drop(image);
    let follow = Follow::new(client, &signals, tag, run.clone(), joint(&plan));
    match whole(follow, &paths, &run)? {
        Some(record) => conclude(&paths, &plan, out.as_ref(), &record, begun.elapsed()),
        None => Ok(LEFT),
    }
}

/// Refuses what only a daemon understands.
fn for_a_daemon_alone(flags: &RunFlags) -> Result<(), Fault> {
    let named = [
        ("--pull", flags.daemon.pull.is_some()),
        ("--max-wait", flags.daemon.max_wait.is_some()),
        ("--priority", flags.daemon.priority.is_some()),
    ];
    match named.into_iter().find(|(_, asked)| *asked) {
        None => Ok(()),
        Some(("--pull", _)) => Err(Fault::usage(
            "`--pull` is for runs through a daemon: alone an image has to be here before",
        )
        .hint("leasehold image pull IMAGE")),
        Some((flag, _)) => Err(Fault::usage(format!(
            "`{flag}` is for runs through a daemon: alone there is no queue to wait in"
        ))
        .hint("leave it away, or begin a daemon with `leasehold serve`")),
    }
}

/// The image that a command is to run in, and the module that it is: one of them, or neither.
fn named(flags: &RunFlags, paths: &Paths) -> Result<(Option<Chosen>, Option<Program>), Fault> {
    match &flags.image {
        // What the command names is of the image.
        Some(name) => {
            if flags.boundary.isolation.as_deref() == Some(Isolation::Wasm.word()) {
                return Err(
                    Fault::usage("`--image` and `--isolation wasm` exclude each other")
                        .hint("leave one away: a command of an image is no module"),
                );
            }
            let talk = request::telling(flags) == Telling::Line;
            Ok((Some(image::find(paths, name, talk)?), None))
        }
        None => Ok((None, program::find(flags, &template::shelf(paths))?)),
    }
}

/// How a run of this plan is joined.
fn joint(plan: &Plan) -> Joint {
    let terminal = plan.exec.tty.is_some();
    Joint {
        print: plan.telling != Telling::Json,
        feed: plan.exec.stdin || terminal,
        terminal,
        take_terminal: false,
        wait_cleanup: plan.wait_cleanup,
        from: From::Start,
    }
}

/// Exports, tells, and gives the exit status.
fn conclude(
    paths: &Paths,
    plan: &Plan,
    out: Option<&export::Destination>,
    record: &RunRecord,
    total: Duration,
) -> Result<u8, Fault> {
    let status = record.end.as_ref().map_or(LEFT, |end| end.cli_status());
    let exported = out.map(|out| out.take(paths, record)).transpose();
    let written = exported.as_ref().ok().and_then(Option::as_ref);
    match plan.telling {
        Telling::Quiet => {
            written.into_iter().for_each(export::Exported::tell_left);
            tell_risks(record);
            tell_failure(record);
        }
        Telling::Json => {
            let whole = Whole::of(paths, record, status);
            voice::json(&Whole {
                exported: written,
                ..whole
            })?;
        }
        Telling::Line => {
            match written {
                Some(written) => written.tell(),
                None if record.artifacts.iter().any(|file| file.skipped.is_none()) => {
                    let kept = place::run_directory(paths, &record.run).join("artifacts");
                    voice::note(&format!("artifacts are at {}", kept.display()));
                }
                None => {}
            }
            tell(record, total);
        }
    }
    // Told last, since the run itself is over and on record.
    exported.map(|_| status)
}

/// What even those are told who want to hear nothing else.
fn tell_risks(record: &RunRecord) {
    for note in summary::left_on_host(record) {
        voice::note(&note);
    }
}

/// The last words on standard error.
pub(crate) fn tell(record: &RunRecord, total: Duration) {
    for note in summary::notes(record) {
        voice::note(&note);
    }
    let micros = u64::try_from(total.as_micros()).unwrap_or(u64::MAX);
    voice::note(&summary::line(record, micros));
    if let Some(mend) = summary::mend(record) {
        voice::hint(&mend);
    }
}

/// What a caller that wants to hear nothing of ours but errors must hear: that it was not the command.
fn tell_failure(record: &RunRecord) {
    if let Some(failure) = summary::failure(record.end.as_ref(), record.run.as_str()) {
        voice::note(&format!("error: {failure}"));
        if let Some(mend) = summary::mend(record) {
            voice::hint(&mend);
        }
    }
}

/// The record as `--json` gives it: its own fields, and where its files are.
#[derive(Debug, Serialize)]
pub(crate) struct Whole<'a> {
    #[serde(flatten)]
    record: &'a RunRecord,
    /// Exit status of the command line for this end.
    exit_status: u8,
    files: Files,
    /// What became of each artifact at `--out`, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    exported: Option<&'a export::Exported>,
}

/// Where the files of a run are on this host.
#[derive(Debug, Serialize)]
struct Files {
    stdout: PathBuf,
    stderr: PathBuf,
    artifacts: PathBuf,
}

impl<'a> Whole<'a> {
    /// Joins a record with the paths of its files.
    pub(crate) fn of(paths: &Paths, record: &'a RunRecord, exit_status: u8) -> Self {
        let directory = place::run_directory(paths, &record.run);
        Self {
            record,
            exit_status,
            files: Files {
                stdout: directory.join("stdout"),
                stderr: directory.join("stderr"),
                artifacts: directory.join("artifacts"),
            },
            exported: None,
        }
    }
}

/// Follows a run to its record, over the death of its supervisor too: a successor completes the
/// record at its start. Nothing when the person left.
fn whole(
    mut follow: Follow<'_>,
    paths: &Paths,
    run: &RunId,
) -> Result<Option<Box<RunRecord>>, Fault> {
    for lost in 0..SUPERVISORS_MAX {
        match follow.until_over()? {
            Outcome::Recorded(record) => return Ok(Some(record)),
            Outcome::Refused(error) if lost > 0 && error.kind == ErrorKind::NotFound => {
                return Err(Fault::host(
                    "the supervisor went away before the run was on record, so nothing ran",
                ));
            }
            Outcome::Refused(error) => return Err(error.into()),
            Outcome::Left => {
                voice::note(&format!("left run {run}; the supervisor ends it"));
                return Ok(None);
            }
            Outcome::Lost => {}
        }
        voice::note("the supervisor went away during the run; a new one clears up after it");
        let mut client = place::connect_or_start(paths)?;
        let tag = client
            .call(Request::Attach { run: run.clone() }, &[])
            .map_err(place::client_fault)?;
        follow.take_up(client, tag);
    }
    Err(Fault::host(format!(
        "{SUPERVISORS_MAX} supervisors went away one after another"
    ))
    .hint(format!(
        "see the supervisor's log, {}",
        paths.log().display()
    )))
}

/// Joins a run that is on its way or over, for `leasehold attach`.
///
/// # Errors
/// When the flags are wrong, or there is no such run or no output of it any more.
pub(crate) fn attach(paths: &Paths, run: &RunId, flags: &AttachFlags) -> Result<u8, Fault> {
    let from = From::parse(&flags.from)?;
    let mut client = place::connect_or_start(paths)?;
    let signals =
        Signals::take().map_err(|error| Fault::host("cannot take signals").because(&error))?;
    let tag = client
        .call(Request::Attach { run: run.clone() }, &[])
        .map_err(place::client_fault)?;
    let joint = Joint {
        print: true,
        feed: false,
        terminal: false,
        take_terminal: true,
        wait_cleanup: false,
        from,
    };
    let follow = Follow::new(client, &signals, tag, run.clone(), joint);
    let Some(record) = whole(follow, paths, run)? else {
        return Ok(LEFT);
    };
    if flags.quiet {
        tell_risks(&record);
        tell_failure(&record);
    } else {
        let micros = record.stages.iter().map(|time| time.micros).sum();
        tell(&record, Duration::from_micros(micros));
    }
    Ok(record.end.as_ref().map_or(LEFT, |end| end.cli_status()))
}

/// A fresh run id.
///
/// # Errors
/// When the kernel gives no entropy.
pub(crate) fn new_run() -> Result<RunId, Fault> {
    let mut entropy = [0; 13];
    match rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty()) {
        Ok(got) if got == entropy.len() => Ok(RunId::from_entropy(&entropy)),
        Ok(_) => Err(Fault::host("the kernel gave too few random bytes")),
        Err(errno) => Err(Fault::host("cannot draw a run id").because(&errno)),
    }
}

/// What standard input is. A device that is no terminal, such as `/dev/null`, counts as empty.
fn stdin_kind() -> StdinKind {
    let stdin = std::io::stdin();
    if rustix::termios::isatty(&stdin) {
        return StdinKind::Terminal;
    }
    match fstat(&stdin).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::Fifo | FileType::RegularFile | FileType::Socket) => StdinKind::Stream,
        _ => StdinKind::Empty,
    }
}

fn open_workspace(path: &Path) -> Result<OwnedFd, Fault> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).map_err(|errno| {
        Fault::usage(format!("cannot open `--workspace` {}", path.display())).because(&errno)
    })
}

/// Opens one log of a run.
pub(crate) fn open_log(paths: &Paths, run: &RunId, name: &str) -> Result<File, Fault> {
    let path = place::run_directory(paths, run).join(name);
    File::open(&path)
        .map_err(|error| Fault::host(format!("cannot open {}", path.display())).because(&error))
}
