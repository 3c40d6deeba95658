//! Watching directories: a stream of events, or a watcher that is asked now and then.
//!
//! The watching itself is done by a child with the user's rights ([`super::watch_child`]); here its
//! frames are bounded, kept and passed on. What a guest makes happen faster than anybody reads is
//! lost, and that it was lost is said.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::envd::filesystem::{
    EventType, FilesystemEvent, WatchEvent, WatchRequest, WatcherEvents, WatcherId,
};
use leasehold_protocol::envd::process::Empty;
use rustix::rand::GetRandomFlags;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::acting::{self, Worker};
use super::bounds;
use super::reply::{self, Frames, Reply, stream_error};
use super::request::Meta;
use super::state::{Shared, State};
use super::watch_child::{self, Plan};

/// Most bytes of one frame of the child: an event with its entry.
const FRAME_BYTES: usize = 256 << 10;
/// A watcher nobody has asked for so long makes room for a new one.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// What the child said.
enum Said {
    Started,
    /// Something happened; with the bytes it took to say so.
    Event(Box<FilesystemEvent>, usize),
    Flushed,
    Failed(CallError),
}

/// The child and our end of its socket.
struct Feed {
    socket: AsyncFd<OwnedFd>,
    bytes: Vec<u8>,
    _worker: Worker,
}

impl Feed {
    /// Starts a watch and waits until it is in place.
    async fn open(shared: &Shared, meta: &Meta, request: WatchRequest) -> Result<Self, CallError> {
        let user = shared.user(meta.user.as_deref())?;
        let plan = Plan {
            path: shared.path(&request.path, &user)?,
            recursive: request.recursive,
            include_entry: request.include_entry,
            allow_network: request.allow_network_mounts,
        };
        let (worker, socket) =
            acting::start(shared, &user, move |socket| watch_child::run(&socket, plan))?;
        let mut feed = Self {
            socket,
            bytes: Vec::new(),
            _worker: worker,
        };
        match tokio::time::timeout(bounds::OPERATION_TIME, feed.next()).await {
            Ok(Said::Started) => Ok(feed),
            Ok(Said::Failed(error)) => Err(error),
            Ok(Said::Event(..) | Said::Flushed) => {
                Err(broken("says something else than that it started"))
            }
            Err(_) => Err(CallError::new(
                Code::DeadlineExceeded,
                "watch did not start in time",
            )),
        }
    }

    /// What the child says next. Its silence for good is a failure too.
    async fn next(&mut self) -> Said {
        let mut piece = vec![0; 16 << 10];
        loop {
            match self.take() {
                Ok(Some(said)) => return said,
                Ok(None) => {}
                Err(error) => return Said::Failed(error),
            }
            let mut fds = Vec::new();
            match acting::receive(&self.socket, &mut piece, &mut fds).await {
                Ok(0) | Err(_) => return Said::Failed(broken("ended")),
                Ok(got) => self.bytes.extend_from_slice(&piece[..got]),
            }
        }
    }

    fn take(&mut self) -> Result<Option<Said>, CallError> {
        let Some([kind, length @ ..]) = self.bytes.first_chunk::<5>().copied() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(length) as usize;
        if length > FRAME_BYTES {
            return Err(broken("says too much at once"));
        }
        let Some(text) = self.bytes.get(5..5 + length) else {
            return Ok(None);
        };
        let unclear = |_| broken("is not understood");
        let said = match kind {
            watch_child::STARTED => Said::Started,
            watch_child::EVENT => {
                Said::Event(serde_json::from_slice(text).map_err(unclear)?, text.len())
            }
            watch_child::FLUSHED => Said::Flushed,
            watch_child::FAILED => Said::Failed(serde_json::from_slice(text).map_err(unclear)?),
            _ => return Err(broken("is not understood")),
        };
        self.bytes.drain(..5 + length);
        Ok(Some(said))
    }
}

fn broken(what: &str) -> CallError {
    CallError::new(Code::Internal, format!("watch {what}"))
}

