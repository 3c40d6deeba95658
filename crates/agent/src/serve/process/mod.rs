//! Processes the agent starts: the table of them, and the calls of `process.Process`.
//!
//! Start with [`launch`] for how one begins, [`output`] for how its bytes reach readers, and
//! [`Process`] for what is known of it. A process belongs to the sandbox, not to the connection that
//! started it: a client that goes away changes nothing.

mod calls;
mod input;
mod launch;
mod output;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::envd::process::{
    Ended, EventMessage, ProcessConfig, ProcessEvent, ProcessInfo, ProcessSelector, Started,
};
use rustix::process::{Pid, Signal};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::bounds;
use super::reply::{self, Frames};
use input::Input;

pub(super) use calls::{
    close_stdin, connect, list, send_input, send_signal, start, stream_input, update,
};

/// Somebody who reads the output of a process.
struct Subscriber {
    number: u64,
    frames: Frames,
    /// When it was last sent something.
    touched: Rc<Cell<Instant>>,
    /// Whether its stream ends when the time of the process is over.
    bounded: bool,
    /// Dropped when the stream is over, so that its attendant leaves.
    _open: oneshot::Sender<()>,
}

/// One process that was started here.
pub(super) struct Process {
    /// Its id inside.
    pid: Pid,
    /// Name given by whoever started it.
    tag: Option<String>,
    /// How it was started.
    config: ProcessConfig,
    /// Where its input goes.
    input: Input,
    subscribers: RefCell<Vec<Subscriber>>,
    next: Cell<u64>,
    /// Whether its id may already belong to somebody else.
    reaped: Cell<bool>,
    /// Told once it is reaped.
    gone: Notify,
    /// Ends it when its time is over.
    deadline: RefCell<Option<AbortHandle>>,
    /// Bytes of its arguments and environment.
    words: usize,
}

impl Process {
    fn number(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    fn info(&self) -> ProcessInfo {
        ProcessInfo {
            config: self.config.clone(),
            pid: self.number(),
            tag: self.tag.clone(),
        }
    }

    /// Adds a reader, whose first message is the start event.
    ///
    /// # Errors
    /// When there are [`bounds::SUBSCRIBERS`] already.
    fn subscribe(&self, frames: Frames, bounded: bool) -> Result<Attendance, CallError> {
        let mut subscribers = self.subscribers.borrow_mut();
        if subscribers.len() >= bounds::SUBSCRIBERS {
            let most = bounds::SUBSCRIBERS;
            let message = format!("process {} has {most} readers already", self.number());
            return Err(CallError::new(Code::ResourceExhausted, message));
        }
        let started = ProcessEvent::Start(Started { pid: self.number() });
        // The queue is new and empty.
        let _ = frames.try_send(event(started));
        let (open, closed) = oneshot::channel();
        let number = self.next.replace(self.next.get() + 1);
        let touched = Rc::new(Cell::new(Instant::now()));
        subscribers.push(Subscriber {
            number,
            frames: frames.clone(),
            touched: touched.clone(),
            bounded,
            _open: open,
        });
        Ok(Attendance {
            number,
            frames,
            touched,
            closed,
        })
    }

    fn unsubscribe(&self, number: u64) {
        self.subscribers
            .borrow_mut()
            .retain(|one| one.number != number);
    }

    fn has_subscribers(&self) -> bool {
        !self.subscribers.borrow().is_empty()
    }

    /// Sends one frame to every reader, waiting for each: a reader that does not read makes the
    /// process wait, and memory stays bounded.
    async fn publish(&self, frame: Bytes) {
        let readers: Vec<_> = self
            .subscribers
            .borrow()
            .iter()
            .map(|one| (one.number, one.frames.clone(), one.touched.clone()))
            .collect();
        for (number, frames, touched) in readers {
            if frames.send(frame.clone()).await.is_err() {
                self.unsubscribe(number);
            }
            touched.set(Instant::now());
        }
    }

    /// Sends a signal to the process and to what it started in its session's first group.
    ///
    /// # Errors
    /// When it has ended, or as `kill(2)`.
    fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        // Until it is reaped, neither its id nor its group's can be somebody else's.
        if self.reaped.get() {
            return Err(rustix::io::Errno::SRCH);
        }
        rustix::process::kill_process_group(self.pid, signal)
    }

    /// Waits, for a bounded time, until a killed process is really gone.
    async fn vanished(&self) {
        let gone = async {
            while !self.reaped.get() {
                self.gone.notified().await;
            }
        };
        let _ = tokio::time::timeout(bounds::KILL_TIME, gone).await;
    }

    /// Its time is over: readers that wanted no more are told, and it is killed.
    fn expire(&self) {
        let expired: Vec<Subscriber> = {
            let mut all = self.subscribers.borrow_mut();
            let (over, rest) = all.drain(..).partition(|one: &Subscriber| one.bounded);
            *all = rest;
            over
        };
        for reader in expired {
            deliver(reader, vec![reply::end(Some(timed_out()))]);
        }
        let _ = self.signal(Signal::KILL);
    }

    /// Tells every reader how it ended.
    fn conclude(&self, ended: &Ended) {
        if let Some(deadline) = self.deadline.borrow_mut().take() {
            deadline.abort();
        }
        let last = event(ProcessEvent::End(ended.clone()));
        for reader in self.subscribers.borrow_mut().drain(..) {
            deliver(reader, vec![last.clone(), reply::end(None)]);
        }
    }
}

