//! Copies artifacts out of a workspace that a hostile guest made.
//!
//! A collector is a short-lived process: forked, confined to the workspace and to a few system
//! calls, with the ids of the guest's own workload (H12). It walks, reads and hashes; it can
//! create nothing. For every file it asks the supervisor for a descriptor to copy into, so the copies
//! belong to the supervisor and are called `0001`, `0002` … in the staging directory: the number of
//! the file's place in the list of artifacts. A guest's name becomes a host's name only in
//! [`export`], with the rights of who wants it.
//!
//! To be started when every process of the sandbox is dead. The supervisor waits for
//! [`Collector::as_fd`] together with everything else, calls [`Collector::advance`], and keeps to
//! [`Collector::deadline`].

mod copy;
pub mod export;
mod glob;
pub mod lookout;
pub mod names;
pub mod obeyed;
mod walk;
mod wire;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use leasehold_core::record::Artifact;
use leasehold_jail::confine::{self, Confinement};
use leasehold_jail::posture::PostureError;
use leasehold_protocol::socket::send_with_fds;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

pub use glob::GlobError;
pub use wire::Cut;

use glob::Globs;
use wire::{Fate, MESSAGE_MAX, Message, NO_MORE, TAKE};

/// How long after its own deadline the collector is ended from outside.
const GRACE: Duration = Duration::from_millis(500);
/// How long a killed collector may take to be gone.
const REAP: Duration = Duration::from_millis(250);
/// What one row costs in a record beside its path.
const ROW_BYTES: usize = 192;

/// Bounds of one collection; the first that is reached cuts it, and the list says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectBounds {
    /// Most bytes of one file; longer ones are skipped.
    pub file_bytes: u64,
    /// Most bytes of all copies together.
    pub total_bytes: u64,
    /// Most copies.
    pub files: u32,
    /// Most names looked at.
    pub entries: u64,
    /// Most directories below each other.
    pub depth: u32,
    /// Most bytes the list may take in a record, roughly.
    pub record_bytes: usize,
    /// Longest time from start to end.
    pub time: Duration,
}

impl Default for CollectBounds {
    fn default() -> Self {
        Self {
            file_bytes: 1 << 30,
            total_bytes: 2 << 30,
            files: 4_096,
            entries: 500_000,
            depth: 64,
            record_bytes: 1 << 20,
            time: Duration::from_secs(30),
        }
    }
}

/// What is to be collected.
#[derive(Debug)]
pub struct CollectJob {
    /// The workspace's directory.
    pub workspace: OwnedFd,
    /// An empty directory of the supervisor's own, for the copies.
    pub staging: OwnedFd,
    /// Which files, as globs below the workspace.
    pub globs: Vec<String>,
    /// The workload's user id on the host; an ordinary user's workload has the user's own.
    pub host_uid: u32,
    /// The workload's group id on the host.
    pub host_gid: u32,
    /// How much at most.
    pub bounds: CollectBounds,
}

