//! One run from its turn to its seal.
//!
//! The order of what is durable, and why:
//!
//! 1. *Admit*: the run exists before anything does for it (I1). Done before the task begins.
//!    Code of a WebAssembly module that has none is made before the next step, under bounds of its own.
//! 2. *Grant*: the lease is the durable intent of the computer (I3); the launch message waits for it.
//! 3. *Launch*: one message under the run's id, which the backend takes once. If its answer is lost, `attach`
//!    says whether it arrived; so nothing runs twice.
//! 4. *Keep*: outputs and files are in the object store before any row names them.
//! 5. *Revoke, conclude*: authority ends first (I4), then the result is fixed; both are handed in together and
//!    usually committed together. At this moment every process of the run is dead already, since the
//!    backend tells the end only then, and it takes no further order for it. The caller is answered.
//! 6. *Seal*: removal was observed; inventory, last events and statement close the chain.
//!
//! A task that dies at any point is taken up by [`super::recover`] at the state its row shows.

mod adopt;
mod code;
mod end;
mod launch;
mod pull;
mod watch;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::execution::Execution;
use leasehold_backend::seam::Backend;
use leasehold_core::digest::Digest;
use leasehold_core::end::{CancelledBy, EndReason};
use leasehold_core::error::PublicError;
use leasehold_core::event::RunFact;
use leasehold_core::id::{LeaseId, RunId, WorkerId};
use leasehold_core::lease::{Epoch, Lease, LeaseState};
use leasehold_core::outcome::{Outcome, RunState};
use leasehold_core::record::RunRecord;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Engine;
use super::descriptors;
use super::floor::Turn;
use super::live::{Live, Note};
use super::metrics::count;
use super::pen::{Pen, Stop, Write};
use crate::plan::Plan;

/// Most launches of one run that a manifest may ask for.
pub(crate) const ATTEMPTS_MAX: u32 = 5;

/// Pause before it is begun again, once for each time it was begun.
const BETWEEN: Duration = Duration::from_millis(500);

/// Where a task begins.
#[derive(Debug)]
pub(crate) enum Begin {
    /// It waits for its turn, so many before it.
    Wait(u32, oneshot::Receiver<Turn>),
    /// It has its turn, and its lease where that was granted with its admission.
    Turn(Option<Lease>, descriptors::Held),
    /// An equal run of a pure tool came to this before.
    Cached(RunId, Box<Outcome>),
    /// It had a lease when the process before this one ended.
    Adopt(Lease),
    /// Its outcome is fixed; the lease, if it had one, is to be closed.
    Settle(Option<Lease>),
}

impl Begin {
    /// A turn that came already is taken.
    pub(crate) fn at_once(self) -> Self {
        match self {
            Self::Wait(ahead, mut turn) => match turn.try_recv() {
                Ok(Turn::Go(room)) => Self::Turn(None, room),
                Ok(told) => {
                    let (again, turn) = oneshot::channel();
                    let _ = again.send(told);
                    Self::Wait(ahead, turn)
                }
                Err(_) => Self::Wait(ahead, turn),
            },
            other => other,
        }
    }
}

/// A lease under the epoch after this one.
pub(crate) fn lease(run: &RunId, epoch: Epoch, worker: WorkerId, expires_unix_ms: u64) -> Lease {
    let epoch = epoch.next();
    // Unique because the run and the epoch are; nothing is hidden behind it.
    let digest = Digest::of(format!("{run}/{}", epoch.0).as_bytes());
    let mut entropy = [0; 13];
    entropy.copy_from_slice(&digest.bytes()[..13]);
    Lease {
        id: LeaseId::from_entropy(&entropy),
        run: run.clone(),
        worker,
        epoch,
        sandbox: None,
        expires_unix_ms,
        state: LeaseState::Active,
    }
}

