//! A backend without an operating system, for tests of what stands above a backend.
//!
//! It keeps the same promises as a real one (the conformance suite says so): one state machine, ends
//! decided by the same rule, limits that are refused when they cannot be held, observed removal. Time
//! is the runtime's, so a test with paused time needs no waiting. It plays the commands of
//! [`crate::conformance::script`]; any other command returns 0. What goes wrong is said by
//! [`Faults`].

mod act;
mod admit;
mod computer;
mod run;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::digest::Digest;
use leasehold_core::end::{CancelledBy, EndReason};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::isolation::Isolation;
use leasehold_core::limits::Resource;
use leasehold_core::name::Name;
use leasehold_core::sandbox::state::{Action, State};
use leasehold_core::spec::{ModuleSpec, SandboxSpec, Script, WorkspaceMode};
use tokio::sync::mpsc;

use self::computer::{FakeComputer, Slot};
use self::run::Recorded;
use crate::conformance::Rig;
use crate::error::BackendError;
use crate::execution::{EVENTS_MAX, Execution};
use crate::seam::{Backend, Capabilities, Computer, Doing, Known, Launch, Readiness, Swept};
use crate::wasm::{Module, Origin};

/// Name of this backend.
pub const NAME: &str = "fake";

/// What goes wrong, and how slow it is. The default is a host without faults.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Why it cannot be used at all.
    pub unusable: Option<PublicError>,
    /// How many computers there is room for; none means any number.
    pub capacity: Option<usize>,
    /// The next computers that are asked for are refused with these.
    pub provision: VecDeque<PublicError>,
    /// How long a computer takes to be made.
    pub provision_takes: Duration,
    /// How long a run takes before its command starts.
    pub start_takes: Duration,
    /// The next runs crash after so long.
    pub crash: VecDeque<Duration>,
    /// How long a removal takes.
    pub destroy_takes: Duration,
    /// The next removals leave something behind and say so.
    pub dirty: u32,
    /// Limits this host cannot hold.
    pub unenforced: Vec<Resource>,
    /// The connection breaks off before the next launches arrive.
    pub lost_before: u32,
    /// The connection breaks off after the next launches were carried out.
    pub lost_after: u32,
    /// What the next launches were to run cannot be run: this is their end, and why.
    pub unrunnable: VecDeque<(EndReason, String)>,
    /// A module whose code was said to be at hand is compiled for ever once somebody needs it.
    pub never_ready: bool,
    /// How long a module takes to be compiled. Where that is no time at all, nothing is.
    pub compile_takes: Duration,
    /// Modules that are compiled cannot be run: this is the end of their runs, and why.
    pub uncompilable: Option<(EndReason, String)>,
    /// It cannot be asked what it has.
    pub deaf: bool,
    /// What runs left was pruned: they can be attached to no more, and are taken no second time.
    pub pruned: bool,
}

#[derive(Debug, Default)]
struct World {
    faults: Faults,
    probes: u64,
    made: u64,
    slots: BTreeMap<SandboxId, Arc<Slot>>,
    runs: BTreeMap<RunId, Arc<Recorded>>,
    taken: Vec<Taken>,
    compiling: BTreeSet<Digest>,
    compiled: BTreeSet<Digest>,
}

impl World {
    fn readiness(&self, module: &Digest) -> Readiness {
        let refused = self.faults.uncompilable.as_ref();
        match refused {
            _ if self.compiling.contains(module) => Readiness::Compiling,
            Some((_, why)) => Readiness::Refused(why.clone()),
            None if self.faults.compile_takes.is_zero() || self.compiled.contains(module) => {
                Readiness::Ready
            }
            None => Readiness::Absent,
        }
    }
}

/// What came with a launch of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Of which run.
    pub run: RunId,
    /// Digest of the bytes that were read, whatever was said of them.
    pub digest: Digest,
    /// The script.
    pub script: Option<Script>,
    /// Standard input.
    pub input: Option<Vec<u8>>,
}

fn lacking(error: std::io::Error) -> BackendError {
    refuse(ErrorKind::Unavailable, error.to_string())
}