/// Why a collection failed as a whole. Copies may be left in the staging directory.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// A glob is none.
    #[error(transparent)]
    Glob(#[from] GlobError),
    /// A call around the collector's process failed.
    #[error("cannot {attempt} for the collector")]
    Host {
        /// What was tried.
        attempt: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It could not be confined, so it looked at nothing.
    #[error("the collector cannot {attempt}")]
    Confine {
        /// Which step.
        attempt: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It said something it must not say.
    #[error("the collector broke its protocol: {0}")]
    Protocol(&'static str),
}

fn host<T, E: Into<io::Error>>(
    attempt: &'static str,
    done: Result<T, E>,
) -> Result<T, CollectError> {
    done.map_err(|error| CollectError::Host {
        attempt,
        source: error.into(),
    })
}

/// What came of a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    /// Every file that was wanted, in walking order; copies are named by their place in it.
    pub artifacts: Vec<Artifact>,
    /// Why there may be more than is listed. The list then ends with a row for `.`.
    pub cut: Option<Cut>,
}

/// Whether these globs can be collected, so that a wrong one is refused before a run and not told
/// after it.
///
/// # Errors
/// Names the first that is none.
pub fn check(globs: &[String]) -> Result<(), GlobError> {
    Globs::parse(globs).map(drop)
}

/// Which of these paths below a workspace the globs want, as a collection would find them. The paths are as a list
/// of artifacts has them, and a glob that is one of them letter for letter wants it, whatever it means else.
///
/// # Errors
/// Names the first glob that is none.
pub fn wanted<'a>(
    globs: &[String],
    paths: impl Iterator<Item = &'a str>,
) -> Result<Vec<bool>, GlobError> {
    let parsed = Globs::parse(globs)?;
    let wants = |path: &str| {
        let bytes = names::unescape(path);
        globs.iter().any(|glob| glob == path) || bytes.is_ok_and(|bytes| parsed.wants(&bytes))
    };
    Ok(paths.map(wants).collect())
}

/// Name of the copy of the file at this place of the list, counted from 0.
#[must_use]
pub fn staged_name(place: usize) -> String {
    format!("{:04}", place + 1)
}

/// A collection in progress. Dropping it ends the process.
#[derive(Debug)]
pub struct Collector {
    pidfd: OwnedFd,
    socket: OwnedFd,
    staging: OwnedFd,
    globs: Vec<String>,
    bounds: CollectBounds,
    deadline: Instant,
    artifacts: Vec<Artifact>,
    record_bytes: usize,
    total: u64,
    files: u32,
    /// The copy that is being written; it belongs to the next row.
    open: Option<OwnedFd>,
    /// How it ended, once it has.
    end: Option<Option<Cut>>,
    reaped: bool,
}

/// Starts a collector. To be called from a process of one thread.
///
/// # Errors
/// When a glob is none or the process cannot be made.
pub fn start(job: CollectJob) -> Result<Collector, CollectError> {
    let globs = Globs::parse(&job.globs)?;
    let (ours, theirs) = host(
        "make a socket pair",
        socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        ),
    )?;
    let deadline = Instant::now() + job.bounds.time + GRACE;
    let confinement = Confinement {
        uid: job.host_uid,
        gid: job.host_gid,
        root: job.workspace.as_fd(),
        file_bytes: job.bounds.file_bytes,
        cpu_seconds: u32::try_from(job.bounds.time.as_secs() + 2).unwrap_or(u32::MAX),
        open_files: job.bounds.depth.saturating_add(64),
    };
    let (_, pidfd) = host(
        "fork",
        confine::spawn(
            &confinement,
            &[theirs.as_fd()],
            |error| complain(&theirs, error),
            || walk::run(job.workspace.as_fd(), theirs.as_fd(), &globs, &job.bounds),
        ),
    )?;
    Ok(Collector {
        pidfd,
        socket: ours,
        staging: job.staging,
        globs: job.globs,
        bounds: job.bounds,
        deadline,
        artifacts: Vec::new(),
        record_bytes: 0,
        total: 0,
        files: 0,
        open: None,
        end: None,
        reaped: false,
    })
}

fn complain(socket: &OwnedFd, error: &PostureError) -> u8 {
    let message = Message::Failed {
        errno: error.errno(),
        attempt: error.attempt(),
    };
    let flags = rustix::net::SendFlags::NOSIGNAL;
    let _ = rustix::net::send(socket, &message.encode(), flags);
    1
}

impl AsFd for Collector {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Collector {
    /// When [`Collector::advance`] is due even if nothing is readable.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Takes what the collector has said so far, never waiting. Says whether it is over.
    ///
    /// # Errors
    /// When it cannot do its work or breaks its protocol; it is then ended.
    pub fn advance(&mut self) -> Result<bool, CollectError> {
        let result = self.take_all();
        if result.is_err() {
            self.conclude(Some(Cut::Died));
        }
        result?;
        if self.end.is_none() && Instant::now() >= self.deadline {
            self.conclude(Some(Cut::Time));
        }
        Ok(self.end.is_some())
    }

    /// Waits for the end, at most until the deadline, and gives what was collected.
    ///
    /// # Errors
    /// As [`Collector::advance`].
    pub fn finish(mut self) -> Result<Collected, CollectError> {
        while !self.advance()? {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let limit = Timespec::try_from(left).ok();
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut polled, limit.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return host("wait", Err(errno)),
            }
        }
        let cut = self.end.take().flatten();
        if cut.is_some() {
            self.artifacts.push(skipped(".".to_owned(), "limit"));
        }
        Ok(Collected {
            artifacts: std::mem::take(&mut self.artifacts),
            cut,
        })
    }