/// One run being carried.
pub(crate) struct Task {
    engine: Arc<Engine>,
    live: Arc<Live>,
    pen: Pen,
    plan: Arc<Plan>,
    /// The host directory of the workspace, where a local caller gave one.
    directory: Option<OwnedFd>,
    lease: Option<Lease>,
    /// When the allocation ends, whatever happens.
    deadline: Instant,
    /// Which launch this is, from 1.
    attempt: u32,
    /// Why we ended it ourselves, where the backend cannot know.
    verdict: Option<EndReason>,
    /// What this launch came to is in the chain already, but for how it ended.
    told: bool,
    /// Bytes of its input that the backend gives it by itself.
    fed: Option<u64>,
    /// A tree may have been unpacked for it.
    unpacked: bool,
    since: Instant,
    /// Numbers for what is opened for it, until it has begun.
    room: descriptors::Held,
}

/// Leaves the floor with the task, however that ends.
struct Leaving {
    engine: Arc<Engine>,
    live: Arc<Live>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let run = &self.live.run;
        let now = self.engine.parts.clock.elapsed();
        self.engine.floor.remove(run, now);
        self.engine.floor.finish(run, now);
        if std::thread::panicking() {
            self.engine.fell(run);
        }
        self.engine.forget(run);
        if self.live.row().state != RunState::Sealed {
            self.engine.drop_run(run);
        }
        self.live.see(|seen| seen.left = true);
    }
}

/// The end of a run that never began.
struct Unbegun {
    end: EndReason,
    /// Why there is no code of the module it was to run, where that is why.
    uncompiled: Option<String>,
}

impl From<EndReason> for Unbegun {
    fn from(end: EndReason) -> Self {
        let uncompiled = None;
        Self { end, uncompiled }
    }
}

/// How an attempt to begin it went.
enum Went {
    /// It runs, or is over and its record is there.
    Follow(Box<Execution>),
    /// No computer of it exists.
    Never(Unbegun),
    /// None exists, since none can be made for now.
    NotNow(EndReason),
    /// Nobody can say what became of it.
    Unknown,
}

/// How following it went.
enum Watched {
    /// The backend says that it is over.
    Ended(Box<RunRecord>),
    /// The backend knows nothing of it any more.
    Lost,
}

/// The id under which a launch is known to the backend. The first is the run's own.
pub(crate) fn backend_run(run: &RunId, attempt: u32) -> RunId {
    if attempt <= 1 {
        return run.clone();
    }
    let digest = Sha256::digest(format!("{run}/{attempt}"));
    let mut entropy = [0; 13];
    entropy.copy_from_slice(&digest[..13]);
    RunId::from_entropy(&entropy)
}

impl Task {
    pub(crate) fn new(
        engine: Arc<Engine>,
        live: Arc<Live>,
        plan: Arc<Plan>,
        directory: Option<OwnedFd>,
    ) -> Self {
        let pen = Pen::new(Arc::clone(&engine), &live.row());
        let now = Instant::now();
        let unpacked = !plan.start.workspace.is_empty();
        Self {
            engine,
            live,
            pen,
            plan,
            directory,
            lease: None,
            deadline: now + Duration::from_secs(86_400),
            attempt: 1,
            verdict: None,
            told: false,
            fed: None,
            unpacked,
            since: now,
            room: descriptors::Held::default(),
        }
    }

    fn id(&self) -> RunId {
        backend_run(&self.live.run, self.attempt)
    }

    /// Where it runs: what its contract says, whoever carries it.
    fn backend(&self) -> Result<&Arc<dyn Backend>, PublicError> {
        let name = &self.plan.contract.selected.backend;
        self.engine.parts.backends.named(name)
    }

    /// Passes a wish for its end on; says whether it arrived.
    async fn cancel(&self, by: CancelledBy, at_once: bool) -> bool {
        let arrived = match self.backend() {
            Ok(backend) => backend.cancel(self.id(), by, at_once).await.is_ok(),
            // There is nothing of it that could be reached.
            Err(_) => true,
        };
        if !arrived {
            count(&self.engine.metrics.backend_errors);
        }
        arrived
    }

