//! A run that had a lease when the process before this one ended.

use std::time::Duration;

use leasehold_core::end::EndReason;
use leasehold_core::event::RunFact;
use leasehold_core::lease::{Lease, LeaseState};
use leasehold_store::seam::PAGE_MAX;
use tokio::time::Instant;

use super::super::metrics::count;
use super::super::pen::{Stop, Write};
use super::launch::Found;
use super::{ATTEMPTS_MAX, Task, Went, backend_run};

/// What the chain of a run says of its newest launch.
struct Past {
    /// The computer and what it left, which are told when the run is over.
    told: bool,
    /// The input was given, or there is none.
    input_given: bool,
}

impl Task {
    /// Takes it up under the next epoch: where the backend knows it, it is followed or its record taken;
    /// where it does not, the launch never arrived and is made now. It is never begun twice.
    pub(super) async fn adopt(&mut self, before: Lease) -> Result<Went, Stop> {
        let now = self.engine.parts.clock.unix_ms();
        let left = Duration::from_millis(before.expires_unix_ms.saturating_sub(now));
        self.deadline = Instant::now() + left;
        // Until the new lease is there, the old one is what is held.
        self.lease = Some(before.clone());
        let own = self.is_own();
        let found = self.find_any().await;
        let lease = self.new_lease(before.expires_unix_ms);
        let worker = lease.worker.clone();
        let fact = match &found {
            Found::There(_) => RunFact::Adopted { worker },
            Found::Never | Found::Unreachable => RunFact::Leased {
                lease: lease.id.clone(),
                worker,
            },
        };
        let write = match before.state {
            LeaseState::Active => Write::TakeOver(lease.clone()),
            LeaseState::Revoked | LeaseState::Closed => Write::Grant(lease.clone()),
        };
        self.hold(lease, write, fact).await?;
        count(&self.engine.metrics.adopted);
        match found {
            Found::There(execution) => {
                let past = self.past().await?;
                self.told = past.told;
                if !past.input_given {
                    // It may have read half of its input and taken that for all of it.
                    self.verdict = Some(EndReason::HostLost);
                }
                Ok(Went::Follow(Box::new(self.take_up(*execution))))
            }
            Found::Never if own => self.launch().await,
            // It may have begun at a worker that cannot be asked any more.
            Found::Never if self.may_begin_again() => self.begin_again().await,
            Found::Never | Found::Unreachable => Ok(Went::Unknown),
        }
    }

    /// Whether what is held was granted to this worker.
    pub(super) fn is_own(&self) -> bool {
        let worker = &self.engine.parts.worker;
        self.lease
            .as_ref()
            .is_none_or(|lease| lease.worker == *worker)
    }

    /// Looks for the newest launch of it.
    pub(super) async fn find_any(&mut self) -> Found {
        let most = self.plan.contract.attempts.clamp(1, ATTEMPTS_MAX);
        for attempt in (1..=most).rev() {
            match self
                .find(&backend_run(&self.live.run, attempt), false)
                .await
            {
                Found::Never => {}
                found => {
                    self.attempt = attempt;
                    return found;
                }
            }
        }
        self.attempt = 1;
        Found::Never
    }

    /// What the chain says of the launch that is taken up.
    async fn past(&self) -> Result<Past, Stop> {
        let stdin = self.plan.start.stdin.as_ref();
        let mut past = Past {
            told: false,
            input_given: stdin.is_none_or(Vec::is_empty),
        };
        let mut from = 0;
        loop {
            let run = self.live.run.clone();
            let events = self.engine.parts.store.events(run, from).await;
            let events = events.map_err(Stop::Refused)?;
            for event in &events {
                match event.fact {
                    RunFact::InputGiven { .. } => past.input_given = true,
                    // Each launch begins with a lease.
                    RunFact::Leased { .. } => past.told = false,
                    RunFact::Allocated { .. } => past.told = true,
                    _ => {}
                }
            }
            if events.len() < PAGE_MAX as usize {
                return Ok(past);
            }
            from += events.len() as u64;
        }
    }
}