    fn take_all(&mut self) -> Result<(), CollectError> {
        let mut buffer = [0; MESSAGE_MAX + 1];
        while self.end.is_none() {
            let got = match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((_, got)) => got,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                // It ended with an answer of ours unread.
                Err(Errno::CONNRESET) => 0,
                Err(errno) => return host("read", Err(errno)),
            };
            if got == 0 {
                // Its end without a last word.
                self.conclude(Some(Cut::Died));
                return Ok(());
            }
            let message = buffer
                .get(..got)
                .and_then(Message::decode)
                .ok_or(CollectError::Protocol("unknown message"))?;
            self.take(message)?;
        }
        Ok(())
    }

    fn take(&mut self, message: Message) -> Result<(), CollectError> {
        match message {
            Message::Want => self.offer(),
            Message::Row {
                fate,
                bytes,
                sha256,
                path,
            } => self.enter(fate, bytes, sha256, &path),
            Message::Done { cut, unmatched } => {
                for (at, glob) in self.globs.iter().enumerate() {
                    if unmatched & (1 << at) != 0 && cut.is_none() {
                        let path = names::escape(glob.as_bytes());
                        self.artifacts.push(skipped(path, "not_found"));
                    }
                }
                self.conclude(cut);
                Ok(())
            }
            Message::Failed { errno, attempt } => Err(CollectError::Confine {
                attempt,
                source: io::Error::from_raw_os_error(errno),
            }),
        }
    }

    /// Makes a file for the next copy and hands it over, or says that there may be no more.
    fn offer(&mut self) -> Result<(), CollectError> {
        if self.open.is_some() {
            return Err(CollectError::Protocol("two copies at a time"));
        }
        if self.files >= self.bounds.files {
            return self.answer(&[NO_MORE], &[]);
        }
        let name = staged_name(self.artifacts.len());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = host("make a file", openat(&self.staging, name, flags, mode))?;
        self.answer(&[TAKE], &[file.as_fd()])?;
        self.open = Some(file);
        Ok(())
    }

    fn answer(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), CollectError> {
        match send_with_fds(&self.socket, bytes, fds) {
            Ok(_) => Ok(()),
            // It is gone; the end is read next.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => host("answer", Err(error)),
        }
    }

    fn enter(
        &mut self,
        fate: Fate,
        bytes: u64,
        sha256: [u8; 32],
        path: &[u8],
    ) -> Result<(), CollectError> {
        let copy = self.open.take();
        let path_text = names::escape(path);
        self.record_bytes += path_text.len() * 2 + ROW_BYTES;
        let full = self.record_bytes > self.bounds.record_bytes;
        if fate.taken() && !full {
            let Some(copy) = copy else {
                return Err(CollectError::Protocol("a copy without its file"));
            };
            let stored = host("look at a copy", fstat(copy))?.st_size;
            self.total = self.total.saturating_add(bytes);
            if u64::try_from(stored) != Ok(bytes) || self.total > self.bounds.total_bytes {
                self.remove_open_copy();
                return Err(CollectError::Protocol("a copy of another size"));
            }
            self.files += 1;
        } else if copy.is_some() {
            self.remove_open_copy();
        }
        if full {
            self.conclude(Some(Cut::Record));
            return Ok(());
        }
        self.artifacts.push(Artifact {
            path: path_text,
            bytes: if fate.taken() { bytes } else { 0 },
            sha256: fate.taken().then(|| hex(&sha256)),
            skipped: fate.reason().map(str::to_owned),
            may_execute_on_host: obeyed::may_execute_on_host(path),
        });
        Ok(())
    }

    /// The copy that belongs to no row is of no use.
    fn remove_open_copy(&self) {
        let name = staged_name(self.artifacts.len());
        let _ = unlinkat(&self.staging, name, AtFlags::empty());
    }

    /// Ends the process and remembers why.
    fn conclude(&mut self, cut: Option<Cut>) {
        if self.open.take().is_some() {
            self.remove_open_copy();
        }
        self.reap();
        self.end = Some(cut);
    }

    /// Ends the process.
    fn reap(&mut self) {
        if self.reaped {
            return;
        }
        self.reaped = true;
        reap(&self.pidfd);
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.reap();
    }
}

/// Ends a confined process. One that hangs in the kernel (a dead network file system below a
/// workspace) is not waited for: it ends when the kernel lets it.
fn reap(pidfd: &OwnedFd) {
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
    let limit = Timespec::try_from(REAP).ok();
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    let _ = rustix::io::retry_on_intr(|| poll(&mut polled, limit.as_ref()));
    let _ = waitid(
        WaitId::PidFd(pidfd.as_fd()),
        WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
    );
}

fn skipped(path: String, reason: &str) -> Artifact {
    Artifact {
        path,
        bytes: 0,
        sha256: None,
        skipped: Some(reason.to_owned()),
        may_execute_on_host: false,
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
