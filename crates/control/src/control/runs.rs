//! Runs as their callers see them.

use std::time::Duration;

use leasehold_core::digest::Digest;
use leasehold_core::end::CancelledBy;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::Event;
use leasehold_core::id::RunId;
use leasehold_core::name::Name;
use leasehold_core::outcome::{Outcome, RunState};
use leasehold_core::record::Artifact;
use leasehold_core::run_contract::RunContract;
use leasehold_core::tenant::{Operation, Principal, Role};
use leasehold_store::seam::{PAGE_MAX, StoreError};
use tokio::time::Instant;

use super::{Control, Cursor, Follower, RunFilter, RunRow, Until};
use crate::access::{allowed, tenant};
use crate::engine::{Cancel, pruned};

/// Most bytes of one answer.
const BYTES_MAX: usize = 8 << 20;
/// Pause before a run that nobody carries for now is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Whose runs a principal sees: its tenant's, or for an operator everybody's.
fn scope(who: &Principal) -> Option<Name> {
    (who.role != Role::Operator).then(|| who.tenant.clone())
}

fn reached(state: RunState, until: Until) -> bool {
    match until {
        Until::Ended => state.is_over(),
        Until::Sealed => state == RunState::Sealed,
    }
}

fn not_there(what: &str) -> PublicError {
    PublicError::new(ErrorKind::NotFound, format!("no such {what}"))
}

impl Control {
    /// The row of a run that the caller may see: the newest that this process knows.
    async fn row(&self, who: &Principal, run: &RunId) -> Result<RunRow, PublicError> {
        let scope = scope(who);
        if let Some(live) = self.engine.live(run) {
            return match scope {
                Some(tenant) if tenant != live.tenant => Err(not_there("run")),
                _ => Ok(live.row()),
            };
        }
        let row = self.engine.parts.store.run(scope, run.clone()).await;
        row.map_err(|error| error.public())
    }

