//! Writes what happens in one run into the store, in order, under the epoch of its lease.
//!
//! Whoever carries a run holds its one pen. A write whose answer was lost is settled by reading the end of
//! the chain: it carries the digest of what was to be written, so it says whether that is there. A pen whose
//! epoch is not the present one has lost the right to the run; its holder must stop what it does.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::event::{Chain, Event, Head, RunFact};
use leasehold_core::id::{LeaseId, RunId};
use leasehold_core::lease::{Epoch, Lease};
use leasehold_core::outcome::Outcome;
use leasehold_core::record::Observed;
use leasehold_store::seam::{RunRow, Sealing, StoreError};

use super::Engine;
use super::metrics::count;

/// First pause after a write that the store did not do, doubled up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// So often a write may be refused that should be taken.
const REFUSALS_MAX: u32 = 3;

/// One write of a run.
#[derive(Debug, Clone)]
pub(crate) enum Write {
    /// Events alone.
    Append,
    /// The first lease, or one after an earlier one was revoked.
    Grant(Lease),
    /// A lease in place of the one that is active.
    TakeOver(Lease),
    /// The end of authority.
    Revoke(LeaseId),
    /// The outcome.
    Conclude(Box<Outcome>),
    /// The end of it all.
    Seal {
        lease: Option<LeaseId>,
        observed: Observed,
        statement: String,
    },
}

impl Write {
    fn point(&self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Grant(_) => "grant",
            Self::TakeOver(_) => "take_over",
            Self::Revoke(_) => "revoke",
            Self::Conclude(_) => "conclude",
            Self::Seal { .. } => "seal",
        }
    }
}

/// Why a run cannot be carried any further by this holder.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The right to it has passed on.
    Fenced,
    /// The store will not take what must be written; trying again would not help.
    Refused(StoreError),
}

/// The pen of one run.
pub(crate) struct Pen {
    engine: Arc<Engine>,
    run: RunId,
    chain: Chain,
    epoch: Epoch,
    /// The time the next events carry, once it was said where they lead.
    promised_unix_ms: Option<u64>,
}

/// A write and its events, ready to be sent, and where the chain is after it.
struct Draft {
    write: Write,
    events: Vec<Event>,
    head: Head,
}

impl Pen {
    /// A pen that goes on from where the row says the chain is.
    pub(crate) fn new(engine: Arc<Engine>, row: &RunRow) -> Self {
        Self {
            engine,
            run: row.run.clone(),
            chain: Chain::new(row.run.clone(), row.contract, row.head),
            epoch: row.epoch,
            promised_unix_ms: None,
        }
    }

    /// Under which epoch it writes.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Where the chain is.
    pub(crate) fn head(&self) -> Head {
        self.chain.head()
    }

    /// Where the chain will be after these facts, if they are the next that are written.
    pub(crate) fn head_after(&mut self, facts: &[RunFact]) -> Result<Head, Stop> {
        self.promised_unix_ms = Some(self.engine.parts.clock.unix_ms());
        let mut chain = self.chain.clone();
        self.events(&mut chain, facts.to_vec())?;
        Ok(chain.head())
    }

    fn events(&self, chain: &mut Chain, facts: Vec<RunFact>) -> Result<Vec<Event>, Stop> {
        let now = || self.engine.parts.clock.unix_ms();
        let at = self.promised_unix_ms.unwrap_or_else(now);
        let event = |fact| chain.next(self.epoch, at, fact);
        let events: Result<Vec<Event>, _> = facts.into_iter().map(event).collect();
        // Facts are values of closed types; a text that is none cannot be in them.
        events.map_err(|_| Stop::Refused(StoreError::Fork))
    }

    /// Does one write.
    pub(crate) async fn write(&mut self, write: Write, facts: Vec<RunFact>) -> Result<(), Stop> {
        self.write_all(vec![(write, facts)]).await
    }

    /// Does one write, or gives it up when nothing of it is there after a failure and nobody wants it any more.
    /// Says whether it is done.
    pub(crate) async fn write_while(
        &mut self,
        wanted: impl Fn() -> bool,
        write: Write,
        facts: Vec<RunFact>,
    ) -> Result<bool, Stop> {
        self.write_wanted(wanted, vec![(write, facts)]).await
    }

    /// Does several writes in this order, handed in together so that the store can commit them together.
    pub(crate) async fn write_all(
        &mut self,
        writes: Vec<(Write, Vec<RunFact>)>,
    ) -> Result<(), Stop> {
        self.write_wanted(|| true, writes).await.map(|_| ())
    }

