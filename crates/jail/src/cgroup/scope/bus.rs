//! One conversation with systemd's own socket: who we are, one call, its answer, the end of its job.
//!
//! The whole of it has one deadline. Nothing here decides what is asked.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::ScopeError;
use super::wire::{self, FIXED, Kind, Message, Method};

/// Most bytes of the line that answers who we are.
const LINE_MAX: usize = 512;
/// Bytes read in one go.
const CHUNK: usize = 4_096;
/// The one call of a connection.
const SERIAL: u32 = 1;

/// A connection to a systemd manager.
pub(super) struct Bus {
    socket: OwnedFd,
    deadline: Instant,
    inbox: Vec<u8>,
}

impl Bus {
    /// Connects to a manager of this same user and says who we are.
    ///
    /// # Errors
    /// When nobody listens, somebody else does, or the greeting is not answered as it should be.
    pub(super) fn open(path: &Path, deadline: Instant) -> Result<Self, ScopeError> {
        let failed = |errno: Errno| match errno {
            Errno::NOENT | Errno::CONNREFUSED => ScopeError::NoManager {
                path: path.to_owned(),
            },
            errno => ScopeError::Connect {
                path: path.to_owned(),
                source: errno.into(),
            },
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(failed)?;
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        rustix::net::connect(&socket, &address).map_err(failed)?;
        let own = rustix::process::geteuid();
        let peer = rustix::net::sockopt::socket_peercred(&socket).map_err(failed)?;
        if peer.uid != own {
            return Err(ScopeError::Stranger {
                path: path.to_owned(),
                uid: peer.uid.as_raw(),
            });
        }
        let mut bus = Self {
            socket,
            deadline,
            inbox: Vec::new(),
        };
        bus.greet(own.as_raw())?;
        Ok(bus)
    }

    /// The name is the number of our uid in digits, those in hexadecimal.
    fn greet(&mut self, uid: u32) -> Result<(), ScopeError> {
        let name: String = uid
            .to_string()
            .bytes()
            .map(|digit| format!("{digit:02x}"))
            .collect();
        self.send(format!("\0AUTH EXTERNAL {name}\r\n").as_bytes())?;
        let end = loop {
            if let Some(end) = self.inbox.windows(2).position(|two| two == b"\r\n") {
                break end;
            }
            if self.inbox.len() > LINE_MAX {
                return Err(ScopeError::Nonsense("its greeting does not end"));
            }
            self.fill()?;
        };
        if !self.inbox.starts_with(b"OK ") {
            return Err(ScopeError::Nonsense("it does not take us for who we are"));
        }
        self.inbox.drain(..end + 2);
        self.send(b"BEGIN\r\n")
    }

    /// Calls a method that starts a job, and waits until the job was done.
    ///
    /// # Errors
    /// When the call is refused, the job fails, the answer makes no sense, or time is over.
    pub(super) fn call_job(&mut self, method: &Method<'_>, body: &[u8]) -> Result<(), ScopeError> {
        self.send(&wire::call(SERIAL, method, body))?;
        let mut job: Option<String> = None;
        loop {
            let bytes = self.next()?;
            let message = wire::message(&bytes).map_err(ScopeError::Nonsense)?;
            match message.kind {
                Kind::Return if message.answers == SERIAL && job.is_none() => {
                    let texts = message.texts().map_err(ScopeError::Nonsense)?;
                    let path = texts
                        .first()
                        .ok_or(ScopeError::Nonsense("it names no job"))?;
                    job = Some((*path).to_owned());
                }
                Kind::Error if message.answers == SERIAL => return Err(refusal(&message)),
                Kind::Signal if message.member == "JobRemoved" => {
                    let texts = message.texts().map_err(ScopeError::Nonsense)?;
                    let [path, _, result] = texts.as_slice() else {
                        return Err(ScopeError::Nonsense("the end of a job has no result"));
                    };
                    if job.as_deref() == Some(path) {
                        return match *result {
                            "done" => Ok(()),
                            other => Err(ScopeError::Job(short(other))),
                        };
                    }
                }
                _ => {}
            }
        }
    }

    /// The next whole message.
    fn next(&mut self) -> Result<Vec<u8>, ScopeError> {
        loop {
            if let Some(fixed) = self.inbox.first_chunk::<FIXED>() {
                let length = wire::length(fixed).map_err(ScopeError::Nonsense)?;
                if self.inbox.len() >= length {
                    return Ok(self.inbox.drain(..length).collect());
                }
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<(), ScopeError> {
        self.wait(PollFlags::IN)?;
        let mut chunk = [0; CHUNK];
        match rustix::net::recv(&self.socket, &mut chunk[..], RecvFlags::empty()) {
            Ok((_, 0)) => Err(ScopeError::Closed),
            Ok((_, count)) => {
                self.inbox.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(ScopeError::Talk(errno.into())),
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), ScopeError> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ScopeError::Closed),
                Err(errno) => return Err(ScopeError::Talk(errno.into())),
            }
        }
        Ok(())
    }

    fn wait(&self, what: PollFlags) -> Result<(), ScopeError> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            // Somebody who never stops talking is bounded too.
            if left.is_zero() {
                return Err(ScopeError::Silent);
            }
            let limit = Timespec::try_from(left).map_err(|_| ScopeError::Silent)?;
            let mut polled = [PollFd::new(&self.socket, what)];
            match poll(&mut polled, Some(&limit)) {
                Ok(0) => return Err(ScopeError::Silent),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(ScopeError::Talk(errno.into())),
            }
        }
    }
}

fn refusal(message: &Message<'_>) -> ScopeError {
    let texts = message.texts().unwrap_or_default();
    ScopeError::Refused {
        name: short(message.error),
        text: short(texts.first().copied().unwrap_or("no reason given")),
    }
}

/// What somebody else wrote, bounded and without control characters.
fn short(text: &str) -> String {
    const MOST: usize = 200;
    text.chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(MOST)
        .collect()
}