    /// Carries it to its seal.
    pub(crate) async fn carry(mut self, begin: Begin) {
        let _leaving = Leaving {
            engine: Arc::clone(&self.engine),
            live: Arc::clone(&self.live),
        };
        if let Err(stop) = self.whole(begin).await {
            self.stop(stop).await;
        }
    }

    /// It may not be carried on: its computer is ended and nothing more is written.
    async fn stop(&mut self, stop: Stop) {
        let run = self.live.run.clone();
        if self.lease.is_some() {
            self.cancel(CancelledBy::Operator, true).await;
        }
        match stop {
            Stop::Fenced => {
                count(&self.engine.metrics.fenced);
                tracing::warn!(%run, "the right to a run has passed on; its computer is ended");
            }
            Stop::Refused(error) => {
                tracing::error!(%run, %error, "a run is stuck: the store refuses what must be written");
                self.engine.quarantine(run, error.to_string());
            }
        }
    }

    async fn whole(&mut self, begin: Begin) -> Result<(), Stop> {
        let mut went = match begin {
            Begin::Wait(ahead, turn) => match self.wait(ahead, turn).await? {
                None => self.allocate().await?,
                Some(end) => Went::Never(end.into()),
            },
            Begin::Turn(lease, room) => {
                self.room = room;
                self.engine.metrics.waited.add(Duration::ZERO);
                match lease {
                    None => self.allocate().await?,
                    Some(lease) => {
                        let hard = self.plan.contract.allocation.hard_deadline_ms;
                        self.deadline = Instant::now() + Duration::from_millis(hard);
                        self.lease = Some(lease);
                        self.launch().await?
                    }
                }
            }
            Begin::Cached(from, outcome) => return self.end_cached(from, *outcome).await,
            Begin::Adopt(lease) => self.adopt(lease).await?,
            Begin::Settle(lease) => return self.settle(lease).await,
        };
        self.room = descriptors::Held::default();
        loop {
            let mut execution = match went {
                Went::Follow(execution) => execution,
                Went::Never(end) => return self.end_without(end, true).await,
                Went::NotNow(end) => {
                    if !self.may_begin_again() {
                        return self.end_without(end, true).await;
                    }
                    tokio::time::sleep(BETWEEN * self.attempt).await;
                    went = self.begin_again().await?;
                    continue;
                }
                Went::Unknown => return self.end_without(EndReason::HostLost, false).await,
            };
            let record = match self.watch(&mut execution).await? {
                Watched::Ended(record) => record,
                Watched::Lost => return self.end_without(EndReason::HostLost, false).await,
            };
            if !self.again(&record) {
                return self.end(record, *execution).await;
            }
            went = self.reschedule(record, *execution).await?;
        }
    }

    /// Waits for its turn; gives why it will never come.
    async fn wait(
        &mut self,
        ahead: u32,
        mut turn: oneshot::Receiver<Turn>,
    ) -> Result<Option<EndReason>, Stop> {
        let told = match turn.try_recv() {
            Ok(told) => Some(told),
            Err(_) => {
                self.live.note(Note::Queued { ahead });
                let fact = RunFact::Queued { ahead };
                self.pen.write(Write::Append, vec![fact]).await?;
                self.wait_on(turn).await
            }
        };
        let waited = self.since.elapsed();
        self.engine.metrics.waited.add(waited);
        Ok(match told {
            Some(Turn::Go(room)) => {
                self.room = room;
                None
            }
            Some(Turn::Expired(what)) => Some(self.waited_for(what)),
            None if self.unwanted() => Some(self.cancelled()),
            None => Some(EndReason::SandboxUnavailable {
                detail: "it lost its place in the queue".to_owned(),
            }),
        })
    }

