//! Moves rows, tasks and host together again, at the start and every so often.
//!
//! Each run whose row is not sealed is carried by a task of this process; each run and each computer of the
//! backend belongs to such a run. What is not so is mended: a row without a task is taken up at the state it
//! shows, a run of the backend that no row knows is ended, a computer that nobody claimed is ended. What
//! cannot be carried on is set aside and shown; it is not tried again by itself.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_backend::seam::Backend;
use leasehold_core::end::CancelledBy;
use leasehold_core::id::RunId;
use leasehold_core::lease::Lease;
use leasehold_core::outcome::RunState;
use leasehold_core::run_contract::RunContract;
use leasehold_core::spec::{ExecSpec, SandboxSpec};
use leasehold_store::seam::{PAGE_MAX, RunRow, StoreError};

use super::live::Live;
use super::metrics::{add, count};
use super::submit::{Sealed, ticket};
use super::task::{ATTEMPTS_MAX, Begin, backend_run};
use super::{Engine, locked};
use crate::plan::{Plan, Share, Start};

/// Rows that nobody is known to have let go of and that are looked at in one round all the same, so that a
/// row is missed for long by no mistake of ours.
const WALK: u32 = 200;
/// Rounds between two removals of rows whose retention is over.
const PRUNE_EVERY: u32 = 30;
/// Most rows removed in one round.
const PRUNE_MAX: u32 = 500;

/// Why a row cannot be taken up.
enum Trouble {
    /// Try again later.
    Store(StoreError),
    /// It will not get better.
    Row(String),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Damaged(_) | StoreError::NotFound(_) => Self::Row(error.to_string()),
            error => Self::Store(error),
        }
    }
}

/// Compares for as long as the engine is there.
pub(super) async fn keep_together(engine: Weak<Engine>) {
    let mut round: u32 = 0;
    loop {
        let every = match engine.upgrade() {
            Some(engine) if !engine.draining() => {
                engine.reconcile().await;
                engine.sweep_objects().await;
                if round.is_multiple_of(PRUNE_EVERY) {
                    engine.prune().await;
                }
                engine.parts.settings.reconcile_every
            }
            _ => return,
        };
        round = round.wrapping_add(1);
        tokio::time::sleep(every).await;
    }
}

impl Engine {
    /// One comparison.
    async fn reconcile(self: &Arc<Self>) {
        if let Err(error) = self.take_up_some().await {
            count(&self.metrics.store_errors);
            tracing::warn!(%error, "rows cannot be compared");
        }
        self.end_orphans().await;
        self.parts.descriptors.settle();
        self.floor.look(self.parts.clock.elapsed());
    }

    async fn prune(&self) {
        let now = self.parts.clock.unix_ms();
        if let Err(error) = self.parts.store.prune(now, PRUNE_MAX).await {
            count(&self.metrics.store_errors);
            tracing::warn!(%error, "rows whose retention is over cannot be removed");
        }
    }

