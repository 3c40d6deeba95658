//! The façade that the API calls. Cheap to clone.
//!
//! Every method takes who asks, checks what its role allows, and knows only that tenant's things: what is
//! another's is `not_found`, like what is not there.

mod admin;
mod code;
mod evidence;
mod follow;
mod offers;
mod runs;
mod submit;
mod warm;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::digest::Digest;
use leasehold_core::error::PublicError;
use leasehold_core::id::SandboxId;
use leasehold_core::stage::StageTime;
use leasehold_core::tenant::{Operation, Principal};
pub use leasehold_store::seam::{KeyRow, RunFilter, RunRow, ToolRow, ToolState, WorkerRow};
use serde_json::Value;

pub use leasehold_backend::seam::Readiness;

pub use self::follow::Follower;
use crate::access::allowed;
use crate::auth;
use crate::engine::Engine;

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

/// A version of a tool that was published.
#[derive(Debug, Clone)]
pub struct Published {
    /// The version.
    pub row: ToolRow,
    /// What its publisher should know.
    pub warnings: Vec<String>,
    /// Where the code of its WebAssembly module stands; nothing for a tool that has none.
    pub code: Option<Readiness>,
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

/// What a follower is told. `Over` or `Leaving` comes exactly once and last.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// It waits.
    Queued {
        /// Runs of its tenant before it.
        ahead: u32,
    },
    /// Its WebAssembly module is compiled first; no time of the run passes meanwhile.
    Compiling {
        /// Digest of the module.
        module: Digest,
    },
    /// Its module was compiled.
    Compiled {
        /// Digest of the module.
        module: Digest,
        /// How long the run waited for that, in microseconds.
        micros: u64,
    },
    /// The image it runs in is pulled first; no time of the run passes meanwhile.
    Pulling {
        /// Digest of its manifest.
        image: Digest,
    },
    /// Its image was pulled.
    Pulled {
        /// Digest of its manifest.
        image: Digest,
        /// How long the run waited for that, in microseconds.
        micros: u64,
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
    /// The daemon ends; the run goes on, and is followed further once a daemon is there again.
    Leaving,
}

/// The control plane of one daemon.
#[derive(Debug, Clone)]
pub struct Control {
    pub(crate) engine: Arc<Engine>,
    offers: offers::Offers,
}

impl Control {
    /// A façade over an engine that was started.
    #[must_use]
    pub fn new(engine: Arc<Engine>) -> Self {
        let parts = &engine.parts;
        Self {
            offers: offers::Offers::new(&parts.backends, Arc::clone(&parts.clock)),
            engine,
        }
    }

    /// Who a token belongs to. Whatever is wrong with it, the answer and its cost are the same.
    ///
    /// # Errors
    /// `unauthenticated`.
    pub async fn authenticate(&self, token: &str) -> Result<Principal, PublicError> {
        let parts = &self.engine.parts;
        auth::authenticate(parts.store.as_ref(), token, parts.clock.unix_ms()).await
    }

    /// Whether it can serve: store readable, worker there, not about to end.
    ///
    /// # Errors
    /// What is missing.
    pub async fn ready(&self) -> Result<(), PublicError> {
        self.engine.ready().await
    }

    /// Counters in the text form that Prometheus reads. For operators.
    ///
    /// # Errors
    /// `forbidden`.
    pub async fn metrics(&self, who: &Principal) -> Result<String, PublicError> {
        allowed(who, Operation::Platform)?;
        Ok(self.engine.print_metrics())
    }

    /// Tells whoever waits or follows that this process goes; see [`Engine::leave`].
    pub fn leave(&self) {
        self.engine.leave();
    }

    /// Ends it for now, and lets go of what is kept parked; see [`Engine::drain`].
    pub async fn drain(&self, bound: Duration) {
        self.engine.drain(bound).await;
        self.unpark().await;
    }
}
