//! Limits that the engine asks about while a run grows, and the typed errors that end one.

use leasehold_core::end::LimitHit;
use leasehold_core::limits::Resource;
use leasehold_protocol::wasm::RunLimits;
use wasmtime::{ResourceLimiter, Result};

use crate::engine::TABLE_MAX;

/// Bytes that an element of a table is charged for.
const ELEMENT_BYTES: u64 = 16;

/// A limit that ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a limit of the run was reached")]
pub(crate) struct Breach(pub(crate) LimitHit);

/// What a run holds of memory, and what it was refused.
#[derive(Debug)]
pub(crate) struct Meter {
    limit: u64,
    kill: bool,
    table_elements: usize,
    instances: usize,
    used: u64,
    peak: u64,
    /// What the last growth was charged, in case it fails after it was allowed.
    last: u64,
    refused: Option<u64>,
}

impl Meter {
    pub(crate) fn new(limits: &RunLimits) -> Self {
        Self {
            limit: limits.memory_bytes,
            kill: limits.memory_kill,
            table_elements: limits.table_elements as usize,
            instances: limits.instances as usize,
            used: 0,
            peak: 0,
            last: 0,
            refused: None,
        }
    }

    /// Most bytes at one time.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// The limit of memory, if it denied anything.
    pub(crate) fn denied(&self) -> Option<LimitHit> {
        self.refused.map(|wanted| self.hit(wanted))
    }

    fn hit(&self, observed: u64) -> LimitHit {
        LimitHit {
            which: Resource::Memory,
            limit: self.limit,
            observed,
        }
    }

    fn charge(&mut self, more: u64) -> Result<bool> {
        let wanted = self.used.saturating_add(more);
        if wanted > self.limit {
            return self.refuse(wanted);
        }
        self.used = wanted;
        self.peak = self.peak.max(wanted);
        self.last = more;
        Ok(true)
    }

    /// Says no to what would have come to `wanted` bytes, or ends the run.
    fn refuse(&mut self, wanted: u64) -> Result<bool> {
        self.refused = Some(self.refused.map_or(wanted, |before| before.max(wanted)));
        match self.kill {
            true => Err(Breach(self.hit(wanted)).into()),
            false => Ok(false),
        }
    }

    fn undo(&mut self) {
        self.used = self.used.saturating_sub(self.last);
        self.last = 0;
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(&mut self, now: usize, wanted: usize, most: Option<usize>) -> Result<bool> {
        if most.is_some_and(|most| wanted > most) {
            // The module's own bound, not ours.
            return Ok(false);
        }
        self.charge(wanted.saturating_sub(now) as u64)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> Result<()> {
        self.undo();
        Ok(())
    }

    fn table_growing(&mut self, now: usize, wanted: usize, most: Option<usize>) -> Result<bool> {
        // A pool says its own bound where the module has none, or a larger one.
        if most.is_some_and(|most| wanted > most && most < TABLE_MAX) {
            return Ok(false);
        }
        let more = (wanted.saturating_sub(now) as u64).saturating_mul(ELEMENT_BYTES);
        if wanted > self.table_elements {
            // A table above its bound is memory somebody wanted and did not get.
            return self.refuse(self.used.saturating_add(more));
        }
        self.charge(more)
    }

    fn table_grow_failed(&mut self, _: wasmtime::Error) -> Result<()> {
        self.undo();
        Ok(())
    }

    fn instances(&self) -> usize {
        self.instances
    }

    fn tables(&self) -> usize {
        self.instances
    }

    fn memories(&self) -> usize {
        self.instances
    }
}
