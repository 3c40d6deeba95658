//! The sandbox state machine as one exhaustive table.
//!
//! Nobody else decides what may follow what: the supervisor, the store and the API all ask
//! [`next`]. Stable states wait for somebody; states in flight are finished or undone by the reaper.

use serde::{Deserialize, Serialize};

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Intended: its ledger entry is written, no resource exists.
    Pending,
    /// Resources are being made.
    Creating,
    /// Made and waiting, owned by nobody; no tenant has touched it.
    Parked,
    /// Leased to one owner.
    Running,
    /// Its processes are frozen or saved.
    Paused,
    /// Authority is gone; processes and resources are being removed.
    Stopping,
    /// Nothing is left, as observed.
    Stopped,
    /// It could not be made.
    Failed,
    /// Removal did not converge within its bound; quarantined and shown.
    Stuck,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Creating,
        Self::Parked,
        Self::Running,
        Self::Paused,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
        Self::Stuck,
    ];

    /// Whether host resources may exist in this state.
    #[must_use]
    pub fn holds_resources(self) -> bool {
        match self {
            Self::Creating
            | Self::Parked
            | Self::Running
            | Self::Paused
            | Self::Stopping
            | Self::Stuck => true,
            Self::Pending | Self::Stopped | Self::Failed => false,
        }
    }

    /// Whether nothing can follow.
    #[must_use]
    pub fn terminal(self) -> bool {
        match self {
            Self::Stopped | Self::Failed => true,
            Self::Pending
            | Self::Creating
            | Self::Parked
            | Self::Running
            | Self::Paused
            | Self::Stopping
            | Self::Stuck => false,
        }
    }
}

/// What is done to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Begin making resources.
    Create,
    /// Making them ended well.
    Park,
    /// Making them failed; what existed is being removed.
    Fail,
    /// Give it to its one owner.
    Claim,
    /// Freeze or save it.
    Pause,
    /// Wake it.
    Resume,
    /// Begin removal. Idempotent (invariant I11).
    Stop,
    /// Removal was observed complete.
    Clear,
    /// Removal passed its bound.
    Quarantine,
}

impl Action {
    /// Every action.
    pub const ALL: [Self; 9] = [
        Self::Create,
        Self::Park,
        Self::Fail,
        Self::Claim,
        Self::Pause,
        Self::Resume,
        Self::Stop,
        Self::Clear,
        Self::Quarantine,
    ];
}

/// An action that its state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sandbox that is {from:?} cannot {action:?}")]
pub struct Refusal {
    /// Where the sandbox is.
    pub from: State,
    /// What was tried.
    pub action: Action,
}

/// The table: what state follows.
///
/// # Errors
/// Refuses every pair that is not listed.
pub fn next(from: State, action: Action) -> Result<State, Refusal> {
    use Action as A;
    use State as S;
    match (from, action) {
        (S::Pending, A::Create) => Ok(S::Creating),
        (S::Pending, A::Fail) => Ok(S::Failed),
        (S::Pending, A::Stop) => Ok(S::Stopped),
        (S::Creating, A::Park) => Ok(S::Parked),
        (S::Creating, A::Fail | A::Stop) => Ok(S::Stopping),
        (S::Parked, A::Claim) => Ok(S::Running),
        (S::Parked | S::Running | S::Paused, A::Stop) => Ok(S::Stopping),
        (S::Running, A::Pause) => Ok(S::Paused),
        (S::Paused, A::Resume) => Ok(S::Running),
        (S::Stopping, A::Stop) => Ok(S::Stopping),
        (S::Stopping | S::Stuck, A::Clear) => Ok(S::Stopped),
        (S::Stopping, A::Quarantine) => Ok(S::Stuck),
        (S::Stuck, A::Stop) => Ok(S::Stuck),
        (S::Stopped, A::Stop | A::Clear) => Ok(S::Stopped),
        (S::Failed, A::Stop) => Ok(S::Failed),
        (S::Pending, A::Park | A::Claim | A::Pause | A::Resume | A::Clear | A::Quarantine)
        | (S::Creating, A::Create | A::Claim | A::Pause | A::Resume | A::Clear | A::Quarantine)
        | (
            S::Parked,
            A::Create | A::Park | A::Fail | A::Pause | A::Resume | A::Clear | A::Quarantine,
        )
        | (
            S::Running,
            A::Create | A::Park | A::Fail | A::Claim | A::Resume | A::Clear | A::Quarantine,
        )
        | (
            S::Paused,
            A::Create | A::Park | A::Fail | A::Claim | A::Pause | A::Clear | A::Quarantine,
        )
        | (S::Stopping, A::Create | A::Park | A::Fail | A::Claim | A::Pause | A::Resume)
        | (
            S::Stopped,
            A::Create | A::Park | A::Fail | A::Claim | A::Pause | A::Resume | A::Quarantine,
        )
        | (
            S::Failed,
            A::Create
            | A::Park
            | A::Fail
            | A::Claim
            | A::Pause
            | A::Resume
            | A::Clear
            | A::Quarantine,
        )
        | (
            S::Stuck,
            A::Create | A::Park | A::Fail | A::Claim | A::Pause | A::Resume | A::Quarantine,
        ) => Err(Refusal { from, action }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_is_allowed_everywhere_and_converges() {
        for from in State::ALL {
            let after = next(from, Action::Stop).unwrap();
            assert_eq!(
                next(after, Action::Stop),
                Ok(after),
                "stop twice from {from:?}"
            );
        }
    }

    #[test]
    fn nothing_leaves_a_terminal_state() {
        for from in State::ALL.into_iter().filter(|state| state.terminal()) {
            for action in Action::ALL {
                assert!(
                    next(from, action).is_ok_and(|to| to == from) || next(from, action).is_err()
                );
            }
        }
    }

    #[test]
    fn i5_only_an_untouched_sandbox_is_claimed() {
        for from in State::ALL {
            assert_eq!(next(from, Action::Claim).is_ok(), from == State::Parked);
        }
    }

    #[test]
    fn resources_are_given_up_only_through_an_observed_clear() {
        for from in State::ALL
            .into_iter()
            .filter(|state| state.holds_resources())
        {
            for action in Action::ALL {
                if let Ok(to) = next(from, action) {
                    assert!(
                        to.holds_resources() || action == Action::Clear,
                        "{from:?} {action:?} -> {to:?}"
                    );
                }
            }
        }
    }
}
