//! A run with everything in it, its evidence, and what may be done to that.

mod keys; // wrong, retired and rotated keys; the file
mod local; // runs without a daemon
mod logs; // the log of a tenant
mod tamper; // each way to change a bundle
mod text; // what is printed

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_core::digest::Digest;
use leasehold_core::end::{EndReason, ExitStatus};
use leasehold_core::event::{Chain, Event, Head, RunFact, TenantEntry, TenantFact};
use leasehold_core::id::{KeyId, LeaseId, RunId, SandboxId, WorkerId};
use leasehold_core::isolation::{Isolation, TrustClass};
use leasehold_core::lease::Epoch;
use leasehold_core::limits::Limits;
use leasehold_core::name::Name;
use leasehold_core::outcome::{Outcome, StoredStream};
use leasehold_core::record::{Artifact, Observed, Residue, StreamRecord, Usage};
use leasehold_core::run_contract::{
    AllocationTerms, AuthorityTerms, CONTRACT_VERSION, NetworkTerms, RetentionTerms, Rootfs,
    RunContract, Selected, Why, WorkspaceTerms,
};
use leasehold_core::spec::WorkspaceMode;
use leasehold_core::tenant::Role;

use super::bundle::FORMAT;
use super::seal::Signer;
use super::statement::MadeFrom;
use super::verify::verify;
use super::{Bundle, Keyring, Trust, Verdict};
use crate::clock::{Clock, PausedClock};
use crate::engine::parts::{Facts, Sealer};

/// When everything in a fixture is signed.
pub(super) const NOW: u64 = 1_000_000;

