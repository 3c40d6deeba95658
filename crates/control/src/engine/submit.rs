//! The way in: a place in the queue, the durable admission, the task.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::{Chain, Event, Head, RunFact};
use leasehold_core::id::RunId;
use leasehold_core::lease::{Epoch, Lease};
use leasehold_core::name::Name;
use leasehold_core::outcome::{Outcome, RunState};
use leasehold_store::seam::{Admission, Admitted, Idempotency, RunRow, StoreError};
use serde::{Deserialize, Serialize};

use super::descriptors::Held;
use super::live::Live;
use super::metrics::count;
use super::queue::Ticket;
use super::task::{Begin, Task, lease};
use super::{Engine, about_to_end, locked};
use crate::plan::{Plan, Share, Start};
use crate::vault::Vault;

/// What a restarted daemon needs and no contract holds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Sealed {
    pub(super) start: Start,
    pub(super) share: Share,
    pub(super) cache: Option<leasehold_core::digest::Digest>,
}

/// A place that is given back unless its run came in.
struct Place<'a> {
    engine: &'a Engine,
    run: &'a RunId,
    tenant: &'a Name,
    bytes: u64,
    /// It waits in the queue, or has a turn already.
    queued: bool,
    kept: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        self.engine.forget(self.run);
        let now = self.engine.parts.clock.elapsed();
        if self.queued {
            self.engine.floor.abandon(self.run, self.tenant, now);
        } else {
            self.engine.floor.give_back(self.tenant, self.bytes, now);
        }
    }
}

fn internal(what: &str) -> PublicError {
    PublicError::new(ErrorKind::Internal, format!("the run {what}"))
}

impl Engine {
    /// Admits a run durably and begins to carry it. Gives its row and whether it is new. The directory is
    /// that of the workspace, passed by a local caller.
    ///
    /// # Errors
    /// `quota` for a full queue or too many in a minute; `conflict` for a key that was used for another
    /// request; `unavailable` when the store cannot be written or the daemon is about to end.
    pub async fn submit(
        self: &Arc<Self>,
        plan: Plan,
        idempotency: Option<Idempotency>,
        directory: Option<OwnedFd>,
    ) -> Result<(RunRow, bool), PublicError> {
        let key = idempotency
            .as_ref()
            .map(|idempotency| (plan.contract.tenant.clone(), idempotency.key.clone()));
        let Some(key) = key else {
            return self.admit(plan, None, directory).await;
        };
        let turn = Arc::clone(locked(&self.keys).entry(key.clone()).or_default());
        let submitted = {
            let _turn = turn.lock().await;
            match self.earlier(&key.0, idempotency.as_ref()).await {
                Ok(Some(row)) => Ok((row, false)),
                Ok(None) => self.admit(plan, idempotency, directory).await,
                Err(error) => Err(error),
            }
        };
        let mut keys = locked(&self.keys);
        // Ours and the map's: nobody else waits.
        if Arc::strong_count(&turn) == 2 {
            keys.remove(&key);
        }
        submitted
    }

