//! Descriptors that the one thread waits for.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that can be waited for, to be read.
///
/// # Errors
/// When the kernel cannot wait for it.
pub(super) fn to_read(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    watched(fd, Interest::READABLE)
}

/// A descriptor that can be waited for, to be written.
///
/// # Errors
/// When the kernel cannot wait for it.
pub(super) fn to_write(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    watched(fd, Interest::WRITABLE)
}

/// A descriptor that can be waited for, both ways.
///
/// # Errors
/// When the kernel cannot wait for it.
pub(super) fn both_ways(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    watched(fd, Interest::READABLE | Interest::WRITABLE)
}

#[allow(
    deprecated,
    reason = "its successor is unsafe for types that may give another descriptor later, which an \
              owned descriptor never does; unsafe code is for the crate jail alone"
)]
fn watched(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
}
