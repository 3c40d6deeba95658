//! Modules that were made to hurt: each ends by its own reason, and nobody beside it notices.

use std::fmt::Write as _;

use leasehold_backend::seam::Backend as _;
use leasehold_backend::wasm::Module;
use leasehold_core::end::EndReason;
use leasehold_core::limits::{Limit, Limits, OnDenied, OnOutputLimit, Resource};

use super::{Done, Order, Rig, finish, guests, module, order};

/// A module, what bounds it, and how it must end.
struct Case {
    name: &'static str,
    text: String,
    limits: fn(&mut Limits),
    ends: fn(&Done) -> bool,
}

fn timed_out(done: &Done) -> bool {
    *done.end() == EndReason::Timeout { limit_ms: 700 }
}

fn killed(done: &Done, which: Resource) -> bool {
    let named = done.record.limits_hit.iter().any(|hit| hit.which == which);
    let killed =
        matches!(done.end(), EndReason::ResourceExceeded { hit, exit: None } if hit.which == which);
    named && killed
}

fn briefly(limits: &mut Limits) {
    limits.wall_ms = Limit::asked(700);
}

fn hard(limits: &mut Limits) {
    limits.wall_ms = Limit::asked(60_000);
    limits.memory_bytes = Limit::asked(8 << 20);
    limits.output_bytes = Limit::asked(100_000);
    limits.on_denied = OnDenied::Kill;
    limits.on_output_limit = OnOutputLimit::Kill;
}

fn cases() -> Vec<Case> {
    let case = |name, text, limits, ends| Case {
        name,
        text,
        limits,
        ends,
    };
    let endless = "(module (memory (export \"memory\") 1) (func $s (loop $e (br $e))) (start $s) (func (export \"_start\")))";
    let tables = "(loop $more (drop (table.grow $t (ref.null func) (i32.const 65536))) (br $more))";
    vec![
        case("spins", guests::spins(), briefly, timed_out),
        case("sleeps", guests::sleeps(), briefly, timed_out),
        case(
            "endless start section",
            endless.to_owned(),
            briefly,
            timed_out,
        ),
        case(
            "burns processor time",
            guests::spins(),
            |limits| limits.cpu_time_ms = Some(Limit::asked(200)),
            |done| killed(done, Resource::CpuTime),
        ),
        case(
            "recurses",
            guests::with("(func $deep (call $deep) (call $deep))", "(call $deep)"),
            hard,
            |done| killed(done, Resource::Stack),
        ),
        case(
            "takes memory",
            guests::module("(loop $more (drop (memory.grow (i32.const 16))) (br $more))"),
            hard,
            |done| killed(done, Resource::Memory),
        ),
        case(
            "takes tables",
            guests::with("(table $t 1 funcref)", tables),
            hard,
            |done| killed(done, Resource::Memory),
        ),
        case("floods", guests::floods(-1), hard, |done| {
            killed(done, Resource::Output) && done.stdout.len() == 100_000
        }),
        case(
            "floods and is cut",
            guests::floods(100),
            |limits| limits.output_bytes = Limit::asked(1_000),
            |done| {
                let stream = done.record.stdout;
                *done.end() == EndReason::Completed
                    && (stream.written, stream.kept) == (3_276_800, 1_000)
                    && stream.truncated
                    && done.stdout.len() == 1_000
            },
        ),
        case(
            "is huge",
            huge(),
            |limits| limits.wall_ms = Limit::asked(60_000),
            |done| *done.end() == EndReason::Completed,
        ),
    ]
}

/// Many functions and much data.
fn huge() -> String {
    let mut text =
        String::from("(module (memory (export \"memory\") 100) (func (export \"_start\"))");
    for at in 0..2_000 {
        write!(text, "(func (param i32) (result i32) (i32.const {at}))").unwrap();
    }
    let block = "x".repeat(100_000);
    for at in 0..60 {
        write!(text, "(data (i32.const {}) \"{block}\")", at * 100_000).unwrap();
    }
    text.push(')');
    text
}

/// A run that is in the middle of its work: it has taken some input and waits for nothing.
fn neighbour(copies: &Module, input: &[u8], name: &str) -> Order {
    order(copies).of(name).input(input).wall(120_000)
}

#[tokio::test]
async fn what_a_module_does_to_itself_it_does_to_nobody_else() {
    let Some(rig) = Rig::new("what_a_module_does_to_itself_it_does_to_nobody_else") else {
        return;
    };
    let copies = module(&guests::copies());
    let sleeps = module(&guests::sleeps());
    let input = vec![b'n'; 1 << 20];
    // One of each tenant that is there all the time.
    let mut stay = Vec::new();
    for name in ["ada", "bob"] {
        let order = order(&sleeps).of(name).wall(300_000);
        stay.push(rig.backend.launch(order.launch).await.unwrap());
    }
    for case in cases() {
        let hurts = order(&module(&case.text)).of("ada").limits(case.limits);
        let hurting = rig.backend.launch(hurts.launch).await.unwrap();
        let mut beside = Vec::new();
        for name in ["ada", "bob"] {
            let order = neighbour(&copies, &input, name);
            beside.push(rig.backend.launch(order.launch).await.unwrap());
        }
        let done = finish(hurting).await;
        assert!(
            done.shared() && (case.ends)(&done),
            "{}: {:?}",
            case.name,
            done.record
        );
        for execution in beside {
            let done = finish(execution).await;
            assert_eq!(*done.end(), EndReason::Completed, "beside {}", case.name);
            assert!(
                done.stdout == input && done.shared(),
                "beside {}",
                case.name
            );
        }
    }
    let by = leasehold_core::end::CancelledBy::Caller;
    for execution in stay {
        rig.backend
            .cancel(execution.run.clone(), by, true)
            .await
            .unwrap();
        assert_eq!(*finish(execution).await.end(), EndReason::Cancelled { by });
    }
    assert_eq!(rig.backend.counts().trouble, None);
}
