//! A computer that is not there, and its life.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use leasehold_core::contract::Contract;
use leasehold_core::end::CancelledBy;
use leasehold_core::error::ErrorKind;
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::record::{Observed, Residue, Usage};
use leasehold_core::sandbox::state::{Action, State, next};
use leasehold_core::spec::ExecSpec;
use tokio::sync::{mpsc, watch};

use super::run::{Recorded, play};
use super::{World, locked, refuse};
use crate::error::BackendError;
use crate::execution::{EVENTS_MAX, Execution};
use crate::seam::{Computer, Doing};
use crate::wasm::Module;

/// What is wanted of a run from outside.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Orders {
    pub(super) cancel: Option<(CancelledBy, bool)>,
    pub(super) crash: bool,
    pub(super) lost: bool,
}

/// One computer of the fake host.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) id: SandboxId,
    pub(super) contract: Contract,
    state: Mutex<State>,
    pub(super) orders: watch::Sender<Orders>,
    gone: watch::Sender<Option<Observed>>,
    marked: AtomicBool,
}

impl Slot {
    pub(super) fn new(id: SandboxId, contract: Contract) -> Self {
        Self {
            id,
            contract,
            state: Mutex::new(State::Pending),
            orders: watch::Sender::new(Orders::default()),
            gone: watch::Sender::new(None),
            marked: AtomicBool::new(false),
        }
    }

    pub(super) fn state(&self) -> State {
        *locked(&self.state)
    }

    /// Made, and claimed by nobody.
    pub(super) fn idle(&self) -> bool {
        self.state() == State::Parked
    }

    pub(super) fn act(&self, action: Action) -> Result<State, BackendError> {
        let mut state = locked(&self.state);
        let to = next(*state, action)
            .map_err(|refusal| refuse(ErrorKind::WrongState, refusal.to_string()))?;
        *state = to;
        Ok(to)
    }

    pub(super) fn mark(&self) {
        self.marked.store(true, Ordering::Relaxed);
    }

    pub(super) fn marked(&self) -> bool {
        self.marked.load(Ordering::Relaxed)
    }

    /// Asks for the end of the run in it.
    pub(super) fn cancel(&self, by: CancelledBy, at_once: bool) {
        self.orders
            .send_modify(|orders| orders.cancel = Some((by, at_once)));
    }

    pub(super) fn lose(&self) {
        self.orders.send_modify(|orders| orders.lost = true);
    }

    pub(super) fn crash(&self) {
        self.orders.send_modify(|orders| orders.crash = true);
    }

    /// Begins the removal; says whether nobody had before.
    fn begin_removal(&self) -> Result<bool, BackendError> {
        let mut state = locked(&self.state);
        let before = *state;
        if matches!(before, State::Stopping | State::Stuck) || !before.holds_resources() {
            return Ok(false);
        }
        *state = next(before, Action::Stop)
            .map_err(|refusal| refuse(ErrorKind::WrongState, refusal.to_string()))?;
        Ok(true)
    }

    /// Waits until the removal was observed.
    pub(super) async fn seen_gone(&self) -> Result<Observed, BackendError> {
        let mut gone = self.gone.subscribe();
        let seen = gone.wait_for(Option::is_some).await;
        let seen = seen.ok().and_then(|seen| seen.clone());
        seen.ok_or_else(|| refuse(ErrorKind::Internal, "the removal was never seen"))
    }

    /// Removes it and says what was seen. Whoever comes later hears the same.
    pub(super) async fn remove(&self, world: &Mutex<World>) -> Result<Observed, BackendError> {
        if !self.begin_removal()? {
            return self.seen_gone().await;
        }
        let (takes, dirty) = {
            let faults = &mut locked(world).faults;
            let dirty = faults.dirty > 0;
            faults.dirty = faults.dirty.saturating_sub(1);
            (faults.destroy_takes, dirty)
        };
        tokio::time::sleep(takes).await;
        self.act(if dirty {
            Action::Quarantine
        } else {
            Action::Clear
        })?;
        let residue = |resource: &str| Residue {
            resource: resource.to_owned(),
            clean: !dirty,
            detail: "as a test said".to_owned(),
            inferred: false,
        };
        let observed = Observed {
            residues: vec![residue("processes"), residue("scratch")],
        };
        self.gone.send_replace(Some(observed.clone()));
        Ok(observed)
    }
}

