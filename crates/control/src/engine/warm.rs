//! Why a run found no parked computer.

use std::sync::Mutex;

use leasehold_core::spec::{SandboxSpec, WorkspaceMode};
use tokio::sync::Notify;

use super::locked;

/// Reasons, as the metric has them.
pub(crate) const MISSES: [&str; 4] = ["none_kept", "workspace", "limits", "all_taken"];

/// A kind of parked computer, and who makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) backend: String,
    pub(crate) sandbox: SandboxSpec,
}

impl Slot {
    /// Whether one of this kind can be claimed for the other.
    pub(crate) fn serves(&self, wanted: &Self) -> bool {
        let (kept, wanted) = (&self.sandbox, &wanted.sandbox);
        kept.warm == wanted.warm && kept.limits.same_slot(&wanted.limits)
    }
}

/// What is kept parked.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    kept: Mutex<Option<Slot>>,
    /// Held by whoever asks the worker for them.
    pub(crate) asking: tokio::sync::Mutex<()>,
    /// A run that could have been served by a parked computer found none.
    pub(crate) missed: Notify,
}

impl Warm {
    /// Notes which kind is kept; gives the one before.
    pub(crate) fn set(&self, slot: Slot) -> Option<Slot> {
        locked(&self.kept).replace(slot)
    }

    /// Notes that none is kept; gives the kind that was.
    pub(crate) fn take(&self) -> Option<Slot> {
        locked(&self.kept).take()
    }

    /// Why a run found none: the place in [`MISSES`]; nothing for one of a backend that none are kept of.
    pub(crate) fn miss(&self, wanted: &Slot) -> Option<usize> {
        Some(match &*locked(&self.kept) {
            None => 0,
            Some(kept) if kept.backend != wanted.backend => return None,
            Some(_) if wanted.sandbox.workspace != WorkspaceMode::Ephemeral => 1,
            Some(kept) if !kept.serves(wanted) => 2,
            Some(_) => {
                self.missed.notify_one();
                3
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_miss_has_its_reason() {
        let warm = Warm::default();
        let plain = Slot {
            backend: "fake".to_owned(),
            sandbox: SandboxSpec::default(),
        };
        let why = |slot: &Slot| warm.miss(slot).map(|why| MISSES[why]);
        assert_eq!(why(&plain), Some("none_kept"));
        assert!(warm.set(plain.clone()).is_none());
        assert_eq!(why(&plain), Some("all_taken"));
        let mut other = plain.clone();
        other.sandbox.limits.memory_bytes.value += 1;
        assert_eq!(why(&other), Some("limits"));
        other.sandbox.workspace = WorkspaceMode::Clone;
        assert_eq!(why(&other), Some("workspace"));
        // What is applied at the claim makes no difference.
        let mut claimed = plain.clone();
        claimed.sandbox.limits.pids.value += 1;
        claimed.sandbox.limits.wall_ms.value += 1;
        assert_eq!(why(&claimed), Some("all_taken"));
        // Nor does one that another backend makes miss anything.
        let elsewhere = Slot {
            backend: "other".to_owned(),
            ..plain
        };
        assert_eq!(why(&elsewhere), None);
    }
}
