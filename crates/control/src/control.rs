//! The façade that the API calls. Cheap to clone.
//!
//! Every method takes who asks, checks what its role allows, and knows only that tenant's things: what is
//! another's is `not_found`, like what is not there.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::Event;
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::record::Artifact;
use leasehold_core::run_contract::RunContract;
use leasehold_core::stage::StageTime;
use leasehold_core::tenant::Principal;
pub use leasehold_store::seam::{RunFilter, RunRow};
use serde_json::Value;

use crate::request::RunRequest;

/// What became of a submission.
#[derive(Debug, Clone)]
pub struct Submitted {
    /// The run, admitted durably.
    pub row: RunRow,
    /// Whether it is new; else the same key and request came before.
    pub new: bool,
    /// What the caller should know although it was admitted.
    pub warnings: Vec<String>,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The outcome is committed.
    Ended,
    /// Removal was observed and the evidence signed.
    Sealed,
}

/// How far a follower has come. Its text is the id of an event on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Bytes of standard output that were given.
    pub stdout: u64,
    /// Bytes of standard error that were given.
    pub stderr: u64,
    /// Updates of other kinds that were given.
    pub updates: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}-{}", self.stdout, self.stderr, self.updates)
    }
}

/// A text that is no cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor: expected three numbers joined by `-`")]
pub struct CursorError;

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let mut parts = text.split('-').map(|part| {
            let plain = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            plain
                .then(|| part.parse().ok())
                .flatten()
                .ok_or(CursorError)
        });
        let mut next = || parts.next().unwrap_or(Err(CursorError));
        let cursor = Self {
            stdout: next()?,
            stderr: next()?,
            updates: next()?,
        };
        match parts.next() {
            None => Ok(cursor),
            Some(_) => Err(CursorError),
        }
    }
}

/// What a follower is told. `Over` comes exactly once and last.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// It waits.
    Queued {
        /// Runs of its tenant before it.
        ahead: u32,
    },
    /// It has a computer.
    Start {
        /// Which.
        sandbox: SandboxId,
        /// Whether a warm slot served it.
        warm: bool,
    },
    /// Bytes of standard output.
    Stdout(Vec<u8>),
    /// Bytes of standard error.
    Stderr(Vec<u8>),
    /// What a tool says of its progress; a JSON object.
    Progress(Value),
    /// What a tool logs.
    Log(String),
    /// A stage ended.
    Stage(StageTime),
    /// Its outcome is committed.
    Over(Box<RunRow>),
}

/// The control plane of one daemon.
#[derive(Debug, Clone)]
pub struct Control {}

/// A run being followed.
#[derive(Debug)]
pub struct Follower {}

impl Follower {
    /// The next update and where it leaves the follower; `None` after `Over`.
    pub async fn next(&mut self) -> Option<(Update, Cursor)> {
        None
    }
}

fn not_yet<T>() -> Result<T, PublicError> {
    Err(PublicError::new(
        ErrorKind::Unsupported,
        "the daemon cannot do this",
    ))
}

impl Control {
    /// Who a token belongs to. Whatever is wrong with it, the answer and its cost are the same.
    ///
    /// # Errors
    /// `unauthenticated`.
    pub async fn authenticate(&self, _token: &str) -> Result<Principal, PublicError> {
        not_yet()
    }

    /// Admits a run durably and queues it (invariant I1). The key is the caller's own, of its tenant.
    ///
    /// # Errors
    /// As admission refuses; `conflict` for a key that was used for another request; `quota` for a full
    /// queue or too many in a minute.
    pub async fn submit(
        &self,
        _who: &Principal,
        _request: RunRequest,
        _idempotency: Option<String>,
    ) -> Result<Submitted, PublicError> {
        not_yet()
    }

    /// Waits for a run, at most so long, and gives it as it is then.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn wait(
        &self,
        _who: &Principal,
        _run: &RunId,
        _until: Until,
        _patience: Duration,
    ) -> Result<RunRow, PublicError> {
        not_yet()
    }

    /// Follows a run from a place on, also when it is over.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn follow(
        &self,
        _who: &Principal,
        _run: &RunId,
        _from: Cursor,
    ) -> Result<Follower, PublicError> {
        not_yet()
    }

    /// Asks for the end of a run. Idempotent.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn cancel(&self, _who: &Principal, _run: &RunId) -> Result<RunRow, PublicError> {
        not_yet()
    }

    /// One run.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn run(&self, _who: &Principal, _run: &RunId) -> Result<RunRow, PublicError> {
        not_yet()
    }

    /// Runs of the caller's tenant, newest first; `filter.tenant` is for operators alone.
    ///
    /// # Errors
    /// `forbidden` for another tenant's.
    pub async fn runs(
        &self,
        _who: &Principal,
        _filter: RunFilter,
    ) -> Result<Vec<RunRow>, PublicError> {
        not_yet()
    }

    /// What was fixed at admission.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn contract(
        &self,
        _who: &Principal,
        _run: &RunId,
    ) -> Result<RunContract, PublicError> {
        not_yet()
    }

    /// Events of a run's chain from `from`, at most 500.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn audit(
        &self,
        _who: &Principal,
        _run: &RunId,
        _from: u64,
    ) -> Result<Vec<Event>, PublicError> {
        not_yet()
    }

    /// Bytes of `stdout` or `stderr` from `offset`, at most `most`: from the spool while it runs, from
    /// the object store afterwards.
    ///
    /// # Errors
    /// `not_found`, also when they were pruned, which the message then says.
    pub async fn output(
        &self,
        _who: &Principal,
        _run: &RunId,
        _stream: &str,
        _offset: u64,
        _most: usize,
    ) -> Result<Vec<u8>, PublicError> {
        not_yet()
    }

    /// Collected files of a run that is over.
    ///
    /// # Errors
    /// `not_found`; `wrong_state` while it runs.
    pub async fn artifacts(
        &self,
        _who: &Principal,
        _run: &RunId,
    ) -> Result<Vec<Artifact>, PublicError> {
        not_yet()
    }

    /// Bytes of one collected file, by its place in the list.
    ///
    /// # Errors
    /// `not_found`, also for one that was skipped.
    pub async fn artifact(
        &self,
        _who: &Principal,
        _run: &RunId,
        _index: usize,
        _offset: u64,
        _most: usize,
    ) -> Result<Vec<u8>, PublicError> {
        not_yet()
    }

    /// Takes a workspace's content as a tar archive; gives its digest, for a later request.
    ///
    /// # Errors
    /// `invalid` when it is too large.
    pub async fn upload(
        &self,
        _who: &Principal,
        _bytes: Vec<u8>,
    ) -> Result<leasehold_core::digest::Digest, PublicError> {
        not_yet()
    }

    /// What proves a run, as JSON text.
    ///
    /// # Errors
    /// `not_found`; `wrong_state` until it is sealed.
    pub async fn evidence(&self, _who: &Principal, _run: &RunId) -> Result<String, PublicError> {
        not_yet()
    }

    /// A run in words.
    ///
    /// # Errors
    /// As [`Self::evidence`].
    pub async fn explain(&self, _who: &Principal, _run: &RunId) -> Result<String, PublicError> {
        not_yet()
    }

    /// Whether it can serve: store writable, worker there.
    ///
    /// # Errors
    /// What is missing.
    pub async fn ready(&self) -> Result<(), PublicError> {
        not_yet()
    }

    /// Counters in the text form that Prometheus reads. For operators.
    ///
    /// # Errors
    /// `forbidden`.
    pub async fn metrics(&self, _who: &Principal) -> Result<String, PublicError> {
        not_yet()
    }
}
