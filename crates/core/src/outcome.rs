//! What a run came to, as committed: the part of its record that answers its caller.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Digest;
use crate::end::{EndReason, ExitStatus, LimitHit};
use crate::record::{Artifact, ModuleReport, StreamRecord, Usage};

/// Where a run is, as its caller sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RunState {
    /// Admitted; waits for its turn.
    Queued,
    /// It has a lease.
    Running,
    /// The outcome is committed; removal may go on.
    Ended,
    /// Removal was observed and the chain is sealed.
    Sealed,
}

impl RunState {
    /// Every state, in order.
    pub const ALL: [Self; 4] = [Self::Queued, Self::Running, Self::Ended, Self::Sealed];

    /// Whether the outcome is fixed.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Ended | Self::Sealed)
    }

    /// The word used in rows, filters and texts.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Ended => "ended",
            Self::Sealed => "sealed",
        }
    }
}

/// One output stream in the object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredStream {
    /// What was written and kept.
    #[serde(flatten)]
    pub stream: StreamRecord,
    /// Digest of the bytes kept; absent when there was no room to keep them beyond the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
}

/// The committed result of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Outcome {
    /// Why it is over.
    pub end: EndReason,
    /// How the main process ended, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitStatus>,
    /// Limits that denied or killed.
    #[serde(default)]
    pub limits_hit: Vec<LimitHit>,
    /// What it used.
    #[serde(default)]
    pub usage: Usage,
    /// Standard output; absent when there was no computer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<StoredStream>,
    /// Standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<StoredStream>,
    /// Structured output of a tool, validated against its schema. Kept as text, since its numbers may
    /// have fractions, which have no canonical form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Collected files.
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
    /// What the WebAssembly host tells, where one ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<ModuleReport>,
    /// Milliseconds since 1970 when the outcome was fixed.
    pub ended_unix_ms: u64,
}

impl Outcome {
    /// The structured output as a value.
    #[must_use]
    pub fn output_value(&self) -> Option<Value> {
        self.output
            .as_deref()
            .and_then(|text| serde_json::from_str(text).ok())
    }
}

impl Outcome {
    /// Objects it names: streams that are not empty, and files that were collected.
    #[must_use]
    pub fn named(&self) -> Vec<Digest> {
        let streams = [self.stdout, self.stderr].into_iter().flatten();
        let streams = streams.filter(|stored| stored.stream.kept > 0);
        let files = self
            .artifacts
            .iter()
            .filter_map(|file| file.sha256.as_ref());
        let files = files.filter_map(|hex| Digest::parse(&format!("sha256:{hex}")).ok());
        let streams = streams.filter_map(|stored| stored.digest);
        streams.chain(files).collect()
    }
}
