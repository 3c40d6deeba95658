//! Evidence of a run without a daemon, made from the supervisor's record after it ended.
//!
//! The bundle says so itself: its chain was written at once and it stands in no tenant's log, so it proves what
//! the record said when it was signed, and not that no other run was there.

use leasehold_core::digest::{CanonicalError, Digest};
use leasehold_core::event::{Chain, Event, Head, RunFact};
use leasehold_core::lease::Epoch;
use leasehold_core::name::{Name, NameError};
use leasehold_core::outcome::{Outcome, StoredStream};
use leasehold_core::record::{Observed, RunRecord};
use leasehold_core::stage::Stage;

use super::bundle::{Bundle, FORMAT};
use super::keys::Keyring;
use super::statement::{self, MadeFrom, Predicate, Statement, receipts};

/// Why a record gives no evidence.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The run goes on, or its removal was not observed yet.
    #[error("the run is not over: its {0} is not on record yet")]
    NotOver(&'static str),
    /// It has no canonical form.
    #[error("the record has no canonical form")]
    Canonical(#[from] CanonicalError),
    /// It cannot be written as JSON.
    #[error("the record cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    /// Our own name for it is none.
    #[error("the tenant of local runs has no name")]
    Name(#[from] NameError),
}

/// The outputs of a run, where they are still there to be hashed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outputs {
    /// Standard output.
    pub stdout: Option<StoredStream>,
    /// Standard error.
    pub stderr: Option<StoredStream>,
}

/// Makes and signs a bundle of a run's record at a time.
///
/// # Errors
/// When the run is not over.
pub fn bundle(
    record: &RunRecord,
    outputs: Outputs,
    keyring: &Keyring,
    now_unix_ms: u64,
) -> Result<Bundle, LocalError> {
    let outcome = outcome(record, outputs)?;
    let observed = record
        .cleanup
        .clone()
        .ok_or(LocalError::NotOver("cleanup"))?;
    let contract = serde_json::to_value(&record.contract)?;
    let digest = Digest::of_value(&contract)?;
    let (events, head) = events(record, digest, &outcome, &observed)?;
    let tenant = Name::parse("local")?;
    let outcome_digest = Digest::of_value(&outcome)?;
    let statement = keyring.seal(statement::KIND, |key| {
        Statement::of(Predicate {
            run: record.run.clone(),
            tenant: tenant.clone(),
            made_from: MadeFrom::SupervisorRecord,
            contract: digest,
            outcome: outcome_digest,
            chain: head,
            receipts: receipts(&outcome),
            cleanup: observed,
            daemon: env!("CARGO_PKG_VERSION").to_owned(),
            key,
            at_unix_ms: now_unix_ms,
        })
        .bytes()
    })?;
    Ok(Bundle {
        format: FORMAT.to_owned(),
        made_from: MadeFrom::SupervisorRecord,
        run: record.run.clone(),
        tenant,
        contract,
        outcome,
        events,
        opened: None,
        sealed: None,
        statement,
        keys: keyring.list(),
    })
}

fn outcome(record: &RunRecord, outputs: Outputs) -> Result<Outcome, LocalError> {
    let end = record.end.clone().ok_or(LocalError::NotOver("end"))?;
    let micros: u64 = record.stages.iter().map(|time| time.micros).sum();
    Ok(Outcome {
        end,
        exit: record.exit.clone(),
        limits_hit: record.limits_hit.clone(),
        usage: record.usage,
        stdout: outputs.stdout,
        stderr: outputs.stderr,
        output: None,
        artifacts: record.artifacts.clone(),
        module: record.module.clone(),
        ended_unix_ms: record.accepted_unix_ms.saturating_add(micros / 1_000),
    })
}

/// The chain as a daemon would have written it. All events carry the time of acceptance: the record has no other.
fn events(
    record: &RunRecord,
    contract: Digest,
    outcome: &Outcome,
    observed: &Observed,
) -> Result<(Vec<Event>, Head), LocalError> {
    let after = |stage: Stage| matches!(stage, Stage::Destroy | Stage::Cleanup);
    let mut facts = vec![RunFact::Accepted { contract }];
    if let Some(computer) = &record.contract {
        facts.push(RunFact::Allocated {
            sandbox: record.sandbox.clone(),
            warm: record.warm,
            computer: Some(Box::new(computer.clone())),
        });
    }
    let stages = |late: bool| {
        let these = record
            .stages
            .iter()
            .filter(move |time| after(time.stage) == late);
        these.map(|time| RunFact::Stage {
            stage: time.stage,
            micros: time.micros,
        })
    };
    facts.extend(stages(false));
    facts.push(RunFact::Ended {
        end: outcome.end.clone(),
    });
    for (stream, stored) in [("stdout", outcome.stdout), ("stderr", outcome.stderr)] {
        let kept = stored.and_then(|stored| Some((stored.stream.kept, stored.digest?)));
        facts.extend(kept.map(|(bytes, digest)| RunFact::OutputStored {
            stream: stream.to_owned(),
            bytes,
            digest,
        }));
    }
    let artifacts = outcome.artifacts.iter().cloned();
    facts.extend(artifacts.map(|artifact| RunFact::ArtifactStored { artifact }));
    facts.push(RunFact::Concluded {
        outcome: Digest::of_value(outcome)?,
    });
    facts.extend(stages(true));
    facts.push(RunFact::Cleaned {
        observed: observed.clone(),
    });
    let mut chain = Chain::new(record.run.clone(), contract, Head::EMPTY);
    let mut events = Vec::with_capacity(facts.len());
    for fact in facts {
        events.push(chain.next(Epoch::NONE, record.accepted_unix_ms, fact)?);
    }
    Ok((events, chain.head()))
}
