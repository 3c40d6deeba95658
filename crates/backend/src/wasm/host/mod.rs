//! One shared host, from its owner's side: a process that runs modules of one tenant, in a sandbox of its own.
//!
//! Whoever starts a run sends it by itself; one task of the host reads what comes back and hands it to the runs.
//! A host is believed no more than any guest: what breaks the protocol, says what it cannot know or keeps silent
//! beyond its time ends it, and with it the runs it had.

mod books;
mod drive;
mod out;
mod start;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold_core::contract::{Contract, HostPosture};
use leasehold_core::end::CancelledBy;
use leasehold_core::id::{RunId, SandboxId};
use leasehold_protocol::socket::FrameError;
use leasehold_protocol::wasm::{
    CHUNK_MAX, Load, Reader, STDIN_WINDOW, Start, ToHost, body, push_frame,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Notify;

use self::books::{Books, Feed, Phase};
use self::out::Out;
use super::code::Code;
use super::run::SharedRun;
use super::runs::Runs;

pub(super) use self::start::{Setup, start};

/// What a host is told of its bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostBounds {
    pub(super) runs: u64,
    pub(super) runs_at_once: usize,
    pub(super) memory_bytes: u64,
    pub(super) idle: Duration,
    pub(super) slack: Duration,
}

impl HostBounds {
    /// Whether a run of this code that may use so much memory fits into a host that has no other.
    pub(super) fn fit(&self, code: &Code, memory: u64) -> bool {
        books::need(code, memory).is_some_and(|need| need <= self.memory_bytes)
    }
}

/// What all hosts of a backend share.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) bounds: HostBounds,
    pub(super) runs: Arc<Runs>,
    /// A run is over, or a host: there may be room.
    pub(super) freed: Notify,
}

/// The host.
#[derive(Debug)]
pub(super) struct Host {
    /// Its sandbox.
    pub(super) sandbox: SandboxId,
    /// What that promises.
    pub(super) contract: Contract,
    /// What the program in it confines itself by.
    pub(super) posture: HostPosture,
    socket: UnixStream,
    out: Mutex<Out>,
    books: Mutex<Books>,
    /// Frames wait, or it is to end.
    more: Notify,
    common: Arc<Common>,
}

/// A place in a host for one run, given back unless it is begun.
#[derive(Debug)]
pub(super) struct Seat {
    host: Arc<Host>,
    number: u32,
    module: u32,
    begun: bool,
}

/// How busy a host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) open: bool,
    pub(super) over: bool,
    pub(super) runs: usize,
    pub(super) served: u64,
    pub(super) idle_since: Instant,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    pub(super) fn standing(&self) -> Standing {
        let books = locked(&self.books);
        Standing {
            open: books.phase == Phase::Open,
            over: books.phase == Phase::Over,
            runs: books.runs.len(),
            served: books.served,
            idle_since: books.idle_since,
        }
    }

    /// Gives it to somebody: from now on it does not stay without runs for ever.
    pub(super) fn give(&self) {
        let mut books = locked(&self.books);
        books.owned = true;
        books.idle_since = Instant::now();
    }

    /// Takes no more runs, and ends with its last.
    pub(super) fn retire(&self) {
        let empty = {
            let mut books = locked(&self.books);
            if books.phase == Phase::Open {
                books.phase = Phase::Retiring;
            }
            books.runs.is_empty()
        };
        if empty {
            self.more.notify_one();
        }
    }

    /// Retires it if it has no run. Says whether it is no more of use.
    pub(super) fn retire_if_idle(&self) -> bool {
        let mut books = locked(&self.books);
        if books.phase == Phase::Open && books.runs.is_empty() {
            books.phase = Phase::Retiring;
            drop(books);
            self.more.notify_one();
            return true;
        }
        books.phase != Phase::Open
    }

    /// Takes a place for a run that may use so much memory, and sends its code where the host has it not.
    pub(super) fn take(self: &Arc<Self>, code: &Arc<Code>, memory: u64) -> Option<Seat> {
        let mut books = locked(&self.books);
        let place = books.take(code, memory)?;
        let seat = Seat {
            host: Arc::clone(self),
            number: place.run,
            module: place.module,
            begun: false,
        };
        if place.load {
            let load = Load {
                kind: code.kind,
                flavour: code.flavour,
            };
            let mut before = Vec::new();
            let mut bytes = Vec::new();
            let framed = place
                .unload
                .iter()
                .try_for_each(|module| {
                    push_frame(&mut before, ToHost::Unload as u8, 0, *module, b"")
                })
                .and_then(|()| body(&load))
                .and_then(|body| {
                    push_frame(&mut bytes, ToHost::Load as u8, 1, place.module, &body)
                });
            if framed.is_err() {
                drop(books);
                return None;
            }
            // While the books are held: nobody's start may overtake it.
            let mut out = locked(&self.out);
            if !before.is_empty() {
                out.push(before, None);
            }
            out.push(bytes, Some(Arc::clone(code)));
            self.flush(&mut out);
        }
        drop(books);
        Some(seat)
    }

    /// Sends what the socket takes; the host's task sends the rest, and sees it where the host is gone.
    fn flush(&self, out: &mut Out) {
        if !out.flush(&self.socket).is_ok_and(|all| all) {
            self.more.notify_one();
        }
    }

    fn send(&self, bytes: Vec<u8>) {
        let mut out = locked(&self.out);
        out.push(bytes, None);
        self.flush(&mut out);
    }

    /// Asks for the end of a run, for somebody. The host is given up if it does not end it in time.
    pub(super) fn cancel(&self, number: u32, run: &SharedRun, by: CancelledBy) {
        if !run.wish(by) {
            return;
        }
        let until = Instant::now() + self.common.bounds.slack;
        {
            let mut books = locked(&self.books);
            let Some(held) = books.runs.get_mut(&number) else {
                return;
            };
            // The number may be another run's by now.
            if !held
                .run
                .as_ref()
                .is_some_and(|(_, held)| std::ptr::eq(&**held, run))
            {
                return;
            }
            held.deadline = Some(held.deadline.map_or(until, |deadline| deadline.min(until)));
        }
        let mut bytes = Vec::new();
        if push_frame(&mut bytes, ToHost::Cancel as u8, 0, number, b"").is_ok() {
            self.send(bytes);
        }
    }
}

