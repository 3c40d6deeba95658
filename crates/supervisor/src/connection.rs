//! One caller's connection: frames in, notices out, both bounded, never blocking.
//!
//! Notices wait in a queue while the caller is slow. What is in it is bounded by what a caller may
//! have open at once; a caller that lets more pile up is disconnected. Its runs go on.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use leasehold_protocol::socket::{FDS_MAX, FrameError, FrameReader, encode_frame, send_with_fds};
use leasehold_protocol::supervisor::{Call, Event, Notice, RecordWord, record_frame};

/// Most bytes of notices that wait for one caller.
const QUEUE_MAX: usize = 16 << 20;

/// Bytes that go out in one system call, and the descriptors that ride on the first of them.
#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    reader: FrameReader,
    /// Descriptors received and not yet taken by a call; calls take them in order.
    fds: VecDeque<OwnedFd>,
    queue: VecDeque<Chunk>,
    queued: usize,
    sent: usize,
    /// The process that connected.
    pub(crate) peer: i32,
    /// When it said something last.
    pub(crate) heard: Instant,
    /// Whether the caller has said hello.
    pub(crate) greeted: bool,
    /// Whether epoll waits for room in the socket.
    pub(crate) waits_for_room: bool,
    /// Runs whose newest output counts have not been told: (tag, run key).
    pub(crate) stale: BTreeSet<(u64, u64)>,
    /// Runs this caller follows: (tag, run key).
    pub(crate) follows: BTreeSet<(u64, u64)>,
}

impl Connection {
    /// Takes an accepted socket, which must not block.
    pub(crate) fn new(socket: OwnedFd, peer: i32) -> Self {
        Self {
            socket,
            peer,
            heard: Instant::now(),
            reader: FrameReader::new(),
            fds: VecDeque::new(),
            queue: VecDeque::new(),
            queued: 0,
            sent: 0,
            greeted: false,
            waits_for_room: false,
            stale: BTreeSet::new(),
            follows: BTreeSet::new(),
        }
    }

    /// Reads once. Returns whether the caller is still there.
    ///
    /// # Errors
    /// When the socket fails or the caller breaks the protocol.
    pub(crate) fn fill(&mut self) -> Result<bool, FrameError> {
        self.heard = Instant::now();
        match self.reader.fill(&self.socket) {
            Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            other => other,
        }
    }

    /// Takes the next whole call.
    ///
    /// # Errors
    /// When the caller breaks the protocol.
    pub(crate) fn take(&mut self) -> Result<Option<Call>, FrameError> {
        let Some((call, fds)) = self.reader.take()? else {
            return Ok(None);
        };
        self.fds.extend(fds);
        if self.fds.len() > FDS_MAX {
            return Err(FrameError::TooManyFds);
        }
        Ok(Some(call))
    }

    /// Whether nothing is on its way to the caller and it follows nothing.
    pub(crate) fn owes_nothing(&self) -> bool {
        self.queue.is_empty() && self.follows.is_empty()
    }

    /// Takes the descriptor that came with a call.
    pub(crate) fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fds.pop_front()
    }

    /// Queues a notice. Returns whether the caller may stay.
    pub(crate) fn push(&mut self, tag: u64, event: Event, fds: Vec<OwnedFd>) -> bool {
        match encode_frame(&Notice { tag, event }) {
            Ok(bytes) => self.push_frame(bytes, fds),
            Err(_) => false,
        }
    }

    /// Queues a notice with a record that is encoded. Returns whether the caller may stay.
    pub(crate) fn push_record(&mut self, tag: u64, word: RecordWord, record: &[u8]) -> bool {
        match record_frame(tag, word, record) {
            Ok(bytes) => self.push_frame(bytes, Vec::new()),
            Err(_) => false,
        }
    }

    fn push_frame(&mut self, bytes: Vec<u8>, fds: Vec<OwnedFd>) -> bool {
        self.queued += bytes.len();
        match self.queue.back_mut() {
            Some(last) if fds.is_empty() => last.bytes.extend_from_slice(&bytes),
            _ => self.queue.push_back(Chunk { bytes, fds }),
        }
        self.queued <= QUEUE_MAX
    }

    /// Sends what the socket takes. Returns whether everything went.
    ///
    /// # Errors
    /// When the caller is gone.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while let Some(first) = self.queue.front_mut() {
            let fds: Vec<BorrowedFd<'_>> = first.fds.iter().map(AsFd::as_fd).collect();
            match send_with_fds(&self.socket, &first.bytes[self.sent..], &fds) {
                Ok(count) => {
                    first.fds.clear();
                    self.sent += count;
                    self.queued -= count;
                    if self.sent == first.bytes.len() {
                        self.queue.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_protocol::supervisor::Request;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, Connection) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (caller, ours) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        (caller, Connection::new(ours, 1))
    }

    fn output(count: u64) -> Event {
        Event::Output {
            stdout: count,
            stderr: 0,
        }
    }

    #[test]
    fn calls_come_whole_and_their_descriptors_in_order() {
        let (caller, mut connection) = pair();
        for tag in [1, 2] {
            let call = Call {
                tag,
                request: Request::Status,
            };
            let frame = encode_frame(&call).unwrap();
            send_with_fds(&caller, &frame, &[caller.as_fd()]).unwrap();
        }
        while connection.fds.len() < 2 {
            assert!(connection.fill().unwrap());
            while connection.take().unwrap().is_some() {}
        }
        assert!(connection.take_fd().is_some() && connection.take_fd().is_some());
        assert!(connection.take_fd().is_none());
        drop(caller);
        assert!(!connection.fill().unwrap());
    }

    #[test]
    fn descriptors_reach_the_frame_they_belong_to() {
        let (caller, mut connection) = pair();
        let (spool, _writer) = rustix::pipe::pipe().unwrap();
        assert!(connection.push(1, output(1), Vec::new()));
        assert!(connection.push(1, Event::Channel, vec![spool]));
        assert!(connection.push(1, output(2), Vec::new()));
        assert!(connection.flush().unwrap() && connection.queue.is_empty());
        let mut reader = FrameReader::new();
        let (mut notices, mut fds) = (Vec::new(), 0);
        while notices.len() < 3 {
            reader.fill(&caller).unwrap();
            while let Some((notice, with)) = reader.take::<Notice>().unwrap() {
                notices.push(notice.event);
                fds += with.len();
            }
        }
        assert_eq!((&notices[1], fds), (&Event::Channel, 1));
    }

    #[test]
    fn a_caller_that_never_reads_is_let_go_and_costs_a_bounded_queue() {
        let (_caller, mut connection) = pair();
        let mut notices = 0u64;
        while connection.push(1, output(notices), Vec::new()) {
            notices += 1;
            assert!(notices < 10_000_000, "nothing stops the queue");
            if notices.is_multiple_of(10_000) {
                connection.flush().unwrap();
            }
        }
        assert!(connection.queued < QUEUE_MAX + 1_000);
    }
}