    async fn write_wanted(
        &mut self,
        wanted: impl Fn() -> bool,
        writes: Vec<(Write, Vec<RunFact>)>,
    ) -> Result<bool, Stop> {
        let (before, epoch) = (self.chain.head(), self.epoch);
        let mut chain = self.chain.clone();
        let mut drafts = Vec::with_capacity(writes.len());
        for (write, facts) in writes {
            if let Write::Grant(lease) | Write::TakeOver(lease) = &write {
                self.epoch = lease.epoch;
            }
            let events = self.events(&mut chain, facts)?;
            drafts.push(Draft {
                write,
                events,
                head: chain.head(),
            });
        }
        let mut done = 0;
        let mut pause = PAUSE;
        let mut refusals = 0;
        while done < drafts.len() {
            let Err(error) = self.send(&drafts[done..]).await else {
                break;
            };
            if matches!(error, StoreError::Fenced { .. }) {
                return Err(Stop::Fenced);
            }
            count(&self.engine.metrics.store_errors);
            let reached = self.reached(before, &drafts, &mut pause).await?;
            let refused = !matches!(error, StoreError::Engine(_) | StoreError::Unwritable(_));
            refusals = if refused && reached == done {
                refusals + 1
            } else {
                0
            };
            if refusals == REFUSALS_MAX {
                return Err(Stop::Refused(error));
            }
            done = reached;
            if done == 0 && !wanted() {
                self.epoch = epoch;
                return Ok(false);
            }
        }
        self.chain = chain;
        self.promised_unix_ms = None;
        Ok(true)
    }

    /// Hands in every draft at once and gives the first failure.
    async fn send(&self, drafts: &[Draft]) -> Result<(), StoreError> {
        match drafts {
            [one] => self.send_one(one).await,
            [first, second] if !self.engine.failpoints().armed() => {
                // Polled in this order, so they arrive in this order.
                let both = tokio::join!(biased; self.send_one(first), self.send_one(second));
                both.0.and(both.1)
            }
            many => {
                for draft in many {
                    self.send_one(draft).await?;
                }
                Ok(())
            }
        }
    }

    async fn send_one(&self, draft: &Draft) -> Result<(), StoreError> {
        let store = &self.engine.parts.store;
        let point = draft.write.point();
        self.engine.failpoints().before(point);
        let events = draft.events.clone();
        let (run, epoch) = (self.run.clone(), self.epoch);
        match draft.write.clone() {
            Write::Append => store.append(run, epoch, events).await?,
            Write::Grant(lease) => store.grant(lease, first(events)?).await?,
            Write::TakeOver(lease) => store.take_over(lease, first(events)?).await?,
            Write::Revoke(lease) => store.revoke(lease, events).await?,
            Write::Conclude(outcome) => store.conclude(run, epoch, *outcome, events).await?,
            Write::Seal {
                lease,
                observed,
                statement,
            } => {
                let at_unix_ms = self.engine.parts.clock.unix_ms();
                let sealing = Sealing {
                    run,
                    epoch,
                    observed,
                    events,
                    statement,
                    at_unix_ms,
                };
                store.seal(lease, sealing).await?;
            }
        }
        self.engine.failpoints().after(point);
        Ok(())
    }

    /// How many of the drafts are in the store; asked until it answers.
    async fn reached(
        &self,
        before: Head,
        drafts: &[Draft],
        pause: &mut Duration,
    ) -> Result<usize, Stop> {
        loop {
            tokio::time::sleep(*pause).await;
            *pause = (*pause * 2).min(PAUSE_MAX);
            let row = match self.engine.parts.store.run(None, self.run.clone()).await {
                Ok(row) => row,
                Err(StoreError::NotFound(_)) => return Err(Stop::Fenced),
                Err(StoreError::Damaged(detail)) => {
                    return Err(Stop::Refused(StoreError::Damaged(detail)));
                }
                Err(_) => continue,
            };
            if let Some(at) = drafts.iter().rposition(|draft| draft.head == row.head) {
                return Ok(at + 1);
            }
            if row.head == before {
                return Ok(0);
            }
            // Somebody else wrote on.
            return Err(Stop::Fenced);
        }
    }
}

/// The one event of a lease.
fn first(events: Vec<Event>) -> Result<Event, StoreError> {
    events.into_iter().next().ok_or(StoreError::Fork)
}