    /// The run that a key stands for already: a retry is told of it whatever a new run would be told, and
    /// counts for nothing.
    ///
    /// # Errors
    /// `conflict` for a key that was used for another request.
    pub(crate) async fn earlier(
        &self,
        tenant: &Name,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<RunRow>, PublicError> {
        let Some(Idempotency { key, request }) = idempotency else {
            return Ok(None);
        };
        let found = self.parts.store.earlier(tenant.clone(), key.clone()).await;
        match found.map_err(|error| error.public())? {
            Some((first, row)) if first != *request => {
                Err(StoreError::KeyReused { first: row.run }.public())
            }
            found => Ok(found.map(|(_, row)| row)),
        }
    }

    async fn admit(
        self: &Arc<Self>,
        plan: Plan,
        idempotency: Option<Idempotency>,
        directory: Option<OwnedFd>,
    ) -> Result<(RunRow, bool), PublicError> {
        if self.draining() {
            return Err(about_to_end());
        }
        let plan = Arc::new(plan);
        let tenant = &plan.contract.tenant;
        let now = self.parts.clock.elapsed();
        let bytes = plan.start.request_bytes();
        if let Err(full) = self.floor.reserve(tenant, &plan.share, bytes, now) {
            count(&self.metrics.refused);
            return Err(full.public());
        }
        let run = &plan.contract.run;
        let mut place = Place {
            engine: self,
            run,
            tenant,
            bytes,
            queued: false,
            kept: false,
        };
        let (row, first) = self.first(&plan)?;
        let live = Live::new(row);
        locked(&self.live).insert(run.clone(), Arc::clone(&live));
        let cached = self.cached(&plan).await;
        let row = live.row();
        let admission = admission(
            &self.parts.vault,
            &plan,
            idempotency,
            first,
            row.accepted_unix_ms,
        )?;
        let begin = match cached {
            Some((from, outcome)) => Begin::Cached(from, outcome),
            None => {
                place.queued = true;
                self.wait(&plan, Duration::ZERO).at_once()
            }
        };
        let (admitted, begin) = self.write_in(admission, begin, &plan, &live).await;
        match admitted {
            Err(error) => {
                count(&self.metrics.store_errors);
                // It may be there all the same.
                self.drop_run(run);
                return Err(error.public());
            }
            Ok(Admitted::Earlier(row)) => return Ok((*row, false)),
            Ok(Admitted::New) => {}
        }
        count(&self.metrics.admitted);
        if !place.queued {
            // The place is given back: it takes no computer.
            self.floor.give_back(tenant, bytes, now);
        }
        place.kept = true;
        self.spawn(live, Arc::clone(&plan), directory, begin);
        Ok((row, true))
    }

    /// Writes the admission. A run that has its turn already is granted its lease with it: handed in
    /// together, the two are usually committed together. Without the first the second is refused.
    async fn write_in(
        &self,
        admission: Admission,
        begin: Begin,
        plan: &Plan,
        live: &Live,
    ) -> (Result<Admitted, StoreError>, Begin) {
        let store = &self.parts.store;
        // A lease begins to run out at once, so none is granted while code or an image is waited for.
        let at_once = matches!(begin, Begin::Turn(..))
            && !self.failpoints().armed()
            && self.parts.code_at_hand(plan)
            && plan.start.image.is_none();
        let granting = at_once.then(|| self.first_lease(plan, live)).flatten();
        let Some((lease, event, head)) = granting else {
            self.failpoints().before("admit");
            let admitted = store.admit(admission).await;
            self.failpoints().after("admit");
            return (admitted, begin);
        };
        // Polled in this order, so they arrive in this order.
        let granting = store.grant(lease.clone(), event);
        let (admitted, granted) = tokio::join!(biased; store.admit(admission), granting);
        if granted.is_err() || !matches!(admitted, Ok(Admitted::New)) {
            return (admitted, begin);
        }
        live.see(|seen| {
            seen.row.epoch = lease.epoch;
            seen.row.head = head;
            seen.row.state = RunState::Running;
        });
        let room = match begin {
            Begin::Turn(_, room) => room,
            _ => Held::default(),
        };
        (admitted, Begin::Turn(Some(lease), room))
    }

    /// The first lease of a run and its event.
    fn first_lease(&self, plan: &Plan, live: &Live) -> Option<(Lease, Event, Head)> {
        let row = live.row();
        let at = self.parts.clock.unix_ms();
        let expires = at.saturating_add(plan.contract.allocation.hard_deadline_ms);
        let worker = self.parts.worker.clone();
        let lease = lease(&row.run, Epoch::NONE, worker.clone(), expires);
        let mut chain = Chain::new(row.run, row.contract, row.head);
        let fact = RunFact::Leased {
            lease: lease.id.clone(),
            worker,
        };
        let event = chain.next(lease.epoch, at, fact).ok()?;
        Some((lease, event, chain.head()))
    }

    /// The row and the first event of a run.
    fn first(&self, plan: &Plan) -> Result<(RunRow, Event), PublicError> {
        let contract = &plan.contract;
        let at = self.parts.clock.unix_ms();
        let mut chain = Chain::new(contract.run.clone(), plan.digest, Head::EMPTY);
        let fact = RunFact::Accepted {
            contract: plan.digest,
        };
        let first = chain
            .next(Epoch::NONE, at, fact)
            .map_err(|_| internal("cannot be written down"))?;
        let row = RunRow {
            run: contract.run.clone(),
            tenant: contract.tenant.clone(),
            project: contract.project.clone(),
            principal: contract.principal.clone(),
            tool: contract.tool.clone(),
            state: RunState::Queued,
            epoch: Epoch::NONE,
            sandbox: None,
            contract: plan.digest,
            cancel_requested: false,
            outcome: None,
            head: chain.head(),
            accepted_unix_ms: at,
        };
        Ok((row, first))
    }

    /// What an equal run of a pure tool came to.
    async fn cached(&self, plan: &Plan) -> Option<(RunId, Box<Outcome>)> {
        let tenant = plan.contract.tenant.clone();
        let found = self.parts.store.cached(tenant.clone(), plan.cache?).await;
        let from = found.ok().flatten()?;
        let row = self
            .parts
            .store
            .run(Some(tenant), from.clone())
            .await
            .ok()?;
        let outcome = row.outcome?;
        // Its streams and files must outlast the row that will name them, too.
        self.stay(outcome.named())
            .await
            .then(|| (from, Box::new(outcome)))
    }

    /// Lets a run wait that has waited for so long already.
    pub(super) fn wait(&self, plan: &Plan, waited: Duration) -> Begin {
        let now = self.parts.clock.elapsed();
        let (ahead, turn) = self.floor.wait(ticket(plan, now, waited), now);
        Begin::Wait(ahead, turn)
    }

    /// Begins to carry a run.
    pub(super) fn spawn(
        self: &Arc<Self>,
        live: Arc<Live>,
        plan: Arc<Plan>,
        directory: Option<OwnedFd>,
        begin: Begin,
    ) {
        let run = live.run.clone();
        let task = Task::new(Arc::clone(self), live, plan, directory);
        // Held until the handle is noted, so that the end of the task does not come before it.
        let mut tasks = locked(&self.tasks);
        let handle = tokio::spawn(task.carry(begin));
        tasks.insert(run, handle.abort_handle());
    }
}

/// How a run waits.
pub(super) fn ticket(plan: &Plan, now: Duration, waited: Duration) -> Ticket {
    let since = now.saturating_sub(waited);
    let left = Duration::from_millis(plan.contract.max_wait_ms).saturating_sub(waited);
    Ticket {
        run: plan.contract.run.clone(),
        tenant: plan.contract.tenant.clone(),
        share: plan.share.clone(),
        priority: plan.contract.priority,
        since,
        until: now + left,
        bytes: plan.start.request_bytes(),
    }
}

fn admission(
    vault: &Vault,
    plan: &Plan,
    idempotency: Option<Idempotency>,
    first: Event,
    at_unix_ms: u64,
) -> Result<Admission, PublicError> {
    let sealed = Sealed {
        start: plan.start.clone(),
        share: plan.share.clone(),
        cache: plan.cache,
    };
    let plain = serde_json::to_vec(&sealed).map_err(|_| internal("cannot be kept"))?;
    let sealed = vault.seal(&plan.contract.run, &plain)?;
    let contract = &plan.contract;
    Ok(Admission {
        run: contract.run.clone(),
        tenant: contract.tenant.clone(),
        project: contract.project.clone(),
        principal: contract.principal.clone(),
        tool: contract.tool.clone(),
        contract: plan.canonical.clone(),
        sealed_request: sealed,
        idempotency,
        first,
        at_unix_ms,
    })
}