/// What one read of a host's socket came to.
enum Got {
    Bytes,
    Nothing,
    End,
}

/// Reads once, where there is anything.
fn read_once(socket: &UnixStream, reader: &mut Reader) -> Result<Got, FrameError> {
    let mut bad = None;
    let got = socket.try_io(Interest::READABLE, || match reader.fill(socket) {
        Ok(there) => Ok(there),
        Err(FrameError::Io(error)) => Err(error),
        Err(error) => {
            bad = Some(error);
            Ok(true)
        }
    });
    match (got, bad) {
        (_, Some(error)) => Err(error),
        (Ok(true), None) => Ok(Got::Bytes),
        (Ok(false), None) => Ok(Got::End),
        (Err(error), None) if error.kind() == io::ErrorKind::WouldBlock => Ok(Got::Nothing),
        (Err(error), None) => Err(FrameError::Io(error)),
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.begun {
            let last = {
                let mut books = locked(&self.host.books);
                books.release(self.number);
                books.runs.is_empty()
            };
            self.host.common.freed.notify_waiters();
            if last {
                self.host.more.notify_one();
            }
        }
    }
}

impl Seat {
    pub(super) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// The frames that start a run with this input.
    ///
    /// # Errors
    /// When they are longer than a host takes.
    pub(super) fn frames(
        &self,
        start: &mut Start,
        input: Option<&[u8]>,
    ) -> Result<Vec<u8>, FrameError> {
        start.module = self.module;
        start.stdin = input.is_some_and(|input| !input.is_empty());
        let mut bytes = Vec::new();
        push_frame(
            &mut bytes,
            ToHost::Start as u8,
            0,
            self.number,
            &body(start)?,
        )?;
        Ok(bytes)
    }

    /// Starts the run in it. Its end is told to `run` whatever happens.
    pub(super) fn begin(
        mut self,
        id: RunId,
        run: &Arc<SharedRun>,
        mut frames: Vec<u8>,
        input: Option<Arc<[u8]>>,
        wall: Duration,
    ) {
        let bounds = &self.host.common.bounds;
        let mut feed = input.filter(|bytes| !bytes.is_empty()).map(|bytes| Feed {
            bytes,
            sent: 0,
            ahead: 0,
        });
        if let Some(feed) = &mut feed {
            feed.push(self.number, &mut frames);
        }
        let mut books = locked(&self.host.books);
        if books.phase == Phase::Over {
            // Its task has told everybody it knew of.
            drop(books);
            drive::lost(&self.host.common, &id, run);
            return;
        }
        books.served += 1;
        if books.served >= bounds.runs && books.phase == Phase::Open {
            books.phase = Phase::Retiring;
        }
        if let Some(held) = books.runs.get_mut(&self.number) {
            held.run = Some((id, Arc::clone(run)));
            held.deadline = Instant::now().checked_add(wall + bounds.slack);
            held.feed = feed;
        }
        self.begun = true;
        drop(books);
        self.host.send(frames);
        run.injected();
    }
}

impl Feed {
    /// Appends as much input as may be on the way, and its end after the last.
    fn push(&mut self, number: u32, frames: &mut Vec<u8>) {
        while self.sent < self.bytes.len() && self.ahead < STDIN_WINDOW {
            let room = usize::try_from(STDIN_WINDOW - self.ahead).unwrap_or(CHUNK_MAX);
            let end = self.bytes.len().min(self.sent + room.min(CHUNK_MAX));
            let piece = &self.bytes[self.sent..end];
            // A piece is far below the bound of a frame.
            let _ = push_frame(frames, ToHost::Stdin as u8, 0, number, piece);
            self.ahead += piece.len() as u64;
            self.sent = end;
            if end == self.bytes.len() {
                let _ = push_frame(frames, ToHost::StdinEnd as u8, 0, number, b"");
            }
        }
    }
}