/// A handle on a slot.
#[derive(Debug)]
pub(super) struct FakeComputer {
    world: Arc<Mutex<World>>,
    slot: Arc<Slot>,
}

impl FakeComputer {
    pub(super) fn new(world: Arc<Mutex<World>>, slot: Arc<Slot>) -> Self {
        Self { world, slot }
    }

    fn claim(&self, run: RunId, exec: ExecSpec) -> Result<Execution, BackendError> {
        exec.check()?;
        let (recorded, input) = {
            let mut world = locked(&self.world);
            if world.runs.contains_key(&run) {
                let message = format!("run `{run}` exists already");
                return Err(refuse(ErrorKind::Exists, message));
            }
            if self.slot.orders.borrow().crash {
                return Err(refuse(ErrorKind::WrongState, "the sandbox is dead"));
            }
            self.slot.act(Action::Claim)?;
            let recorded = Recorded::new(run.clone(), Arc::clone(&self.slot), &exec)?;
            let recorded = Arc::new(recorded);
            world.runs.insert(run, Arc::clone(&recorded));
            let input = exec.stdin.then(rustix::pipe::pipe).transpose();
            let failed = |errno: rustix::io::Errno| refuse(ErrorKind::Internal, errno.to_string());
            (recorded, input.map_err(failed)?)
        };
        let (reader, writer) = input.unzip();
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        recorded.kept.follow(sender);
        let execution = recorded.execution(writer, events)?;
        tokio::spawn(play(Arc::clone(&self.world), recorded, exec, reader));
        Ok(execution)
    }

    pub(super) async fn end(&self) -> Result<Observed, BackendError> {
        match self.slot.state() {
            State::Parked => self.slot.remove(&self.world).await,
            State::Running => {
                self.slot.cancel(CancelledBy::Caller, true);
                self.slot.seen_gone().await
            }
            _ => self.slot.seen_gone().await,
        }
    }
}

impl Computer for FakeComputer {
    fn id(&self) -> &SandboxId {
        &self.slot.id
    }

    fn contract(&self) -> &Contract {
        &self.slot.contract
    }

    fn run(
        &self,
        run: RunId,
        exec: ExecSpec,
        _: Option<Module>,
    ) -> Doing<'_, Result<Execution, BackendError>> {
        Box::pin(std::future::ready(self.claim(run, exec)))
    }

    fn cancel(&self, by: CancelledBy, at_once: bool) -> Doing<'_, Result<(), BackendError>> {
        let done = if self.slot.state() == State::Running {
            self.slot.cancel(by, at_once);
            Ok(())
        } else {
            Err(refuse(
                ErrorKind::WrongState,
                "the sandbox has no run to end",
            ))
        };
        Box::pin(std::future::ready(done))
    }

    fn channel(&self) -> Doing<'_, Result<OwnedFd, BackendError>> {
        let none = refuse(ErrorKind::Unsupported, "the fake backend has no agent");
        Box::pin(std::future::ready(Err(none)))
    }

    fn usage(&self) -> Doing<'_, Result<Usage, BackendError>> {
        let used = if self.slot.state().holds_resources() {
            Ok(Usage {
                memory_peak_bytes: Some(1 << 20),
                ..Usage::default()
            })
        } else {
            Err(refuse(ErrorKind::NotFound, "the sandbox is not there"))
        };
        Box::pin(std::future::ready(used))
    }

    fn destroy(&self) -> Doing<'_, Result<Observed, BackendError>> {
        Box::pin(self.end())
    }
}
