//! Components of WASI 0.2: their ends are those of core modules.

use std::time::{Duration, Instant};

use leasehold_core::end::ExitStatus;
use leasehold_core::limits::Resource;
use leasehold_protocol::wasm::{Flavour, Kind, RunLimits};

use crate::rig::{Rig, limits};

/// A component that exports `wasi:cli/run` with this body, whose answer is 0 for well and 1 for not, and may call
/// `$exit`, which takes the same.
pub(crate) fn component(body: &str) -> String {
    format!(
        r#"(component
  (import "wasi:cli/exit@0.2.0" (instance $exit
    (export "exit" (func (param "status" (result))))))
  (core func $exit-core (canon lower (func $exit "exit")))
  (core module $m
    (import "host" "exit" (func $exit (param i32)))
    (memory 1)
    (func (export "run") (result i32) {body}))
  (core instance $i (instantiate $m (with "host" (instance (export "exit" (func $exit-core))))))
  (func $run (result (result)) (canon lift (core func $i "run")))
  (instance $out (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $out)))"#
    )
}

#[test]
fn a_component_returns_exits_and_traps_like_a_module() {
    let rig = Rig::new(Flavour::Plain);
    assert_eq!(rig.compile(&component("(i32.const 0)")).0, Kind::Component);
    let cases = [
        ("(i32.const 0)", ExitStatus::Exit { code: 0 }),
        ("(i32.const 1)", ExitStatus::Exit { code: 1 }),
        (
            "(call $exit (i32.const 0)) unreachable",
            ExitStatus::Exit { code: 0 },
        ),
        (
            "(call $exit (i32.const 1)) unreachable",
            ExitStatus::Exit { code: 1 },
        ),
        (
            "unreachable",
            ExitStatus::Trap {
                name: "wasm `unreachable` instruction executed".to_owned(),
            },
        ),
    ];
    for (body, want) in cases {
        let report = rig.ends(&component(body), limits()).report;
        assert_eq!(report.exit, Some(want), "{body}");
        assert_eq!((report.killed_by, report.crashed), (None, None));
    }
}

#[test]
fn a_component_is_held_to_its_limits() {
    let rig = Rig::new(Flavour::Plain);
    let endless = component("(loop $again (br $again)) unreachable");
    let begun = Instant::now();
    let short = RunLimits {
        wall_ms: 200,
        ..limits()
    };
    assert!(rig.ends(&endless, short).report.wall_expired);
    assert!(begun.elapsed() >= Duration::from_millis(200));
    let grows =
        component("(loop $again (drop (memory.grow (i32.const 16))) (br $again)) unreachable");
    let hard = RunLimits {
        memory_kill: true,
        ..limits()
    };
    let hit = rig.ends(&grows, hard).report.killed_by.unwrap();
    assert_eq!((hit.which, hit.limit), (Resource::Memory, 64 << 20));
}

#[test]
fn a_component_that_is_no_command_says_so() {
    let rig = Rig::new(Flavour::Plain);
    let (kind, code) = rig.compile("(component)");
    let error = rig
        .loader
        .load(kind, Flavour::Plain, crate::rig::sealed(&code))
        .unwrap_err();
    assert!(error.to_string().contains("wasi:cli/run"), "{error}");
}
