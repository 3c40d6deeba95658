//! What is remembered of a run, in order, and how the order is made tamper-evident.
//!
//! Each event carries the digest of the one before it, so that a change, a cut in the middle or a swap
//! shows. What cannot show in a chain alone (a cut tail, a chain that is not there at all) shows in the
//! tenant's log, where every chain is opened and sealed, and whose head and count are signed.

use serde::{Deserialize, Serialize};

use crate::contract::Contract;
use crate::digest::{CanonicalError, Digest};
use crate::end::{CancelledBy, EndReason};
use crate::id::{KeyId, LeaseId, RunId, SandboxId, WorkerId};
use crate::lease::Epoch;
use crate::name::{Name, ToolRef};
use crate::record::{Artifact, Observed};
use crate::stage::Stage;

/// What happened in a run. Closed; no field holds free text of a guest but where its name says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RunFact {
    /// Admitted: the contract is fixed. Always the first.
    Accepted {
        /// Digest of the contract's canonical form.
        contract: Digest,
    },
    /// It waits for its turn.
    Queued {
        /// Runs of the same tenant before it.
        ahead: u32,
    },
    /// The result of an earlier, equal run of a pure tool is given; nothing is allocated.
    Cached {
        /// The run whose result it is.
        from: RunId,
    },
    /// The WebAssembly module it runs has no code yet, and is compiled before anything is allocated.
    Compiling {
        /// Digest of the module.
        module: Digest,
    },
    /// The module was compiled. Where that came to nothing there is no such event, and the end says why.
    Compiled {
        /// Digest of the module.
        module: Digest,
        /// How long the run waited for it, in microseconds: for its turn at the compiler, and for the compiler.
        micros: u64,
    },
    /// The image it runs in is not on its worker yet, and is pulled before anything is allocated.
    Pulling {
        /// Digest of its manifest.
        image: Digest,
    },
    /// The image was pulled. Where that came to nothing there is no such event, and the end says why.
    Pulled {
        /// Digest of its manifest.
        image: Digest,
        /// How long the run waited for it, in microseconds.
        micros: u64,
    },
    /// A lease was granted; nothing exists before this is durable.
    Leased {
        /// Which lease.
        lease: LeaseId,
        /// On which worker.
        worker: WorkerId,
    },
    /// The worker has a computer for it.
    Allocated {
        /// Which.
        sandbox: SandboxId,
        /// Whether a warm slot served it.
        warm: bool,
        /// What the backend promises of it, as fixed when it was made.
        computer: Option<Box<Contract>>,
    },
    /// All of its standard input was handed over. Without it a run with input that was taken up again
    /// may have read half of it.
    InputGiven {
        /// How much.
        bytes: u64,
    },
    /// A stage ended.
    Stage {
        /// Which.
        stage: Stage,
        /// How long it took, in microseconds.
        micros: u64,
    },
    /// Somebody asked for its end.
    CancelRequested {
        /// Who.
        by: CancelledBy,
        /// By which key; absent for the operator's own hand.
        key: Option<KeyId>,
    },
    /// A restarted daemon took it up again under a new epoch.
    Adopted {
        /// On which worker.
        worker: WorkerId,
    },
    /// A credential was handed out.
    CredentialIssued {
        /// The reference in the manifest; never the value.
        secret_ref: String,
        /// When it ends by itself, milliseconds since 1970.
        expires_unix_ms: u64,
    },
    /// A credential was taken back.
    CredentialRevoked {
        /// The reference in the manifest.
        secret_ref: String,
    },
    /// Why it is over, as decided by the host.
    Ended {
        /// The reason.
        end: EndReason,
    },
    /// An artifact was committed to the object store.
    ArtifactStored {
        /// What was collected, with its digest.
        artifact: Artifact,
    },
    /// An output stream was committed to the object store.
    OutputStored {
        /// `stdout` or `stderr`.
        stream: String,
        /// Bytes kept.
        bytes: u64,
        /// Their digest.
        digest: Digest,
    },
    /// Lease, routes and credentials are dead. Precedes destruction (invariant I4).
    AuthorityRevoked {
        /// Which lease.
        lease: LeaseId,
    },
    /// What the host saw after removal.
    Cleaned {
        /// The inventory; may say "not clean".
        observed: Observed,
    },
    /// The outcome is committed; nothing of the result changes after this.
    Concluded {
        /// Digest of the outcome's canonical form.
        outcome: Digest,
    },
}

/// One event of a run, linked to the one before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// Which run.
    pub run: RunId,
    /// Place in the chain, from 0.
    pub seq: u64,
    /// Under which epoch it was written.
    pub epoch: Epoch,
    /// When, milliseconds since 1970 on the writer's clock. Tells nothing about order: `seq` does.
    pub at_unix_ms: u64,
    /// What.
    pub fact: RunFact,
    /// Digest of the contract; in every event after admission.
    pub contract: Digest,
    /// Digest of the event before; [`Digest::ZERO`] for the first.
    pub prev: Digest,
}

