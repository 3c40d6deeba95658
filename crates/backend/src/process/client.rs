//! A blocking connection to the supervisor: calls one way, notices the other.
//!
//! No runtime, no thread: the caller waits in [`Client::next_notice`], or polls the descriptor
//! together with its own and then asks with a deadline that has passed. Several calls may be open
//! on one connection; their notices carry their tags.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_protocol::socket::{FDS_MAX, FrameError, FrameReader, encode_frame, send_with_fds};
use leasehold_protocol::supervisor::{Call, Event, Notice, Request, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::start::{self, Begun, Endpoint};

/// How long a supervisor may take to answer the greeting: one that starts sweeps first.
const GREETING_PATIENCE: Duration = Duration::from_secs(20);

/// `LEASEHOLD_NEWER=protocol`, in builds with debug assertions alone: this program speaks the next version.
#[cfg(debug_assertions)]
const NEWER_VARIABLE: &str = "LEASEHOLD_NEWER";

/// The version that this program speaks.
fn spoken() -> u32 {
    #[cfg(debug_assertions)]
    if std::env::var_os(NEWER_VARIABLE).is_some_and(|word| word == "protocol") {
        return VERSION + 1;
    }
    VERSION
}

/// What can go wrong between us and the supervisor.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket is there and cannot be connected to.
    #[error("cannot connect to the supervisor at {}", socket.display())]
    Connect {
        /// Its path.
        socket: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Nobody listens and the caller did not want one started.
    #[error("no supervisor listens at {}", socket.display())]
    Absent {
        /// Its path.
        socket: PathBuf,
    },
    /// Another user's process listens.
    #[error("the supervisor at {} belongs to uid {uid}, not to this user", socket.display())]
    Stranger {
        /// Its path.
        socket: PathBuf,
        /// Whose it is.
        uid: u32,
    },
    /// The supervisor could not be started.
    #[error("cannot start the supervisor {}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The supervisor ended before it listened.
    #[error("the supervisor ended at its start ({status}); its log says: {log}")]
    Ended {
        /// Its exit status in words.
        status: String,
        /// The end of its log.
        log: String,
    },
    /// The supervisor did not listen in time.
    #[error("the supervisor did not listen within {waited:?}; its log says: {log}")]
    StartTimeout {
        /// How long was waited.
        waited: Duration,
        /// The end of its log.
        log: String,
    },
    /// The connection ended.
    #[error("the supervisor went away")]
    Gone,
    /// It did not answer in time.
    #[error("the supervisor did not answer within {waited:?}")]
    Silent {
        /// How long was waited.
        waited: Duration,
    },
    /// It speaks another version.
    #[error(
        "the supervisor speaks protocol version {theirs}, this program {}",
        spoken()
    )]
    Version {
        /// Its version.
        theirs: u32,
    },
    /// A notice that breaks the protocol.
    #[error("the supervisor broke the protocol")]
    Frame(#[source] FrameError),
    /// An answer that does not belong to the question.
    #[error("the supervisor answered {request} with something else")]
    Unexpected {
        /// The question.
        request: &'static str,
    },
    /// A notice without the descriptors it promises.
    #[error("{want} descriptors should have come with a notice, {got} came")]
    Descriptors {
        /// How many it promises.
        want: usize,
        /// How many were there.
        got: usize,
    },
    /// A notice whose descriptors this process has no numbers left for. Everything else goes on.
    #[error(
        "this process has no descriptors left for what the supervisor passes: raise `ulimit -n`"
    )]
    NoDescriptors,
    /// It said no.
    #[error(transparent)]
    Refused(#[from] PublicError),
}

impl ClientError {
    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused(error) => error.kind,
            Self::Stranger { .. } => ErrorKind::Forbidden,
            Self::Silent { .. } | Self::StartTimeout { .. } => ErrorKind::Timeout,
            Self::Connect { .. }
            | Self::Absent { .. }
            | Self::Start { .. }
            | Self::Ended { .. }
            | Self::Gone => ErrorKind::Unavailable,
            Self::Version { .. } => ErrorKind::Unsupported,
            Self::NoDescriptors => ErrorKind::NoCapacity,
            Self::Frame(_) | Self::Unexpected { .. } | Self::Descriptors { .. } => {
                ErrorKind::Internal
            }
        }
    }

    /// The mend, where one is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Refused(error) => error.hint.clone(),
            Self::Stranger { socket, .. } => Some(format!(
                "set {} to a directory of your own; {} is not",
                start::RUN_DIR_VAR,
                socket.parent().unwrap_or(socket).display()
            )),
            Self::Version { .. } => {
                Some("another version is still running: end it with `leasehold stop`".to_owned())
            }
            Self::Ended { .. } | Self::StartTimeout { .. } => {
                Some("`leasehold doctor` says what this host lacks".to_owned())
            }
            Self::Connect { .. }
            | Self::Absent { .. }
            | Self::Start { .. }
            | Self::Gone
            | Self::Silent { .. }
            | Self::Frame(_)
            | Self::Unexpected { .. }
            | Self::NoDescriptors
            | Self::Descriptors { .. } => None,
        }
    }
}

