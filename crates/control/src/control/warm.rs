//! Computers that are kept parked for the run that is asked for most: a bare command with nothing asked.
//!
//! Which kind that is says admission itself, by the policies in force, so that the run finds it. The worker is asked
//! again every so often and when a run found none: one that was started anew remembers nothing, and a policy may
//! have changed the kind. A daemon that drains lets them go, so that its worker has nothing left to stay for.

use std::time::Duration;

use leasehold_backend::error::BackendError;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::{KeyId, RunId};
use leasehold_core::name::Name;
use leasehold_core::select::Runtime;
use leasehold_core::spec::SandboxSpec;
use leasehold_core::tenant::{Principal, Role};

use super::Control;
use crate::admission::{self, Case};
use crate::engine::Slot;
use crate::policies::DEFAULT_TENANT;
use crate::request::RunRequest;
use crate::tenants::DEFAULT_PROJECT;

/// How often the worker is asked at least, and the least pause between two times.
const EVERY: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(1));
/// How long the worker may take to let them go; it does so by itself when we are gone.
const LET_GO: Duration = Duration::from_secs(5);

impl Control {
    /// Keeps so many computers parked until it drains, beside everything else: one whose worker is slow to
    /// fill its pool serves all the same.
    pub fn keep_warm(&self, count: u32) {
        if count == 0 {
            return;
        }
        let control = self.clone();
        tokio::spawn(async move {
            let mut draining = control.engine.drains();
            let _asking = control.engine.warm.asking.lock().await;
            tokio::select! {
                biased;
                _ = draining.wait_for(|draining| *draining) => {}
                () = control.park_on(count) => {}
            }
        });
    }

    async fn park_on(&self, count: u32) {
        loop {
            self.park(count).await;
            tokio::time::sleep(EVERY.1).await;
            let missed = self.engine.warm.missed.notified();
            let _ = tokio::time::timeout(EVERY.0, missed).await;
        }
    }

    /// Keeps none parked any more. Only after draining has begun.
    pub(super) async fn unpark(&self) {
        let letting_go = async {
            // Whoever asks for them stops when draining begins.
            let _asking = self.engine.warm.asking.lock().await;
            match self.engine.warm.take() {
                Some(kept) => self.keep_parked(kept, 0).await,
                None => Ok(()),
            }
        };
        match tokio::time::timeout(LET_GO, letting_go).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "parked computers are left to the worker"),
            Err(_) => tracing::warn!("parked computers are left to the worker: it does not answer"),
        }
    }

    async fn park(&self, count: u32) {
        let usual = self.usual().await.unwrap_or_else(|_| Slot {
            backend: self.engine.parts.backends.first().name().to_owned(),
            sandbox: SandboxSpec::default(),
        });
        let before = self.engine.warm.set(usual.clone());
        if let Some(before) = before.filter(|before| !before.serves(&usual))
            && let Err(error) = self.keep_parked(before, 0).await
        {
            tracing::warn!(%error, "computers of an earlier kind are kept parked");
        }
        if let Err(error) = self.keep_parked(usual, count).await {
            tracing::warn!(%error, "no computers are kept parked");
        }
    }

    async fn keep_parked(&self, slot: Slot, count: u32) -> Result<(), BackendError> {
        let backend = self.engine.parts.backends.named(&slot.backend)?;
        backend.keep_warm(slot.sandbox, count).await
    }

    /// The computer of a bare command of the operator's own tenant.
    async fn usual(&self) -> Result<Slot, PublicError> {
        let own = |text: &str| {
            let name = Name::parse(text);
            name.map_err(|error| PublicError::new(ErrorKind::Internal, error.to_string()))
        };
        let who = Principal {
            tenant: own(DEFAULT_TENANT)?,
            project: own(DEFAULT_PROJECT)?,
            name: own("operator")?,
            role: Role::Runner,
            key: KeyId::from_entropy(&[0; 13]),
            grants: Vec::new(),
        };
        let request = RunRequest::command(["true"]);
        let parts = &self.engine.parts;
        let known = admission::gather(
            parts.store.as_ref(),
            parts.templates.as_ref(),
            parts.images.as_ref(),
            &who,
            &request,
        )
        .await?;
        let offers = self.offers.get(Runtime::Command).await;
        let case = Case {
            who: &who,
            request: &request,
            known: &known,
        };
        let run = RunId::from_entropy(&[0; 13]);
        let plan = admission::resolve(case, &offers.list, run)?;
        Ok(Slot {
            backend: plan.contract.selected.backend,
            sandbox: plan.start.sandbox,
        })
    }
}
