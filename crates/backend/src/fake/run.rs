//! One run in a computer that is not there: its stages, its output, its end.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::end::{ExitStatus, Observations, decide};
use leasehold_core::error::ErrorKind;
use leasehold_core::id::RunId;
use leasehold_core::limits::{Limits, OnOutputLimit};
use leasehold_core::record::{RunRecord, Usage};
use leasehold_core::spec::ExecSpec;
use leasehold_core::stage::Stage;
use rustix::fs::MemfdFlags;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::act::{ARTIFACT, Acted, act, output_killed};
use super::computer::{Orders, Slot};
use super::{World, locked, refuse};
use crate::conformance::script::Script;
use crate::error::BackendError;
use crate::execution::{Events, Execution, RunEvent};
use crate::kept::Kept;

/// How long a command takes that does nothing.
const COMMAND: Duration = Duration::from_millis(1);

/// A run and its computer.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) slot: Arc<Slot>,
    pub(super) kept: Kept,
}

fn lacking(error: &std::io::Error) -> BackendError {
    refuse(ErrorKind::Internal, error.to_string())
}

impl Recorded {
    pub(super) fn new(run: RunId, slot: Arc<Slot>, exec: &ExecSpec) -> Result<Self, BackendError> {
        let mut contract = slot.contract.clone();
        contract.argv.clone_from(&exec.argv);
        contract.env_names = exec.env.keys().cloned().collect();
        let record = RunRecord {
            contract: Some(contract),
            ..RunRecord::accepted(run, slot.id.clone(), 0)
        };
        Ok(Self {
            slot,
            kept: Kept::new(record).map_err(|error| lacking(&error))?,
        })
    }

    pub(super) fn execution(
        &self,
        input: Option<OwnedFd>,
        events: mpsc::Receiver<Result<RunEvent, BackendError>>,
    ) -> Result<Execution, BackendError> {
        let made = self.kept.execution(input, Events::Channel(events));
        made.map_err(|error| lacking(&error))
    }

    /// The copy of a collected file.
    pub(super) fn copy(&self, place: usize) -> Option<File> {
        self.kept
            .change(|record| record.artifacts.get(place)?.sha256.clone())?;
        let file = rustix::fs::memfd_create("copy", MemfdFlags::CLOEXEC).ok()?;
        let file = File::from(file);
        file.write_all_at(ARTIFACT, 0).ok()?;
        Some(file)
    }

    /// Writes output, within the limit. Says how it ends where the limit ends it.
    pub(super) fn put(&self, which: usize, bytes: &[u8]) -> Option<Acted> {
        let limits = &self.slot.contract.limits;
        let most = limits.output_bytes.value;
        // Memory of this process: writing fails only with the process itself.
        let stream = self.kept.put(which, bytes, most).ok()?;
        self.kept.tell_output();
        let kill = stream.truncated && limits.on_output_limit == OnOutputLimit::Kill;
        kill.then(|| output_killed(most, stream.written))
    }

    fn stage(&self, stage: Stage, since: Instant) {
        let micros = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.kept.stage(stage, micros);
    }
}

/// Plays a run from its claim to its removal.
pub(super) async fn play(
    world: Arc<Mutex<World>>,
    recorded: Arc<Recorded>,
    exec: ExecSpec,
    input: Option<OwnedFd>,
) {
    let (start_takes, crash) = {
        let faults = &mut locked(&world).faults;
        (faults.start_takes, faults.crash.pop_front())
    };
    let begun = Instant::now();
    tokio::time::sleep(start_takes).await;
    for stage in [Stage::Allocate, Stage::Initialize, Stage::Inject] {
        recorded.stage(stage, begun);
    }
    let started = Instant::now();
    let (seen, acted) = execute(&recorded, &exec, input, crash).await;
    let ran = started.elapsed();
    recorded.stage(Stage::Execute, started);
    recorded.kept.change(|record| {
        record.exit.clone_from(&seen.exit);
        record.limits_hit = seen.killed_by.iter().chain(&seen.denied).copied().collect();
        record.artifacts = if exec.artifacts.is_empty() {
            Vec::new()
        } else {
            acted.artifacts
        };
        record.usage = Usage {
            wall_micros: u64::try_from(ran.as_micros()).unwrap_or(u64::MAX),
            cpu_micros: Some(100),
            memory_peak_bytes: Some(1 << 20),
            throttled_micros: Some(0),
            disk_bytes: Some(acted.disk),
        };
        record.end = Some(decide(&seen));
    });
    recorded.stage(Stage::Collect, Instant::now());
    recorded.kept.end();
    let removing = Instant::now();
    let observed = recorded.slot.remove(&world).await;
    recorded.stage(Stage::Destroy, removing);
    recorded.stage(Stage::Cleanup, Instant::now());
    recorded
        .kept
        .change(|record| record.cleanup = observed.ok());
    recorded.kept.close();
}

async fn execute(
    recorded: &Recorded,
    exec: &ExecSpec,
    input: Option<OwnedFd>,
    crash: Option<Duration>,
) -> (Observations, Acted) {
    let limits = recorded.slot.contract.limits.clone();
    let mut seen = Observations::default();
    let mut orders = recorded.slot.orders.subscribe();
    let acting = async {
        tokio::time::sleep(COMMAND).await;
        act(recorded, &limits, exec, input).await
    };
    let wall = tokio::time::sleep(Duration::from_millis(limits.wall_ms.value));
    let crashing = async {
        match crash {
            Some(after) => tokio::time::sleep(after).await,
            None => std::future::pending().await,
        }
    };
    let ordered = async {
        let wanted = |orders: &Orders| orders.cancel.is_some() || orders.crash || orders.lost;
        orders
            .wait_for(wanted)
            .await
            .map_or_else(|_| Orders::default(), |orders| *orders)
    };
    let acted = tokio::select! {
        acted = acting => acted,
        () = wall => {
            seen.wall_expired_ms = Some(limits.wall_ms.value);
            leave(exec, &limits, false).await
        }
        () = crashing => {
            seen.crashed = Some("init died: a test said so".to_owned());
            Acted::default()
        }
        orders = ordered => match orders.cancel {
            Some((by, at_once)) => {
                seen.cancelled = Some(by);
                leave(exec, &limits, at_once).await
            }
            None if orders.lost => {
                seen.host_lost = true;
                Acted::default()
            }
            None => {
                seen.crashed = Some("init died: it was killed".to_owned());
                Acted::default()
            }
        },
    };
    seen.exit.clone_from(&acted.exit);
    seen.killed_by = acted.killed_by;
    seen.denied.clone_from(&acted.denied);
    (seen, acted)
}

/// The end of a command that is asked to go, and killed where it does not.
async fn leave(exec: &ExecSpec, limits: &Limits, at_once: bool) -> Acted {
    let deaf = Script::read(exec) == Some(Script::Stubborn);
    if deaf && !at_once {
        tokio::time::sleep(Duration::from_millis(limits.grace_ms)).await;
    }
    let number = if deaf || at_once { 9 } else { 15 };
    Acted {
        exit: Some(ExitStatus::Signal { number }),
        ..Acted::default()
    }
}
