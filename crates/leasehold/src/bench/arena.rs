//! A supervisor of the bench's own, in directories of its own, so that nothing of the user's is
//! touched or measured. It ends when it is dropped, and its files go with the [`Ground`].

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_backend::process::client::Client;
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::record::RunRecord;
use leasehold_core::spec::{ExecSpec, SandboxSpec, WorkspaceMode};
use leasehold_protocol::supervisor::{Event, Notice, Request, Target};
use leasehold_supervisor::paths::Paths;
use rustix::fs::{Mode, OFlags, open};

use super::ground::Ground;
use super::program;
use crate::fault::Fault;
use crate::{env, place, run, supervise};

/// How long anything that is measured may take at most.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One private instance.
#[derive(Debug)]
pub(crate) struct Arena {
    directory: PathBuf,
    paths: Paths,
    programs: OwnedFd,
}

/// When the events of one run came, counted from its call.
#[derive(Debug)]
pub(crate) struct Times {
    /// The first byte of output.
    pub(crate) first_byte: Option<Duration>,
    /// Its outcome was recorded.
    pub(crate) ended: Duration,
    /// Its removal was observed.
    pub(crate) cleaned: Duration,
    /// What is on record.
    pub(crate) record: Box<RunRecord>,
}

impl Arena {
    /// Makes the directories and the measured programs. Starts nothing.
    ///
    /// # Errors
    /// When the file system refuses, or this architecture has no least program.
    pub(crate) fn new(ground: &Ground, name: &str) -> Result<Self, Fault> {
        let own = format!("leasehold-bench-{}-{name}", std::process::id());
        let directory = std::env::temp_dir().join(own);
        let failed = |error: std::io::Error| {
            Fault::host(format!("cannot make {}", directory.display())).because(&error)
        };
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path).map_err(failed);
        make(&directory)?;
        ground.take(directory.clone());
        // Readable by every user, since the sandbox's own is another one.
        let programs = directory.join("programs");
        make(&programs)?;
        fs::set_permissions(
            &programs,
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .map_err(failed)?;
        for (name, output) in [("true", false), ("byte", true)] {
            let bytes = program::least(output).ok_or_else(|| {
                Fault::host(format!(
                    "there is no program to measure on {}",
                    std::env::consts::ARCH
                ))
            })?;
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o755)
                .open(programs.join(name))
                .map_err(failed)?;
            file.write_all(&bytes).map_err(failed)?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let programs = open(&programs, flags, Mode::empty())
            .map_err(|errno| failed(std::io::Error::from(errno)))?;
        Ok(Self {
            paths: Paths::new(&directory.join("state"), &directory.join("run")),
            directory,
            programs,
        })
    }

    /// A place for other files of the bench.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where the state and the sockets of the instance are.
    pub(crate) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The directory with the measured programs, mounted read-only wherever they run.
    pub(crate) fn programs(&self) -> PathBuf {
        self.directory.join("programs")
    }

    /// The same, as it goes with a request.
    pub(crate) fn programs_fd(&self) -> BorrowedFd<'_> {
        self.programs.as_fd()
    }

    /// A connection; starts the supervisor if there is none.
    ///
    /// # Errors
    /// When it cannot be started or talked to.
    pub(crate) fn client(&self) -> Result<Client, Fault> {
        place::connect_or_start(&self.paths)
    }

    /// `leasehold` with `words`, as a process against this instance, silent.
    ///
    /// # Errors
    /// When this program cannot be found.
    pub(crate) fn command(&self, words: &[&str]) -> Result<Command, Fault> {
        let mut command = Command::new(place::this_program()?);
        command
            .args(words)
            .env(env::STATE_DIR.name, self.paths.state())
            .env(env::RUN_DIR.name, self.paths.run())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Ok(command)
    }

    /// Ends the supervisor, if one runs, and waits until it is gone.
    ///
    /// # Errors
    /// When it does not go.
    pub(crate) fn stop(&self) -> Result<(), Fault> {
        match place::connect(&self.paths)? {
            Some(client) => supervise::stop_it(client),
            None => Ok(()),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Err(fault) = self.stop() {
            crate::voice::fault(&fault);
        }
    }
}

