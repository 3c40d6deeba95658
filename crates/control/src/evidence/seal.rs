//! A daemon's own hand: what it signs when a run is sealed and when evidence is asked for.

use std::sync::Arc;

use leasehold_core::digest::{CanonicalError, Digest, canonical};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::{Head, TenantEntry};
use leasehold_core::name::Name;

use super::envelope::Envelope;
use super::head::{self, Anchor, HeadText};
use super::keys::Keyring;
use super::statement::{self, MadeFrom, Predicate, Statement, receipts};
use crate::clock::Clock;
use crate::engine::parts::{Facts, Sealer};

/// Signs with the present key of a keyring, at the time of a clock.
pub struct Signer {
    keyring: Arc<Keyring>,
    clock: Arc<dyn Clock>,
}

impl Signer {
    /// A signer.
    #[must_use]
    pub fn new(keyring: Arc<Keyring>, clock: Arc<dyn Clock>) -> Self {
        Self { keyring, clock }
    }

    /// Signs the statement of a run.
    fn sign(&self, facts: Facts<'_>) -> Result<Envelope, CanonicalError> {
        let outcome = Digest::of_value(facts.outcome)?;
        self.keyring.seal(statement::KIND, |key| {
            Statement::of(Predicate {
                run: facts.contract.run.clone(),
                tenant: facts.contract.tenant.clone(),
                made_from: MadeFrom::Daemon,
                contract: facts.digest,
                outcome,
                chain: facts.head,
                receipts: receipts(facts.outcome),
                cleanup: facts.observed.clone(),
                daemon: env!("CARGO_PKG_VERSION").to_owned(),
                key,
                at_unix_ms: self.clock.unix_ms(),
            })
            .bytes()
        })
    }
}

/// Signs the head of a log.
///
/// # Errors
/// Never in practice; passed on all the same.
pub fn sign_head(
    keyring: &Keyring,
    tenant: &Name,
    head: Head,
    at_unix_ms: u64,
) -> Result<Envelope, CanonicalError> {
    keyring.seal(head::KIND, |_| {
        canonical(&HeadText {
            tenant: tenant.clone(),
            head,
            at_unix_ms,
        })
    })
}

fn unsigned(error: impl std::fmt::Display) -> PublicError {
    PublicError::new(ErrorKind::Internal, format!("it cannot be signed: {error}"))
}

impl Sealer for Signer {
    fn statement(&self, facts: Facts<'_>) -> Result<String, PublicError> {
        let envelope = self.sign(facts).map_err(unsigned)?;
        serde_json::to_string(&envelope).map_err(unsigned)
    }

    fn head(&self, tenant: &Name, head: Head) -> Result<Envelope, PublicError> {
        sign_head(&self.keyring, tenant, head, self.clock.unix_ms()).map_err(unsigned)
    }

    fn anchor(&self, entry: TenantEntry) -> Result<Anchor, PublicError> {
        let head = Head {
            count: entry.seq.saturating_add(1),
            digest: entry.digest().map_err(unsigned)?,
        };
        let head = self.head(&entry.tenant, head)?;
        Ok(Anchor { entry, head })
    }

    fn keys(&self) -> Envelope {
        self.keyring.list()
    }
}
