//! The end of a run: what it left is kept, authority ends, the outcome is fixed, removal is seen, the chain
//! is sealed.

use std::fs::File;
use std::io;
use std::time::Duration;

use leasehold_backend::execution::{Execution, RunEvent};
use leasehold_core::digest::Digest;
use leasehold_core::end::{CancelledBy, EndReason, LeaseExpiry};
use leasehold_core::event::RunFact;
use leasehold_core::id::RunId;
use leasehold_core::lease::{Lease, LeaseState};
use leasehold_core::outcome::{Outcome, RunState};
use leasehold_core::record::{ModuleReport, Observed, Residue, RunRecord, Usage};
use leasehold_core::stage::{Stage, StageTime};
use leasehold_store::seam::StoreError;
use tokio::time::Instant;

use super::super::live::Note;
use super::super::metrics::count;
use super::super::outputs::{STRUCTURED_MAX, read_start};
use super::super::parts::Facts;
use super::super::pen::{Stop, Write};
use super::super::warm::Slot;
use super::launch::Found;
use super::{ATTEMPTS_MAX, Task, Unbegun, Went};

/// Pauses between two attempts to sign.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// An inventory of one thing that was looked for.
fn single(clean: bool, detail: &str) -> Observed {
    Observed {
        residues: vec![Residue {
            resource: "sandbox".to_owned(),
            clean,
            detail: detail.to_owned(),
            inferred: false,
        }],
    }
}

fn removes(time: &StageTime) -> bool {
    matches!(time.stage, Stage::Destroy | Stage::Cleanup)
}

impl Task {
    /// What the record says of the computer and of the stages that are over with the run, unless its chain
    /// says so already.
    fn facts_of(&self, record: &RunRecord) -> Vec<RunFact> {
        if self.told {
            return Vec::new();
        }
        let allocated = RunFact::Allocated {
            sandbox: record.sandbox.clone(),
            warm: record.warm,
            computer: record.contract.clone().map(Box::new),
        };
        let stages = record.stages.iter().filter(|time| !removes(time));
        let stages = stages.map(|time| RunFact::Stage {
            stage: time.stage,
            micros: time.micros,
        });
        let given = self.fed.map(|bytes| RunFact::InputGiven { bytes });
        std::iter::once(allocated)
            .chain(stages)
            .chain(given)
            .collect()
    }

    /// Whether it is begun again: its host or computer was lost, and the tool says that this does no harm.
    pub(super) fn again(&self, record: &RunRecord) -> bool {
        let lost = matches!(
            self.reason(record),
            EndReason::HostLost | EndReason::SandboxCrashed { .. }
        );
        lost && self.may_begin_again()
    }

    /// Whether its contract, its time and its caller let it be begun once more.
    pub(super) fn may_begin_again(&self) -> bool {
        let contract = &self.plan.contract;
        contract.idempotent
            && self.attempt < contract.attempts.min(ATTEMPTS_MAX)
            && Instant::now() < self.deadline
            && !self.unwanted()
    }

    /// Begins it again after what is left of the launch before was seen gone.
    pub(super) async fn reschedule(
        &mut self,
        record: Box<RunRecord>,
        execution: Execution,
    ) -> Result<Went, Stop> {
        let (_, observed) = self.removed(Some(execution)).await;
        let mut facts = self.facts_of(&record);
        facts.push(RunFact::Cleaned { observed });
        self.pen.write(Write::Append, facts).await?;
        self.begin_again().await
    }

    /// Launches it once more under the next epoch and another id; its lease is the event that tells of it.
    pub(super) async fn begin_again(&mut self) -> Result<Went, Stop> {
        count(&self.engine.metrics.rescheduled);
        self.attempt += 1;
        self.verdict = None;
        self.told = false;
        let expires = self.lease.as_ref().map_or(0, |lease| lease.expires_unix_ms);
        let lease = self.new_lease(expires);
        let fact = RunFact::Leased {
            lease: lease.id.clone(),
            worker: lease.worker.clone(),
        };
        let write = Write::TakeOver(lease.clone());
        self.hold(lease, write, fact).await?;
        self.launch().await
    }