/// What it says that it is.
#[derive(Debug, Clone, Copy)]
struct Identity {
    name: &'static str,
    isolation: Isolation,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            name: NAME,
            isolation: Isolation::Process,
        }
    }
}

/// The backend. Cheap to clone; clones share one world.
#[derive(Debug, Clone, Default)]
pub struct FakeBackend {
    world: Arc<Mutex<World>>,
    identity: Identity,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refuse(kind: ErrorKind, message: impl Into<String>) -> BackendError {
    PublicError::new(kind, message).into()
}

fn broken_off(backend: &'static str) -> BackendError {
    BackendError::Lost {
        backend,
        kind: ErrorKind::Unavailable,
        source: "a test said so".into(),
    }
}

impl FakeBackend {
    /// A host without faults and without computers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Another host, which passes for a backend of this name and strength.
    #[must_use]
    pub fn called(name: &'static str, isolation: Isolation) -> Self {
        Self {
            identity: Identity { name, isolation },
            ..Self::default()
        }
    }

    /// Looks at or changes what goes wrong from now on.
    pub fn faults<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        change(&mut locked(&self.world).faults)
    }

    /// Every computer that is not gone, and its state.
    #[must_use]
    pub fn present(&self) -> Vec<(SandboxId, State)> {
        let world = locked(&self.world);
        world
            .slots
            .values()
            .map(|slot| (slot.id.clone(), slot.state()))
            .filter(|(_, state)| !state.terminal())
            .collect()
    }

    /// Every run that was ever begun.
    #[must_use]
    pub fn begun(&self) -> Vec<RunId> {
        locked(&self.world).runs.keys().cloned().collect()
    }

    /// How often it was tried out.
    #[must_use]
    pub fn probes(&self) -> u64 {
        locked(&self.world).probes
    }

    /// Modules that came with launches, in order.
    #[must_use]
    pub fn taken(&self) -> Vec<Taken> {
        locked(&self.world).taken.clone()
    }

    /// Forgets everything it had, as a supervisor that died does for its runs: those in progress end as
    /// lost.
    pub fn lose(&self) {
        let runs: Vec<_> = locked(&self.world).runs.values().cloned().collect();
        for run in runs {
            run.slot.lose();
        }
    }

    /// Kills our own first process in a computer.
    ///
    /// # Errors
    /// When it is not there.
    pub fn crash(&self, sandbox: &SandboxId) -> Result<(), PublicError> {
        let slot = locked(&self.world).slots.get(sandbox).cloned();
        let missing = || PublicError::new(ErrorKind::NotFound, "no such sandbox");
        slot.ok_or_else(missing)?.crash();
        Ok(())
    }

    async fn made(&self, spec: SandboxSpec, directory: bool) -> Result<FakeComputer, BackendError> {
        let (slot, takes) = {
            let mut world = locked(&self.world);
            if let Some(error) = &world.faults.unusable {
                return Err(error.clone().into());
            }
            let contract =
                admit::contract(self.identity, &spec, directory, &world.faults.unenforced)?;
            let present = world
                .slots
                .values()
                .filter(|slot| slot.state().holds_resources());
            if world
                .faults
                .capacity
                .is_some_and(|most| present.count() >= most)
            {
                return Err(refuse(
                    ErrorKind::NoCapacity,
                    "no room for one more sandbox",
                ));
            }
            world.made += 1;
            let mut entropy = [0; 13];
            entropy[..8].copy_from_slice(&world.made.to_be_bytes());
            // So that two hosts have no computer of the same id.
            entropy[8] = self.identity.isolation as u8;
            let id = SandboxId::from_entropy(&entropy);
            let slot = Arc::new(Slot::new(id.clone(), contract));
            slot.act(Action::Create)?;
            if let Some(error) = world.faults.provision.pop_front() {
                return Err(error.into());
            }
            world.slots.insert(id, Arc::clone(&slot));
            (slot, world.faults.provision_takes)
        };
        // Goes on when nobody waits for it any more: a sweep finds what came of it.
        let parking = Arc::clone(&slot);
        let parked = tokio::spawn(async move {
            tokio::time::sleep(takes).await;
            parking.act(Action::Park)
        });
        let lost = |_| refuse(ErrorKind::Internal, "the runtime ended meanwhile");
        parked.await.map_err(lost)??;
        Ok(FakeComputer::new(Arc::clone(&self.world), slot))
    }
}

impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        self.identity.name
    }

    fn isolation(&self) -> Isolation {
        self.identity.isolation
    }

    fn probe(&self) -> Doing<'_, Result<Capabilities, PublicError>> {
        Box::pin(async {
            locked(&self.world).probes += 1;
            let faults = self.faults(|faults| faults.clone());
            match faults.unusable {
                Some(error) => Err(error),
                None => Ok(Capabilities {
                    enforcement: admit::enforcement(&SandboxSpec::default(), &faults.unenforced),
                    posture: admit::posture(),
                    workspaces: vec![WorkspaceMode::Ephemeral],
                }),
            }
        })
    }

    fn provision(
        &self,
        spec: SandboxSpec,
        workspace: Option<OwnedFd>,
    ) -> Doing<'_, Result<Box<dyn Computer>, BackendError>> {
        Box::pin(async move {
            let computer = self.made(spec, workspace.is_some()).await?;
            Ok(Box::new(computer) as Box<dyn Computer>)
        })
    }

    fn at_hand(&self, module: &ModuleSpec) -> bool {
        locked(&self.world).readiness(&module.digest) == Readiness::Ready
    }

    fn readiness(&self, module: ModuleSpec) -> Doing<'_, Readiness> {
        let readiness = locked(&self.world).readiness(&module.digest);
        Box::pin(std::future::ready(readiness))
    }

    fn make_ready(
        &self,
        spec: ModuleSpec,
        module: Module,
        _: Option<Name>,
    ) -> Doing<'_, Result<Origin, BackendError>> {
        Box::pin(async move {
            if self.faults(|faults| faults.never_ready) {
                return std::future::pending().await;
            }
            if self.at_hand(&spec) {
                return Ok(Origin::Memory);
            }
            module.open().await?;
            let takes = self.faults(|faults| faults.compile_takes);
            locked(&self.world).compiling.insert(spec.digest);
            let world = Arc::clone(&self.world);
            let compiling = tokio::spawn(async move {
                tokio::time::sleep(takes).await;
                let mut world = locked(&world);
                world.compiling.remove(&spec.digest);
                match world.faults.uncompilable.clone() {
                    Some((end, detail)) => Err(BackendError::Unrunnable {
                        end: Box::new(end),
                        detail,
                    }),
                    None => {
                        world.compiled.insert(spec.digest);
                        Ok(Origin::Compiler)
                    }
                }
            });
            let lost = |_| refuse(ErrorKind::Internal, "the runtime ended meanwhile");
            compiling.await.map_err(lost)?
        })
    }

    fn launch(&self, launch: Launch) -> Doing<'_, Result<Execution, BackendError>> {
        Box::pin(async move {
            {
                let mut world = locked(&self.world);
                if world.faults.lost_before > 0 {
                    world.faults.lost_before -= 1;
                    return Err(broken_off(self.identity.name));
                }
                if let Some((end, detail)) = world.faults.unrunnable.pop_front() {
                    let end = Box::new(end);
                    return Err(BackendError::Unrunnable { end, detail });
                }
            }
            if let Some(module) = &launch.module {
                let file = module.open().await?;
                let read = Module::of_file(file.try_clone().map_err(lacking)?, u64::MAX);
                let taken = Taken {
                    run: launch.run.clone(),
                    digest: *read.map_err(lacking)?.digest(),
                    script: launch.script.clone(),
                    input: launch.input.as_deref().map(<[u8]>::to_vec),
                };
                locked(&self.world).taken.push(taken);
            }
            let computer = self
                .made(launch.sandbox, launch.workspace.is_some())
                .await?;
            let launched = match computer.run(launch.run, launch.exec, None).await {
                Ok(execution) => execution,
                Err(error) => {
                    computer.end().await?;
                    return Err(error);
                }
            };
            let mut world = locked(&self.world);
            if world.faults.lost_after > 0 {
                world.faults.lost_after -= 1;
                return Err(broken_off(self.identity.name));
            }
            Ok(launched)
        })
    }

    fn cancel(
        &self,
        run: RunId,
        by: CancelledBy,
        at_once: bool,
    ) -> Doing<'_, Result<(), BackendError>> {
        let recorded = locked(&self.world).runs.get(&run).cloned();
        let done = match recorded {
            None => Err(refuse(
                ErrorKind::NotFound,
                format!("run `{run}` is not there"),
            )),
            Some(recorded) => {
                recorded.slot.cancel(by, at_once);
                Ok(())
            }
        };
        Box::pin(std::future::ready(done))
    }

    fn running(&self) -> Doing<'_, Result<Vec<(RunId, SandboxId)>, BackendError>> {
        let world = locked(&self.world);
        if world.faults.deaf {
            return Box::pin(std::future::ready(Err(broken_off(self.identity.name))));
        }
        let held = |recorded: &Recorded| recorded.slot.state().holds_resources();
        let running = world
            .runs
            .iter()
            .filter(|(_, recorded)| held(recorded))
            .map(|(run, recorded)| (run.clone(), recorded.slot.id.clone()))
            .collect();
        Box::pin(std::future::ready(Ok(running)))
    }

    fn artifact(&self, run: RunId, place: usize) -> Doing<'_, Result<File, BackendError>> {
        let recorded = locked(&self.world).runs.get(&run).cloned();
        let missing = || refuse(ErrorKind::NotFound, "there is no such copy");
        let copy = recorded
            .and_then(|recorded| recorded.copy(place))
            .ok_or_else(missing);
        Box::pin(std::future::ready(copy))
    }

    fn keep_warm(&self, _: SandboxSpec, _: u32) -> Doing<'_, Result<(), BackendError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn adopt(&self, known: Known) -> Doing<'_, Result<Option<Box<dyn Computer>>, BackendError>> {
        Box::pin(async move {
            let slot = locked(&self.world).slots.get(&known.sandbox).cloned();
            let living = slot.filter(|slot| slot.state().holds_resources());
            let adopt = |slot| FakeComputer::new(Arc::clone(&self.world), slot);
            Ok(living.map(|slot| Box::new(adopt(slot)) as Box<dyn Computer>))
        })
    }

    fn attach(&self, run: RunId) -> Doing<'_, Result<Execution, BackendError>> {
        Box::pin(async move {
            let recorded = {
                let world = locked(&self.world);
                let there = world.runs.get(&run).filter(|_| !world.faults.pruned);
                there.cloned()
            };
            let recorded = recorded
                .ok_or_else(|| refuse(ErrorKind::NotFound, format!("run `{run}` is not there")))?;
            let (sender, events) = mpsc::channel(EVENTS_MAX);
            recorded.kept.follow(sender);
            recorded.execution(None, events)
        })
    }

    fn sweep(&self, live: Vec<SandboxId>) -> Doing<'_, Result<Swept, BackendError>> {
        Box::pin(async move {
            let unknown: Vec<Arc<Slot>> = locked(&self.world)
                .slots
                .values()
                .filter(|slot| !live.contains(&slot.id) && slot.idle())
                .cloned()
                .collect();
            let mut swept = Swept::default();
            for slot in unknown {
                let id = slot.id.clone();
                let computer = FakeComputer::new(Arc::clone(&self.world), slot);
                swept.ended.push((id, computer.end().await?));
            }
            Ok(swept)
        })
    }
}

impl Rig for FakeBackend {
    fn crash<'a>(&'a self, sandbox: &'a SandboxId) -> Option<Doing<'a, Result<(), String>>> {
        let done = Self::crash(self, sandbox).map_err(|error| error.message);
        Some(Box::pin(std::future::ready(done)))
    }
}