/// How many descriptors travel with an event.
#[must_use]
pub fn descriptors(event: &Event) -> usize {
    match event {
        Event::Accepted { input, .. } => 2 + usize::from(*input),
        Event::Channel => 1,
        Event::Kept { there } => usize::from(*there),
        Event::Hello { .. }
        | Event::Refused(_)
        | Event::Stage(_)
        | Event::Output { .. }
        | Event::Ended(_)
        | Event::Cleaned(_)
        | Event::Provisioned { .. }
        | Event::Usage(_)
        | Event::Destroyed(_)
        | Event::Status { .. }
        | Event::Done => 0,
    }
}

/// A notice and what came with it.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) notice: Notice,
    /// Its descriptors; `None` where this process had no numbers left for them.
    pub(super) fds: Option<Vec<OwnedFd>>,
}

/// Gives each notice its own descriptors. A read may hold an earlier notice without descriptors
/// and a later one with them, so arrival alone does not tell whose they are; order does: those of one read
/// are of one notice, since the supervisor sends them with its first byte and the kernel joins no two.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    reader: FrameReader,
    /// What came with descriptors and has not been taken, oldest first; `None` for what was cut.
    packets: VecDeque<Option<Vec<OwnedFd>>>,
}

impl Inbox {
    /// Reads once from the socket. Says whether the supervisor is still there.
    pub(super) fn fill(&mut self, socket: impl AsFd) -> Result<bool, FrameError> {
        let filled = self.reader.fill_or_cut(socket)?;
        let came = self.reader.take_fds();
        if filled.cut || !came.is_empty() {
            self.packets.push_back((!filled.cut).then_some(came));
        }
        if self.packets.len() > FDS_MAX {
            return Err(FrameError::TooManyFds);
        }
        Ok(filled.there)
    }

    /// Takes the next whole notice.
    pub(super) fn take(&mut self) -> Result<Option<Letter>, ClientError> {
        let Some((notice, _)) = self.reader.take::<Notice>().map_err(ClientError::Frame)? else {
            return Ok(None);
        };
        let want = descriptors(&notice.event);
        let packet = match want {
            0 => Some(Vec::new()),
            _ => self.packets.pop_front().unwrap_or_else(|| Some(Vec::new())),
        };
        let got = packet.as_ref().map_or(want, Vec::len);
        if got != want {
            return Err(ClientError::Descriptors { want, got });
        }
        Ok(Some(Letter {
            notice,
            fds: packet,
        }))
    }
}

/// A connection that has been greeted.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    inbox: Inbox,
    next_tag: u64,
    supervisor: u32,
    /// The supervisor, where this process started it.
    child: Option<Child>,
}

impl Client {
    /// Connects to a supervisor that runs.
    ///
    /// # Errors
    /// [`ClientError::Absent`] when none runs; others when it cannot be talked to.
    pub fn connect(endpoint: &Endpoint) -> Result<Self, ClientError> {
        let socket = endpoint.socket();
        let stream = start::connect(&socket)?.ok_or(ClientError::Absent { socket })?;
        Self::greeted(stream, None)
    }

    /// Connects to the supervisor, or starts it and then connects.
    ///
    /// # Errors
    /// When it cannot be started or talked to.
    pub fn connect_or_start(endpoint: &Endpoint) -> Result<Self, ClientError> {
        Self::connect_or_go_on(endpoint, None)
    }

    /// The same, where one was begun that may be the one to start.
    ///
    /// # Errors
    /// As [`Client::connect_or_start`].
    pub fn connect_or_go_on(
        endpoint: &Endpoint,
        begun: Option<Begun>,
    ) -> Result<Self, ClientError> {
        if let Some(stream) = start::connect(&endpoint.socket())? {
            match Self::greeted(stream, None) {
                // It was about to leave for want of work; the next one is ours to start.
                Err(ClientError::Gone) => {}
                other => return other,
            }
        }
        let (stream, mut child) = start::start(endpoint, begun)?;
        match Self::greeted(stream, None) {
            // It listens before it knows that it can work.
            Err(ClientError::Gone) => Err(start::failed(endpoint, &mut child)),
            other => other.map(|client| Self {
                child: Some(child),
                ..client
            }),
        }
    }