    /// Waits for a run, at most so long and not when the daemon goes, and gives it as it is then.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn wait(
        &self,
        who: &Principal,
        run: &RunId,
        until: Until,
        patience: Duration,
    ) -> Result<RunRow, PublicError> {
        allowed(who, Operation::ReadRuns)?;
        let deadline = Instant::now() + patience;
        let mut leaving = self.engine.leaving();
        loop {
            let row = self.row(who, run).await?;
            if reached(row.state, until) || Instant::now() >= deadline || *leaving.borrow() {
                return Ok(row);
            }
            let left = leaving.wait_for(|leaving| *leaving);
            match self.engine.live(run) {
                Some(live) => {
                    let mut seen = live.seen.subscribe();
                    let there = seen.wait_for(|seen| seen.left || reached(seen.row.state, until));
                    let heard = tokio::select! {
                        _ = left => continue,
                        heard = tokio::time::timeout_at(deadline, there) => heard,
                    };
                    if let Ok(Ok(seen)) = heard
                        && reached(seen.row.state, until)
                    {
                        return Ok(seen.row.clone());
                    }
                }
                None => {
                    let again = (Instant::now() + LOOK_AGAIN).min(deadline);
                    let _ = tokio::time::timeout_at(again, left).await;
                }
            }
        }
    }

    /// Follows a run from a place on, also when it is over.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn follow(
        &self,
        who: &Principal,
        run: &RunId,
        from: Cursor,
    ) -> Result<Follower, PublicError> {
        allowed(who, Operation::ReadRuns)?;
        let row = self.row(who, run).await?;
        Follower::new(std::sync::Arc::clone(&self.engine), row, from).await
    }

    /// Asks for the end of a run: `TERM`, grace, then its computer is destroyed; one that waits ends at once.
    /// Idempotent; one that is over stays as it is. Holds through a restart.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn cancel(&self, who: &Principal, run: &RunId) -> Result<RunRow, PublicError> {
        allowed(who, Operation::Cancel)?;
        let row = self.row(who, run).await?;
        if row.state.is_over() || row.cancel_requested {
            return Ok(row);
        }
        let engine = &self.engine;
        engine.failpoints().before("cancel");
        match engine.parts.store.request_cancel(run.clone()).await {
            // It ended meanwhile.
            Ok(()) | Err(StoreError::WrongState { .. }) => {}
            Err(error) => return Err(error.public()),
        }
        engine.failpoints().after("cancel");
        let by = match scope(who) {
            None if who.tenant != row.tenant => CancelledBy::Operator,
            _ => CancelledBy::Caller,
        };
        if let Some(live) = engine.live(run) {
            live.ask_end(Cancel {
                by,
                key: Some(who.key.clone()),
            });
        }
        self.row(who, run).await
    }

    /// One run.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn run(&self, who: &Principal, run: &RunId) -> Result<RunRow, PublicError> {
        allowed(who, Operation::ReadRuns)?;
        self.row(who, run).await
    }

    /// Runs of the caller's tenant, newest first; `filter.tenant` is for operators alone.
    ///
    /// # Errors
    /// `not_found` for another tenant's.
    pub async fn runs(
        &self,
        who: &Principal,
        filter: RunFilter,
    ) -> Result<Vec<RunRow>, PublicError> {
        allowed(who, Operation::ReadRuns)?;
        let named = filter.tenant.as_ref();
        let tenant = match (who.role, named) {
            (Role::Operator, None) => None,
            _ => Some(tenant(who, named)?),
        };
        let filter = RunFilter {
            tenant,
            limit: filter.limit.clamp(1, PAGE_MAX),
            ..filter
        };
        let rows = self.engine.parts.store.runs(filter).await;
        let mut rows = rows.map_err(|error| error.public())?;
        for row in &mut rows {
            // Its computer is in the row with its result alone; who carries it knows sooner.
            if row.sandbox.is_none()
                && let Some(live) = self.engine.live(&row.run)
            {
                row.sandbox = live.row().sandbox;
            }
        }
        Ok(rows)
    }

    /// What was fixed at admission.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn contract(&self, who: &Principal, run: &RunId) -> Result<RunContract, PublicError> {
        allowed(who, Operation::ReadRuns)?;
        self.row(who, run).await?;
        let bytes = self.engine.parts.store.contract(run.clone()).await;
        let bytes = bytes.map_err(|error| error.public())?;
        serde_json::from_slice(&bytes).map_err(|_| {
            PublicError::new(ErrorKind::Internal, "the contract of the run does not read")
        })
    }

    /// Events of a run's chain from `from`, at most 500.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn audit(
        &self,
        who: &Principal,
        run: &RunId,
        from: u64,
    ) -> Result<Vec<Event>, PublicError> {
        allowed(who, Operation::ReadEvidence)?;
        self.row(who, run).await?;
        let events = self.engine.parts.store.events(run.clone(), from).await;
        events.map_err(|error| error.public())
    }

    /// Bytes of `stdout` or `stderr` from `offset`, at most `most`: from the spool while it runs, from
    /// the object store afterwards.
    ///
    /// # Errors
    /// `not_found`, also when they were pruned, which the message then says.
    pub async fn output(
        &self,
        who: &Principal,
        run: &RunId,
        stream: &str,
        offset: u64,
        most: usize,
    ) -> Result<Vec<u8>, PublicError> {
        allowed(who, Operation::ReadRuns)?;
        let which = match stream {
            "stdout" => 0,
            "stderr" => 1,
            _ => return Err(not_there("stream").hint("it is `stdout` or `stderr`")),
        };
        let row = self.row(who, run).await?;
        let live = self.engine.live(run);
        let most = most.min(BYTES_MAX);
        let read = self
            .engine
            .read_output(live.as_ref(), &row, which, offset, most);
        read.await
    }

    async fn outcome(&self, who: &Principal, run: &RunId) -> Result<Outcome, PublicError> {
        allowed(who, Operation::ReadRuns)?;
        let row = self.row(who, run).await?;
        row.outcome.ok_or_else(|| {
            let message = format!("the run is {}; it has no files yet", row.state.word());
            PublicError::new(ErrorKind::WrongState, message)
        })
    }

    /// Collected files of a run that is over.
    ///
    /// # Errors
    /// `not_found`; `wrong_state` while it runs.
    pub async fn artifacts(
        &self,
        who: &Principal,
        run: &RunId,
    ) -> Result<Vec<Artifact>, PublicError> {
        Ok(self.outcome(who, run).await?.artifacts)
    }

    /// Bytes of one collected file, by its place in the list.
    ///
    /// # Errors
    /// `not_found`, also for one that was skipped.
    pub async fn artifact(
        &self,
        who: &Principal,
        run: &RunId,
        index: usize,
        offset: u64,
        most: usize,
    ) -> Result<Vec<u8>, PublicError> {
        let outcome = self.outcome(who, run).await?;
        let file = outcome.artifacts.get(index);
        let file = file.ok_or_else(|| not_there("artifact"))?;
        let digest = file
            .sha256
            .as_ref()
            .and_then(|hex| Digest::parse(&format!("sha256:{hex}")).ok());
        let Some(digest) = digest else {
            let why = file.skipped.as_deref().unwrap_or("it was not collected");
            return Err(not_there("artifact").hint(format!("it was skipped: {why}")));
        };
        if offset >= file.bytes {
            return Ok(Vec::new());
        }
        let row = self.row(who, run).await?;
        let kept = self
            .engine
            .kept_still(&row, "artifact", |kept| kept.artifacts_s);
        kept.await?;
        let most = most.min(BYTES_MAX);
        let read = self.engine.parts.objects.read(digest, offset, most).await;
        read.map_err(|error| pruned(error, "artifact"))
    }
}
