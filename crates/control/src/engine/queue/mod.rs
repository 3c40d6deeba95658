//! Who goes next: fair between tenants, by priority within one, never above a cap.
//!
//! A pure data structure: it is told the time and starts nothing. Between tenants it is start-time fair
//! queueing: each tenant has a place in virtual time that advances by the time its runs hold a computer,
//! divided by its weight; the tenant that is furthest behind goes next. A tenant that was idle begins at the
//! present of virtual time, so that nobody saves up. What a run will cost is not known when it starts: it is
//! charged what the tenant's runs took of late, and put right when it ends, so that a tenant with long runs
//! gets no more of the computers than one with many short ones.
//!
//! A run that holds a computer is not pushed out, so that weights alone would let one tenant with long runs have
//! every computer for as long as those take. The last few are therefore for tenants that hold none
//! ([`Bounds::spare`]), where there is more than one tenant.
//!
//! Within a tenant one step of priority is worth ten seconds of waiting, so that no run waits for ever.
//! A run whose tool is at its cap holds up no run of another tool.

mod lane;
mod rate;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_core::name::Name;

use self::lane::Lane;
use crate::plan::Share;

/// One step of priority in microseconds of waiting.
const STEP_MICROS: i64 = 10_000_000;
/// Steps of priority above and below the ordinary.
const STEPS_MAX: i32 = 1_000;
/// Longest pause that a refused caller is told.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What holds for all tenants together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Most runs that hold a computer at once.
    pub running_max: u32,
    /// Most runs that wait.
    pub queued_max: u32,
    /// So many of the last free computers go to tenants that hold none.
    pub spare: u32,
}

impl Bounds {
    /// Of a host with so many computers, of which the last eighth is spare: none of less than eight.
    #[must_use]
    pub fn new(running_max: u32, queued_max: u32) -> Self {
        Self {
            running_max,
            queued_max,
            spare: running_max / 8,
        }
    }
}

/// A run that wants a computer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) run: RunId,
    pub(crate) tenant: Name,
    pub(crate) share: Share,
    /// Higher goes first; within [`STEPS_MAX`].
    pub(crate) priority: i32,
    /// When it began to wait.
    pub(crate) since: Duration,
    /// When it has waited for too long.
    pub(crate) until: Duration,
    /// Bytes of its request that are kept until it ends.
    pub(crate) bytes: u64,
}

/// Place within a tenant: the smaller goes first.
type Rank = (i64, u64);

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    rank: Rank,
}

#[derive(Debug)]
struct Held {
    tenant: Name,
    tool: Option<Name>,
    since: Duration,
    charged: u64,
    weight: u32,
    bytes: u64,
}

/// What a run waited for that waited too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitedFor {
    /// Runs of its own tenant.
    Tenant(u32),
    /// Runs of its own tool.
    Tool(Name, u32),
    /// Any computer.
    Computer(u32),
    /// Numbers for what the daemon opens for it.
    Descriptors,
}

impl std::fmt::Display for WaitedFor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tenant(most) => write!(
                out,
                "one of the {most} runs the tenant may have at once (share.running)"
            ),
            Self::Tool(tool, most) => {
                write!(
                    out,
                    "one of the {most} runs tool `{tool}` may have at once (share.tool_running)"
                )
            }
            Self::Computer(most) => write!(
                out,
                "one of the {most} computers of this host (running_max)"
            ),
            Self::Descriptors => write!(out, "descriptors of the daemon, which has too few"),
        }
    }
}

/// Why a run is not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Full {
    /// So many of the tenant wait already.
    Tenant(u32, Duration),
    /// So many wait already in all.
    Host(u32, Duration),
    /// So many of the tenant were admitted in the last minute.
    Rate(u32, Duration),
    /// So many bytes of the tenant's requests are kept already, of at most so many.
    Bytes(u64, u64, Duration),
    /// The request alone has so many bytes, more than may ever be kept: waiting does not help.
    TooLarge(u64, u64),
}

impl Full {
    /// In words for the caller.
    pub(crate) fn public(&self) -> PublicError {
        let bytes = leasehold_core::quantity::write_bytes;
        let (kind, message, after) = match self {
            Self::Tenant(most, after) => (
                ErrorKind::Quota,
                format!("the queue of the tenant is full: {most} runs wait (share.queued)"),
                after,
            ),
            Self::Host(most, after) => (
                ErrorKind::Quota,
                format!("the queue is full: {most} runs wait"),
                after,
            ),
            Self::Rate(most, after) => (
                ErrorKind::Quota,
                format!("the tenant may start {most} runs in a minute and has (share.per_minute)"),
                after,
            ),
            Self::TooLarge(has, most) => {
                return PublicError::new(
                    ErrorKind::Invalid,
                    format!(
                        "the request has {} of input, variables and arguments: at most {} may be kept (share.request_bytes)",
                        bytes(*has),
                        bytes(*most)
                    ),
                )
                .hint("upload large input and start with it as the workspace");
            }
            Self::Bytes(kept, most, after) => (
                ErrorKind::Quota,
                format!(
                    "the requests of the tenant's runs that wait or run have {} of input, variables and arguments: at most {} may be kept (share.request_bytes)",
                    bytes(*kept),
                    bytes(*most)
                ),
                after,
            ),
        };
        let after = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        PublicError::new(kind, message)
            .hint(format!("try again after {} s", after.div_ceil(1_000)))
            .retry_after_ms(after)
    }
}

