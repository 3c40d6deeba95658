//! Evidence over the façade: what proves a run, a tenant's log, and both in words.

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_core::name::Name;
use leasehold_core::outcome::RunState;
use leasehold_core::tenant::{Operation, Principal, Role};
use leasehold_store::seam::{PAGE_MAX, SignedHead};
use serde::de::DeserializeOwned;

use super::Control;
use crate::access::allowed;
use crate::evidence::bundle::{ENTRIES_MAX, EVENTS_MAX, FORMAT, LOG_FORMAT};
use crate::evidence::explain::explain;
use crate::evidence::statement::MadeFrom;
use crate::evidence::{Bundle, LogBundle};

fn damaged(what: &str) -> PublicError {
    PublicError::new(ErrorKind::Internal, format!("{what} does not read back"))
}

fn read<T: DeserializeOwned>(text: &[u8], what: &str) -> Result<T, PublicError> {
    serde_json::from_slice(text).map_err(|_| damaged(what))
}

fn too_long(what: &str, max: usize) -> PublicError {
    PublicError::new(
        ErrorKind::Quota,
        format!("{what} has more than {max} entries"),
    )
}

impl Control {
    /// What proves a run, as JSON text that is checked offline.
    ///
    /// # Errors
    /// `not_found`; `wrong_state` until it is sealed.
    pub async fn evidence(&self, who: &Principal, run: &RunId) -> Result<String, PublicError> {
        let bundle = self.bundle(who, run).await?;
        bundle.text().map_err(|_| damaged("the evidence"))
    }

    /// A run in words: the six questions.
    ///
    /// # Errors
    /// As [`Self::evidence`].
    pub async fn explain(&self, who: &Principal, run: &RunId) -> Result<String, PublicError> {
        Ok(explain(&self.bundle(who, run).await?))
    }

    /// The whole log of the caller's tenant with a fresh signed head, as JSON text. The head is kept, so that a
    /// shorter log is never signed again.
    ///
    /// # Errors
    /// `quota` when it is too long for one text.
    pub async fn log_evidence(&self, who: &Principal) -> Result<String, PublicError> {
        allowed(who, Operation::ReadEvidence)?;
        let bundle = self.log_bundle(&who.tenant).await?;
        serde_json::to_string(&bundle).map_err(|_| damaged("the log"))
    }

    async fn bundle(&self, who: &Principal, run: &RunId) -> Result<Bundle, PublicError> {
        allowed(who, Operation::ReadEvidence)?;
        let tenant = (who.role != Role::Operator).then(|| who.tenant.clone());
        let parts = &self.engine.parts;
        let store = &parts.store;
        let row = store
            .run(tenant, run.clone())
            .await
            .map_err(|error| error.public())?;
        let statement = store
            .statement(run.clone())
            .await
            .map_err(|error| error.public())?;
        let (RunState::Sealed, Some(outcome), Some(statement)) =
            (row.state, row.outcome, statement)
        else {
            let message = format!(
                "the run is {}; its evidence is complete once it is sealed",
                row.state.word()
            );
            return Err(PublicError::new(ErrorKind::WrongState, message));
        };
        let contract = store
            .contract(run.clone())
            .await
            .map_err(|error| error.public())?;
        let mut anchors = Vec::new();
        for entry in store
            .log_of(run.clone())
            .await
            .map_err(|error| error.public())?
        {
            anchors.push(parts.sealer.anchor(entry)?);
        }
        let sealed = anchors.pop();
        Ok(Bundle {
            format: FORMAT.to_owned(),
            made_from: MadeFrom::Daemon,
            run: run.clone(),
            tenant: row.tenant,
            contract: read(&contract, "the contract")?,
            outcome,
            events: self.every_event(run).await?,
            opened: anchors.pop(),
            sealed,
            statement: read(statement.as_bytes(), "the statement")?,
            keys: parts.sealer.keys(),
        })
    }

    async fn every_event(
        &self,
        run: &RunId,
    ) -> Result<Vec<leasehold_core::event::Event>, PublicError> {
        let mut events = Vec::new();
        loop {
            let page = self
                .engine
                .parts
                .store
                .events(run.clone(), events.len() as u64);
            let page = page.await.map_err(|error| error.public())?;
            let last = page.len() < PAGE_MAX as usize;
            events.extend(page);
            if last {
                return Ok(events);
            }
            if events.len() > EVENTS_MAX {
                return Err(too_long("the chain", EVENTS_MAX));
            }
        }
    }

    async fn log_bundle(&self, tenant: &Name) -> Result<LogBundle, PublicError> {
        let parts = &self.engine.parts;
        let store = &parts.store;
        let head = store
            .log_head(tenant.clone())
            .await
            .map_err(|error| error.public())?;
        let mut entries = Vec::new();
        while (entries.len() as u64) < head.count {
            let page = store.log(tenant.clone(), entries.len() as u64).await;
            let page = page.map_err(|error| error.public())?;
            if page.is_empty() {
                return Err(damaged("the log"));
            }
            entries.extend(page);
            if entries.len() > ENTRIES_MAX {
                return Err(too_long("the log", ENTRIES_MAX));
            }
        }
        entries.truncate(usize::try_from(head.count).unwrap_or(usize::MAX));
        let envelope = parts.sealer.head(tenant, head)?;
        let kept = SignedHead {
            tenant: tenant.clone(),
            head,
            envelope: serde_json::to_string(&envelope).map_err(|_| damaged("the head"))?,
        };
        // Another call may have kept a longer one meanwhile: this one is true all the same.
        match store.put_signed_head(kept).await {
            Ok(()) | Err(leasehold_store::seam::StoreError::WrongState { .. }) => {}
            Err(error) => return Err(error.public()),
        }
        Ok(LogBundle {
            format: LOG_FORMAT.to_owned(),
            tenant: tenant.clone(),
            entries,
            head: envelope,
            keys: parts.sealer.keys(),
        })
    }
}