/// A directory that is gone after the test.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Self {
        static DRAWN: AtomicU32 = AtomicU32::new(0);
        let drawn = DRAWN.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasehold-evidence-{}-{drawn}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(super) fn key_file(&self) -> PathBuf {
        self.path().join("signing.key")
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn keyring(&self) -> Arc<Keyring> {
        Arc::new(Keyring::open(self.key_file(), 10).unwrap())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn run_id(number: u8) -> RunId {
    RunId::from_entropy(&[number; 13])
}

pub(super) fn tenant() -> Name {
    Name::parse("acme").unwrap()
}

pub(super) fn contract(run: &RunId, text: &str) -> RunContract {
    RunContract {
        version: CONTRACT_VERSION,
        run: run.clone(),
        tenant: tenant(),
        project: Name::parse("default").unwrap(),
        principal: Name::parse("someone").unwrap(),
        role: Role::Runner,
        key: KeyId::from_entropy(&[1; 13]),
        tool: None,
        manifest: None,
        argv: vec!["echo".to_owned(), text.to_owned()],
        program: None,
        image: None,
        env_names: vec!["HOME".to_owned()],
        cwd: None,
        input: None,
        selected: Selected {
            backend: "process".to_owned(),
            isolation: Isolation::Process,
            nested: None,
            rootfs: Rootfs::HostSystem,
            why: Why {
                preference: Isolation::Process,
                floor: Isolation::Process,
                trust: TrustClass::FirstParty,
                required: Isolation::Process,
            },
            reason: text.to_owned(),
        },
        posture: Digest::of(b"posture"),
        limits: Limits::default(),
        workspace: WorkspaceTerms {
            mode: WorkspaceMode::Ephemeral,
            content: None,
            artifacts: vec!["**".to_owned()],
        },
        network: NetworkTerms::default(),
        permissions: vec![],
        credentials: vec![],
        allocation: AllocationTerms {
            hard_deadline_ms: 600_000,
            idle_timeout_ms: None,
        },
        authority: AuthorityTerms {
            lease_ms: 600_000,
            credentials_ms: 60_000,
        },
        retention: RetentionTerms {
            logs_s: 60,
            artifacts_s: 60,
            record_s: 60,
        },
        policies: vec![],
        idempotent: false,
        attempts: 1,
        cacheable: false,
        priority: 0,
        max_wait_ms: 1_000,
    }
}

pub(super) fn outcome(text: &str) -> Outcome {
    Outcome {
        end: EndReason::ToolError {
            exit: ExitStatus::Trap {
                name: text.to_owned(),
            },
        },
        exit: Some(ExitStatus::Exit { code: 0 }),
        limits_hit: vec![],
        usage: Usage::default(),
        stdout: Some(StoredStream {
            stream: StreamRecord {
                written: 5,
                kept: 5,
                truncated: false,
            },
            digest: Some(Digest::of(b"hello")),
        }),
        stderr: None,
        output: None,
        artifacts: vec![Artifact {
            path: text.to_owned(),
            bytes: 3,
            sha256: Some(Digest::of(b"art").hex()),
            skipped: None,
            may_execute_on_host: true,
        }],
        module: None,
        ended_unix_ms: NOW,
    }
}

pub(super) fn inventory(clean: bool, text: &str) -> Observed {
    let residue = |resource: &str, clean| Residue {
        resource: resource.to_owned(),
        clean,
        detail: text.to_owned(),
        inferred: resource == "mounts",
    };
    Observed {
        residues: vec![residue("processes", true), residue("mounts", clean)],
    }
}

/// What a bundle is made from; tests change parts before it is signed.
pub(super) struct Made {
    pub(super) bundle: Bundle,
    pub(super) log: Vec<TenantEntry>,
    pub(super) scratch: Scratch,
    pub(super) keyring: Arc<Keyring>,
}

pub(super) fn entry(log: &[TenantEntry], fact: TenantFact, at_unix_ms: u64) -> TenantEntry {
    TenantEntry {
        tenant: tenant(),
        seq: log.len() as u64,
        at_unix_ms,
        by: None,
        fact,
        prev: log
            .last()
            .map_or(Digest::ZERO, |last| last.digest().unwrap()),
    }
}

/// The chain of a run that went well until its tool failed.
fn events(
    run: &RunId,
    digest: Digest,
    outcome: &Outcome,
    observed: &Observed,
) -> (Vec<Event>, Head) {
    let mut chain = Chain::new(run.clone(), digest, Head::EMPTY);
    let lease = LeaseId::from_entropy(&[2; 13]);
    let facts = [
        (0, RunFact::Accepted { contract: digest }),
        (0, RunFact::Queued { ahead: 0 }),
        (
            1,
            RunFact::Leased {
                lease: lease.clone(),
                worker: WorkerId::from_entropy(&[3; 13]),
            },
        ),
        (
            1,
            RunFact::Allocated {
                sandbox: SandboxId::from_entropy(&[4; 13]),
                warm: false,
                computer: None,
            },
        ),
        (
            1,
            RunFact::Ended {
                end: outcome.end.clone(),
            },
        ),
        (
            1,
            RunFact::Concluded {
                outcome: Digest::of_value(outcome).unwrap(),
            },
        ),
        (1, RunFact::AuthorityRevoked { lease }),
        (
            1,
            RunFact::Cleaned {
                observed: observed.clone(),
            },
        ),
    ];
    let events: Vec<_> = facts
        .into_iter()
        .map(|(epoch, fact)| chain.next(Epoch(epoch), NOW, fact).unwrap())
        .collect();
    (events, chain.head())
}

/// A log that opens and seals the run, and opens another between.
fn log(run: &RunId, digest: Digest, head: Head) -> Vec<TenantEntry> {
    let mut log = Vec::new();
    log.push(entry(&log, TenantFact::TenantCreated, NOW));
    let opened = TenantFact::RunOpened {
        run: run.clone(),
        contract: digest,
    };
    log.push(entry(&log, opened, NOW));
    let other = TenantFact::RunOpened {
        run: run_id(99),
        contract: digest,
    };
    log.push(entry(&log, other, NOW));
    let sealed = TenantFact::RunSealed {
        run: run.clone(),
        head,
    };
    log.push(entry(&log, sealed, NOW));
    log
}

/// The evidence of a run whose every text of a user is `text`.
pub(super) fn made_with(number: u8, text: &str, observed: Observed) -> Made {
    let scratch = Scratch::new();
    let keyring = scratch.keyring();
    let clock: Arc<dyn Clock> = Arc::new(PausedClock::new(NOW));
    let signer = Signer::new(Arc::clone(&keyring), clock);
    let run = run_id(number);
    let contract = contract(&run, text);
    let digest = contract.digest().unwrap();
    let outcome = outcome(text);
    let (events, head) = events(&run, digest, &outcome, &observed);
    let log = log(&run, digest, head);
    let statement = signer
        .statement(Facts {
            contract: &contract,
            digest,
            head,
            outcome: &outcome,
            observed: &observed,
        })
        .unwrap();
    let bundle = Bundle {
        format: FORMAT.to_owned(),
        made_from: MadeFrom::Daemon,
        run,
        tenant: tenant(),
        contract: serde_json::to_value(&contract).unwrap(),
        outcome,
        events,
        opened: Some(signer.anchor(log[1].clone()).unwrap()),
        sealed: Some(signer.anchor(log[3].clone()).unwrap()),
        statement: serde_json::from_str(&statement).unwrap(),
        keys: signer.keys(),
    };
    Made {
        bundle,
        log,
        scratch,
        keyring,
    }
}

pub(super) fn made() -> Made {
    made_with(7, "hello", inventory(true, "as seen"))
}

impl Made {
    pub(super) fn trust(&self) -> Trust {
        Trust::Pinned(BTreeSet::from([self.keyring.id()]))
    }

    /// What a verifier says of a bundle that may not be the made one.
    pub(super) fn check(&self, bundle: &Bundle) -> Verdict {
        verify(bundle.text().unwrap().as_bytes(), &self.trust())
    }
}

#[tokio::test]
async fn what_was_made_holds() {
    let made = made();
    let verdict = made.check(&made.bundle);
    assert!(verdict.holds(), "{verdict}");
    let own_word = verify(made.bundle.text().unwrap().as_bytes(), &Trust::AsShown);
    assert!(own_word.holds(), "{own_word}");
    assert!(own_word.to_string().contains("nobody was named"));
}