    /// Takes up every run that is not sealed, oldest first.
    pub(super) async fn take_up_all(self: &Arc<Self>) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let rows = self.unsealed(after.take(), PAGE_MAX).await?;
            let last = rows.len() < PAGE_MAX as usize;
            after = rows
                .last()
                .map(|row| (row.accepted_unix_ms, row.run.clone()));
            self.take_up_rows(rows).await?;
            if last {
                return Ok(());
            }
        }
    }

    /// Takes up the runs that were let go of before their seal, and looks at some more rows, so that all have
    /// been looked at after a while.
    async fn take_up_some(self: &Arc<Self>) -> Result<(), StoreError> {
        let dropped: Vec<RunId> = locked(&self.dropped).drain().collect();
        let mut rows = Vec::new();
        for (place, run) in dropped.iter().enumerate() {
            match self.parts.store.run(None, run.clone()).await {
                Ok(row) if row.state == RunState::Sealed => {}
                Ok(row) => rows.push(row),
                Err(StoreError::NotFound(_)) => {}
                Err(error) => {
                    locked(&self.dropped).extend(dropped[place..].iter().cloned());
                    locked(&self.dropped).extend(rows.into_iter().map(|row| row.run));
                    return Err(error);
                }
            }
        }
        add(&self.metrics.rows_compared, rows.len() as u64);
        let again: Vec<RunId> = rows.iter().map(|row| row.run.clone()).collect();
        if let Err(error) = self.take_up_rows(rows).await {
            locked(&self.dropped).extend(again);
            return Err(error);
        }
        let after = locked(&self.walked).clone();
        let rows = self.unsealed(after, WALK).await?;
        let next = rows
            .last()
            .map(|row| (row.accepted_unix_ms, row.run.clone()));
        let next = next.filter(|_| rows.len() == WALK as usize);
        self.take_up_rows(rows).await?;
        *locked(&self.walked) = next;
        Ok(())
    }

    async fn unsealed(
        &self,
        after: Option<(u64, RunId)>,
        limit: u32,
    ) -> Result<Vec<RunRow>, StoreError> {
        let rows = self.parts.store.unsealed(after, limit).await?;
        add(&self.metrics.rows_compared, rows.len() as u64);
        Ok(rows)
    }

    async fn take_up_rows(self: &Arc<Self>, mut rows: Vec<RunRow>) -> Result<(), StoreError> {
        rows.retain(|row| self.live(&row.run).is_none() && !self.is_stuck(&row.run));
        if rows.is_empty() {
            return Ok(());
        }
        let open = self.parts.store.open_leases().await?;
        let mut leases: HashMap<RunId, Lease> = HashMap::new();
        for lease in open {
            let newest = leases
                .get(&lease.run)
                .is_none_or(|known| known.epoch < lease.epoch);
            if newest {
                leases.insert(lease.run.clone(), lease);
            }
        }
        for row in rows {
            let run = row.run.clone();
            match self.take_up(row, leases.remove(&run)).await {
                Ok(()) => {}
                Err(Trouble::Store(error)) => return Err(error),
                Err(Trouble::Row(why)) => {
                    tracing::error!(%run, why, "a run cannot be taken up again");
                    self.quarantine(run, why);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn is_stuck(&self, run: &RunId) -> bool {
        locked(&self.stuck).contains_key(run)
    }

    /// Takes up one run at the state its row shows.
    async fn take_up(self: &Arc<Self>, row: RunRow, lease: Option<Lease>) -> Result<(), Trouble> {
        if let Some(lease) = &lease
            && self.is_anothers(lease)
        {
            // Whoever has the right may use it; it is looked at again with every walk.
            return Ok(());
        }
        let plan = Arc::new(self.plan_of(&row).await?);
        // It may have been sealed since the rows were listed.
        let row = self.parts.store.run(None, row.run).await?;
        let live = Live::new(row.clone());
        {
            let mut all = locked(&self.live);
            if row.state == RunState::Sealed || all.contains_key(&row.run) {
                return Ok(());
            }
            all.insert(row.run.clone(), Arc::clone(&live));
        }
        let now = self.parts.clock.elapsed();
        let begin = match (row.state, lease) {
            (RunState::Queued, _) => {
                let gone = self
                    .parts
                    .clock
                    .unix_ms()
                    .saturating_sub(row.accepted_unix_ms);
                self.floor.force(&row.tenant, plan.start.request_bytes());
                self.wait(&plan, Duration::from_millis(gone))
            }
            (RunState::Running, Some(lease)) => {
                self.floor.hold(&ticket(&plan, now, Duration::ZERO), now);
                Begin::Adopt(lease)
            }
            (RunState::Running, None) => {
                self.forget(&row.run);
                return Err(Trouble::Row("it runs and has no lease".to_owned()));
            }
            (RunState::Ended | RunState::Sealed, lease) => Begin::Settle(lease),
        };
        self.spawn(live, plan, None, begin);
        Ok(())
    }

    /// Whether the right to a run is another worker's still (invariant I4).
    fn is_anothers(&self, lease: &Lease) -> bool {
        lease.worker != self.parts.worker && self.parts.clock.unix_ms() < lease.expires_unix_ms
    }

    /// What was admitted, as kept.
    async fn plan_of(&self, row: &RunRow) -> Result<Plan, Trouble> {
        let canonical = self.parts.store.contract(row.run.clone()).await?;
        let contract: RunContract = serde_json::from_slice(&canonical)
            .map_err(|error| Trouble::Row(format!("its contract does not read: {error}")))?;
        let sealed = self.parts.store.sealed_request(row.run.clone()).await?;
        let sealed: Option<Sealed> = sealed
            .map(|bytes| {
                let plain = self.parts.vault.unseal(&row.run, &bytes);
                let plain = plain.ok_or("it was sealed under another key".to_owned())?;
                serde_json::from_slice(&plain).map_err(|error| error.to_string())
            })
            .transpose()
            .map_err(|error| Trouble::Row(format!("what starts it does not read: {error}")))?;
        let sealed = match sealed {
            Some(sealed) => sealed,
            None if row.state == RunState::Ended => nothing(),
            None => return Err(Trouble::Row("what starts it is gone".to_owned())),
        };
        let output = match &contract.tool {
            Some(tool) if row.state != RunState::Ended => {
                let checking = self.parts.checks.check(row.tenant.clone(), tool.clone());
                checking
                    .await
                    .map_err(|error| Trouble::Row(format!("its tool cannot be read: {error}")))?
            }
            _ => None,
        };
        Ok(Plan {
            contract,
            digest: row.contract,
            canonical,
            start: sealed.start,
            share: sealed.share,
            output,
            cache: sealed.cache,
            warnings: Vec::new(),
        })
    }

    /// Ends what the backends have and no row knows. One that cannot be asked holds up no other.
    async fn end_orphans(self: &Arc<Self>) {
        let running = self.parts.backends.running().await;
        for (backend, error) in running.failures {
            count(&self.metrics.backend_errors);
            tracing::warn!(backend, %error, "the worker cannot be asked what it runs");
        }
        let known = self.known();
        for (run, (sandbox, backend)) in running.runs {
            if known.contains(&run) || self.belongs(&run).await {
                continue;
            }
            count(&self.metrics.orphans);
            tracing::warn!(%run, %sandbox, "a run that no row knows is ended");
            let by = CancelledBy::Operator;
            if backend.cancel(run, by, true).await.is_err() {
                count(&self.metrics.backend_errors);
            }
        }
        for backend in self.parts.backends.iter() {
            self.end_idle(backend.as_ref()).await;
        }
    }

    /// Ends the computers of one backend that have no run in them.
    async fn end_idle(&self, backend: &dyn Backend) {
        match backend.sweep(Vec::new()).await {
            Ok(swept) => {
                for (sandbox, observed) in swept.ended {
                    count(&self.metrics.orphans);
                    let clean = observed.clean();
                    tracing::warn!(%sandbox, clean, "a computer that nobody knows was ended");
                }
            }
            Err(_) => count(&self.metrics.backend_errors),
        }
    }

    /// Every id under which a run of this process may be known to the backend.
    fn known(&self) -> HashSet<RunId> {
        let all = locked(&self.live);
        let mut known: HashSet<RunId> = all.keys().cloned().collect();
        for live in all.values() {
            // Each launch has an epoch of its own.
            let epoch = u32::try_from(live.row().epoch.0).unwrap_or(u32::MAX);
            for attempt in 2..=epoch.min(ATTEMPTS_MAX) {
                known.insert(backend_run(&live.run, attempt));
            }
        }
        known
    }

    /// Whether a run that came in meanwhile is its own, or the store cannot say.
    async fn belongs(&self, run: &RunId) -> bool {
        if self.known().contains(run) {
            return true;
        }
        match self.parts.store.run(None, run.clone()).await {
            // A sealed one is being removed still, or was not clean and is shown as such.
            Ok(_) => true,
            Err(StoreError::NotFound(_)) => false,
            Err(_) => true,
        }
    }
}

/// What is left of a request whose run is over.
fn nothing() -> Sealed {
    Sealed {
        start: Start {
            sandbox: SandboxSpec::default(),
            exec: ExecSpec::command([""; 0]),
            stdin: None,
            workspace: Vec::new(),
            module: None,
            image: None,
        },
        share: Share {
            weight: 1,
            tenant_running_max: 1,
            tenant_queued_max: 1,
            tool_running_max: None,
            per_minute_max: 1,
            tenant_request_bytes_max: 0,
        },
        cache: None,
    }
}
