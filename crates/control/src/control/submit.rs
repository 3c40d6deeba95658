//! The way in for callers: a request becomes a plan, and a plan a durable run.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_core::select::Offer;
use leasehold_core::tenant::{Operation, Principal};
use leasehold_store::seam::Idempotency;

use super::{Control, Submitted};
use crate::access::allowed;
use crate::admission::{self, Case};
use crate::engine::parts::Parts;
use crate::request::RunRequest;

/// How long what the backends said of this host is believed.
const BELIEVED: Duration = Duration::from_secs(30);

/// What the backends said, and when on the clock of this process.
type Held = (Duration, Arc<Vec<Offer>>);

/// What the backends offer, asked again every so often.
#[derive(Debug, Clone, Default)]
pub(super) struct Offers {
    held: Arc<Mutex<Option<Held>>>,
}

impl Offers {
    /// # Errors
    /// `unavailable` when the worker cannot be asked for now; what is wrong with it is for the log alone.
    pub(super) async fn get(&self, parts: &Parts) -> Result<Arc<Vec<Offer>>, PublicError> {
        let now = parts.clock.elapsed();
        // Nothing panics while it holds the lock.
        let held = self
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some((asked, offers)) = held
            && now.saturating_sub(asked) < BELIEVED
        {
            return Ok(offers);
        }
        let backend = &parts.backend;
        let probed = backend.probe().await;
        if let Err(error) = &probed
            && error.kind.retryable()
        {
            tracing::warn!(%error, "the worker cannot be asked");
            let message = "the worker of this daemon cannot be reached just now";
            return Err(PublicError::new(ErrorKind::Unavailable, message).hint("try again"));
        }
        let able = probed.is_ok();
        let mut offers = vec![admission::offer(
            backend.name(),
            backend.isolation(),
            probed,
        )];
        offers.extend(admission::unbuilt(&offers));
        let offers = Arc::new(offers);
        if able {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            *held = Some((now, Arc::clone(&offers)));
        }
        Ok(offers)
    }
}

impl Control {
    /// Admits a run durably and queues it (invariant I1). The key is the caller's own, of its tenant. The
    /// directory is the workspace that a local caller passed, where the request says so.
    ///
    /// # Errors
    /// As admission refuses; `conflict` for a key that was used for another request; `quota` for a full
    /// queue or too many in a minute.
    pub async fn submit(
        &self,
        who: &Principal,
        request: RunRequest,
        idempotency: Option<String>,
        directory: Option<OwnedFd>,
    ) -> Result<Submitted, PublicError> {
        let parts = &self.engine.parts;
        allowed(who, Operation::Run)?;
        let idempotency = idempotency.map(|key| {
            let request = request.digest().map_err(|error| {
                PublicError::new(
                    ErrorKind::Internal,
                    format!("the request has no form: {error}"),
                )
            })?;
            Ok(Idempotency { key, request })
        });
        let idempotency = idempotency.transpose()?;
        // Before anything that may have changed since the first time can refuse it.
        let earlier = self.engine.earlier(&who.tenant, idempotency.as_ref());
        if let Some(row) = earlier.await? {
            return Ok(Submitted {
                row,
                new: false,
                warnings: Vec::new(),
            });
        }
        let known = admission::gather(parts.store.as_ref(), who, &request).await?;
        let offers = self.offers.get(parts).await?;
        let run = RunId::from_entropy(&parts.entropy.draw()?);
        let case = Case {
            who,
            request: &request,
            known: &known,
        };
        let plan = admission::resolve(case, &offers, run)?;
        let warnings = plan.warnings.clone();
        let (row, new) = self.engine.submit(plan, idempotency, directory).await?;
        Ok(Submitted { row, new, warnings })
    }
}
