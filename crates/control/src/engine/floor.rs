//! Where runs wait for their turn: the fair queue, and who is to be told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::id::RunId;
use leasehold_core::name::Name;
use tokio::sync::oneshot;

use super::descriptors::{self, Descriptors};
use super::queue::{Bounds, FairQueue, Full, Ticket, WaitedFor};
use crate::plan::Share;

/// What a run that waits is told.
#[derive(Debug)]
pub(crate) enum Turn {
    /// It has a computer, and numbers for what it will open.
    Go(descriptors::Held),
    /// It has waited for too long.
    Expired(WaitedFor),
}

#[derive(Debug)]
struct Held {
    queue: FairQueue,
    turns: HashMap<RunId, oneshot::Sender<Turn>>,
    descriptors: Arc<Descriptors>,
    /// Nobody gets a turn any more.
    closed: bool,
}

/// The floor.
#[derive(Debug)]
pub(crate) struct Floor {
    held: Mutex<Held>,
}

impl Floor {
    pub(crate) fn new(bounds: Bounds, descriptors: Arc<Descriptors>) -> Self {
        Self {
            held: Mutex::new(Held {
                queue: FairQueue::new(bounds),
                turns: HashMap::new(),
                descriptors,
                closed: false,
            }),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Nothing panics while it holds this lock.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says whether there is but one tenant.
    pub(crate) fn set_alone(&self, alone: bool) {
        self.held().queue.set_alone(alone);
    }

    /// Keeps a place for a run that is about to be admitted.
    pub(crate) fn reserve(
        &self,
        tenant: &Name,
        share: &Share,
        bytes: u64,
        now: Duration,
    ) -> Result<(), Full> {
        self.held().queue.reserve(tenant, share, bytes, now)
    }

    /// Gives a kept place back.
    pub(crate) fn give_back(&self, tenant: &Name, bytes: u64, now: Duration) {
        self.held().queue.give_back(tenant, bytes, now);
    }

    /// Takes a place for a run that was admitted before this process.
    pub(crate) fn force(&self, tenant: &Name, bytes: u64) {
        self.held().queue.force(tenant, bytes);
    }

    /// Lets a run wait at its place. Gives how many are before it and how it is told.
    pub(crate) fn wait(&self, ticket: Ticket, now: Duration) -> (u32, oneshot::Receiver<Turn>) {
        let (sender, receiver) = oneshot::channel();
        let mut held = self.held();
        held.turns.insert(ticket.run.clone(), sender);
        let ahead = held.queue.push(ticket);
        held.go(now);
        (ahead, receiver)
    }

    /// Takes up a run that holds a computer already.
    pub(crate) fn hold(&self, ticket: &Ticket, now: Duration) {
        self.held().queue.hold(ticket, now);
    }

    /// A run holds its computer no more.
    pub(crate) fn finish(&self, run: &RunId, now: Duration) {
        let mut held = self.held();
        held.queue.finish(run, now);
        held.go(now);
    }

    /// Takes out a run that waits. Says whether it did.
    pub(crate) fn remove(&self, run: &RunId, now: Duration) -> bool {
        let mut held = self.held();
        held.turns.remove(run);
        held.queue.remove(run, now)
    }

    /// Takes out a run of which nothing came, whether it waits or has its turn.
    pub(crate) fn abandon(&self, run: &RunId, tenant: &Name, now: Duration) {
        let mut held = self.held();
        held.turns.remove(run);
        held.queue.uncount(tenant, now);
        held.queue.remove(run, now);
        held.queue.finish(run, now);
        held.go(now);
    }

    /// Tells every run that has waited for too long.
    pub(crate) fn expire(&self, now: Duration) {
        let mut held = self.held();
        for (run, waited_for) in held.queue.expire(now) {
            if let Some(turn) = held.turns.remove(&run) {
                let _ = turn.send(Turn::Expired(waited_for));
            }
        }
    }

    /// Gives the turns that could not be given for want of descriptors.
    pub(crate) fn look(&self, now: Duration) {
        self.held().go(now);
    }

    /// Gives no more turns.
    pub(crate) fn close(&self) {
        self.held().closed = true;
    }

    /// Runs that hold a computer.
    pub(crate) fn running(&self) -> u32 {
        self.held().queue.held()
    }

    /// Runs that wait and that hold a computer, by tenant.
    pub(crate) fn depths(&self) -> Vec<(Name, u32, u32)> {
        self.held().queue.depths()
    }
}

impl Held {
    /// Tells everybody whose turn it is. Who went away meanwhile gives its computer back.
    fn go(&mut self, now: Duration) {
        while !self.closed
            && self.queue.has_free()
            && let Some(room) = self.descriptors.for_a_run()
            && let Some(run) = self.queue.next(now)
        {
            let told = self.turns.remove(&run);
            let told = told.map(|turn| turn.send(Turn::Go(room)));
            if told.is_none_or(|told| told.is_err()) {
                self.queue.finish(&run, now);
            }
        }
    }
}
