//! The runs of one tenant.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_core::id::RunId;
use leasehold_core::name::Name;

use super::rate::Rate;
use super::{Held, Rank, Ticket};

/// Units of virtual time in a microsecond at weight 1.
const SCALE: u64 = 1_024;
/// What a run of a tenant of which nothing is known is charged at first, in microseconds.
const UNKNOWN_MICROS: u64 = 100_000;
/// Most that is put right for one run, in microseconds: a run of hours does not shut its tenant out for
/// hours afterwards.
const MENDED_MAX: u64 = 60_000_000;
/// Largest weight.
const WEIGHT_MAX: u32 = 1_000;

/// One tenant.
#[derive(Debug)]
pub(super) struct Lane {
    /// Where it is in virtual time.
    finish: u64,
    /// Its runs that wait, by tool, since each tool may have a cap of its own.
    groups: BTreeMap<Option<Name>, Group>,
    /// Runs that wait, those on their way in included.
    pub(super) queued: u32,
    /// Runs that hold a computer.
    pub(super) running: u32,
    /// Bytes of the requests of its runs that wait, run or are on their way in.
    pub(super) bytes: u64,
    running_max: u32,
    tools: BTreeMap<Name, u32>,
    /// How long its runs held a computer of late.
    pub(super) usual_micros: u64,
    pub(super) rate: Rate,
}

#[derive(Debug, Default)]
struct Group {
    running_max: Option<u32>,
    waiting: BTreeMap<Rank, RunId>,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            finish: 0,
            groups: BTreeMap::new(),
            queued: 0,
            running: 0,
            bytes: 0,
            running_max: 0,
            tools: BTreeMap::new(),
            usual_micros: UNKNOWN_MICROS,
            rate: Rate::default(),
        }
    }
}

fn tool_of(ticket: &Ticket) -> Option<Name> {
    let capped = ticket.share.tool_running_max.as_ref();
    capped.map(|(tool, _)| tool.clone())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn cost(micros: u64, weight: u32) -> u64 {
    micros.saturating_mul(SCALE) / u64::from(weight.clamp(1, WEIGHT_MAX))
}

impl Lane {
    /// Lets a run wait; its place was counted before. Gives how many are before it.
    pub(super) fn insert(&mut self, ticket: &Ticket, rank: Rank) -> u32 {
        let before = |group: &Group| group.waiting.range(..rank).count();
        let ahead: usize = self.groups.values().map(before).sum();
        let group = self.groups.entry(tool_of(ticket)).or_default();
        group.running_max = ticket
            .share
            .tool_running_max
            .as_ref()
            .map(|(_, most)| *most);
        group.waiting.insert(rank, ticket.run.clone());
        self.running_max = ticket.share.tenant_running_max;
        u32::try_from(ahead).unwrap_or(u32::MAX)
    }

    /// Takes a run out of the waiting ones.
    pub(super) fn take_out(&mut self, ticket: &Ticket, rank: Rank) {
        let tool = tool_of(ticket);
        if let Some(group) = self.groups.get_mut(&tool) {
            group.waiting.remove(&rank);
            if group.waiting.is_empty() {
                self.groups.remove(&tool);
            }
        }
        self.queued = self.queued.saturating_sub(1);
    }

    /// The first run that no cap of the tenant or of its tool holds back.
    pub(super) fn head(&self) -> Option<(Rank, &RunId)> {
        if self.running >= self.running_max {
            return None;
        }
        let open = self.groups.iter().filter(|(tool, group)| {
            let running = tool.as_ref().map_or(0, |tool| self.of_tool(tool));
            group.running_max.is_none_or(|most| running < most)
        });
        let heads = open.filter_map(|(_, group)| group.waiting.first_key_value());
        heads.map(|(rank, run)| (*rank, run)).min()
    }

    /// Where its next run would start in virtual time.
    pub(super) fn start(&self, present: u64) -> u64 {
        self.finish.max(present)
    }

    /// Gives a run a computer. Gives what is held and where it started.
    pub(super) fn begin(&mut self, ticket: &Ticket, present: u64, now: Duration) -> (Held, u64) {
        let start = self.start(present);
        let charged = self.usual_micros;
        self.finish = start.saturating_add(cost(charged, ticket.share.weight));
        self.running += 1;
        let tool = tool_of(ticket);
        if let Some(tool) = &tool {
            *self.tools.entry(tool.clone()).or_default() += 1;
        }
        let held = Held {
            tenant: ticket.tenant.clone(),
            tool,
            since: now,
            charged,
            weight: ticket.share.weight,
            bytes: ticket.bytes,
        };
        (held, start)
    }

    /// Takes a computer back and puts right what was charged for it.
    pub(super) fn end(&mut self, held: &Held, now: Duration) {
        self.running = self.running.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(held.bytes);
        if let Some(tool) = &held.tool
            && let Some(running) = self.tools.get_mut(tool)
        {
            *running = running.saturating_sub(1);
            if *running == 0 {
                self.tools.remove(tool);
            }
        }
        let took = micros(now.saturating_sub(held.since));
        let more = took.saturating_sub(held.charged).min(MENDED_MAX);
        let less = held.charged.saturating_sub(took);
        self.finish = self
            .finish
            .saturating_add(cost(more, held.weight))
            .saturating_sub(cost(less, held.weight));
        let took = took.min(held.charged.saturating_add(MENDED_MAX));
        self.usual_micros = (self.usual_micros / 8 * 7 + took / 8).max(1);
    }

    /// Runs of a tool that hold a computer.
    pub(super) fn of_tool(&self, tool: &Name) -> u32 {
        self.tools.get(tool).copied().unwrap_or(0)
    }

    /// Whether nothing of it is here and it owes nothing.
    pub(super) fn idle(&mut self, present: u64, now: Duration) -> bool {
        self.queued == 0 && self.running == 0 && self.finish <= present && self.rate.idle(now)
    }
}
