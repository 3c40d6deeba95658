//! The statement: an in-toto Statement that binds everything of a run together.

use std::collections::BTreeMap;

use leasehold_core::digest::{CanonicalError, Digest, canonical};
use leasehold_core::event::Head;
use leasehold_core::id::RunId;
use leasehold_core::name::Name;
use leasehold_core::outcome::Outcome;
use leasehold_core::record::Observed;
use serde::{Deserialize, Serialize};

/// The kind of envelope.
pub const KIND: &str = "application/vnd.in-toto+json";
/// The version of in-toto's statement.
pub const TYPE: &str = "https://in-toto.io/Statement/v1";
/// What our predicate means.
pub const PREDICATE: &str = "https://github.com/leasehold/leasehold/evidence/v1";

/// What a bundle was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MadeFrom {
    /// Events that a daemon wrote while the run went on.
    Daemon,
    /// The supervisor's record, after the fact: the run had no daemon.
    SupervisorRecord,
}

/// Something the statement is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Its name, such as `run/r…/outcome`.
    pub name: String,
    /// `sha256` and the digits.
    pub digest: BTreeMap<String, String>,
}

/// Bytes that the run left, as committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// `stdout`, `stderr` or `artifact`.
    pub kind: String,
    /// Path of an artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How many.
    pub bytes: u64,
    /// Hexadecimal SHA-256.
    pub sha256: String,
}

/// What is said of the subjects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicate {
    /// Which run.
    pub run: RunId,
    /// Whose; `local` for a run without a daemon.
    pub tenant: Name,
    /// From what it was made.
    pub made_from: MadeFrom,
    /// Digest of the contract's canonical form.
    pub contract: Digest,
    /// Digest of the outcome's canonical form.
    pub outcome: Digest,
    /// End of the chain, its last event included.
    pub chain: Head,
    /// Bytes the run left.
    pub receipts: Vec<Receipt>,
    /// What the host saw after removal; may say "not clean".
    pub cleanup: Observed,
    /// Version of the program that signed.
    pub daemon: String,
    /// The key that signed.
    pub key: Digest,
    /// When, milliseconds since 1970.
    pub at_unix_ms: u64,
}

/// An in-toto Statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Statement {
    /// [`TYPE`].
    #[serde(rename = "_type")]
    pub kind: String,
    /// What it is about.
    pub subject: Vec<Subject>,
    /// [`PREDICATE`].
    pub predicate_type: String,
    /// What is said.
    pub predicate: Predicate,
}

/// Bytes that an outcome names.
#[must_use]
pub fn receipts(outcome: &Outcome) -> Vec<Receipt> {
    let streams = [("stdout", outcome.stdout), ("stderr", outcome.stderr)];
    let streams = streams.into_iter().filter_map(|(kind, stream)| {
        let stream = stream?;
        Some(Receipt {
            kind: kind.to_owned(),
            path: None,
            bytes: stream.stream.kept,
            sha256: stream.digest?.hex(),
        })
    });
    let artifacts = outcome.artifacts.iter().filter_map(|artifact| {
        Some(Receipt {
            kind: "artifact".to_owned(),
            path: Some(artifact.path.clone()),
            bytes: artifact.bytes,
            sha256: artifact.sha256.clone()?,
        })
    });
    streams.chain(artifacts).collect()
}

/// What the statement is about, from what is said.
#[must_use]
pub fn subjects(predicate: &Predicate) -> Vec<Subject> {
    let run = &predicate.run;
    let subject = |name: String, hex: String| Subject {
        name,
        digest: BTreeMap::from([("sha256".to_owned(), hex)]),
    };
    let mut subjects = vec![
        subject(format!("run/{run}/outcome"), predicate.outcome.hex()),
        subject(format!("run/{run}/contract"), predicate.contract.hex()),
    ];
    subjects.extend(predicate.receipts.iter().map(|receipt| {
        let name = match &receipt.path {
            Some(path) => format!("run/{run}/artifact/{path}"),
            None => format!("run/{run}/{}", receipt.kind),
        };
        subject(name, receipt.sha256.clone())
    }));
    subjects
}

impl Statement {
    /// The statement of a predicate.
    #[must_use]
    pub fn of(predicate: Predicate) -> Self {
        Self {
            kind: TYPE.to_owned(),
            subject: subjects(&predicate),
            predicate_type: PREDICATE.to_owned(),
            predicate,
        }
    }

    /// The bytes that are signed.
    ///
    /// # Errors
    /// Never for a value of this type; passed on all the same.
    pub fn bytes(&self) -> Result<Vec<u8>, CanonicalError> {
        canonical(self)
    }
}