    fn greeted(socket: UnixStream, child: Option<Child>) -> Result<Self, ClientError> {
        let mut client = Self {
            socket,
            inbox: Inbox::default(),
            next_tag: 1,
            supervisor: 0,
            child,
        };
        let request = Request::Hello { version: spoken() };
        let (event, _) = client.ask(request, &[], GREETING_PATIENCE)?;
        match event {
            Event::Hello { version, .. } if version != spoken() => {
                Err(ClientError::Version { theirs: version })
            }
            Event::Hello { pid, .. } => {
                client.supervisor = pid;
                Ok(client)
            }
            _ => Err(ClientError::Unexpected { request: "hello" }),
        }
    }

    /// Process id of the supervisor.
    #[must_use]
    pub fn supervisor_pid(&self) -> u32 {
        self.supervisor
    }

    /// Whether this process started the supervisor.
    #[must_use]
    pub fn started_it(&self) -> bool {
        self.child.is_some()
    }

    /// Sends a request; its notices carry the returned tag. Descriptors may go along only while no
    /// earlier call waits for its first answer.
    ///
    /// # Errors
    /// [`ClientError::Gone`] when nobody reads any more, [`ClientError::Frame`] for a request that
    /// is too long.
    pub fn call(&mut self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<u64, ClientError> {
        let tag = self.next_tag;
        self.next_tag += 1;
        let frame = encode_frame(&Call { tag, request }).map_err(ClientError::Frame)?;
        send_all(&self.socket, &frame, fds).map_err(lost)?;
        Ok(tag)
    }

    /// The next notice of any call and its descriptors; `None` when the deadline passes first.
    /// A deadline that has passed already means: only what is there.
    ///
    /// # Errors
    /// [`ClientError::Gone`] when the supervisor went away; others when it breaks the protocol.
    pub fn next_notice(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<Option<(Notice, Vec<OwnedFd>)>, ClientError> {
        loop {
            if let Some(Letter { notice, fds }) = self.inbox.take()? {
                return Ok(Some((notice, fds.ok_or(ClientError::NoDescriptors)?)));
            }
            if !readable(self.socket.as_fd(), deadline).map_err(lost)? {
                return Ok(None);
            }
            match self.inbox.fill(&self.socket) {
                Ok(true) => {}
                Ok(false) => return Err(ClientError::Gone),
                Err(FrameError::Io(error)) => return Err(lost(error)),
                Err(error) => return Err(ClientError::Frame(error)),
            }
        }
    }

    /// Sends a request that has one answer, and waits for it. Notices of other calls that come
    /// meanwhile are dropped, so this is for connections with no other call open.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the supervisor's own words, [`ClientError::Silent`] when
    /// nothing came in time.
    pub fn ask(
        &mut self,
        request: Request,
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<(Event, Vec<OwnedFd>), ClientError> {
        let tag = self.call(request, fds)?;
        let deadline = Instant::now() + patience;
        while let Some((notice, fds)) = self.next_notice(Some(deadline))? {
            match notice.event {
                _ if notice.tag != tag => {}
                Event::Refused(error) => return Err(error.into()),
                event => return Ok((event, fds)),
            }
        }
        Err(ClientError::Silent { waited: patience })
    }
}

impl Client {
    /// The connection for a reader of its own: socket, what was read of it, next tag, child.
    pub(super) fn into_parts(mut self) -> (UnixStream, Inbox, u64, Option<Child>) {
        let child = self.child.take();
        let inbox = std::mem::take(&mut self.inbox);
        (self.socket, inbox, self.next_tag, child)
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A failure of the socket as the caller should see it.
pub(super) fn lost(error: io::Error) -> ClientError {
    match error.kind() {
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::NotConnected => ClientError::Gone,
        _ => ClientError::Frame(FrameError::Io(error)),
    }
}

/// Sends a whole frame; descriptors go with its first bytes.
fn send_all(socket: &UnixStream, frame: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut sent = send_with_fds(socket, frame, fds)?;
    while sent < frame.len() {
        sent += send_with_fds(socket, &frame[sent..], &[])?;
    }
    Ok(())
}

/// Waits until the socket can be read or has ended; `false` when the deadline passes first.
fn readable(socket: BorrowedFd<'_>, deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let limit = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        match poll(&mut polled, limit.as_ref()) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
