//! Network namespaces of sandboxes: loopback alone, and a few made ahead of time.
//!
//! A namespace of the pool has never been used and is handed out once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::clone::{interface_up, unshare};

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

/// Furnished namespaces nobody has used.
#[derive(Debug)]
pub(super) struct Pool {
    home: OwnedFd,
    ready: Vec<OwnedFd>,
}

fn own(proc: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::openat(proc, c"self/ns/net", flags, Mode::empty())
}

impl Pool {
    /// An empty pool. The spawner leaves the host's network for an empty namespace of its own: it
    /// needs none, and an ordinary user could not come back to the host's.
    pub(super) fn new(proc: BorrowedFd<'_>) -> Result<Self, Errno> {
        unshare(UnshareFlags::NEWNET)?;
        Ok(Self {
            home: own(proc)?,
            ready: Vec::with_capacity(READY),
        })
    }

    /// A namespace, if one is ready.
    pub(super) fn take(&mut self) -> Option<OwnedFd> {
        self.ready.pop()
    }

    /// Whether [`Pool::fill_one`] has something to do.
    pub(super) fn wants(&self) -> bool {
        self.ready.len() < READY
    }

    /// Makes one more; `false` when there is none to be had now.
    ///
    /// # Errors
    /// When the caller may not be where it was.
    pub(super) fn fill_one(&mut self, proc: BorrowedFd<'_>) -> Result<bool, Errno> {
        if unshare(UnshareFlags::NEWNET).is_err() {
            return Ok(false);
        }
        let made = furnish(proc).and_then(|()| own(proc));
        enter(self.home.as_fd())?;
        let filled = made.is_ok();
        self.ready.extend(made);
        Ok(filled)
    }
}