/// A right to watch, counted.
struct Seat(Rc<Cell<usize>>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Everything that is watched.
#[derive(Default)]
pub(super) struct Watchers {
    kept: RefCell<BTreeMap<String, Rc<Kept>>>,
    seats: Rc<Cell<usize>>,
}

impl Watchers {
    /// How many there are, streams included.
    pub(super) fn count(&self) -> usize {
        self.seats.get()
    }

    /// Drops all watchers that are asked now and then; returns how many.
    pub(super) fn drop_all(&self) -> usize {
        let kept = std::mem::take(&mut *self.kept.borrow_mut());
        kept.len()
    }

    fn seat(&self) -> Result<Seat, CallError> {
        if self.seats.get() >= bounds::WATCHERS {
            self.make_room();
        }
        if self.seats.get() >= bounds::WATCHERS {
            let most = bounds::WATCHERS;
            let message = format!("{most} watchers are open already");
            return Err(CallError::new(Code::ResourceExhausted, message));
        }
        self.seats.set(self.seats.get() + 1);
        Ok(Seat(self.seats.clone()))
    }

    fn make_room(&self) {
        let mut kept = self.kept.borrow_mut();
        let oldest = kept.iter().min_by_key(|(_, one)| one.asked.get());
        let oldest = oldest.filter(|(_, one)| one.asked.get().elapsed() > FORGOTTEN);
        if let Some(name) = oldest.map(|(name, _)| name.clone()) {
            kept.remove(&name);
        }
    }

    fn find(&self, id: &WatcherId) -> Result<Rc<Kept>, CallError> {
        let name = &id.watcher_id;
        let kept = self.kept.borrow();
        kept.get(name).cloned().ok_or_else(|| {
            CallError::new(
                Code::NotFound,
                format!("watcher with id {name:?} not found"),
            )
        })
    }
}

/// A watcher that is asked now and then.
struct Kept {
    events: RefCell<VecDeque<FilesystemEvent>>,
    /// Bytes of what was said of them.
    bytes: Cell<usize>,
    /// How often the child has said that everything is told.
    flushes: Cell<u64>,
    failed: RefCell<Option<CallError>>,
    changed: Notify,
    asked: Cell<Instant>,
    /// A copy of our end of the child's socket, to ask with.
    question: OwnedFd,
    reading: RefCell<Option<tokio::task::AbortHandle>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(reading) = self.reading.borrow_mut().take() {
            reading.abort();
        }
    }
}

impl Kept {
    fn keep(&self, event: FilesystemEvent, bytes: usize) {
        let mut events = self.events.borrow_mut();
        // A file that is written in pieces is still one file that was written.
        if let Some(last) = events.back_mut()
            && last.kind == EventType::Write
            && event.kind == last.kind
            && event.name == last.name
        {
            *last = event;
            return;
        }
        let kept = self.bytes.get() + bytes;
        if events.len() == bounds::KEPT_EVENTS || kept > bounds::KEPT_BYTES {
            let (most, bytes) = (bounds::KEPT_EVENTS, bounds::KEPT_BYTES);
            let message = format!(
                "more than {most} events or {bytes} bytes of them were not fetched: events were lost"
            );
            *self.failed.borrow_mut() = Some(CallError::new(Code::DataLoss, message));
            return;
        }
        self.bytes.set(kept);
        events.push_back(event);
    }

    /// Asks the child to tell everything, and waits until it has.
    async fn flush(&self) -> Result<(), CallError> {
        let before = self.flushes.get();
        let asked = rustix::io::write(&self.question, b"?");
        if asked.is_err() && self.failed.borrow().is_none() {
            return Err(broken("ended"));
        }
        let told = async {
            while self.flushes.get() == before && self.failed.borrow().is_none() {
                self.changed.notified().await;
            }
        };
        match tokio::time::timeout(bounds::WATCHER_TIME, told).await {
            Ok(()) => Ok(()),
            Err(_) => Err(CallError::new(
                Code::DeadlineExceeded,
                "watcher did not answer in time",
            )),
        }
    }
}

/// Reads what the child says into a watcher, for as long as that is there.
async fn read(mut feed: Feed, kept: std::rc::Weak<Kept>, _seat: Seat) {
    loop {
        let said = feed.next().await;
        let Some(kept) = kept.upgrade() else {
            return;
        };
        match said {
            Said::Event(event, bytes) => kept.keep(*event, bytes),
            Said::Flushed => kept.flushes.set(kept.flushes.get() + 1),
            Said::Started => {}
            Said::Failed(error) => {
                *kept.failed.borrow_mut() = Some(error);
                kept.changed.notify_waiters();
                return;
            }
        }
        kept.changed.notify_waiters();
    }
}

fn fresh_id() -> Result<String, CallError> {
    let mut bytes = [0u8; 10];
    match rustix::rand::getrandom(&mut bytes[..], GetRandomFlags::empty()) {
        Ok(10) => Ok(bytes
            .iter()
            .fold("w".to_owned(), |id, byte| format!("{id}{byte:02x}"))),
        _ => Err(CallError::new(
            Code::Internal,
            "no randomness for a watcher id",
        )),
    }
}

