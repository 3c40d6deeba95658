//! How the host opens connections to the agent.
//!
//! The channel is one connected Unix socket (stream or seqpacket). It carries no HTTP: each message
//! is four bytes and hands over exactly one connected stream socket (`SCM_RIGHTS`), the agent's end
//! of a new connection. So any number of requests are open at once without a multiplexing protocol,
//! each with the kernel's own flow control, and the host may splice a client's socket through
//! without looking at it. The agent sends one byte, [`READY`], once it serves.
//!
//! A byte stream that cannot pass descriptors (vsock, virtio-serial) will need another opener, for
//! instance one vsock connection per HTTP connection; the agent's `Listener` is the seam for it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::socket::{recv_with_fds, send_with_fds};

/// Bytes of one message.
pub const MESSAGE_LEN: usize = 4;
/// What the agent sends once.
pub const READY: u8 = b'R';

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// HTTP of a client: needs the access token, has no `leasehold.Bootstrap`.
    Client,
    /// HTTP of the host itself: everything, without a token.
    Host,
    /// Raw bytes to a TCP port on the guest's loopback. The agent first writes one byte:
    /// [`PORT_OPEN`] or [`PORT_CLOSED`], and after the latter closes.
    Port(u16),
}

/// The guest port is connected; what follows is its bytes.
pub const PORT_OPEN: u8 = 0;
/// Nobody listens on the guest port.
pub const PORT_CLOSED: u8 = 1;

impl Kind {
    /// The message that announces such a connection.
    #[must_use]
    pub fn encode(self) -> [u8; MESSAGE_LEN] {
        match self {
            Self::Client => [b'C', 0, 0, 0],
            Self::Host => [b'H', 0, 0, 0],
            Self::Port(port) => {
                let [low, high] = port.to_le_bytes();
                [b'P', 0, low, high]
            }
        }
    }

    /// Reads an announcement; none when it is no such message.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match *bytes {
            [b'C', 0, 0, 0] => Some(Self::Client),
            [b'H', 0, 0, 0] => Some(Self::Host),
            [b'P', 0, low, high] => Some(Self::Port(u16::from_le_bytes([low, high]))),
            _ => None,
        }
    }
}

/// Passes the agent's end of a connection, made by the caller, over the channel.
///
/// # Errors
/// As `sendmsg(2)`; a channel whose buffer is full of unaccepted connections says `WouldBlock` when
/// it is non-blocking.
pub fn pass(channel: impl AsFd, kind: Kind, end: impl AsFd) -> io::Result<()> {
    let sent = send_with_fds(channel, &kind.encode(), &[end.as_fd()])?;
    if sent == MESSAGE_LEN {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::WriteZero))
    }
}

/// Opens a connection: makes a socket pair, passes one end, returns the other (blocking,
/// close-on-exec).
///
/// # Errors
/// When no socket can be made or passed.
pub fn open(channel: impl AsFd, kind: Kind) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    pass(channel, kind, theirs)?;
    Ok(ours)
}

/// What one read of the channel gave.
#[derive(Debug)]
pub enum Received {
    /// A connection.
    Connection(Kind, OwnedFd),
    /// A message that is no announcement, or one without exactly one descriptor; whatever came with
    /// it is closed.
    Refused,
    /// The host closed the channel.
    End,
}

/// Reads one announcement.
///
/// # Errors
/// As `recvmsg(2)`, `WouldBlock` included.
pub fn receive(channel: impl AsFd) -> io::Result<Received> {
    let mut bytes = [0; MESSAGE_LEN];
    let mut fds = Vec::new();
    let got = match recv_with_fds(channel, &mut bytes, &mut fds) {
        // Descriptors were cut: this process has no room for another one.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(Received::Refused),
        other => other?,
    };
    if got == 0 {
        return Ok(Received::End);
    }
    match (Kind::decode(&bytes[..got]), fds.pop()) {
        (Some(kind), Some(end)) if fds.is_empty() => Ok(Received::Connection(kind, end)),
        _ => Ok(Received::Refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn connections_arrive_one_by_one_even_when_sent_at_once() {
        let (host, agent) = UnixStream::pair().unwrap();
        let kinds = [
            Kind::Client,
            Kind::Host,
            Kind::Port(8080),
            Kind::Port(0xffff),
        ];
        let ours: Vec<OwnedFd> = kinds.iter().map(|k| open(&host, *k).unwrap()).collect();
        for (kind, end) in kinds.into_iter().zip(ours) {
            let Received::Connection(got, theirs) = receive(&agent).unwrap() else {
                panic!("no connection");
            };
            assert_eq!(got, kind);
            UnixStream::from(end).write_all(b"x").unwrap();
            let mut byte = [0];
            UnixStream::from(theirs).read_exact(&mut byte).unwrap();
            assert_eq!(&byte, b"x");
        }
        drop(host);
        assert!(matches!(receive(&agent).unwrap(), Received::End));
    }

    #[test]
    fn what_is_no_announcement_is_refused() {
        let (mut host, agent) = UnixStream::pair().unwrap();
        host.write_all(&Kind::Client.encode()).unwrap();
        assert!(matches!(receive(&agent).unwrap(), Received::Refused));
        for bytes in [b"C\0\0\x01", b"x\0\0\0", b"P\x01\0\0"] {
            send_with_fds(&host, bytes, &[agent.as_fd()]).unwrap();
            assert!(matches!(receive(&agent).unwrap(), Received::Refused));
        }
        send_with_fds(&host, &Kind::Host.encode(), &[agent.as_fd(), agent.as_fd()]).unwrap();
        assert!(matches!(receive(&agent).unwrap(), Received::Refused));
    }
}
