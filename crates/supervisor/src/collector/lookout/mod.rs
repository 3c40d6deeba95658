//! Sees what a workload left in a directory of the host that the host may run or obey by itself.
//!
//! A lookout is one confined process, like a collector, that lives as long as its sandbox. It looks
//! at a read-write workspace before the workload starts and keeps what it saw to itself; when every
//! process of the sandbox is dead it looks again and tells what differs: identity, owner, mode, size,
//! links, times, and of small files the content, so that a time set back or a clock that was stepped
//! hides nothing.
//!
//! It looks through no link by itself. Where a link, or a line of a git configuration, makes another
//! place of the workspace obeyed, that place is opened with the kernel's word that it is below the
//! workspace, a bounded number of times. Start reading at [`start`], then `look.rs`.

mod leads;
mod look;
mod wire;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use leasehold_core::record::{LeftFile, LeftOnHost};
use leasehold_jail::confine::{self, Confinement};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

use super::{CollectError, GRACE, host, names, reap};
use wire::{AGAIN, MESSAGE_MAX, Message};

/// Bounds of the two looks of a lookout; the first that is reached is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookBounds {
    /// Most names looked at in one look.
    pub entries: u64,
    /// Most directories below each other.
    pub depth: u32,
    /// Most files of obeyed names kept of one look.
    pub files: usize,
    /// Most bytes of their paths.
    pub path_bytes: usize,
    /// Longest file whose content is compared, in bytes; longer ones by all else.
    pub content_bytes: u64,
    /// Most bytes of contents read in one look.
    pub contents_bytes: u64,
    /// Most links and settings followed in one look.
    pub leads: usize,
    /// Most mounts below the workspace.
    pub mounts: usize,
    /// Most rows of the list, and of the bytes it may take in a record, roughly.
    pub rows: usize,
    /// See `rows`.
    pub record_bytes: usize,
    /// Longest time of one look.
    pub time: Duration,
}

impl Default for LookBounds {
    fn default() -> Self {
        Self {
            entries: 1_000_000,
            depth: 256,
            files: 65_536,
            path_bytes: 32 << 20,
            content_bytes: 1 << 20,
            contents_bytes: 64 << 20,
            leads: 256,
            mounts: 32,
            rows: 512,
            record_bytes: 128 << 10,
            time: Duration::from_secs(5),
        }
    }
}

/// What is to be looked at.
#[derive(Debug)]
pub struct LookJob {
    /// The workspace's directory.
    pub workspace: OwnedFd,
    /// The workload's user id on the host; an ordinary user's workload has the user's own.
    pub host_uid: u32,
    /// The workload's group id on the host.
    pub host_gid: u32,
    /// How much at most.
    pub bounds: LookBounds,
}

/// Where a lookout is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It looks for the first time; the workload must wait.
    Before,
    /// It waits until everything is dead.
    Waiting,
    /// It looks again.
    After,
    /// It has told all it will.
    Over,
}

/// A lookout at its post. Dropping it ends the process.
#[derive(Debug)]
pub struct Lookout {
    pidfd: OwnedFd,
    socket: OwnedFd,
    bounds: LookBounds,
    phase: Phase,
    deadline: Instant,
    left: LeftOnHost,
    record_bytes: usize,
    reaped: bool,
}

/// Starts a lookout, which begins its first look. To be called from a process of one thread.
///
/// # Errors
/// When the process cannot be made.
pub fn start(job: LookJob) -> Result<Lookout, CollectError> {
    let flags = SocketFlags::CLOEXEC;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (ours, theirs) = host("make a socket pair", pair)?;
    let confinement = Confinement {
        uid: job.host_uid,
        gid: job.host_gid,
        root: job.workspace.as_fd(),
        file_bytes: 0,
        cpu_seconds: u32::try_from(job.bounds.time.as_secs() * 2 + 2).unwrap_or(u32::MAX),
        open_files: job
            .bounds
            .depth
            .saturating_add(64 + job.bounds.mounts as u32),
    };
    let deadline = Instant::now() + job.bounds.time + GRACE;
    let (_, pidfd) = host(
        "fork",
        confine::spawn(
            &confinement,
            &[theirs.as_fd()],
            |error| super::complain(&theirs, error),
            || look::run(job.workspace.as_fd(), theirs.as_fd(), &job.bounds),
        ),
    )?;
    Ok(Lookout {
        pidfd,
        socket: ours,
        bounds: job.bounds,
        phase: Phase::Before,
        deadline,
        left: LeftOnHost::default(),
        record_bytes: 0,
        reaped: false,
    })
}

impl AsFd for Lookout {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Lookout {
    /// Where it is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// When [`Lookout::advance`] is due even if nothing is readable, in the phases that have an end.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        matches!(self.phase, Phase::Before | Phase::After).then_some(self.deadline)
    }

    /// Asks for the second look: every process that could change the workspace is dead.
    pub fn look_again(&mut self) {
        if self.phase != Phase::Waiting {
            return;
        }
        self.phase = Phase::After;
        self.deadline = Instant::now() + self.bounds.time + GRACE;
        // Its end is read next, if it is gone.
        let _ = send(&self.socket, &[AGAIN], SendFlags::NOSIGNAL);
    }

    /// Takes what it has said so far, never waiting. A lookout that fails or breaks its protocol is
    /// ended, and the list says that it is not whole.
    pub fn advance(&mut self) -> Phase {
        if let Err(why) = self.take_all() {
            self.conclude(Some(why));
        }
        if self.deadline().is_some_and(|due| Instant::now() >= due) {
            self.conclude(Some("time"));
        }
        self.phase
    }

    /// What it found: complete only in [`Phase::Over`].
    #[must_use]
    pub fn found(&self) -> &LeftOnHost {
        &self.left
    }

    fn take_all(&mut self) -> Result<(), &'static str> {
        let mut buffer = [0; MESSAGE_MAX + 1];
        while self.phase != Phase::Over {
            let got = match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((_, got)) => got,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(_) => 0,
            };
            match buffer.get(..got).and_then(Message::decode) {
                _ if got == 0 => return Err("died"),
                Some(Message::Ready) if self.phase == Phase::Before => self.phase = Phase::Waiting,
                Some(Message::Row { change, path }) if self.phase == Phase::After => {
                    self.enter(LeftFile {
                        path: names::escape(&path),
                        change,
                    });
                }
                Some(Message::Done(short)) if self.phase == Phase::After => {
                    self.conclude(short.map(wire::Short::word));
                }
                Some(Message::Failed { errno, attempt }) => {
                    let error = io::Error::from_raw_os_error(errno);
                    crate::log::line(&format!("the lookout cannot {attempt}: {error}"));
                    return Err("failed");
                }
                _ => return Err("failed"),
            }
        }
        Ok(())
    }

    fn enter(&mut self, file: LeftFile) {
        self.record_bytes += file.path.len() * 2 + 48;
        if self.left.files.len() >= self.bounds.rows || self.record_bytes > self.bounds.record_bytes
        {
            return self.conclude(Some("record"));
        }
        self.left.files.push(file);
    }

    /// Ends the process and remembers why.
    fn conclude(&mut self, short: Option<&'static str>) {
        self.phase = Phase::Over;
        self.left.incomplete = short.map(str::to_owned);
        self.end();
    }

    fn end(&mut self) {
        if !self.reaped {
            self.reaped = true;
            reap(&self.pidfd);
        }
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.end();
    }
}
