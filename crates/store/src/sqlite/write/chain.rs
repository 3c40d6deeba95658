//! The chain of a run: an event is taken only where it continues what is there.

use leasehold_core::digest::{Digest, canonical};
use leasehold_core::event::{Event, Head, RunFact};
use leasehold_core::id::RunId;
use leasehold_core::lease::Epoch;
use leasehold_core::name::Name;
use leasehold_core::outcome::RunState;
use rusqlite::{Connection, OptionalExtension, params};

use super::super::rows::{self, EVENTS_MAX, event_id, int};
use super::Result;
use crate::seam::StoreError;

/// An event with its canonical form, made before the transaction so that the writer need not.
#[derive(Debug, Clone)]
pub(in crate::sqlite) struct Written {
    event: Event,
    bytes: Vec<u8>,
    digest: Digest,
}

impl Written {
    /// Writes events out.
    pub(in crate::sqlite) fn all(events: Vec<Event>) -> Result<Vec<Self>> {
        events.into_iter().map(Self::new).collect()
    }

    /// Writes one event out.
    pub(in crate::sqlite) fn new(event: Event) -> Result<Self> {
        let bytes = canonical(&event)?;
        let digest = Digest::of(&bytes);
        Ok(Self {
            event,
            bytes,
            digest,
        })
    }

    /// The chain's end after it.
    pub(super) fn head(&self) -> Head {
        Head {
            count: self.event.seq.saturating_add(1),
            digest: self.digest,
        }
    }

    pub(super) fn insert(&self, conn: &Connection, run: i64) -> Result<()> {
        if self.event.seq >= EVENTS_MAX {
            return Err(StoreError::Quota {
                what: "events of a run",
                most: EVENTS_MAX,
            });
        }
        conn.prepare_cached("INSERT INTO events (id, event) VALUES (?, ?)")?
            .execute(params![event_id(run, self.event.seq), self.bytes])?;
        Ok(())
    }
}

/// What the rules need to know of a run.
#[derive(Debug, Clone)]
pub(super) struct Live {
    pub(super) id: i64,
    pub(super) run: RunId,
    pub(super) tenant: Name,
    pub(super) state: RunState,
    pub(super) epoch: Epoch,
    pub(super) head: Head,
    contract: Digest,
    /// Digest of the outcome, once it is fixed.
    pub(super) outcome: Option<Digest>,
}

impl Live {
    /// Reads it.
    pub(super) fn read(conn: &Connection, run: &RunId) -> Result<Self> {
        let mut query = conn.prepare_cached(
            "SELECT id, tenant, state, epoch, head_count, head_digest, contract_digest, outcome FROM runs WHERE run = ?",
        )?;
        let mut found = query.query([run.as_str()])?;
        let row = found.next()?.ok_or(StoreError::NotFound("run"))?;
        let outcome: Option<String> = row.get(7)?;
        Ok(Self {
            id: row.get(0)?,
            run: run.clone(),
            tenant: rows::name(row, 1)?,
            state: rows::run_state(row, 2)?,
            epoch: Epoch(rows::count(row, 3)?),
            head: rows::head(row, 4)?,
            contract: rows::digest(row, 6)?,
            // Kept in its canonical form.
            outcome: outcome.map(|text| Digest::of(text.as_bytes())),
        })
    }

    /// Refuses a writer of another epoch.
    pub(super) fn fence(&self, given: Epoch) -> Result<()> {
        if given == self.epoch {
            return Ok(());
        }
        Err(StoreError::Fenced {
            given,
            present: self.epoch,
        })
    }

    /// The refusal of something that its state does not allow.
    pub(super) fn wrong_state<T>(&self) -> Result<T> {
        Err(StoreError::WrongState {
            what: "run",
            state: self.state.word(),
        })
    }

    /// Appends events and moves the head; notes the sandbox where one is in them.
    pub(super) fn extend(&mut self, conn: &Connection, events: &[Written]) -> Result<()> {
        for written in events {
            let event = &written.event;
            let continues = event.run == self.run
                && event.epoch == self.epoch
                && event.seq == self.head.count
                && event.prev == self.head.digest
                && event.contract == self.contract
                && self.allows(&event.fact);
            if !continues {
                return Err(StoreError::Fork);
            }
            written.insert(conn, self.id)?;
            self.head = written.head();
            if let RunFact::Allocated { sandbox, .. } = &event.fact {
                conn.prepare_cached("UPDATE runs SET sandbox = ? WHERE id = ?")?
                    .execute(params![sandbox.as_str(), self.id])?;
                conn.prepare_cached(
                    "UPDATE leases SET sandbox = ? WHERE run = ? AND state <> 'closed'",
                )?
                .execute(params![sandbox.as_str(), self.id])?;
            }
        }
        conn.prepare_cached("UPDATE runs SET head_count = ?, head_digest = ? WHERE id = ?")?
            .execute(params![
                int(self.head.count),
                self.head.digest.to_string(),
                self.id
            ])?;
        Ok(())
    }

    /// A run is accepted once, and what it came to is what was fixed.
    fn allows(&self, fact: &RunFact) -> bool {
        match fact {
            RunFact::Accepted { .. } => false,
            RunFact::Concluded { outcome } => self.outcome == Some(*outcome),
            _ => true,
        }
    }

    /// The active lease, if there is one.
    pub(super) fn active_lease(&self, conn: &Connection) -> Result<Option<String>> {
        Ok(conn
            .prepare_cached("SELECT lease FROM leases WHERE run = ? AND state = 'active'")?
            .query_row([self.id], |row| row.get(0))
            .optional()?)
    }
}
