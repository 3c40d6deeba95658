//! A signed head: how long a tenant's log was and what its last entry is.

use leasehold_core::event::{Head, TenantEntry};
use leasehold_core::name::Name;
use serde::{Deserialize, Serialize};

use super::envelope::Envelope;

/// The kind of envelope.
pub const KIND: &str = "application/vnd.leasehold.log-head+json";

/// What a head's envelope says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadText {
    /// Whose log.
    pub tenant: Name,
    /// Entries, and the last one's digest.
    pub head: Head,
    /// When it was signed, milliseconds since 1970.
    pub at_unix_ms: u64,
}

/// An entry of a log and a head that was signed for the log up to it: the entry stands at its place without
/// the others being shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchor {
    /// The entry.
    pub entry: TenantEntry,
    /// The head of which it is the last.
    pub head: Envelope,
}
