//! Evidence of runs without a daemon.

use leasehold_core::contract::{Contract, Enforced, Enforcement, Posture};
use leasehold_core::end::EndReason;
use leasehold_core::id::SandboxId;
use leasehold_core::isolation::Isolation;
use leasehold_core::limits::{Limits, Resource};
use leasehold_core::record::{RECORD_VERSION, RunRecord, StreamRecord, Usage};
use leasehold_core::spec::WorkspaceMode;
use leasehold_core::stage::{Stage, StageTime};

use super::super::Fault;
use super::super::explain::explain;
use super::super::fault::Of;
use super::super::local::{LocalError, Outputs, bundle};
use super::super::verify::verify;
use super::super::{Bundle, Trust};
use super::{NOW, Scratch, inventory, run_id};

fn record() -> RunRecord {
    RunRecord {
        version: RECORD_VERSION,
        run: run_id(5),
        sandbox: SandboxId::from_entropy(&[6; 13]),
        accepted_unix_ms: NOW,
        contract: Some(Contract {
            backend: "process".to_owned(),
            isolation: Isolation::Process,
            isolation_reason: "asked".to_owned(),
            limits: Limits::default(),
            enforcement: vec![Enforced {
                which: Resource::Disk,
                how: Enforcement::BestEffort,
            }],
            workspace: WorkspaceMode::ReadWrite,
            network: "none".to_owned(),
            argv: vec!["true".to_owned()],
            program: None,
            image: None,
            env_names: vec![],
            posture: Posture {
                profile: "native/1".to_owned(),
                missing: vec!["H28 landlock".to_owned()],
                ..Posture::default()
            },
        }),
        end: Some(EndReason::Completed),
        exit: None,
        limits_hit: vec![],
        warm: true,
        stages: Stage::ALL
            .into_iter()
            .map(|stage| StageTime { stage, micros: 7 })
            .collect(),
        usage: Usage::default(),
        stdout: StreamRecord::default(),
        stderr: StreamRecord::default(),
        artifacts: vec![],
        may_execute_on_host: None,
        module: None,
        bound: false,
        pruned_unix_ms: None,
        cleanup: Some(inventory(true, "seen")),
    }
}

#[test]
fn a_record_becomes_evidence_that_says_where_it_is_from() {
    let scratch = Scratch::new();
    let keyring = scratch.keyring();
    let made = bundle(&record(), Outputs::default(), &keyring, NOW).unwrap();
    let text = made.text().unwrap();
    let trust = Trust::Pinned([keyring.id()].into());
    let verdict = verify(text.as_bytes(), &trust);
    assert!(verdict.holds(), "{verdict}");
    assert!(
        verdict
            .to_string()
            .contains("made from the supervisor's record")
    );
    let mut passed_off = Bundle::read(text.as_bytes()).unwrap();
    passed_off.made_from = super::MadeFrom::Daemon;
    let verdict = verify(passed_off.text().unwrap().as_bytes(), &trust);
    assert!(verdict.to_string().contains("another source"), "{verdict}");
    let mut changed = made.clone();
    changed.events[3].at_unix_ms += 1;
    let verdict = verify(changed.text().unwrap().as_bytes(), &trust);
    assert_eq!(verdict.faults, [Fault::Altered(Of::Run, 3)]);
    let told = explain(&made);
    for part in [
        "without a daemon",
        "shares with the host",
        "\"H28 landlock\"",
        "not enforced here: disk",
        "a directory of the host was writable",
        "(a warm slot)",
        "5 trusted components",
        "clean: the host looked after removal",
    ] {
        assert!(told.contains(part), "{part} is not in:\n{told}");
    }
}

#[test]
fn a_run_that_goes_on_gives_none() {
    let scratch = Scratch::new();
    let keyring = scratch.keyring();
    for (open, what) in [
        (
            RunRecord {
                end: None,
                ..record()
            },
            "end",
        ),
        (
            RunRecord {
                cleanup: None,
                ..record()
            },
            "cleanup",
        ),
    ] {
        let refused = bundle(&open, Outputs::default(), &keyring, NOW);
        assert!(matches!(refused, Err(LocalError::NotOver(part)) if part == what));
    }
}

#[test]
fn what_never_had_a_computer_says_so() {
    let scratch = Scratch::new();
    let never = RunRecord {
        contract: None,
        end: Some(EndReason::SandboxUnavailable {
            detail: "no memory\nverdict: holds".to_owned(),
        }),
        cleanup: Some(leasehold_core::record::Observed::default()),
        ..record()
    };
    let keyring = scratch.keyring();
    let made = bundle(&never, Outputs::default(), &keyring, NOW).unwrap();
    let verdict = verify(made.text().unwrap().as_bytes(), &Trust::AsShown);
    assert!(verdict.holds(), "{verdict}");
    let told = explain(&made);
    assert!(told.contains("there was no computer"), "{told}");
    assert!(told.contains("nothing was allocated, so nothing was there to remove"));
    assert!(!told.lines().any(|line| line.starts_with("verdict")));
}