    /// Why it is over: the backend's word, but for what only we know.
    fn reason(&self, record: &RunRecord) -> EndReason {
        let told = record.end.clone().unwrap_or(EndReason::HostLost);
        match (&self.verdict, &told) {
            (
                Some(verdict),
                EndReason::Cancelled {
                    by: CancelledBy::Operator,
                },
            ) => verdict.clone(),
            (Some(EndReason::HostLost), _) => EndReason::HostLost,
            // The worker's limit was cut to what was left of the allocation.
            (_, EndReason::Timeout { limit_ms })
                if *limit_ms < self.plan.start.sandbox.limits.wall_ms.value =>
            {
                EndReason::LeaseExpired {
                    cause: LeaseExpiry::Deadline,
                }
            }
            _ => told,
        }
    }

    /// Ends a run whose record is there.
    pub(super) async fn end(
        &mut self,
        record: Box<RunRecord>,
        execution: Execution,
    ) -> Result<(), Stop> {
        let ended = Instant::now();
        let id = self.id();
        let kept = self
            .engine
            .keep(
                self.backend().ok(),
                &id,
                &record,
                [&execution.stdout, &execution.stderr],
            )
            .await;
        let mut end = self.reason(&record);
        let output = match (&self.plan.output, &end) {
            (Some(_), EndReason::Completed) => {
                match self.structured(&record, &execution.stdout).await {
                    Ok(text) => Some(text),
                    Err(detail) => {
                        end = EndReason::InvalidOutput { detail };
                        None
                    }
                }
            }
            _ => None,
        };
        let mut facts = self.facts_of(&record);
        if !self.told {
            facts.extend(kept.facts());
        }
        let outcome = Outcome {
            end,
            exit: record.exit.clone(),
            limits_hit: record.limits_hit.clone(),
            usage: record.usage,
            stdout: Some(kept.stdout),
            stderr: Some(kept.stderr),
            output,
            artifacts: kept.artifacts,
            module: record.module.clone(),
            ended_unix_ms: self.engine.parts.clock.unix_ms(),
        };
        if record.warm {
            count(&self.engine.metrics.warm);
        } else {
            count(&self.engine.metrics.cold);
            let wanted = Slot {
                backend: self.plan.contract.selected.backend.clone(),
                sandbox: self.plan.start.sandbox.clone(),
            };
            if let Some(why) = self.engine.warm.miss(&wanted) {
                count(&self.engine.metrics.misses[why]);
            }
        }
        self.conclude(&outcome, facts).await?;
        // Whoever waits for the outcome goes first.
        tokio::task::yield_now().await;
        self.remember(&outcome).await;
        let (stages, observed) = self.removed(Some(execution)).await;
        self.engine.metrics.removed.add(ended.elapsed());
        self.seal(&outcome, stages, observed).await
    }

    /// Checks the structured output of a tool.
    async fn structured(&self, record: &RunRecord, stdout: &File) -> Result<String, String> {
        if record.stdout.truncated || record.stdout.kept > STRUCTURED_MAX {
            return Err(format!(
                "standard output has {} bytes and was cut or is longer than {STRUCTURED_MAX}",
                record.stdout.written
            ));
        }
        let Some(check) = self.plan.output.clone() else {
            return Err("the tool declares no output".to_owned());
        };
        let bytes = record.stdout.kept;
        let check = move |content: io::Result<Vec<u8>>| {
            let content = content.map_err(|error| error.to_string())?;
            check.check(&content)
        };
        let checking = match self.live.spools() {
            Some(spools) => {
                tokio::task::spawn_blocking(move || check(read_start(&spools[0], bytes)))
            }
            // There was no number for a second one, so that it is read here.
            None => {
                let content = read_start(stdout, bytes);
                tokio::task::spawn_blocking(move || check(content))
            }
        };
        checking
            .await
            .unwrap_or_else(|_| Err("the check itself failed".to_owned()))
    }

    /// Ends a run that has no record: `never` made, or nobody can say what became of it.
    pub(super) async fn end_without(
        &mut self,
        unbegun: impl Into<Unbegun>,
        never: bool,
    ) -> Result<(), Stop> {
        let Unbegun { end, uncompiled } = unbegun.into();
        let leased = self.lease.is_some();
        let (exit, limits_hit) = match &end {
            EndReason::ToolError { exit } => (Some(exit.clone()), Vec::new()),
            EndReason::ResourceExceeded { hit, .. } => (None, vec![*hit]),
            _ => (None, Vec::new()),
        };
        let outcome = Outcome {
            end,
            exit,
            limits_hit,
            usage: Usage::default(),
            stdout: None,
            stderr: None,
            output: None,
            artifacts: Vec::new(),
            module: uncompiled.map(|why| ModuleReport {
                uncompiled: Some(why),
                ..ModuleReport::default()
            }),
            ended_unix_ms: self.engine.parts.clock.unix_ms(),
        };
        self.conclude(&outcome, Vec::new()).await?;
        let observed = match (leased, never) {
            (false, _) => Observed::default(),
            (true, true) => single(true, "the worker made none"),
            (true, false) => single(false, "the worker has no record of it and cannot say"),
        };
        self.seal(&outcome, Vec::new(), observed).await
    }

