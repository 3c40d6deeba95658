//! Network namespaces of sandboxes: loopback alone, and a few made ahead of time.
//!
//! A namespace of the pool has never been used but to wait in, and is handed out once. The first is made by a
//! process of its own, while the spawner builds its template: it is a fifth of the way to the first sandbox.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, socketpair};
use rustix::process::{
    Signal, WaitId, WaitIdOptions, pidfd_send_signal, set_parent_process_death_signal, waitid,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::clone::{Bomb, Side, end, fork, interface_up, unshare};
use super::wire;

/// Namespaces kept ready. Each holds about 250 KB of kernel memory.
const READY: usize = 4;

/// Furnishes the caller's own, new network namespace: loopback up, no port privileged. `proc` is a
/// writable `/proc`.
pub(super) fn furnish(proc: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    interface_up(socket.as_fd(), c"lo")?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let path = c"sys/net/ipv4/ip_unprivileged_port_start";
    let file = rustix::fs::openat(proc, path, flags, Mode::empty())?;
    match rustix::io::write(file, b"0")? {
        1 => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// Enters a namespace of the pool for good.
pub(super) fn enter(namespace: BorrowedFd<'_>) -> Result<(), Errno> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
}

/// Furnished namespaces nobody has used. The spawner itself is in one of them, or in one that could
/// not be furnished.
#[derive(Debug)]
pub(super) struct Pool {
    ready: Vec<OwnedFd>,
    /// The one the spawner is in.
    here: Option<OwnedFd>,
    /// The one the spawner is in was given away.
    given: bool,
}

/// The caller's own, new namespace, furnished; none where `proc` cannot be written.
fn furnished(proc: BorrowedFd<'_>) -> Option<OwnedFd> {
    furnish(proc).ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::openat(proc, c"self/ns/net", flags, Mode::empty()).ok()
}

/// The first namespace, while it is made.
#[derive(Debug)]
pub(super) struct First {
    pidfd: OwnedFd,
    said: OwnedFd,
}

impl First {
    /// Has it made. `proc` shows the caller's processes.
    pub(super) fn begin(proc: BorrowedFd<'_>) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (said, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        match fork()? {
            Side::Child => {
                let _bomb = Bomb;
                drop(said);
                let deadly = set_parent_process_death_signal(Some(Signal::KILL));
                if deadly.and_then(|()| unshare(UnshareFlags::NEWNET)).is_ok()
                    && let Some(made) = furnished(proc)
                {
                    let _ = wire::go(theirs.as_fd(), &[made.as_fd()]);
                }
                end(0)
            }
            Side::Parent { pidfd, .. } => Ok(Self { pidfd, said }),
        }
    }

    /// Enters it, once it is there; none where it could not be made.
    fn enter(self) -> Option<OwnedFd> {
        let made = wire::await_go(self.said.as_fd());
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
        let made = made.ok()?.into_iter().next()?;
        enter(made.as_fd()).ok().map(|()| made)
    }
}

impl Pool {
    /// A pool of one: the spawner leaves the host's network, which it does not need, for a namespace
    /// that the first sandbox is given.
    pub(super) fn new(first: First, proc: BorrowedFd<'_>) -> Result<Self, Errno> {
        let here = match first.enter() {
            Some(made) => Some(made),
            None => {
                unshare(UnshareFlags::NEWNET)?;
                furnished(proc)
            }
        };
        Ok(Self {
            ready: Vec::with_capacity(READY),
            here,
            given: false,
        })
    }

    /// A namespace, if one is ready. [`Pool::leave`] must follow before anybody runs in it.
    pub(super) fn take(&mut self) -> Option<OwnedFd> {
        self.ready.pop().or_else(|| {
            let here = self.here.take();
            self.given |= here.is_some();
            here
        })
    }

    /// Leaves a namespace that was given away, for a new one.
    ///
    /// # Errors
    /// When there is none to be had; the spawner is still in the one it gave away then.
    pub(super) fn leave(&mut self, proc: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.given {
            unshare(UnshareFlags::NEWNET)?;
            self.given = false;
            self.here = furnished(proc);
        }
        Ok(())
    }

    /// Whether [`Pool::fill_one`] has something to do.
    pub(super) fn wants(&self) -> bool {
        self.ready.len() < READY
    }

    /// Makes one more and moves into it; `false` when there is none to be had now.
    pub(super) fn fill_one(&mut self, proc: BorrowedFd<'_>) -> bool {
        if unshare(UnshareFlags::NEWNET).is_err() {
            return false;
        }
        let before = self.here.take().filter(|_| !self.given);
        self.ready.extend(before);
        self.given = false;
        self.here = furnished(proc);
        self.here.is_some()
    }
}