/// Makes a watcher.
///
/// # Errors
/// `not_found`, `invalid_argument` for what cannot be watched; `resource_exhausted`.
pub(super) async fn create(
    state: &State,
    meta: &Meta,
    request: WatchRequest,
) -> Result<WatcherId, CallError> {
    let seat = state.watchers.seat()?;
    let feed = Feed::open(state, meta, request).await?;
    let question = feed.socket.get_ref().try_clone();
    let question = question.map_err(|error| {
        CallError::new(
            Code::ResourceExhausted,
            format!("cannot keep a watcher: {error}"),
        )
    })?;
    let kept = Rc::new(Kept {
        events: RefCell::default(),
        bytes: Cell::new(0),
        flushes: Cell::new(0),
        failed: RefCell::new(None),
        changed: Notify::new(),
        asked: Cell::new(Instant::now()),
        question,
        reading: RefCell::new(None),
    });
    let reading = tokio::task::spawn_local(read(feed, Rc::downgrade(&kept), seat));
    *kept.reading.borrow_mut() = Some(reading.abort_handle());
    let watcher_id = fresh_id()?;
    state
        .watchers
        .kept
        .borrow_mut()
        .insert(watcher_id.clone(), kept);
    Ok(WatcherId { watcher_id })
}

/// What happened since the last call, up to this moment.
///
/// # Errors
/// `not_found` when there is no such watcher; `data_loss` when events were lost.
pub(super) async fn events(state: &State, id: WatcherId) -> Result<WatcherEvents, CallError> {
    let kept = state.watchers.find(&id)?;
    kept.asked.set(Instant::now());
    kept.flush().await?;
    let events = std::mem::take(&mut *kept.events.borrow_mut());
    kept.bytes.set(0);
    let failed = kept.failed.borrow().clone();
    if let Some(error) = failed {
        if error.code == Code::DataLoss && !kept.ended() {
            // Said once; from here on the watcher is whole again.
            *kept.failed.borrow_mut() = None;
        }
        return Err(error);
    }
    Ok(WatcherEvents {
        events: events.into(),
    })
}

impl Kept {
    fn ended(&self) -> bool {
        let reading = self.reading.borrow();
        reading
            .as_ref()
            .is_none_or(tokio::task::AbortHandle::is_finished)
    }
}

/// Drops a watcher.
///
/// # Errors
/// `not_found` when there is no such watcher.
pub(super) fn remove(state: &State, id: &WatcherId) -> Result<Empty, CallError> {
    state.watchers.find(id)?;
    state.watchers.kept.borrow_mut().remove(&id.watcher_id);
    Ok(Empty {})
}

/// Streams what happens.
pub(super) async fn stream(state: State, meta: Meta, request: WatchRequest) -> Reply {
    let opened = match state.watchers.seat() {
        Ok(seat) => Feed::open(&state, &meta, request)
            .await
            .map(|feed| (seat, feed)),
        Err(error) => Err(error),
    };
    match opened {
        Err(error) => stream_error(error),
        Ok((seat, feed)) => {
            let (reply, frames) = reply::stream();
            let _ = frames.try_send(reply::message(&WatchEvent::Start(Empty {})));
            tokio::task::spawn_local(pass_on(feed, frames, meta, seat));
            reply
        }
    }
}

async fn pass_on(mut feed: Feed, frames: Frames, meta: Meta, _seat: Seat) {
    let far = Instant::now() + Duration::from_secs(30 * 86_400);
    let deadline = meta.deadline.unwrap_or(far);
    loop {
        let (message, last) = tokio::select! {
            biased;
            () = frames.closed() => return,
            () = tokio::time::sleep_until(deadline) => {
                let error = CallError::new(Code::DeadlineExceeded, "context deadline exceeded");
                (reply::end(Some(error)), true)
            }
            said = feed.next() => match said {
                Said::Event(event, _) => (reply::message(&WatchEvent::Filesystem(event)), false),
                Said::Failed(error) => (reply::end(Some(error)), true),
                Said::Started | Said::Flushed => continue,
            },
            () = tokio::time::sleep(meta.keepalive) => {
                (reply::message(&WatchEvent::Keepalive(Empty {})), false)
            }
        };
        if frames.send(message).await.is_err() || last {
            return;
        }
    }
}
