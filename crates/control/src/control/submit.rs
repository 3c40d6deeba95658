//! The way in for callers: a request becomes a plan, and a plan a durable run.

use std::os::fd::OwnedFd;

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_core::tenant::{Operation, Principal};
use leasehold_store::seam::Idempotency;

use super::{Control, Submitted};
use crate::access::allowed;
use crate::admission::{self, Case};
use crate::request::RunRequest;

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
        let mut known = admission::gather(
            parts.store.as_ref(),
            parts.templates.as_ref(),
            parts.images.as_ref(),
            who,
            &request,
        )
        .await?;
        let runtime = admission::wanted_runtime(&known, &request);
        let offers = self.offers.get(runtime).await;
        let run = RunId::from_entropy(&parts.entropy.draw()?);
        let decide = |known: &admission::Known| {
            let case = Case {
                who,
                request: &request,
                known,
            };
            admission::resolve(case, &offers.list, run.clone())
                .map_err(|refused| offers.excuse(refused, runtime))
        };
        let mut plan = decide(&known)?;
        if let Some(image) = &mut known.image {
            // Only now: no registry is asked for a run that is refused.
            let (tenant, name) = (who.tenant.clone(), image.name.full.clone());
            image.digest = Some(parts.images.resolve(tenant, name, image.pull).await?);
            plan = decide(&known)?;
        }
        let warnings = plan.warnings.clone();
        let (row, new) = self.engine.submit(plan, idempotency, directory).await?;
        Ok(Submitted { row, new, warnings })
    }
}