/// The sandbox that the measured programs run in: all defaults, programs at `/workspace`.
pub(crate) fn with_programs() -> SandboxSpec {
    SandboxSpec {
        workspace: WorkspaceMode::ReadOnly,
        ..SandboxSpec::default()
    }
}

/// A command as `leasehold run` would send it.
pub(crate) fn command(argv: &[&str]) -> ExecSpec {
    let mut exec = ExecSpec::command(argv.iter().copied());
    exec.env = leasehold_core::spec::base_environment();
    exec
}

/// Makes a sandbox and leaves it parked.
///
/// # Errors
/// When it is refused or cannot be made.
pub(crate) fn provision(
    client: &mut Client,
    sandbox: SandboxSpec,
    fds: &[BorrowedFd<'_>],
) -> Result<SandboxId, Fault> {
    match client
        .ask(
            Request::Provision {
                sandbox,
                held: false,
            },
            fds,
            PATIENCE,
        )
        .map_err(place::client_fault)?
    {
        (Event::Provisioned { sandbox, .. }, _) => Ok(sandbox),
        _ => Err(Fault::host(
            "the supervisor answered `provision` with something else",
        )),
    }
}

/// Fills the pool of one kind and waits until it is full.
///
/// # Errors
/// When it is refused or does not fill.
pub(crate) fn pool(client: &mut Client, sandbox: SandboxSpec, count: u32) -> Result<(), Fault> {
    let pool = Request::Pool {
        sandbox,
        count,
        held: false,
    };
    client
        .ask(pool, &[], PATIENCE)
        .map(drop)
        .map_err(place::client_fault)
}

/// Begins a run. Returns its tag.
///
/// # Errors
/// When the supervisor is gone.
pub(crate) fn begin(
    client: &mut Client,
    target: Target,
    exec: ExecSpec,
    fds: &[BorrowedFd<'_>],
) -> Result<u64, Fault> {
    let run: RunId = run::new_run()?;
    client
        .call(Request::run(run, target, exec), fds)
        .map_err(place::client_fault)
}

/// The next notice of any run.
///
/// # Errors
/// When none comes, or a run is refused.
pub(crate) fn next(client: &mut Client) -> Result<Notice, Fault> {
    let deadline = Instant::now() + PATIENCE;
    match client
        .next_notice(Some(deadline))
        .map_err(place::client_fault)?
    {
        None => Err(Fault::host(format!("nothing happened for {PATIENCE:?}"))),
        Some((
            Notice {
                event: Event::Refused(error),
                ..
            },
            _,
        )) => Err(error.into()),
        Some((notice, _)) => Ok(notice),
    }
}

/// Runs one command to its complete removal.
///
/// # Errors
/// When it is refused or does not end as completed.
pub(crate) fn once(
    client: &mut Client,
    target: Target,
    exec: ExecSpec,
    fds: &[BorrowedFd<'_>],
) -> Result<Times, Fault> {
    let begun = Instant::now();
    let tag = begin(client, target, exec, fds)?;
    let (mut first_byte, mut ended) = (None, None);
    loop {
        let notice = next(client)?;
        let at = begun.elapsed();
        match notice.event {
            _ if notice.tag != tag => {}
            Event::Output { stdout, .. } if stdout > 0 => {
                first_byte.get_or_insert(at);
            }
            Event::Ended(_) => ended = Some(at),
            Event::Cleaned(record) => {
                completed(&record)?;
                return Ok(Times {
                    first_byte,
                    ended: ended.unwrap_or(at),
                    cleaned: at,
                    record,
                });
            }
            _ => {}
        }
    }
}

/// That a measured run did what it should.
///
/// # Errors
/// When it ended any other way, or was not wholly removed.
pub(crate) fn completed(record: &RunRecord) -> Result<(), Fault> {
    let end = record
        .end
        .as_ref()
        .map(|end| (end.cli_status(), end.phrase()));
    match (end, &record.cleanup) {
        (Some((0, _)), Some(seen)) if seen.clean() => Ok(()),
        (Some((0, _)), _) => Err(Fault::host(format!(
            "run {} was not wholly removed",
            record.run
        ))),
        (end, _) => Err(Fault::host(format!(
            "run {} did not complete: {}",
            record.run,
            end.map_or_else(|| "no end".to_owned(), |(_, phrase)| phrase)
        ))),
    }
}