    /// Gives it the result of an earlier run; nothing was allocated.
    pub(super) async fn end_cached(&mut self, from: RunId, earlier: Outcome) -> Result<(), Stop> {
        count(&self.engine.metrics.cached);
        let outcome = Outcome {
            usage: Usage::default(),
            ended_unix_ms: self.engine.parts.clock.unix_ms(),
            ..earlier
        };
        self.conclude(&outcome, vec![RunFact::Cached { from }])
            .await?;
        self.seal(&outcome, Vec::new(), Observed::default()).await
    }

    /// Ends authority, fixes the outcome and answers whoever waits.
    pub(super) async fn conclude(
        &mut self,
        outcome: &Outcome,
        mut facts: Vec<RunFact>,
    ) -> Result<(), Stop> {
        let digest = Digest::of_value(outcome).map_err(|_| Stop::Refused(StoreError::Fork))?;
        let concluded = RunFact::Concluded { outcome: digest };
        let conclude = Write::Conclude(Box::new(outcome.clone()));
        let active = self
            .lease
            .as_ref()
            .filter(|lease| lease.state == LeaseState::Active);
        // How it ended is committed with the outcome: whoever takes the run up after authority was revoked,
        // and before this, tells it for the first time.
        let end = RunFact::Ended {
            end: outcome.end.clone(),
        };
        let writes = match active {
            Some(lease) => {
                facts.push(RunFact::AuthorityRevoked {
                    lease: lease.id.clone(),
                });
                let revoke = Write::Revoke(lease.id.clone());
                vec![(revoke, facts), (conclude, vec![end, concluded])]
            }
            None => {
                facts.extend([end, concluded]);
                vec![(conclude, facts)]
            }
        };
        self.pen.write_all(writes).await?;
        if let Some(lease) = &mut self.lease {
            lease.state = LeaseState::Revoked;
        }
        let head = self.pen.head();
        self.engine.metrics.ended(&outcome.end);
        self.engine.metrics.whole.add(self.since.elapsed());
        self.live.see(|seen| {
            if let (Some(stdout), Some(stderr)) = (&outcome.stdout, &outcome.stderr) {
                seen.output = [stdout.stream.kept, stderr.stream.kept];
            }
            seen.row.head = head;
            seen.row.outcome = Some(outcome.clone());
            seen.row.state = RunState::Ended;
        });
        Ok(())
    }

    /// Keeps the result of a pure tool for the next equal request.
    async fn remember(&self, outcome: &Outcome) {
        let streams = [outcome.stdout, outcome.stderr].into_iter().flatten();
        let kept = streams.filter(|stored| stored.digest.is_some()).count() == 2;
        let (Some(key), true) = (self.plan.cache, outcome.end == EndReason::Completed && kept)
        else {
            return;
        };
        let (tenant, run) = (self.live.tenant.clone(), self.live.run.clone());
        if self
            .engine
            .parts
            .store
            .put_cached(tenant, key, run)
            .await
            .is_err()
        {
            // The next equal request runs; nothing else is lost.
            count(&self.engine.metrics.store_errors);
        }
    }

    /// Waits until removal was observed. Gives its stages and what was seen.
    pub(super) async fn removed(
        &mut self,
        execution: Option<Execution>,
    ) -> (Vec<StageTime>, Observed) {
        let patience = self.engine.parts.settings.removal_max;
        let seen = tokio::time::timeout(patience, self.removal(execution)).await;
        let (stages, observed) = match seen {
            Ok(Some(record)) => {
                let stages = record.stages.iter().copied().filter(removes).collect();
                (stages, record.cleanup.unwrap_or_default())
            }
            Ok(None) => (
                Vec::new(),
                single(false, "the worker has no record of it and cannot say"),
            ),
            Err(_) => {
                count(&self.engine.metrics.quarantined);
                let detail = format!("its removal was not seen within {} s", patience.as_secs());
                (Vec::new(), single(false, &detail))
            }
        };
        let run = self.live.run.clone();
        if self.unpacked
            && let Err(error) = self.engine.parts.workspaces.remove(run).await
        {
            tracing::warn!(run = %self.live.run, %error, "an unpacked workspace was not removed");
        }
        (stages, observed)
    }

