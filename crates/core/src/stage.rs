//! The seven stages of a run's lifecycle. Each is an event with its duration.

use serde::{Deserialize, Serialize};

/// One stage, in the order they happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Stage {
    /// A slot is claimed or a sandbox provisioned.
    Allocate,
    /// Limits, mounts and environment are applied.
    Initialize,
    /// Context and secrets go in, in memory.
    Inject,
    /// The entrypoint runs; the deadline is armed; output streams.
    Execute,
    /// Output and artifacts are gathered.
    Collect,
    /// Authority is revoked, then the computer is ended.
    Destroy,
    /// What is left on the host is removed and the removal observed.
    Cleanup,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Self; 7] = [
        Self::Allocate,
        Self::Initialize,
        Self::Inject,
        Self::Execute,
        Self::Collect,
        Self::Destroy,
        Self::Cleanup,
    ];

    /// The word used in events and summaries.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Initialize => "initialize",
            Self::Inject => "inject",
            Self::Execute => "execute",
            Self::Collect => "collect",
            Self::Destroy => "destroy",
            Self::Cleanup => "cleanup",
        }
    }
}

/// How long one stage took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StageTime {
    /// Which stage.
    pub stage: Stage,
    /// Its duration on the supervisor's monotonic clock, in microseconds.
    pub micros: u64,
}
