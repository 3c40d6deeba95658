//! Frames and descriptors over Unix sockets.
//!
//! A frame is a little-endian `u32` length and that many bytes of JSON; descriptors ride on its
//! first byte. Received descriptors are always close-on-exec.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes of one frame's body.
pub const FRAME_MAX: usize = 4 << 20;
/// Most descriptors with one message.
pub const FDS_MAX: usize = 16;

/// A frame that breaks the protocol.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The other side says it sends more than is allowed.
    #[error("frame of {0} bytes: most is {FRAME_MAX}")]
    TooLong(usize),
    /// The body is no such message.
    #[error("frame is not a known message")]
    Body(#[source] serde_json::Error),
    /// More descriptors than one message may carry.
    #[error("more than {FDS_MAX} descriptors are waiting")]
    TooManyFds,
    /// A frame promises descriptors that did not come with it.
    #[error("frame promises descriptors that did not come")]
    MissingFds,
    /// The socket failed.
    #[error("socket failed")]
    Io(#[source] io::Error),
}

/// Sends one message with descriptors in one system call. Returns the bytes taken by the kernel:
/// fewer than given can happen on a stream, and then the descriptors are already across.
///
/// # Errors
/// As `sendmsg(2)`.
pub fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let flags = SendFlags::NOSIGNAL;
    Ok(rustix::io::retry_on_intr(|| {
        sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags)
    })?)
}

/// Receives bytes, and whatever descriptors come with them, in one system call. 0 bytes is the end.
///
/// # Errors
/// As `recvmsg(2)`; a message whose descriptors were cut by the kernel is `InvalidData`.
pub fn recv_with_fds(
    socket: impl AsFd,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    match receive(socket, bytes, fds)? {
        (_, true) => Err(io::Error::from(io::ErrorKind::InvalidData)),
        (got, false) => Ok(got),
    }
}

/// The same, and whether descriptors that came were cut by the kernel, for want of numbers for them.
fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<(usize, bool)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(bytes)];
    let got = rustix::io::retry_on_intr(|| {
        recvmsg(&socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    let cut = got.flags.contains(rustix::net::ReturnFlags::CTRUNC);
    Ok((got.bytes, cut))
}

/// A message as one frame.
///
/// # Errors
/// When it is longer than [`FRAME_MAX`].
pub fn encode_frame<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).map_err(FrameError::Body)?;
    with_length(bytes)
}

/// A message that is JSON already as one frame.
pub(crate) fn frame(body: &[u8]) -> Result<Vec<u8>, FrameError> {
    with_length([&[0; 4], body].concat())
}

/// Puts the length into the first bytes, which are kept free for it.
fn with_length(mut bytes: Vec<u8>) -> Result<Vec<u8>, FrameError> {
    let body = bytes.len() - 4;
    if body > FRAME_MAX {
        return Err(FrameError::TooLong(body));
    }
    bytes[..4].copy_from_slice(&(body as u32).to_le_bytes());
    Ok(bytes)
}

/// What one read of a socket came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// The other side is still there.
    pub there: bool,
    /// Descriptors came, and there were no numbers left for all of them.
    pub cut: bool,
}

/// Puts frames together from whatever pieces the socket gives. Holds at most one frame and one read.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl FrameReader {
    /// An empty reader.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads once from the socket. Returns whether the other side is still there.
    ///
    /// # Errors
    /// When the socket fails (`WouldBlock` included) or too many descriptors pile up.
    pub fn fill(&mut self, socket: impl AsFd) -> Result<bool, FrameError> {
        match self.fill_or_cut(socket)? {
            Filled { cut: true, .. } => {
                Err(FrameError::Io(io::Error::from(io::ErrorKind::InvalidData)))
            }
            Filled { there, .. } => Ok(there),
        }
    }

    /// The same for a reader that goes on without descriptors this process has no number left for. The bytes
    /// are whole; of what came with them nothing is kept. One read takes the descriptors of at most one
    /// message of the sender's.
    ///
    /// # Errors
    /// As [`FrameReader::fill`].
    pub fn fill_or_cut(&mut self, socket: impl AsFd) -> Result<Filled, FrameError> {
        let (start, held) = (self.bytes.len(), self.fds.len());
        self.bytes.resize(start + 16_384, 0);
        let got = receive(socket, &mut self.bytes[start..], &mut self.fds);
        let bytes = got.as_ref().map_or(0, |(bytes, _)| *bytes);
        self.bytes.truncate(start + bytes);
        let (bytes, cut) = got.map_err(FrameError::Io)?;
        if cut {
            self.fds.truncate(held);
        }
        if self.fds.len() > FDS_MAX {
            return Err(FrameError::TooManyFds);
        }
        Ok(Filled {
            there: bytes > 0,
            cut,
        })
    }

    /// Takes the descriptors received so far, for a reader that knows by itself which frame they belong to.
    pub fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    /// Takes the next whole frame and the descriptors received so far, if one is there. A sender
    /// must wait for the answer before it sends descriptors with another frame.
    ///
    /// # Errors
    /// When the frame is too long or no such message.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<(T, Vec<OwnedFd>)>, FrameError> {
        let Some(head) = self.bytes.first_chunk::<4>() else {
            return Ok(None);
        };
        let body = u32::from_le_bytes(*head) as usize;
        if body > FRAME_MAX {
            return Err(FrameError::TooLong(body));
        }
        let Some(text) = self.bytes.get(4..4 + body) else {
            return Ok(None);
        };
        let message = serde_json::from_slice(text).map_err(FrameError::Body)?;
        self.bytes.drain(..4 + body);
        Ok(Some((message, std::mem::take(&mut self.fds))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn frames_arrive_whole_from_single_bytes() {
        let (mut left, right) = UnixStream::pair().unwrap();
        let frame = encode_frame(&vec!["a", "b"]).unwrap();
        let mut reader = FrameReader::new();
        for byte in &frame {
            assert!(reader.take::<Vec<String>>().unwrap().is_none());
            left.write_all(&[*byte]).unwrap();
            assert!(reader.fill(&right).unwrap());
        }
        let (message, fds) = reader.take::<Vec<String>>().unwrap().unwrap();
        assert_eq!(message, ["a", "b"]);
        assert!(fds.is_empty());
        drop(left);
        assert!(!reader.fill(&right).unwrap());
    }

    #[test]
    fn descriptors_ride_along() {
        let (left, right) = UnixStream::pair().unwrap();
        let frame = encode_frame(&7).unwrap();
        let sent = send_with_fds(&left, &frame, &[left.as_fd(), left.as_fd()]).unwrap();
        assert_eq!(sent, frame.len());
        let mut reader = FrameReader::new();
        reader.fill(&right).unwrap();
        let (message, fds) = reader.take::<u32>().unwrap().unwrap();
        assert_eq!((message, fds.len()), (7, 2));
        let flags = rustix::io::fcntl_getfd(&fds[0]).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn a_length_above_the_bound_is_refused_before_it_is_read() {
        let (mut left, right) = UnixStream::pair().unwrap();
        left.write_all(&u32::MAX.to_le_bytes()).unwrap();
        let mut reader = FrameReader::new();
        reader.fill(&right).unwrap();
        assert!(matches!(reader.take::<u32>(), Err(FrameError::TooLong(_))));
    }
}
