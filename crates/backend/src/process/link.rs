//! A connection to the supervisor that many callers share, without blocking.
//!
//! One task reads and gives each notice to the call it belongs to. A call that is not listened to any
//! more loses its notices; it costs nobody else anything.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_protocol::socket::{FrameError, encode_frame, send_with_fds};
use leasehold_protocol::supervisor::{Call, Event, Request};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::client::{Client, ClientError, Inbox, Letter, lost};
use super::start::Endpoint;
use crate::execution::{EVENTS_KEPT, EVENTS_MAX};

/// One notice of a call.
type Heard = (Event, Vec<OwnedFd>);
/// The same, or that it was one whose descriptors there were no numbers for.
type Delivered = Result<Heard, ClientError>;

#[derive(Debug)]
struct Calls {
    next_tag: u64,
    open: HashMap<u64, mpsc::Sender<Delivered>>,
    /// The supervisor went away; no call can be answered any more.
    over: bool,
}

/// What is still to be sent of a frame that has begun. Whoever sends it may be dropped in the middle; the next one
/// finishes it first.
#[derive(Debug, Default)]
struct Unsent {
    frame: Vec<u8>,
    sent: usize,
}

impl Unsent {
    /// Sends what is left, with descriptors on its first byte.
    async fn send(&mut self, stream: &UnixStream, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        while self.sent < self.frame.len() {
            let fds = if self.sent == 0 { fds } else { &[] };
            let write = || send_with_fds(stream, &self.frame[self.sent..], fds);
            // What was written is counted before anything can be dropped.
            self.sent += stream.async_io(Interest::WRITABLE, write).await?;
        }
        Ok(())
    }
}

/// The connection.
#[derive(Debug)]
pub(super) struct Link {
    stream: Arc<UnixStream>,
    calls: Arc<Mutex<Calls>>,
    /// Held while a frame is written, so that frames do not mix.
    sending: tokio::sync::Mutex<Unsent>,
    reader: JoinHandle<()>,
    child: Mutex<Option<Child>>,
}

/// A call and what comes of it.
#[derive(Debug)]
pub(super) struct OpenCall {
    tag: u64,
    events: mpsc::Receiver<Delivered>,
    /// Keeps the connection, and so the reader, alive.
    link: Arc<Link>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Connects, starting the supervisor where there is none.
    pub(super) async fn open(endpoint: Endpoint) -> Result<Arc<Self>, ClientError> {
        let connecting = tokio::task::spawn_blocking(move || Client::connect_or_start(&endpoint));
        let client = connecting.await.map_err(|_| ClientError::Gone)??;
        let (stream, inbox, next_tag, child) = client.into_parts();
        let stream = stream
            .set_nonblocking(true)
            .and_then(|()| UnixStream::from_std(stream))
            .map_err(lost)?;
        let stream = Arc::new(stream);
        let calls = Arc::new(Mutex::new(Calls {
            next_tag,
            open: HashMap::new(),
            over: false,
        }));
        let reader = tokio::spawn(read(Arc::clone(&stream), inbox, Arc::clone(&calls)));
        Ok(Arc::new(Self {
            stream,
            calls,
            sending: tokio::sync::Mutex::default(),
            reader,
            child: Mutex::new(child),
        }))
    }

    /// Whether the supervisor went away.
    pub(super) fn over(&self) -> bool {
        locked(&self.calls).over
    }

    /// Sends a request. Descriptors arrive in the order of the calls that carry them.
    pub(super) async fn call(
        self: &Arc<Self>,
        request: Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<OpenCall, ClientError> {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let tag = {
            let mut calls = locked(&self.calls);
            if calls.over {
                return Err(ClientError::Gone);
            }
            let tag = calls.next_tag;
            calls.next_tag += 1;
            calls.open.insert(tag, sender);
            tag
        };
        let call = OpenCall {
            tag,
            events,
            link: Arc::clone(self),
        };
        let frame = encode_frame(&Call { tag, request }).map_err(ClientError::Frame)?;
        self.send(frame, fds).await?;
        Ok(call)
    }

    /// Sends a frame. May be dropped at any await: what had begun is sent whole all the same, by the next sender.
    async fn send(&self, frame: Vec<u8>, fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let mut unsent = self.sending.lock().await;
        if unsent.sent > 0 {
            unsent.send(&self.stream, &[]).await.map_err(lost)?;
        }
        // One of which nothing was sent goes with whoever wanted it.
        *unsent = Unsent { frame, sent: 0 };
        unsent.send(&self.stream, fds).await.map_err(lost)?;
        *unsent = Unsent::default();
        Ok(())
    }

    /// Sends a request that has one answer and waits for it.
    pub(super) async fn ask(
        self: &Arc<Self>,
        request: Request,
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<Heard, ClientError> {
        let mut call = self.call(request, fds).await?;
        let answer = tokio::time::timeout(patience, call.next());
        match answer.await {
            Err(_) => Err(ClientError::Silent { waited: patience }),
            Ok(answer) => answer,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
        if let Some(child) = locked(&self.child).as_mut() {
            let _ = child.try_wait();
        }
    }
}

impl OpenCall {
    /// The next notice; a refusal is an error, and so is the end of the supervisor.
    pub(super) async fn next(&mut self) -> Result<Heard, ClientError> {
        match self.events.recv().await {
            None => Err(ClientError::Gone),
            Some(Ok((Event::Refused(error), _))) => Err(error.into()),
            Some(delivered) => delivered,
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        locked(&self.link.calls).open.remove(&self.tag);
    }
}

async fn read(stream: Arc<UnixStream>, mut inbox: Inbox, calls: Arc<Mutex<Calls>>) {
    // Why it ends does not matter to the calls: none of them can be answered any more.
    let _ = read_on(&stream, &mut inbox, &calls).await;
    let mut calls = locked(&calls);
    calls.over = true;
    calls.open.clear();
}

async fn read_on(
    stream: &UnixStream,
    inbox: &mut Inbox,
    calls: &Mutex<Calls>,
) -> Result<(), ClientError> {
    loop {
        while let Some(Letter { notice, fds }) = inbox.take()? {
            let passing = matches!(notice.event, Event::Output { .. });
            let heard = fds.map(|fds| (notice.event, fds));
            deliver(
                calls,
                notice.tag,
                passing,
                heard.ok_or(ClientError::NoDescriptors),
            );
        }
        let fill = || match inbox.fill(stream) {
            Ok(there) => Ok(Ok(there)),
            Err(FrameError::Io(error)) => Err(error),
            Err(error) => Ok(Err(error)),
        };
        let filled = stream.async_io(Interest::READABLE, fill).await;
        let there = filled.map_err(lost)?.map_err(ClientError::Frame)?;
        if !there {
            return Err(lost(io::ErrorKind::BrokenPipe.into()));
        }
    }
}

/// Hands over a notice. What must arrive has its place kept; of output counts the newest is enough,
/// and the record has the last.
fn deliver(calls: &Mutex<Calls>, tag: u64, passing: bool, heard: Delivered) {
    let calls = locked(calls);
    let Some(sender) = calls.open.get(&tag) else {
        return;
    };
    if !passing || sender.capacity() > EVENTS_KEPT {
        let _ = sender.try_send(heard);
    }
}

#[cfg(test)]
mod tests;
