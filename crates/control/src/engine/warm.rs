//! Why a run found no parked computer.

use std::sync::Mutex;

use leasehold_core::spec::{SandboxSpec, WorkspaceMode};
use tokio::sync::Notify;

use super::locked;

/// Reasons, as the metric has them.
pub(crate) const MISSES: [&str; 4] = ["none_kept", "workspace", "limits", "all_taken"];

/// What is kept parked.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    kept: Mutex<Option<SandboxSpec>>,
    /// Held by whoever asks the worker for them.
    pub(crate) asking: tokio::sync::Mutex<()>,
    /// A run that could have been served by a parked computer found none.
    pub(crate) missed: Notify,
}

impl Warm {
    /// Notes which kind is kept; gives the one before.
    pub(crate) fn set(&self, spec: SandboxSpec) -> Option<SandboxSpec> {
        locked(&self.kept).replace(spec)
    }

    /// Notes that none is kept; gives the kind that was.
    pub(crate) fn take(&self) -> Option<SandboxSpec> {
        locked(&self.kept).take()
    }

    /// Why a run found none: the place in [`MISSES`].
    pub(crate) fn miss(&self, wanted: &SandboxSpec) -> usize {
        match &*locked(&self.kept) {
            None => 0,
            Some(_) if wanted.workspace != WorkspaceMode::Ephemeral => 1,
            Some(kept) if kept.warm != wanted.warm || !kept.limits.same_slot(&wanted.limits) => 2,
            Some(_) => {
                self.missed.notify_one();
                3
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_miss_has_its_reason() {
        let warm = Warm::default();
        let plain = SandboxSpec::default();
        assert_eq!(MISSES[warm.miss(&plain)], "none_kept");
        assert!(warm.set(plain.clone()).is_none());
        assert_eq!(MISSES[warm.miss(&plain)], "all_taken");
        let mut other = plain.clone();
        other.limits.memory_bytes.value += 1;
        assert_eq!(MISSES[warm.miss(&other)], "limits");
        other.workspace = WorkspaceMode::Clone;
        assert_eq!(MISSES[warm.miss(&other)], "workspace");
        // What is applied at the claim makes no difference.
        let mut claimed = plain;
        claimed.limits.pids.value += 1;
        claimed.limits.wall_ms.value += 1;
        assert_eq!(MISSES[warm.miss(&claimed)], "all_taken");
    }
}
