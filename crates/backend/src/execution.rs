//! One run as its caller follows it.
//!
//! Output is not carried here: it is in two files that grow, readable at any offset, so that a slow
//! reader holds up nobody and a later one misses nothing.

use std::any::Any;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::record::RunRecord;
use leasehold_core::stage::StageTime;
use tokio::sync::mpsc;

use crate::error::BackendError;
use crate::process::Notices;

/// Events that wait for a slow caller.
pub(crate) const EVENTS_MAX: usize = 32;
/// Of these, so many places are kept for events that must not be lost.
pub(crate) const EVENTS_KEPT: usize = 16;

/// What happens in a run, in this order: stages and output in turn, then `Ended`, then `Cleaned`.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEvent {
    /// A stage ended.
    Stage(StageTime),
    /// So many bytes are in the files now. Not every step is told; the newest counts.
    Output {
        /// Bytes of standard output.
        stdout: u64,
        /// Bytes of standard error.
        stderr: u64,
    },
    /// Why it is over is fixed. Removal goes on.
    Ended(Box<RunRecord>),
    /// Removal was observed. Nothing follows.
    Cleaned(Box<RunRecord>),
}

/// What a backend puts in at the other end.
pub(crate) type EventSender = mpsc::Sender<Result<RunEvent, BackendError>>;

/// A run in progress, or one that is over and read again.
#[derive(Debug)]
pub struct Execution {
    /// Which run.
    pub run: RunId,
    /// In which computer.
    pub sandbox: SandboxId,
    /// Whether a parked computer serves it.
    pub warm: bool,
    /// Standard output so far, or that of the terminal.
    pub stdout: File,
    /// Standard error so far.
    pub stderr: File,
    /// Where its standard input or terminal is written, if it has one. Dropping it ends the input.
    pub input: Option<OwnedFd>,
    /// Bytes of standard input that its backend gives it by itself, from
    /// [`Launch::input`](crate::seam::Launch::input); there is no `input` to write to then.
    pub fed: Option<u64>,
    events: Events,
    /// What has to be there as long as somebody may read its output.
    held: Option<Arc<dyn Any + Send + Sync>>,
}

/// Where its events come from. Notices of the supervisor are read where they arrive: a task in
/// between would cost every run a change of task at each step.
#[derive(Debug)]
pub(crate) enum Events {
    /// A task of this process.
    Channel(mpsc::Receiver<Result<RunEvent, BackendError>>),
    /// The connection to a supervisor.
    Notices(Notices),
}

impl Execution {
    pub(crate) fn new(
        run: RunId,
        sandbox: SandboxId,
        [stdout, stderr]: [OwnedFd; 2],
        input: Option<OwnedFd>,
        events: Events,
    ) -> Self {
        Self {
            run,
            sandbox,
            warm: false,
            fed: None,
            stdout: stdout.into(),
            stderr: stderr.into(),
            input,
            events,
            held: None,
        }
    }

    /// Keeps something until it is dropped.
    pub(crate) fn hold(&mut self, held: Arc<dyn Any + Send + Sync>) {
        self.held = Some(held);
    }

    /// The next event; `None` after the last. An error means that its backend broke off: the run
    /// itself is found again by `attach`. May be dropped at any await without losing an event.
    pub async fn next(&mut self) -> Option<Result<RunEvent, BackendError>> {
        match &mut self.events {
            Events::Channel(events) => events.recv().await,
            Events::Notices(notices) => notices.next().await,
        }
    }

    /// Waits for the end, then for the removal, and gives the complete record.
    ///
    /// # Errors
    /// When the backend broke off before; `None` in place of the record when it did so silently.
    pub async fn cleaned(&mut self) -> Result<Option<RunRecord>, BackendError> {
        while let Some(event) = self.next().await {
            if let RunEvent::Cleaned(record) = event? {
                return Ok(Some(*record));
            }
        }
        Ok(None)
    }
}