    /// `None` when its end was asked for, or nobody will tell it any more.
    async fn wait_on(&self, mut turn: oneshot::Receiver<Turn>) -> Option<Turn> {
        let mut wish = self.live.cancel.subscribe();
        let mut overdue = std::pin::pin!(tokio::time::sleep_until(self.longest_wait()));
        loop {
            tokio::select! {
                biased;
                told = &mut turn => return told.ok(),
                _ = wish.wait_for(Option::is_some) => return None,
                () = &mut overdue => {
                    // By the queue's own clock it may be a moment early.
                    self.engine.floor.expire(self.engine.parts.clock.elapsed());
                    overdue.as_mut().reset(Instant::now() + Duration::from_millis(1));
                }
            }
        }
    }

    fn cancelled(&self) -> EndReason {
        let by = self.wished_by();
        EndReason::Cancelled { by }
    }

    /// Who wished for its end.
    fn wished_by(&self) -> CancelledBy {
        let wish = self.live.cancel.borrow();
        wish.as_ref().map_or(CancelledBy::Operator, |wish| wish.by)
    }

    /// Whether its end was asked for.
    fn unwanted(&self) -> bool {
        self.live.cancel.borrow().is_some()
    }

    /// Grants the lease of this attempt and launches it.
    async fn allocate(&mut self) -> Result<Went, Stop> {
        if self.unwanted() {
            return Ok(Went::Never(self.cancelled().into()));
        }
        if let Some(end) = self.compiled().await? {
            return Ok(Went::Never(end));
        }
        if let Some(end) = self.pulled().await? {
            return Ok(Went::Never(end));
        }
        let hard = Duration::from_millis(self.plan.contract.allocation.hard_deadline_ms);
        let expires = self
            .engine
            .parts
            .clock
            .unix_ms()
            .saturating_add(self.plan.contract.allocation.hard_deadline_ms);
        self.deadline = Instant::now() + hard;
        let lease = self.new_lease(expires);
        let fact = RunFact::Leased {
            lease: lease.id.clone(),
            worker: lease.worker.clone(),
        };
        let write = Write::Grant(lease.clone());
        let until = self.longest_wait();
        let cancel = self.live.cancel.subscribe();
        let wanted = || cancel.borrow().is_none() && Instant::now() < until;
        if self.pen.write_while(wanted, write, vec![fact]).await? {
            self.held(lease);
            return self.launch().await;
        }
        let end = match self.unwanted() {
            true => self.cancelled(),
            false => self.waited_for("room on the daemon's disk"),
        };
        Ok(Went::Never(end.into()))
    }

    /// When it has waited for as long as it may.
    fn longest_wait(&self) -> Instant {
        let max = Duration::from_millis(self.plan.contract.max_wait_ms);
        let accepted = self.live.row().accepted_unix_ms;
        let gone = self.engine.parts.clock.unix_ms().saturating_sub(accepted);
        Instant::now() + max.saturating_sub(Duration::from_millis(gone))
    }

    fn waited_for(&self, what: impl std::fmt::Display) -> EndReason {
        let seconds = self.plan.contract.max_wait_ms.div_ceil(1_000);
        EndReason::SandboxUnavailable {
            detail: format!("waited {seconds} s, the longest it may, for {what}"),
        }
    }

    /// A lease under the next epoch.
    fn new_lease(&self, expires_unix_ms: u64) -> Lease {
        let worker = self.engine.parts.worker.clone();
        lease(&self.live.run, self.pen.epoch(), worker, expires_unix_ms)
    }

    /// Makes a lease the one that is held.
    async fn hold(&mut self, lease: Lease, write: Write, fact: RunFact) -> Result<(), Stop> {
        self.pen.write(write, vec![fact]).await?;
        self.held(lease);
        Ok(())
    }

    /// Carries it under a lease that is granted.
    fn held(&mut self, lease: Lease) {
        let epoch = lease.epoch;
        self.lease = Some(lease);
        let head = self.pen.head();
        self.live.see(|seen| {
            seen.row.epoch = epoch;
            seen.row.head = head;
            if seen.row.state == RunState::Queued {
                seen.row.state = RunState::Running;
            }
        });
    }
}
