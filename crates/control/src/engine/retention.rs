//! The third lifetime: objects that nothing names any more are removed.
//!
//! Mark and sweep. A run names what it left until the time of its contract is over, an upload is named while it is
//! kept, a package while its tool is there; several may name one object. Names whose time is over are forgotten
//! first, durably; then objects are gone through by the first byte of their digest, one such part in a round, and
//! those that nothing names are removed, at most so many. Whatever this is killed in, the next round goes on. What
//! was put a moment ago is spared, since a row may be about to name it.

use std::sync::atomic::Ordering;

use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::run_contract::{RetentionTerms, RunContract};
use leasehold_store::seam::{PAGE_MAX, RunRow};

use super::Engine;
use super::metrics::{add, count};

/// Most objects removed in one round.
const REMOVED_MAX: usize = 500;
/// What is named for less than this is not given to another run.
const MARGIN_MS: u64 = 30_000;

/// The answer for bytes whose time is over.
fn over(what: &str) -> PublicError {
    let message = format!("the {what} is not kept any more: its retention is over");
    PublicError::new(ErrorKind::NotFound, message)
}

/// Says of bytes that are not there any more why.
pub(crate) fn pruned(error: PublicError, what: &str) -> PublicError {
    match error.kind {
        ErrorKind::NotFound => over(what),
        _ => error,
    }
}

impl Engine {
    /// One round.
    pub(super) async fn sweep_objects(&self) {
        if let Err(error) = self.sweep_some().await {
            count(&self.metrics.object_errors);
            tracing::warn!(%error, "objects whose retention is over cannot be removed");
        }
    }

    async fn sweep_some(&self) -> Result<(), PublicError> {
        let parts = &self.parts;
        let now = parts.clock.unix_ms();
        let kept = u64::try_from(parts.settings.uploads_kept.as_millis()).unwrap_or(u64::MAX);
        let store = &parts.store;
        // A store that cannot take this may keep an outcome from being written that names objects.
        let pruned = store
            .prune_names(now, now.saturating_sub(kept), PAGE_MAX)
            .await;
        pruned.map_err(|error| error.public())?;
        let first = self.swept.load(Ordering::Relaxed);
        let spared = parts.settings.objects_spared;
        let mut removed = 0;
        for some in parts
            .objects
            .list(first, spared)
            .await?
            .chunks(PAGE_MAX as usize)
        {
            let named = store.named(some.to_vec(), now).await;
            let named = named.map_err(|error| error.public())?;
            for digest in some.iter().filter(|digest| !named.contains(digest)) {
                if removed == REMOVED_MAX {
                    return Ok(());
                }
                if parts.objects.remove(*digest, spared).await? {
                    removed += 1;
                    add(&self.metrics.objects_removed, 1);
                }
            }
        }
        self.swept.store(first.wrapping_add(1), Ordering::Relaxed);
        Ok(())
    }

    /// Whether all of these are named for a while yet.
    pub(super) async fn stay(&self, digests: Vec<Digest>) -> bool {
        let at = self.parts.clock.unix_ms().saturating_add(MARGIN_MS);
        let named = self.parts.store.named(digests.clone(), at).await;
        named.is_ok_and(|named| digests.iter().all(|digest| named.contains(digest)))
    }

    /// Refuses what the contract of a run keeps no longer, although another may name the same bytes.
    pub(crate) async fn kept_still(
        &self,
        row: &RunRow,
        what: &str,
        seconds: impl FnOnce(&RetentionTerms) -> u64,
    ) -> Result<(), PublicError> {
        let Some(outcome) = &row.outcome else {
            return Ok(());
        };
        let contract = self.parts.store.contract(row.run.clone()).await;
        let contract = contract.map_err(|error| error.public())?;
        let contract: RunContract = serde_json::from_slice(&contract).map_err(|_| {
            PublicError::new(ErrorKind::Internal, "the contract of the run does not read")
        })?;
        let kept_ms = seconds(&contract.retention).saturating_mul(1_000);
        match outcome.ended_unix_ms.saturating_add(kept_ms) > self.parts.clock.unix_ms() {
            true => Ok(()),
            false => Err(over(what)),
        }
    }
}