/// The last frames of a reader, which may take their time.
fn deliver(reader: Subscriber, frames: Vec<Bytes>) {
    let Subscriber {
        frames: to, _open, ..
    } = reader;
    drop(_open);
    tokio::task::spawn_local(async move {
        for frame in frames {
            if to.send(frame).await.is_err() {
                return;
            }
        }
    });
}

fn timed_out() -> CallError {
    CallError::new(Code::DeadlineExceeded, "context deadline exceeded")
}

fn event(event: ProcessEvent) -> Bytes {
    reply::message(&EventMessage { event })
}

/// A reader's own side of a subscription.
struct Attendance {
    number: u64,
    frames: Frames,
    touched: Rc<Cell<Instant>>,
    closed: oneshot::Receiver<()>,
}

impl Attendance {
    /// Sends keepalives, and leaves when the client or the stream is gone, or at the deadline.
    async fn attend(
        mut self,
        process: Rc<Process>,
        keepalive: Duration,
        deadline: Option<Instant>,
    ) {
        let far = Instant::now() + Duration::from_secs(30 * 86_400);
        loop {
            let due = self.touched.get() + keepalive;
            tokio::select! {
                biased;
                _ = &mut self.closed => return,
                () = self.frames.closed() => return process.unsubscribe(self.number),
                () = tokio::time::sleep_until(deadline.unwrap_or(far)), if deadline.is_some() => {
                    process.unsubscribe(self.number);
                    let _ = self.frames.send(reply::end(Some(timed_out()))).await;
                    return;
                }
                () = tokio::time::sleep_until(due) => {
                    if Instant::now() >= self.touched.get() + keepalive {
                        let empty = leasehold_protocol::envd::process::Empty {};
                        // A full queue is sign of life enough.
                        let _ = self.frames.try_send(event(ProcessEvent::Keepalive(empty)));
                        self.touched.set(Instant::now());
                    }
                }
            }
        }
    }
}

/// How a process ended, kept for a late `Connect`.
struct Memory {
    pid: u32,
    tag: Option<String>,
    ended: Ended,
    until: Instant,
}

/// Every process of the agent.
#[derive(Default)]
pub(super) struct Registry {
    live: RefCell<BTreeMap<u32, Rc<Process>>>,
    ended: RefCell<VecDeque<Memory>>,
    /// Processes between the check of the bound and the table.
    starting: Cell<usize>,
    /// Outputs that are read and dropped.
    drained: Cell<usize>,
    /// Bytes of arguments and environments of all that run.
    words: Cell<usize>,
}

impl Registry {
    /// How many run.
    pub(super) fn count(&self) -> usize {
        self.live.borrow().len()
    }

    fn find(&self, selector: &ProcessSelector) -> Result<Rc<Process>, CallError> {
        let live = self.live.borrow();
        let found = match (selector.pid, &selector.tag) {
            (Some(pid), None) => live.get(&pid),
            (None, Some(tag)) => live
                .values()
                .rev()
                .find(|one| one.tag.as_ref() == Some(tag)),
            _ => {
                let message = "process is not selected by exactly one of pid and tag";
                return Err(CallError::new(Code::InvalidArgument, message));
            }
        };
        found.cloned().ok_or_else(|| {
            let message = match (selector.pid, &selector.tag) {
                (Some(pid), _) => format!("process with pid {pid} not found"),
                (_, tag) => format!("process with tag {tag:?} not found"),
            };
            CallError::new(Code::NotFound, message)
        })
    }

    fn memory(&self, selector: &ProcessSelector) -> Option<(u32, Ended)> {
        let mut ended = self.ended.borrow_mut();
        let now = Instant::now();
        ended.retain(|one| one.until > now);
        let found = ended
            .iter()
            .rev()
            .find(|one| match (selector.pid, &selector.tag) {
                (Some(pid), None) => one.pid == pid,
                (None, Some(tag)) => one.tag.as_ref() == Some(tag),
                _ => false,
            })?;
        Some((found.pid, found.ended.clone()))
    }

    /// Enters a new process; what was remembered under its names is forgotten.
    fn enter(&self, process: &Rc<Process>) {
        let number = process.number();
        self.ended
            .borrow_mut()
            .retain(|one| one.pid != number && (one.tag.is_none() || one.tag != process.tag));
        self.words.set(self.words.get() + process.words);
        self.live.borrow_mut().insert(number, process.clone());
    }

    /// Takes an ended process out, unless its id is another one's already.
    fn leave(&self, process: &Rc<Process>, ended: Ended) {
        self.words
            .set(self.words.get().saturating_sub(process.words));
        let number = process.number();
        let mut live = self.live.borrow_mut();
        if !live
            .get(&number)
            .is_some_and(|one| Rc::ptr_eq(one, process))
        {
            return;
        }
        live.remove(&number);
        let mut remembered = self.ended.borrow_mut();
        if remembered.len() == bounds::ENDED {
            remembered.pop_front();
        }
        remembered.push_back(Memory {
            pid: number,
            tag: process.tag.clone(),
            ended,
            until: Instant::now() + bounds::ENDED_TIME,
        });
    }

    /// Forgets what ended.
    pub(super) fn forget(&self) {
        self.ended.borrow_mut().clear();
    }
}
