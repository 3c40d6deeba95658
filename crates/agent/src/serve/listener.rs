//! Where connections come from.

use std::io;
use std::os::fd::OwnedFd;

use leasehold_protocol::envd::channel::{self, Received};
use tokio::io::unix::AsyncFd;

use super::ready;

/// A source of connections. The one place to extend for byte streams that pass no descriptors, such
/// as vsock.
#[derive(Debug)]
pub(super) enum Listener {
    /// The host passes connected sockets.
    Passed(AsyncFd<OwnedFd>),
}

impl Listener {
    /// Listens on a channel.
    ///
    /// # Errors
    /// When the descriptor is no socket that can be waited for.
    pub(super) fn passed(channel: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&channel, true)?;
        Ok(Self::Passed(ready::both_ways(channel)?))
    }

    /// Tells the host that the agent serves.
    ///
    /// # Errors
    /// When the host is gone.
    pub(super) async fn ready(&self) -> io::Result<()> {
        match self {
            Self::Passed(socket) => loop {
                let mut guard = socket.writable().await?;
                let write = |socket: &AsyncFd<OwnedFd>| {
                    Ok(rustix::io::write(socket.get_ref(), &[channel::READY])?)
                };
                match guard.try_io(write) {
                    Ok(outcome) => return outcome.map(drop),
                    Err(_would_block) => {}
                }
            },
        }
    }

    /// The next thing the host sends.
    ///
    /// # Errors
    /// When the channel fails.
    pub(super) async fn accept(&self) -> io::Result<Received> {
        match self {
            Self::Passed(socket) => loop {
                let mut guard = socket.readable().await?;
                match guard.try_io(|socket| channel::receive(socket.get_ref())) {
                    Ok(outcome) => return outcome,
                    Err(_would_block) => {}
                }
            },
        }
    }
}