/// The queue.
#[derive(Debug)]
pub(crate) struct FairQueue {
    bounds: Bounds,
    /// There is one tenant and no other that could come.
    alone: bool,
    lanes: BTreeMap<Name, Lane>,
    now_virtual: u64,
    waiting: HashMap<RunId, Waiting>,
    running: HashMap<RunId, Held>,
    until: BTreeSet<(Duration, RunId)>,
    arrivals: u64,
    /// Places that are kept for runs on their way in, with those that wait.
    queued: u32,
}

impl FairQueue {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            alone: false,
            lanes: BTreeMap::new(),
            now_virtual: 0,
            waiting: HashMap::new(),
            running: HashMap::new(),
            until: BTreeSet::new(),
            arrivals: 0,
            queued: 0,
        }
    }

    /// Says whether there is but one tenant, for which no place needs to be kept free of itself.
    pub(crate) fn set_alone(&mut self, alone: bool) {
        self.alone = alone;
    }

    /// Keeps a place for a run that is about to be admitted. To be followed by [`FairQueue::push`] or
    /// [`FairQueue::give_back`].
    pub(crate) fn reserve(
        &mut self,
        tenant: &Name,
        share: &Share,
        bytes: u64,
        now: Duration,
    ) -> Result<(), Full> {
        let free = self.free();
        if self.queued >= self.bounds.queued_max.saturating_add(free) {
            return Err(Full::Host(self.bounds.queued_max, Duration::from_secs(1)));
        }
        let most = share.tenant_request_bytes_max;
        if bytes > most {
            return Err(Full::TooLarge(bytes, most));
        }
        let lane = self.lanes.entry(tenant.clone()).or_default();
        if lane.bytes.saturating_add(bytes) > most {
            return Err(Full::Bytes(lane.bytes, most, Duration::from_secs(1)));
        }
        let free = free.min(share.tenant_running_max.saturating_sub(lane.running));
        if lane.queued >= share.tenant_queued_max.saturating_add(free) {
            let turns = u64::from(lane.queued / share.tenant_running_max.max(1)).max(1);
            let after = Duration::from_micros(lane.usual_micros.saturating_mul(turns));
            let after = after.clamp(Duration::from_secs(1), RETRY_MAX);
            return Err(Full::Tenant(share.tenant_queued_max, after));
        }
        lane.rate
            .take(now, share.per_minute_max)
            .map_err(|after| Full::Rate(share.per_minute_max, after))?;
        lane.bytes += bytes;
        lane.queued += 1;
        self.queued += 1;
        Ok(())
    }

    /// Gives a place back: nothing came of the run.
    pub(crate) fn give_back(&mut self, tenant: &Name, bytes: u64, now: Duration) {
        if let Some(lane) = self.lanes.get_mut(tenant) {
            lane.rate.give_back(now);
            lane.bytes = lane.bytes.saturating_sub(bytes);
            lane.queued = lane.queued.saturating_sub(1);
            self.queued = self.queued.saturating_sub(1);
        }
        self.tidy(tenant, now);
    }

    /// Takes an admission back out of the rate: nothing came of the run.
    pub(crate) fn uncount(&mut self, tenant: &Name, now: Duration) {
        if let Some(lane) = self.lanes.get_mut(tenant) {
            lane.rate.give_back(now);
        }
    }

    /// Takes the place of a run that was admitted before this process: it is in, whatever the bounds.
    pub(crate) fn force(&mut self, tenant: &Name, bytes: u64) {
        let lane = self.lanes.entry(tenant.clone()).or_default();
        lane.queued += 1;
        lane.bytes += bytes;
        self.queued += 1;
    }

    /// Puts a run in at the place that was kept for it. Gives how many of its tenant are before it.
    pub(crate) fn push(&mut self, ticket: Ticket) -> u32 {
        self.arrivals += 1;
        let steps = i64::from(ticket.priority.clamp(-STEPS_MAX, STEPS_MAX));
        let since = i64::try_from(ticket.since.as_micros()).unwrap_or(i64::MAX);
        let rank = (since.saturating_sub(steps * STEP_MICROS), self.arrivals);
        let lane = self.lanes.entry(ticket.tenant.clone()).or_default();
        let ahead = lane.insert(&ticket, rank);
        self.until.insert((ticket.until, ticket.run.clone()));
        let run = ticket.run.clone();
        self.waiting.insert(run, Waiting { ticket, rank });
        ahead
    }

    /// Takes up a run that holds a computer since before this process.
    pub(crate) fn hold(&mut self, ticket: &Ticket, now: Duration) {
        let lane = self.lanes.entry(ticket.tenant.clone()).or_default();
        lane.bytes += ticket.bytes;
        let held = lane.begin(ticket, self.now_virtual, now);
        self.running.insert(ticket.run.clone(), held.0);
    }

    /// Computers that nobody holds.
    fn free(&self) -> u32 {
        self.bounds.running_max.saturating_sub(self.held())
    }

    /// Whether so few are free that they are for tenants that hold none.
    fn is_scarce(&self, free: u32) -> bool {
        !self.alone && free <= self.bounds.spare
    }

    /// Whether somebody waits while a computer is free.
    pub(crate) fn has_free(&self) -> bool {
        !self.waiting.is_empty() && self.free() > 0
    }

    /// The next run that may have a computer; it has one from now on.
    pub(crate) fn next(&mut self, now: Duration) -> Option<RunId> {
        let free = self.free();
        if free == 0 {
            return None;
        }
        let scarce = self.is_scarce(free);
        let present = self.now_virtual;
        let lanes = self.lanes.iter();
        let lanes = lanes.filter(|(_, lane)| !scarce || lane.running == 0);
        let open = lanes.filter_map(|(tenant, lane)| {
            let (rank, run) = lane.head()?;
            Some((lane.start(present), rank, tenant, run))
        });
        let (_, _, _, run) = open.min()?;
        let run = run.clone();
        let waiting = self.forget(&run)?;
        let lane = self.lanes.get_mut(&waiting.ticket.tenant)?;
        let (held, start) = lane.begin(&waiting.ticket, present, now);
        self.now_virtual = present.max(start);
        self.running.insert(run.clone(), held);
        Some(run)
    }

    /// A run holds its computer no more.
    pub(crate) fn finish(&mut self, run: &RunId, now: Duration) {
        let Some(held) = self.running.remove(run) else {
            return;
        };
        if let Some(lane) = self.lanes.get_mut(&held.tenant) {
            lane.end(&held, now);
        }
        self.tidy(&held.tenant, now);
    }

    /// Takes out a run that waits. Says whether it did.
    pub(crate) fn remove(&mut self, run: &RunId, now: Duration) -> bool {
        let Some(waiting) = self.forget(run) else {
            return false;
        };
        if let Some(lane) = self.lanes.get_mut(&waiting.ticket.tenant) {
            lane.bytes = lane.bytes.saturating_sub(waiting.ticket.bytes);
        }
        self.tidy(&waiting.ticket.tenant, now);
        true
    }

    /// Takes out every run that has waited for too long, and says for what.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<(RunId, WaitedFor)> {
        let mut over = Vec::new();
        while let Some((until, run)) = self.until.first() {
            if *until > now {
                break;
            }
            let run = run.clone();
            let waited_for = self.waits_for(&run);
            self.remove(&run, now);
            over.extend(waited_for.map(|what| (run, what)));
        }
        over
    }

    /// Runs that wait, by tenant.
    pub(crate) fn depths(&self) -> Vec<(Name, u32, u32)> {
        let row = |(tenant, lane): (&Name, &Lane)| (tenant.clone(), lane.queued, lane.running);
        self.lanes.iter().map(row).collect()
    }

    /// Runs that hold a computer.
    pub(crate) fn held(&self) -> u32 {
        u32::try_from(self.running.len()).unwrap_or(u32::MAX)
    }

    fn waits_for(&self, run: &RunId) -> Option<WaitedFor> {
        let ticket = &self.waiting.get(run)?.ticket;
        let lane = self.lanes.get(&ticket.tenant)?;
        if let Some((tool, most)) = &ticket.share.tool_running_max
            && lane.of_tool(tool) >= *most
        {
            return Some(WaitedFor::Tool(tool.clone(), *most));
        }
        if lane.running >= ticket.share.tenant_running_max {
            return Some(WaitedFor::Tenant(ticket.share.tenant_running_max));
        }
        let free = self.free();
        if free == 0 || (self.is_scarce(free) && lane.running > 0) {
            return Some(WaitedFor::Computer(self.bounds.running_max));
        }
        Some(WaitedFor::Descriptors)
    }

    fn forget(&mut self, run: &RunId) -> Option<Waiting> {
        let waiting = self.waiting.remove(run)?;
        self.until
            .remove(&(waiting.ticket.until, waiting.ticket.run.clone()));
        if let Some(lane) = self.lanes.get_mut(&waiting.ticket.tenant) {
            lane.take_out(&waiting.ticket, waiting.rank);
        }
        self.queued = self.queued.saturating_sub(1);
        Some(waiting)
    }

    /// Forgets a tenant that owes nothing and has nothing here.
    fn tidy(&mut self, tenant: &Name, now: Duration) {
        let present = self.now_virtual;
        if let Some(lane) = self.lanes.get_mut(tenant)
            && lane.idle(present, now)
        {
            self.lanes.remove(tenant);
        }
    }
}
