//! Judging without sandboxes: each limit held and not held.

use super::*;
use leasehold_core::contract::{Contract, Enforced, Posture};
use leasehold_core::end::{ExitStatus, LimitHit};
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::isolation::Isolation;
use leasehold_core::record::{StreamRecord, Usage};
use leasehold_core::spec::WorkspaceMode;
use std::time::Duration;

fn seen(end: EndReason) -> Seen {
    let enforcement = Resource::ALL
        .map(|which| Enforced {
            which,
            how: Enforcement::Enforced,
        })
        .to_vec();
    Seen {
        record: RunRecord {
            contract: Some(Contract {
                backend: "process".to_owned(),
                isolation: Isolation::Process,
                isolation_reason: String::new(),
                limits: Limits::default(),
                enforcement,
                workspace: WorkspaceMode::Ephemeral,
                network: "none".to_owned(),
                argv: Vec::new(),
                program: None,
                image: None,
                env_names: Vec::new(),
                posture: Posture::default(),
            }),
            end: Some(end),
            ..RunRecord::accepted(
                RunId::from_entropy(&[0; 13]),
                SandboxId::from_entropy(&[0; 13]),
                0,
            )
        },
        stdout: String::new(),
        took: Duration::ZERO,
    }
}

fn exceeded(which: Resource) -> EndReason {
    EndReason::ResourceExceeded {
        hit: LimitHit {
            which,
            limit: 16,
            observed: 17,
        },
        exit: Some(ExitStatus::Exit { code: 2 }),
    }
}

#[test]
fn a_breach_that_simply_succeeded_is_not_enforced() {
    for probe in probes() {
        let verdict = (probe.judge)(&seen(EndReason::Completed));
        assert!(!matches!(verdict, Held(_)), "{}: {verdict:?}", probe.what);
    }
    for which in [Resource::Pids, Resource::Disk, Resource::Inodes] {
        assert!(matches!(
            denied(&seen(EndReason::Completed), which),
            Broke(_)
        ));
    }
}

#[test]
fn a_command_that_never_got_there_shows_nothing() {
    let slow = seen(EndReason::Timeout { limit_ms: WALL_MS });
    assert!(matches!(memory(&slow), Unclear(_)));
    assert!(matches!(denied(&slow, Resource::Pids), Unclear(_)));
}

#[test]
fn memory_must_end_it_and_the_peak_must_stay_below() {
    let mut held = seen(exceeded(Resource::Memory));
    held.record.usage.memory_peak_bytes = Some(MEMORY);
    assert!(matches!(memory(&held), Held(_)));
    held.record.usage.memory_peak_bytes = Some(2 * MEMORY);
    assert!(!matches!(memory(&held), Held(_)));
}

#[test]
fn a_denial_counts_whatever_the_command_made_of_it() {
    assert!(matches!(
        denied(&seen(exceeded(Resource::Pids)), Resource::Pids),
        Held(_)
    ));
    let mut handled = seen(EndReason::Completed);
    handled.record.limits_hit.push(LimitHit {
        which: Resource::Disk,
        limit: DISK,
        observed: DISK,
    });
    assert_eq!(
        denied(&handled, Resource::Disk),
        Held("denied at 1 MiB".to_owned())
    );
    assert!(!matches!(denied(&handled, Resource::Inodes), Held(_)));
    handled.record.contract = None;
    assert!(!matches!(denied(&handled, Resource::Disk), Held(_)));
}

#[test]
fn a_share_counts_only_where_it_was_really_wanted() {
    let mut run = seen(EndReason::Timeout { limit_ms: 2_000 });
    run.record.usage = Usage {
        wall_micros: 2_000_000,
        cpu_micros: Some(410_000),
        throttled_micros: Some(1),
        ..Usage::default()
    };
    assert!(matches!(cpu_rate(&run), Held(_)));
    run.record.usage.cpu_micros = Some(460_000);
    assert!(!matches!(cpu_rate(&run), Held(_)));
    run.record.usage.cpu_micros = Some(10_000);
    run.record.usage.throttled_micros = Some(0);
    assert!(!matches!(cpu_rate(&run), Held(_)), "it never wanted more");
}

#[test]
fn a_deadline_may_be_late_by_a_second_and_no_more() {
    let mut run = seen(EndReason::Timeout {
        limit_ms: SHORT_WALL_MS,
    });
    run.record.usage.wall_micros = 1_600_000;
    assert!(matches!(wall(&run), Held(_)));
    run.record.usage.wall_micros = 1_700_000;
    assert!(!matches!(wall(&run), Held(_)));
}

#[test]
fn output_is_cut_at_its_limit_with_all_of_it_counted() {
    let mut run = seen(EndReason::Completed);
    run.record.stdout = StreamRecord {
        written: WRITTEN,
        kept: OUTPUT,
        truncated: true,
    };
    assert!(matches!(output(&run), Held(_)));
    run.record.stdout.kept = OUTPUT + 1;
    assert!(!matches!(output(&run), Held(_)));
}

#[test]
fn a_sandbox_is_alone_on_its_loopback() {
    let head = "Inter-|   Receive\n face |bytes\n";
    let heading = "routes\nIface\tDestination\n";
    let good = format!("{head}    lo: 0 0\n{heading}done\n");
    assert!(matches!(alone(&good, false), Held(_)));
    assert!(!matches!(alone(&good, true), Held(_)));
    let other = format!("{head}    lo: 0\n  eth0: 0\n{heading}done\n");
    assert!(!matches!(alone(&other, false), Held(_)));
    let routed = format!("{head}    lo: 0\n{heading}eth0\t0\ndone\n");
    assert!(!matches!(alone(&routed, false), Held(_)));
    let reached = format!("{head}    lo: 0\n{heading}CONNECTED\ndone\n");
    assert!(!matches!(alone(&reached, false), Held(_)));
    assert!(!matches!(alone("", false), Held(_)));
}

#[test]
fn a_nest_opens_a_file_for_each_level() {
    let script = nest(3);
    assert_eq!(script.matches("{ ").count(), 3);
    assert_eq!(script.matches("3</dev/null").count(), 3);
}
