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
use leasehold_core::stage::{Stage, StageTime};
use rustix::fs::MemfdFlags;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::act::{ARTIFACT, Acted, act, output_killed};
use super::computer::{Orders, Slot};
use super::{World, locked, refuse};
use crate::conformance::script::Script;
use crate::error::BackendError;
use crate::execution::{EVENTS_KEPT, EventSender, Events, Execution, RunEvent};

/// How long a command takes that does nothing.
const COMMAND: Duration = Duration::from_millis(1);

/// A run and who follows it.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) slot: Arc<Slot>,
    spools: [File; 2],
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    record: RunRecord,
    followers: Vec<EventSender>,
    ended: bool,
}

impl Recorded {
    pub(super) fn new(run: RunId, slot: Arc<Slot>, exec: &ExecSpec) -> Result<Self, BackendError> {
        let spool = || {
            let file = rustix::fs::memfd_create("spool", MemfdFlags::CLOEXEC);
            file.map(File::from)
                .map_err(|errno| refuse(ErrorKind::Internal, errno.to_string()))
        };
        let mut contract = slot.contract.clone();
        contract.argv.clone_from(&exec.argv);
        contract.program.clone_from(&exec.module);
        contract.env_names = exec.env.keys().cloned().collect();
        let record = RunRecord {
            contract: Some(contract),
            ..RunRecord::accepted(run, slot.id.clone(), 0)
        };
        Ok(Self {
            slot,
            spools: [spool()?, spool()?],
            progress: Mutex::new(Progress {
                record,
                followers: Vec::new(),
                ended: false,
            }),
        })
    }

    pub(super) fn execution(
        &self,
        input: Option<OwnedFd>,
        events: mpsc::Receiver<Result<RunEvent, BackendError>>,
    ) -> Result<Execution, BackendError> {
        let copy = |file: &File| {
            let copied = file.try_clone().map(OwnedFd::from);
            copied.map_err(|error| refuse(ErrorKind::Internal, error.to_string()))
        };
        let spools = [copy(&self.spools[0])?, copy(&self.spools[1])?];
        let run = locked(&self.progress).record.run.clone();
        Ok(Execution::new(
            run,
            self.slot.id.clone(),
            spools,
            input,
            Events::Channel(events),
        ))
    }

    /// The copy of a collected file.
    pub(super) fn copy(&self, place: usize) -> Option<File> {
        let progress = locked(&self.progress);
        progress.record.artifacts.get(place)?.sha256.as_ref()?;
        let file = rustix::fs::memfd_create("copy", MemfdFlags::CLOEXEC).ok()?;
        let file = File::from(file);
        file.write_all_at(ARTIFACT, 0).ok()?;
        Some(file)
    }

    /// From now on, or from the end if that is past.
    pub(super) fn follow(&self, sender: EventSender) {
        let mut progress = locked(&self.progress);
        let record = || Box::new(progress.record.clone());
        if progress.ended {
            let _ = sender.try_send(Ok(RunEvent::Ended(record())));
        }
        if progress.record.cleanup.is_some() {
            let _ = sender.try_send(Ok(RunEvent::Cleaned(record())));
        } else {
            progress.followers.push(sender);
        }
    }

    /// Writes output, within the limit. Says how it ends where the limit ends it.
    pub(super) fn put(&self, which: usize, bytes: &[u8]) -> Option<Acted> {
        let limits = &self.slot.contract.limits;
        let most = limits.output_bytes.value;
        let mut progress = locked(&self.progress);
        let record = &mut progress.record;
        let stream = if which == 0 {
            &mut record.stdout
        } else {
            &mut record.stderr
        };
        let room = usize::try_from(most - stream.kept).unwrap_or(usize::MAX);
        let kept = &bytes[..bytes.len().min(room)];
        // Memory of this process: writing fails only with the process itself.
        let _ = self.spools[which].write_all_at(kept, stream.kept);
        stream.written += bytes.len() as u64;
        stream.kept += kept.len() as u64;
        stream.truncated = stream.written > stream.kept;
        let (cut, written) = (stream.truncated, stream.written);
        let event = RunEvent::Output {
            stdout: record.stdout.kept,
            stderr: record.stderr.kept,
        };
        for follower in &progress.followers {
            if follower.capacity() > EVENTS_KEPT {
                let _ = follower.try_send(Ok(event.clone()));
            }
        }
        (cut && limits.on_output_limit == OnOutputLimit::Kill).then(|| output_killed(most, written))
    }

    fn stage(&self, stage: Stage, since: Instant) {
        let micros = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        let time = StageTime { stage, micros };
        self.change(|record| record.stages.push(time));
        self.tell(&RunEvent::Stage(time));
    }

    fn change(&self, change: impl FnOnce(&mut RunRecord)) {
        change(&mut locked(&self.progress).record);
    }

    fn tell(&self, event: &RunEvent) {
        for follower in &locked(&self.progress).followers {
            let _ = follower.try_send(Ok(event.clone()));
        }
    }

    fn end(&self) {
        let record = {
            let mut progress = locked(&self.progress);
            progress.ended = true;
            Box::new(progress.record.clone())
        };
        self.tell(&RunEvent::Ended(record));
    }

    fn close(&self) {
        let record = Box::new(locked(&self.progress).record.clone());
        self.tell(&RunEvent::Cleaned(record));
        locked(&self.progress).followers.clear();
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
    recorded.change(|record| {
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
    recorded.end();
    let removing = Instant::now();
    let observed = recorded.slot.remove(&world).await;
    recorded.stage(Stage::Destroy, removing);
    recorded.stage(Stage::Cleanup, Instant::now());
    recorded.change(|record| record.cleanup = observed.ok());
    recorded.close();
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
