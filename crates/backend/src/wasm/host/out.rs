//! Frames on their way to a host. Whoever has one sends it, as far as the socket takes it; the rest waits for the
//! host's own task.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use leasehold_protocol::socket::send_with_fds;
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::super::code::Code;

/// Bytes, and the code whose file goes with the first of them.
#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    sent: usize,
    code: Option<Arc<Code>>,
}

#[derive(Debug, Default)]
pub(super) struct Out {
    pieces: VecDeque<Piece>,
}

impl Out {
    pub(super) fn push(&mut self, bytes: Vec<u8>, code: Option<Arc<Code>>) {
        let sent = 0;
        self.pieces.push_back(Piece { bytes, sent, code });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Sends what the socket takes now. Says whether everything went.
    ///
    /// # Errors
    /// When the host is gone.
    pub(super) fn flush(&mut self, socket: &UnixStream) -> io::Result<bool> {
        while let Some(first) = self.pieces.front_mut() {
            let code = first.code.as_ref().map(|code| code.sealed.file.as_fd());
            let fds: &[BorrowedFd<'_>] = code.as_slice();
            let bytes = &first.bytes[first.sent..];
            match socket.try_io(Interest::WRITABLE, || send_with_fds(socket, bytes, fds)) {
                Ok(count) => {
                    first.code = None;
                    first.sent += count;
                    if first.sent == first.bytes.len() {
                        self.pieces.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
