//! What a backend did so far, for metrics and for whoever wonders.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What was counted since the start of this process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WasmCounts {
    /// Runs that were begun in a shared host.
    pub shared: u64,
    /// Runs that were given a sandbox of their own.
    pub single: u64,
    /// Of these, runs that would have suited a shared host, which had no room.
    pub crowded: u64,
    /// Modules that were compiled.
    pub compiled: u64,
    /// Entries of code on disk that were not believed.
    pub code_refused: u64,
    /// Shared hosts that were started.
    pub hosts_started: u64,
    /// Shared hosts that could not be started.
    pub hosts_failed: u64,
    /// What last went otherwise than it should without harming a run: in words for the operator.
    pub trouble: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) shared: AtomicU64,
    pub(super) single: AtomicU64,
    pub(super) crowded: AtomicU64,
    pub(super) compiled: AtomicU64,
    pub(super) code_refused: AtomicU64,
    pub(super) hosts_started: AtomicU64,
    pub(super) hosts_failed: AtomicU64,
    trouble: Mutex<Option<String>>,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counts {
    pub(super) fn trouble(&self, words: String) {
        // Nothing panics while it holds this lock.
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        *trouble = Some(words);
    }

    pub(super) fn read(&self) -> WasmCounts {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        WasmCounts {
            shared: value(&self.shared),
            single: value(&self.single),
            crowded: value(&self.crowded),
            compiled: value(&self.compiled),
            code_refused: value(&self.code_refused),
            hosts_started: value(&self.hosts_started),
            hosts_failed: value(&self.hosts_failed),
            trouble: trouble.clone(),
        }
    }
}
