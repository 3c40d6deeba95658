//! One run as the supervisor holds it: its record, its spools, and what was seen of it. What moves
//! it is `step.rs`.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use leasehold_core::end::Observations;
use leasehold_core::record::RunRecord;
use leasehold_core::spec::ExecSpec;
use leasehold_core::stage::{Stage, StageTime};

use crate::records::RunFolder;
use crate::remove::Groups;
use crate::source::Key;
use crate::spool::Spool;
use crate::supplied::Supply;

/// What the stub made of its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exec {
    /// Nothing was sent.
    Unsent,
    /// It has not answered.
    Sent,
    /// It became the program.
    Done,
    /// It could not.
    Failed,
}

/// Where the collection of files is.
#[derive(Debug)]
pub(crate) enum Collection {
    /// None was asked for, or it is over.
    None,
    /// To be started once every process is dead.
    Wanted,
    /// Going on.
    Running(Box<crate::collector::Collector>),
}

/// One run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) record: RunRecord,
    pub(crate) folder: RunFolder,
    pub(crate) exec: ExecSpec,
    /// The program that came with it.
    pub(crate) supply: Option<Supply>,
    /// The caller with whose connection it ends.
    pub(crate) bound: Option<Key>,
    /// Standard output (or the terminal) and standard error.
    pub(crate) spools: [Spool; 2],
    /// Its sandbox, while there is one.
    pub(crate) sandbox: Option<Key>,
    /// Connection and tag of everybody who follows it.
    pub(crate) followers: Vec<(Key, u64)>,
    /// Whether the followers were told that it is accepted.
    pub(crate) accepted: bool,
    /// The stage it is in.
    pub(crate) stage: Stage,
    /// When that stage began.
    pub(crate) since: Instant,
    /// A test holds it at the end of a stage.
    pub(crate) held: bool,
    /// What was seen so far; decides the end.
    pub(crate) seen: Observations,
    pub(crate) exec_state: Exec,
    /// Init said that the main command ended.
    pub(crate) main_exited: bool,
    /// The message to the stub and how much of it went.
    pub(crate) message: Vec<u8>,
    pub(crate) message_sent: usize,
    /// The stub's socket is full; epoll says when it is not.
    pub(crate) message_waits: bool,
    /// Descriptors that go with the first byte of the message.
    pub(crate) message_fds: Vec<OwnedFd>,
    /// Writable end for the caller: standard input or the terminal, until it is handed over.
    pub(crate) input: Option<OwnedFd>,
    /// When the command was let go.
    pub(crate) started: Option<Instant>,
    /// When it was over.
    pub(crate) over: Option<Instant>,
    /// It is to be collected and ended, whatever stage it is in.
    pub(crate) abort: bool,
    pub(crate) collection: Collection,
    /// The end was told.
    pub(crate) told_end: bool,
    /// The sandbox being removed and what was seen of it so far.
    pub(crate) removing: Option<(Key, Groups)>,
    /// Newest output counts told, and when.
    pub(crate) told: (u64, u64),
    pub(crate) told_at: Option<Instant>,
}

impl Run {
    /// Ends the stage it is in and begins another. Returns how long the stage took.
    pub(crate) fn enter(&mut self, next: Stage, now: Instant) -> StageTime {
        let time = StageTime {
            stage: self.stage,
            micros: micros(now.saturating_duration_since(self.since)),
        };
        self.record.stages.push(time);
        self.stage = next;
        self.since = now;
        time
    }

    /// Whether both streams are at their end.
    pub(crate) fn silent(&self) -> bool {
        self.spools.iter().all(|spool| spool.source().is_none())
    }

    /// Bytes in the spools.
    pub(crate) fn kept(&self) -> (u64, u64) {
        let [out, err] = &self.spools;
        (out.seen().kept, err.seen().kept)
    }

    /// The working directory inside.
    pub(crate) fn cwd(&self) -> &str {
        self.exec.cwd.as_deref().unwrap_or("/workspace")
    }

    /// Whether the outcome is fixed.
    pub(crate) fn ended(&self) -> bool {
        self.record.end.is_some()
    }
}

/// A duration in whole microseconds.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
