//! How a shared run comes to its end.

use std::sync::Arc;

use leasehold_core::contract::Contract;
use leasehold_core::end::{EndReason, LimitHit};
use leasehold_core::limits::{Limits, Resource};
use leasehold_core::spec::WorkspaceMode;

use super::super::room::Room;
use super::*;

pub(in crate::wasm) fn contract() -> Contract {
    Contract {
        backend: "wasm".to_owned(),
        isolation: leasehold_core::isolation::Isolation::Wasm,
        isolation_reason: String::new(),
        limits: Limits::default(),
        enforcement: Vec::new(),
        workspace: WorkspaceMode::Ephemeral,
        network: "none".to_owned(),
        argv: Vec::new(),
        program: None,
        image: None,
        env_names: Vec::new(),
        posture: Default::default(),
    }
}

pub(in crate::wasm) fn run(limits: RunLimits, room: &Arc<Room>) -> SharedRun {
    let now = Instant::now();
    SharedRun::new(Beginning {
        run: RunId::from_entropy(&[1; 13]),
        sandbox: SandboxId::from_entropy(&[2; 13]),
        contract: contract(),
        limits,
        output: room.take(1_000).unwrap(),
        launched: now,
        coded: now,
        warm: true,
    })
    .unwrap()
}

pub(in crate::wasm) fn record(run: &SharedRun) -> RunRecord {
    run.kept.change(|record| record.clone())
}

fn ended(over: Over, cancelled: Option<CancelledBy>) -> RunRecord {
    let run = run(RunLimits::default(), &Room::of(1_000));
    if let Some(by) = cancelled {
        assert!(run.wish(by));
    }
    run.end(over);
    assert!(!run.wish(CancelledBy::Operator), "it is over");
    record(&run)
}

fn report(change: impl FnOnce(&mut Report)) -> Over {
    let mut report = Report {
        exit: Some(ExitStatus::Exit { code: 0 }),
        ..Report::default()
    };
    change(&mut report);
    Over::Report(Box::new(report))
}

fn crashed(record: &RunRecord, words: &str) -> bool {
    matches!(&record.end, Some(EndReason::SandboxCrashed { diagnostics }) if diagnostics.contains(words))
}

#[test]
fn what_a_host_says_is_the_end_where_nothing_is_known_better() {
    let caller = Some(CancelledBy::Caller);
    let cancelled = Some(EndReason::Cancelled {
        by: CancelledBy::Caller,
    });
    assert_eq!(ended(report(|_| ()), None).end, Some(EndReason::Completed));
    // It was over before the order reached it.
    assert_eq!(
        ended(report(|_| ()), caller).end,
        Some(EndReason::Completed)
    );
    let own = report(|report| report.cancelled = true);
    assert_eq!(ended(own, caller).end, cancelled);
    let own = report(|report| report.cancelled = true);
    assert!(crashed(&ended(own, None), "of its own accord"));
    let lie = report(|report| {
        report.killed_by = Some(LimitHit {
            which: Resource::Pids,
            limit: 1,
            observed: 1,
        });
    });
    assert!(crashed(&ended(lie, None), "`pids`"));
    assert_eq!(ended(Over::Late, caller).end, cancelled);
    let limit_ms = RunLimits::default().wall_ms;
    assert_eq!(
        ended(Over::Late, None).end,
        Some(EndReason::Timeout { limit_ms })
    );
    assert_eq!(
        ended(Over::Lost("out of memory".to_owned()), caller).end,
        cancelled
    );
    assert!(crashed(
        &ended(Over::Lost("out of memory".to_owned()), None),
        "out of memory"
    ));
    let unusable = ended(Over::Unusable("no such import".to_owned()), None);
    let exit = ExitStatus::NotExecutable;
    assert_eq!(unusable.end, Some(EndReason::ToolError { exit }));
    assert_eq!(unusable.module.unwrap().detail.unwrap(), "no such import");
}

#[test]
fn output_is_what_came_and_its_memory_is_given_back() {
    let room = Room::of(1_000);
    let run = run(
        RunLimits {
            output_bytes: 10,
            ..RunLimits::default()
        },
        &room,
    );
    assert_eq!(room.left(), 0);
    run.output(0, b"01234").unwrap();
    run.output(0, b"56789").unwrap();
    let breach = run.output(0, b"x").unwrap_err();
    assert!(breach.0.contains("10 bytes"), "{}", breach.0);
    run.output(1, b"err").unwrap();
    run.end(report(|report| {
        report.stdout = Counted { total: 99, kept: 1 };
    }));
    run.end(Over::Late);
    let record = record(&run);
    assert_eq!(
        record.end,
        Some(EndReason::Completed),
        "the first word counts"
    );
    let (out, err) = (record.stdout, record.stderr);
    assert_eq!((out.written, out.kept, out.truncated), (99, 10, true));
    assert_eq!((err.written, err.kept, err.truncated), (3, 3, false));
    assert_eq!(room.left(), 1_000 - 13);
    drop(run);
    assert_eq!(room.left(), 1_000);
}

#[test]
fn a_host_charges_nobody_for_what_cannot_have_been_used() {
    let record = ended(
        report(|report| {
            report.cpu_us = u64::MAX;
            report.memory_peak_bytes = u64::MAX;
        }),
        None,
    );
    let usage = record.usage;
    assert_eq!(usage.cpu_micros, Some(usage.wall_micros));
    let most = RunLimits::default().memory_bytes;
    assert_eq!(usage.memory_peak_bytes, Some(most));
}

#[test]
fn every_stage_is_told_once_and_in_order() {
    let run = run(RunLimits::default(), &Room::of(1_000));
    run.injected();
    run.end(report(|_| ()));
    run.removed(set_back(), Duration::ZERO);
    let record = record(&run);
    let stages: Vec<Stage> = record.stages.iter().map(|time| time.stage).collect();
    assert_eq!(stages, Stage::ALL);
    assert!(record.cleanup.unwrap().clean());
    assert!(!unseen().clean() && gone_with_its_owner().clean());
}
