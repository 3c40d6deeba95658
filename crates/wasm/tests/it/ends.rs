//! How a run ends: exit, trap, time and cancellation are told apart.

use std::time::{Duration, Instant};

use leasehold_core::end::ExitStatus;
use leasehold_core::limits::Resource;
use leasehold_protocol::wasm::{Flavour, RunLimits};
use leasehold_wasm::run::Task;

use crate::guests;
use crate::rig::{Rig, limits};

fn exit(code: u8) -> Option<ExitStatus> {
    Some(ExitStatus::Exit { code })
}

#[test]
fn a_program_that_returns_has_exit_status_0() {
    let ran = Rig::new(Flavour::Plain).ends(&guests::hello(), limits());
    assert_eq!(ran.report.exit, exit(0));
    assert_eq!(ran.stdout, b"hello\n");
    assert_eq!((ran.report.stdout.total, ran.report.stdout.kept), (6, 6));
    assert!(ran.report.killed_by.is_none() && ran.report.crashed.is_none());
}

#[test]
fn every_exit_status_is_told() {
    let rig = Rig::new(Flavour::Plain);
    for status in [0, 1, 3, 125, 126, 137, 255] {
        let ran = rig.ends(&guests::exits(status), limits());
        assert_eq!(ran.report.exit, exit(status as u8), "{:?}", ran.report);
    }
}

#[test]
fn a_trap_has_its_name_and_the_functions_it_was_in() {
    let rig = Rig::new(Flavour::Plain);
    let cases = [
        ("unreachable", "wasm `unreachable` instruction executed"),
        (
            "(drop (i32.load (i32.const -1)))",
            "out of bounds memory access",
        ),
        (
            "(drop (i32.div_u (i32.const 1) (i32.const 0)))",
            "integer divide by zero",
        ),
        (
            "(drop (i32.trunc_f32_s (f32.const nan)))",
            "invalid conversion to integer",
        ),
        ("(call_indirect (i32.const 0))", "uninitialized element"),
    ];
    for (body, name) in cases {
        let fields =
            format!("(table 1 funcref) (func $deepest {body}) (func $middle (call $deepest))");
        let ran = rig.ends(&guests::with(&fields, "(call $middle)"), limits());
        let want = ExitStatus::Trap {
            name: name.to_owned(),
        };
        assert_eq!(ran.report.exit, Some(want), "{body}");
        let trace = &ran.report.backtrace;
        assert!(
            trace[0].starts_with("deepest") && trace[1].starts_with("middle"),
            "{trace:?}"
        );
    }
}

/// Ends at its limit: not before, and not much later, since nothing waits for it. Ten seconds of grace are for
/// machines on which much else runs.
fn ends_at_its_deadline(text: &str) {
    let rig = Rig::new(Flavour::Plain);
    let limits = RunLimits {
        wall_ms: 200,
        ..limits()
    };
    let program = rig.program(text);
    let begun = Instant::now();
    let ran = rig.run(&program, Task::new("guest", limits));
    assert!(ran.report.wall_expired, "{:?}", ran.report);
    assert_eq!((ran.report.exit, ran.report.killed_by), (None, None));
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_program_that_computes_for_ever_ends_at_its_deadline() {
    ends_at_its_deadline(&guests::spins());
}

#[test]
fn a_program_asleep_in_poll_oneoff_ends_at_its_deadline() {
    ends_at_its_deadline(&guests::sleeps());
}

#[test]
fn a_start_section_without_end_ends_at_the_deadline() {
    ends_at_its_deadline(&guests::with(
        "(func $init (loop $again (br $again))) (start $init)",
        "",
    ));
}

#[test]
fn a_program_that_waits_for_input_ends_at_its_deadline() {
    let rig = Rig::new(Flavour::Plain);
    let mut task = Task::new(
        "guest",
        RunLimits {
            wall_ms: 200,
            ..limits()
        },
    );
    task.stdin = leasehold_wasm::input::Input::default();
    let ran = rig.run(&rig.program(&guests::copies()), task);
    assert!(ran.report.wall_expired, "{:?}", ran.report);
}

#[test]
fn processor_time_is_a_limit_of_its_own() {
    let rig = Rig::new(Flavour::Plain);
    let wanted = RunLimits {
        cpu_time_ms: Some(50),
        ..limits()
    };
    let hit = rig
        .ends(&guests::spins(), wanted.clone())
        .report
        .killed_by
        .unwrap();
    assert_eq!((hit.which, hit.limit), (Resource::CpuTime, 50));
    assert!(hit.observed >= 50);
    // Sleeping uses none of it.
    let asleep = RunLimits {
        wall_ms: 300,
        ..wanted
    };
    assert!(rig.ends(&guests::sleeps(), asleep).report.wall_expired);
}

#[test]
fn a_run_is_cancelled_wherever_it_is() {
    let rig = Rig::new(Flavour::Plain);
    for text in [guests::spins(), guests::sleeps()] {
        let program = rig.program(&text);
        let soon = async { tokio::time::sleep(Duration::from_millis(50)).await };
        let ran = rig.run_until(&program, Task::new("guest", limits()), soon);
        assert!(
            ran.report.cancelled && !ran.report.wall_expired,
            "{:?}",
            ran.report
        );
    }
}

#[test]
fn what_cannot_be_run_says_why() {
    let rig = Rig::new(Flavour::Plain);
    let ran = rig.ends("(module)", limits());
    assert_eq!(ran.report.exit, Some(ExitStatus::NotExecutable));
    assert!(ran.report.detail.unwrap().contains("_start"));
    let (kind, code) = rig.compile(r#"(module (import "env" "f" (func)))"#);
    let error = rig
        .loader
        .load(kind, Flavour::Plain, crate::rig::sealed(&code))
        .unwrap_err();
    assert!(error.to_string().contains("env"), "{error}");
}
