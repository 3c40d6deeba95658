//! One run and then the end: what it is told comes in files, its streams are this process's own.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

use leasehold_core::end::ExitStatus;
use leasehold_jail::lockdown::Place;
use leasehold_jail::{sys, termination};
use leasehold_protocol::wasm::{
    ONE_BYTES_MAX, ONE_CODE_FD, ONE_CONFIG_FD, ONE_REPORT_FD, One, REPORT_LEN, Report,
};
use rustix::fs::{CWD, Mode, OFlags};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use super::epoch::Epochs;
use super::said;
use crate::input::Input;
use crate::output::Output;
use crate::program::{LoadError, Loader, Program};
use crate::run::{self, Task};

/// The one directory of the sandbox that a run may be given.
const WORKSPACE: &str = "/workspace";
/// Bytes of standard input that are held for the program.
const HELD_MAX: usize = 256 << 10;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// Everything that is opened before the process confines itself.
#[derive(Debug)]
pub struct Given {
    config: File,
    code: File,
    report: File,
    /// Readable when somebody wants the end of the run.
    wish: OwnedFd,
    workspace: Option<(OwnedFd, bool)>,
}

impl Given {
    /// Takes what was inherited, and opens the workspace, if there is to be one: for writing or not.
    ///
    /// # Errors
    /// When a descriptor is not there, or the workspace cannot be opened.
    pub fn take(workspace: Option<bool>) -> io::Result<Self> {
        let inherited = |number| sys::inherited(number).map(File::from);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(CWD, WORKSPACE, flags, Mode::empty());
        Ok(Self {
            config: inherited(ONE_CONFIG_FD)?,
            code: inherited(ONE_CODE_FD)?,
            report: inherited(ONE_REPORT_FD)?,
            wish: termination::termination_events()?,
            workspace: match workspace {
                Some(writable) => Some((open()?, writable)),
                None => None,
            },
        })
    }

    /// The directory it keeps access to.
    #[must_use]
    pub fn place(&self) -> Option<Place<'_>> {
        self.workspace.as_ref().map(|(directory, writable)| Place {
            directory: directory.as_fd(),
            writable: *writable,
        })
    }

    /// Runs the module to its end and writes the report. To be called when the process has confined itself.
    ///
    /// # Errors
    /// When the report cannot be written.
    pub fn carry_out(self, runtime: &tokio::runtime::Runtime) -> io::Result<()> {
        let Self {
            config,
            code,
            report,
            wish,
            workspace,
        } = self;
        let ended = match prepare(&config, code, workspace) {
            Ok(prepared) => LocalSet::new().block_on(runtime, prepared.run(wish)),
            Err(report) => *report,
        };
        (&report).write_all(&bytes_of(ended)?)
    }
}

/// A report that fits its file. What makes one long are names.
fn bytes_of(mut report: Report) -> io::Result<Vec<u8>> {
    let bytes = serde_json::to_vec(&report)?;
    if bytes.len() <= REPORT_LEN {
        return Ok(bytes);
    }
    report.backtrace.clear();
    report.http_denied_to.clear();
    Ok(serde_json::to_vec(&report)?)
}

struct Prepared {
    program: Program,
    task: Task,
    epochs: Epochs,
    /// Whether there is something to read from standard input.
    stdin: bool,
}

fn prepare(
    config: &File,
    code: File,
    workspace: Option<(OwnedFd, bool)>,
) -> Result<Prepared, Box<Report>> {
    let ours = |why: String| {
        Box::new(Report {
            crashed: Some(why),
            ..Report::default()
        })
    };
    let one: One = read(config).map_err(ours)?;
    let start = one.start;
    let mut limits = start.limits;
    // Whoever reads the streams counts and bounds them, and would not see what was cut here.
    limits.output_bytes = u64::MAX;
    limits.output_kill = false;
    let mut task = Task::new("", limits);
    task.argv = start.argv;
    task.env = start.env;
    task.determinism = start.determinism;
    if start.stdin {
        task.stdin = Input::default();
    }
    task.preopens = match (start.preopens.into_iter().collect::<Vec<_>>(), workspace) {
        (wanted, _) if wanted.is_empty() => Vec::new(),
        (mut wanted, Some((directory, writable)))
            if wanted.len() == 1 && (writable || !wanted[0].writable) =>
        {
            vec![(wanted.remove(0), directory)]
        }
        _ => {
            let why = "a run is given the workspace as it was opened, and no other directory";
            return Err(ours(why.to_owned()));
        }
    };
    let flavour = one.load.flavour;
    let loader = Loader::for_one(one.load.kind, flavour);
    let loader = loader.map_err(|error| ours(error.to_string()))?;
    let program = match loader.load(one.load.kind, flavour, code) {
        Ok(program) => program,
        // That is its own fault and nobody else's.
        Err(LoadError::Unfit(why)) => {
            return Err(Box::new(Report {
                exit: Some(ExitStatus::NotExecutable),
                detail: Some(why),
                ..Report::default()
            }));
        }
        Err(error) => return Err(ours(error.to_string())),
    };
    task.check(&program).map_err(ours)?;
    let epochs = Epochs::start(vec![loader.engine().clone()]);
    Ok(Prepared {
        program,
        task,
        epochs: epochs.map_err(|error| ours(error.to_string()))?,
        stdin: start.stdin,
    })
}