impl Event {
    /// Its digest, which the next one carries.
    ///
    /// # Errors
    /// Never for a value of this type whose texts are text; passed on all the same.
    pub fn digest(&self) -> Result<Digest, CanonicalError> {
        Digest::of_value(self)
    }
}

/// The end of a chain: how long it is and what its last event's digest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Head {
    /// Events in the chain.
    pub count: u64,
    /// Digest of the last; [`Digest::ZERO`] for an empty one.
    pub digest: Digest,
}

impl Head {
    /// Of a chain without events.
    pub const EMPTY: Self = Self {
        count: 0,
        digest: Digest::ZERO,
    };
}

/// Writes the events of one run in order. Whoever holds the run's lease holds the one writer.
#[derive(Debug, Clone)]
pub struct Chain {
    run: RunId,
    contract: Digest,
    head: Head,
}

impl Chain {
    /// A chain that continues from `head`.
    #[must_use]
    pub fn new(run: RunId, contract: Digest, head: Head) -> Self {
        Self {
            run,
            contract,
            head,
        }
    }

    /// Where it is.
    #[must_use]
    pub fn head(&self) -> Head {
        self.head
    }

    /// Makes the next event.
    ///
    /// # Errors
    /// As [`Event::digest`].
    pub fn next(
        &mut self,
        epoch: Epoch,
        at_unix_ms: u64,
        fact: RunFact,
    ) -> Result<Event, CanonicalError> {
        let event = Event {
            run: self.run.clone(),
            seq: self.head.count,
            epoch,
            at_unix_ms,
            fact,
            contract: self.contract,
            prev: self.head.digest,
        };
        self.head = Head {
            count: event.seq + 1,
            digest: event.digest()?,
        };
        Ok(event)
    }
}

/// What is remembered of a tenant: its runs' chains and what people with rights did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TenantFact {
    /// The tenant was made. Always the first.
    TenantCreated,
    /// The tenant may start nothing, or may again.
    TenantSuspended {
        /// Whether it is suspended now.
        suspended: bool,
    },
    /// A run's chain begins.
    RunOpened {
        /// Which run.
        run: RunId,
        /// Digest of its contract.
        contract: Digest,
    },
    /// A run's chain is complete.
    RunSealed {
        /// Which run.
        run: RunId,
        /// Its length and last digest.
        head: Head,
    },
    /// A key was made.
    KeyCreated {
        /// Which.
        key: KeyId,
        /// For whom.
        principal: Name,
    },
    /// A key was revoked.
    KeyRevoked {
        /// Which.
        key: KeyId,
    },
    /// A policy came into force.
    PolicyPublished {
        /// Where it holds.
        scope: String,
        /// Its version there.
        version: u64,
        /// Digest of its canonical form.
        digest: Digest,
    },
    /// A tool was published.
    ToolPublished {
        /// Which version of which.
        tool: ToolRef,
        /// Digest of its manifest's canonical form.
        manifest: Digest,
    },
    /// A tool's state was changed.
    ToolState {
        /// Which version of which.
        tool: ToolRef,
        /// `active`, `deprecated` or `quarantined`.
        state: String,
    },
}

/// One entry of a tenant's log, linked to the one before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantEntry {
    /// Whose.
    pub tenant: Name,
    /// Place in the log, from 0.
    pub seq: u64,
    /// When, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Who did it: a key; absent for the daemon itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<KeyId>,
    /// What.
    pub fact: TenantFact,
    /// Digest of the entry before; [`Digest::ZERO`] for the first.
    pub prev: Digest,
}

impl TenantEntry {
    /// Its digest, which the next one carries.
    ///
    /// # Errors
    /// As [`Event::digest`].
    pub fn digest(&self) -> Result<Digest, CanonicalError> {
        Digest::of_value(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_links_each_event_to_the_one_before() {
        let run = RunId::from_entropy(&[7; 13]);
        let contract = Digest::of(b"contract");
        let mut chain = Chain::new(run.clone(), contract, Head::EMPTY);
        let first = chain
            .next(Epoch::NONE, 1, RunFact::Accepted { contract })
            .unwrap();
        let second = chain
            .next(Epoch::NONE, 2, RunFact::Queued { ahead: 0 })
            .unwrap();
        assert_eq!((first.seq, first.prev), (0, Digest::ZERO));
        assert_eq!((second.seq, second.prev), (1, first.digest().unwrap()));
        let head = Head {
            count: 2,
            digest: second.digest().unwrap(),
        };
        assert_eq!(chain.head(), head);
        let mut altered = first;
        altered.at_unix_ms = 9;
        assert_ne!(altered.digest().unwrap(), second.prev);
    }

    #[test]
    fn events_read_back() {
        let fact = RunFact::CancelRequested {
            by: CancelledBy::Caller,
            key: None,
        };
        let text = serde_json::to_string(&fact).unwrap();
        assert_eq!(
            text,
            r#"{"kind":"cancel_requested","by":"caller","key":null}"#
        );
        assert_eq!(serde_json::from_str::<RunFact>(&text).unwrap(), fact);
    }
}
