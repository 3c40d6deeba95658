//! What is handed over: one JSON text that needs nothing else to be checked.

use leasehold_core::event::{Event, TenantEntry};
use leasehold_core::id::RunId;
use leasehold_core::name::Name;
use leasehold_core::outcome::Outcome;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::envelope::Envelope;
use super::fault::Fault;
use super::head::Anchor;
use super::statement::MadeFrom;

/// What a run's bundle calls itself.
pub const FORMAT: &str = "leasehold-evidence/1";
/// What a log's bundle calls itself.
pub const LOG_FORMAT: &str = "leasehold-log/1";
/// Largest bundle in bytes.
pub const BUNDLE_MAX: usize = 64 << 20;
/// Most events of a run that are checked.
pub const EVENTS_MAX: usize = 100_000;
/// Most entries of a log that are checked.
pub const ENTRIES_MAX: usize = 200_000;

/// What proves one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// [`FORMAT`].
    pub format: String,
    /// From what it was made.
    pub made_from: MadeFrom,
    /// Which run.
    pub run: RunId,
    /// Whose; `local` for a run without a daemon.
    pub tenant: Name,
    /// The contract as admitted.
    pub contract: Value,
    /// What it came to.
    pub outcome: Outcome,
    /// Its chain.
    pub events: Vec<Event>,
    /// Where the tenant's log opens the run; absent without a daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened: Option<Anchor>,
    /// Where the tenant's log seals it; absent without a daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<Anchor>,
    /// The signed statement.
    pub statement: Envelope,
    /// The signed list of keys.
    pub keys: Envelope,
}

/// The whole log of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogBundle {
    /// [`LOG_FORMAT`].
    pub format: String,
    /// Whose.
    pub tenant: Name,
    /// Every entry.
    pub entries: Vec<TenantEntry>,
    /// The signed head.
    pub head: Envelope,
    /// The signed list of keys.
    pub keys: Envelope,
}

fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, Fault> {
    if text.len() > BUNDLE_MAX {
        let why = format!("{} bytes are more than {BUNDLE_MAX}", text.len());
        return Err(Fault::Unreadable(why));
    }
    // Nesting is bounded by the reader itself.
    serde_json::from_slice(text).map_err(|error| Fault::Unreadable(error.to_string()))
}

fn bounded(what: &str, count: usize, max: usize) -> Result<(), Fault> {
    if count > max {
        let why = format!("{count} {what} are more than {max}");
        return Err(Fault::Unreadable(why));
    }
    Ok(())
}

fn of_format(format: &str, known: &str) -> Result<(), Fault> {
    if format == known {
        return Ok(());
    }
    let shown: String = format.chars().take(64).collect();
    Err(Fault::Unreadable(format!(
        "its format is {shown:?}, this program knows {known:?}"
    )))
}

impl Bundle {
    /// Reads a bundle; nothing of it is believed yet.
    ///
    /// # Errors
    /// When it is no bundle or larger than bounds allow.
    pub fn read(text: &[u8]) -> Result<Self, Fault> {
        let bundle: Self = read(text)?;
        of_format(&bundle.format, FORMAT)?;
        bounded("events", bundle.events.len(), EVENTS_MAX)?;
        Ok(bundle)
    }

    /// The text that is handed over.
    ///
    /// # Errors
    /// Never for a value of this type; passed on all the same.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }
}

impl LogBundle {
    /// Reads a log; nothing of it is believed yet.
    ///
    /// # Errors
    /// When it is no log or larger than bounds allow.
    pub fn read(text: &[u8]) -> Result<Self, Fault> {
        let bundle: Self = read(text)?;
        of_format(&bundle.format, LOG_FORMAT)?;
        bounded("entries", bundle.entries.len(), ENTRIES_MAX)?;
        Ok(bundle)
    }
}