fn read(config: &File) -> Result<One, String> {
    let failed = |error: io::Error| format!("what is to be run cannot be read: {error}");
    let length = config.metadata().map_err(failed)?.len();
    if length > ONE_BYTES_MAX {
        return Err(format!(
            "what is to be run has {length} bytes: most is {ONE_BYTES_MAX}"
        ));
    }
    let mut bytes = vec![0; length as usize];
    config.read_exact_at(&mut bytes, 0).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|error| format!("what is to be run is broken: {error}"))
}

impl Prepared {
    async fn run(self, wish: OwnedFd) -> Report {
        let (cancel, cancelled) = oneshot::channel();
        let watched = self.watch(wish, cancel);
        let (feeding, [out, err]) = match watched {
            Ok(watched) => watched,
            Err(error) => {
                return Report {
                    crashed: Some(format!("the streams cannot be watched: {error}")),
                    ..Report::default()
                };
            }
        };
        let Self {
            program,
            task,
            epochs,
            ..
        } = self;
        // To the end of the process, which is that of the run: to wait for the clock would take another tick.
        let epochs: &'static Epochs = Box::leak(Box::new(epochs));
        let (stdin, stdout, stderr) =
            (task.stdin.clone(), task.stdout.clone(), task.stderr.clone());
        if let Some(input) = feeding {
            let stdin = stdin.clone();
            spawn_local(async move { feed(&input, &stdin).await });
        }
        // In a task of its own, so that a panic in it is an end like another.
        let running = spawn_local(async move {
            let _clock = epochs.run();
            let (report, remains) = run::run_leaving(&program, task, cancelled).await;
            // The end of the process gives it back, all at once.
            std::mem::forget(remains);
            report
        });
        let (ended, (), ()) = tokio::join!(
            async {
                let report = running.await;
                stdin.end();
                stdout.finish();
                stderr.finish();
                report
            },
            carry(&stdout, &out),
            carry(&stderr, &err),
        );
        ended.unwrap_or_else(|error| Report {
            crashed: Some(format!("the host's own code failed: {}", said(error))),
            ..Report::default()
        })
    }

    /// Registers the streams, and has the run cancelled when somebody wishes its end.
    fn watch(
        &self,
        wish: OwnedFd,
        cancel: oneshot::Sender<()>,
    ) -> io::Result<(Option<Receiver>, [Sender; 2])> {
        // It is read like a pipe, which is all that this is for.
        let wish = Receiver::from_owned_fd_unchecked(wish)?;
        spawn_local(async move {
            // It says no more than that it came.
            if wish.readable().await.is_ok() {
                let _ = cancel.send(());
            }
        });
        // That these are pipes is looked at by nobody: the call for it is one about files.
        let copy = |fd: BorrowedFd<'static>| {
            let flags = rustix::fs::fcntl_getfl(fd)?;
            rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
            rustix::io::fcntl_dupfd_cloexec(fd, 3)
        };
        let input = match self.stdin {
            true => Some(Receiver::from_owned_fd_unchecked(copy(
                rustix::stdio::stdin(),
            )?)?),
            false => None,
        };
        let out = Sender::from_owned_fd_unchecked(copy(rustix::stdio::stdout())?)?;
        let err = Sender::from_owned_fd_unchecked(copy(rustix::stdio::stderr())?)?;
        Ok((input, [out, err]))
    }
}

/// Gives the program what comes, and no more than it takes.
async fn feed(from: &Receiver, input: &Input) {
    let mut piece = vec![0; PIECE];
    loop {
        while input.held() >= HELD_MAX {
            if input.taken().await.is_none() {
                return;
            }
        }
        match next(from, &mut piece).await {
            Ok(count) if count > 0 => input.feed(&piece[..count]),
            // What cannot be read any more is over.
            Ok(_) | Err(_) => return input.end(),
        }
    }
}

async fn next(from: &Receiver, piece: &mut [u8]) -> io::Result<usize> {
    loop {
        from.readable().await?;
        match from.try_read(piece) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            got => return got,
        }
    }
}

/// Writes what the program says. What nobody reads any more is taken from it all the same.
async fn carry(output: &Output, to: &Sender) {
    while let Some(bytes) = output.next().await {
        // Whoever went away has nothing to be told.
        let _ = put(to, &bytes).await;
    }
}

async fn put(to: &Sender, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        to.writable().await?;
        match to.try_write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