    async fn removal(&mut self, mut execution: Option<Execution>) -> Option<RunRecord> {
        loop {
            let mut following = match execution.take() {
                Some(execution) => execution,
                None => match self.find(&self.id(), true).await {
                    Found::There(found) => *found,
                    Found::Never | Found::Unreachable => return None,
                },
            };
            while let Some(event) = following.next().await {
                match event {
                    Ok(RunEvent::Cleaned(record)) => return Some(*record),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Closes the chain.
    pub(super) async fn seal(
        &mut self,
        outcome: &Outcome,
        stages: Vec<StageTime>,
        observed: Observed,
    ) -> Result<(), Stop> {
        if !observed.clean() && self.lease.is_some() {
            count(&self.engine.metrics.not_clean);
        }
        let mut facts: Vec<RunFact> = Vec::with_capacity(stages.len() + 1);
        facts.extend(stages.iter().map(|time| RunFact::Stage {
            stage: time.stage,
            micros: time.micros,
        }));
        facts.push(RunFact::Cleaned {
            observed: observed.clone(),
        });
        let statement = self.statement(outcome, &observed, &facts).await?;
        let lease = self.lease.as_ref().map(|lease| lease.id.clone());
        let seal = Write::Seal {
            lease,
            observed,
            statement,
        };
        self.pen.write(seal, facts).await?;
        let head = self.pen.head();
        self.live.see(|seen| {
            seen.notes.extend(stages.into_iter().map(Note::Stage));
            seen.row.head = head;
            seen.row.state = RunState::Sealed;
        });
        Ok(())
    }

    async fn statement(
        &mut self,
        outcome: &Outcome,
        observed: &Observed,
        facts: &[RunFact],
    ) -> Result<String, Stop> {
        let mut pause = PAUSE;
        loop {
            let head = self.pen.head_after(facts)?;
            let facts = Facts {
                contract: &self.plan.contract,
                digest: self.plan.digest,
                head,
                outcome,
                observed,
            };
            self.engine.failpoints().before("statement");
            match self.engine.parts.sealer.statement(facts) {
                Ok(statement) => {
                    self.engine.failpoints().after("statement");
                    return Ok(statement);
                }
                Err(error) => {
                    tracing::error!(run = %self.live.run, %error, "a statement cannot be signed");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Finishes a run whose outcome was fixed before a restart.
    pub(super) async fn settle(&mut self, lease: Option<Lease>) -> Result<(), Stop> {
        let Some(outcome) = self.live.row().outcome else {
            return Err(Stop::Refused(StoreError::WrongState {
                what: "run",
                state: "ended",
            }));
        };
        self.lease = lease;
        self.deadline = Instant::now();
        // What was unpacked is not known any more; removing is idempotent.
        self.unpacked = true;
        if let Some(lease) = self
            .lease
            .as_mut()
            .filter(|lease| lease.state == LeaseState::Active)
        {
            let fact = RunFact::AuthorityRevoked {
                lease: lease.id.clone(),
            };
            let revoke = Write::Revoke(lease.id.clone());
            lease.state = LeaseState::Revoked;
            self.pen.write(revoke, vec![fact]).await?;
        }
        if self.lease.is_none() {
            return self.seal(&outcome, Vec::new(), Observed::default()).await;
        }
        let execution = match self.find_any().await {
            Found::There(execution) => *execution,
            Found::Never | Found::Unreachable if !self.is_own() => {
                let observed = single(false, "its worker is another, which was lost");
                return self.seal(&outcome, Vec::new(), observed).await;
            }
            Found::Never if outcome.stdout.is_none() => {
                let observed = single(true, "the worker made none");
                return self.seal(&outcome, Vec::new(), observed).await;
            }
            Found::Never | Found::Unreachable => {
                let observed = single(false, "the worker has no record of it and cannot say");
                return self.seal(&outcome, Vec::new(), observed).await;
            }
        };
        let (stages, observed) = self.removed(Some(execution)).await;
        self.seal(&outcome, stages, observed).await
    }
}
