//! The time-bound right to operate a sandbox.

use serde::{Deserialize, Serialize};

use crate::id::{LeaseId, RunId, SandboxId, WorkerId};

/// Fencing token: grows by one whenever the right to a run passes on. Whoever writes says which epoch
/// it writes under; an older one is refused everywhere (invariant I4). The first is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Epoch(pub u64);

impl Epoch {
    /// Before any lease was granted.
    pub const NONE: Self = Self(0);

    /// The one after this.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Where a lease is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// Its holder may act.
    Active,
    /// Authority is gone; the computer may still be there for a moment.
    Revoked,
    /// The computer was seen gone.
    Closed,
}

/// One lease. It is also the durable intent of its sandbox: it is committed before the first resource
/// (invariant I3), and every name on the host is found from the ids in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Which.
    pub id: LeaseId,
    /// For which run.
    pub run: RunId,
    /// On which worker.
    pub worker: WorkerId,
    /// Under which epoch of the run.
    pub epoch: Epoch,
    /// Which sandbox, once the worker has said it. A warm slot has its own id, known when claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// Hard deadline of the allocation, milliseconds since 1970.
    pub expires_unix_ms: u64,
    /// Where it is in its life.
    pub state: LeaseState,
}
