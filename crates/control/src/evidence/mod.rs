//! Evidence: what proves a run to somebody who was not there.
//!
//! The events of a run form a chain ([`chain`]); every chain is opened and sealed in its tenant's log, whose
//! entries form a chain of their own. A signed head ([`head`]) says how long a log was and what its last
//! entry is, so that a cut end shows. At the end one statement ([`statement`]) binds contract, chain,
//! outcome, receipts and what the host saw after removal; it is signed by a key of this daemon ([`keys`]) in
//! an envelope ([`envelope`]). A [`bundle`] holds all of it; [`verify`] checks one without any network or
//! daemon and names each fault, [`explain`] answers in words. All but the keys' file is pure.
//!
//! What comes from outside is hostile: sizes, depths and counts are bounded, and no text of a user is
//! printed but through [`plain`].

pub mod bundle;
pub mod chain;
pub mod components;
pub mod envelope;
pub mod explain;
pub mod fault;
pub mod head;
pub mod keys;
pub mod local;
pub mod plain;
pub mod seal;
pub mod statement;
pub mod verify;

pub use bundle::{Bundle, LogBundle};
pub use fault::Fault;
pub use keys::Keyring;
pub use verify::{Trust, Verdict};

#[cfg(test)]
mod tests;
