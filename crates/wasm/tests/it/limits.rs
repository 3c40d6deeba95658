//! What a run may use, and what it is told when it wants more.

use leasehold_core::end::ExitStatus;
use leasehold_core::limits::Resource;
use leasehold_protocol::wasm::{Flavour, RunLimits};
use leasehold_wasm::engine::STACK_BYTES;
use leasehold_wasm::run::Task;

use crate::guests;
use crate::rig::{Rig, limits};

/// Grows by 1 MiB until that fails, then ends with `status`.
fn grows(status: i32) -> String {
    guests::module(&format!(
        "(loop $again
           (br_if $again (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
         (call $proc_exit (i32.const {status}))"
    ))
}

#[test]
fn memory_is_denied_and_the_program_may_go_on() {
    let rig = Rig::new(Flavour::Plain);
    let ran = rig.ends(&grows(0), limits());
    assert_eq!(ran.report.exit, Some(ExitStatus::Exit { code: 0 }));
    let hit = ran.report.denied[0];
    assert_eq!((hit.which, hit.limit), (Resource::Memory, 64 << 20));
    assert!(hit.observed > hit.limit);
    assert!(ran.report.memory_peak_bytes <= 64 << 20);
    assert!(ran.report.memory_peak_bytes > 62 << 20);
}

#[test]
fn memory_ends_the_run_where_it_was_asked_to() {
    let rig = Rig::new(Flavour::Plain);
    let ran = rig.ends(
        &grows(0),
        RunLimits {
            memory_kill: true,
            ..limits()
        },
    );
    assert_eq!(ran.report.killed_by.unwrap().which, Resource::Memory);
    assert_eq!(ran.report.exit, None);
}

#[test]
fn a_module_that_begins_above_its_memory_is_not_begun() {
    let rig = Rig::new(Flavour::Plain);
    let text = r#"(module (memory 2048) (func (export "_start")))"#;
    let hit = rig.ends(text, limits()).report.killed_by.unwrap();
    assert_eq!((hit.which, hit.observed), (Resource::Memory, 128 << 20));
    let enough = RunLimits {
        memory_bytes: 128 << 20,
        ..limits()
    };
    assert_eq!(
        rig.ends(text, enough).report.exit,
        Some(ExitStatus::Exit { code: 0 })
    );
}

#[test]
fn tables_are_memory_and_have_a_bound() {
    let rig = Rig::new(Flavour::Plain);
    let text = guests::with(
        "(table $t 0 funcref)",
        "(loop $again
           (br_if $again (i32.ne (table.grow $t (ref.null func) (i32.const 1000)) (i32.const -1))))
         (call $proc_exit (i32.const 7))",
    );
    let few = RunLimits {
        table_elements: 5_000,
        ..limits()
    };
    for limits in [
        few,
        RunLimits {
            memory_bytes: 1 << 20,
            ..limits()
        },
    ] {
        let ran = rig.ends(&text, limits);
        assert_eq!(ran.report.exit, Some(ExitStatus::Exit { code: 7 }));
        assert_eq!(ran.report.denied[0].which, Resource::Memory);
    }
}

/// A table that reaches the largest there is, and one that its module bounds itself.
#[test]
fn the_bound_of_a_pool_is_ours_and_that_of_a_module_is_its_own() {
    let rig = Rig::new(Flavour::Plain);
    let fills = |bound: &str| {
        guests::with(
            &format!("(table $t 0 {bound} funcref)"),
            "(loop $again
               (br_if $again (i32.ne (table.grow $t (ref.null func) (i32.const 65536)) (i32.const -1))))
             (call $proc_exit (i32.const 7))",
        )
    };
    for (bound, ours) in [("", true), ("4000000", true), ("100000", false)] {
        let report = rig.ends(&fills(bound), limits()).report;
        assert_eq!(report.exit, Some(ExitStatus::Exit { code: 7 }), "{bound}");
        let denied: Vec<Resource> = report.denied.iter().map(|hit| hit.which).collect();
        let wanted: &[Resource] = if ours { &[Resource::Memory] } else { &[] };
        assert_eq!(denied, wanted, "{bound}");
    }
}

#[test]
fn a_recursion_without_end_ends_at_the_stack() {
    let rig = Rig::new(Flavour::Plain);
    let text = guests::with("(func $deep (call $deep) (call $deep))", "(call $deep)");
    for _ in 0..3 {
        let hit = rig.ends(&text, limits()).report.killed_by.unwrap();
        assert_eq!(
            (hit.which, hit.limit),
            (Resource::Stack, STACK_BYTES as u64)
        );
    }
    assert_eq!(rig.ends(&guests::hello(), limits()).stdout, b"hello\n");
}

#[test]
fn fuel_ends_the_run_and_is_counted_exactly() {
    let rig = Rig::new(Flavour::Metered);
    let wanted = RunLimits {
        fuel: Some(100_000),
        ..limits()
    };
    let ran = rig.ends(&guests::spins(), wanted.clone());
    assert_eq!(ran.report.killed_by.unwrap().which, Resource::Fuel);
    assert!(ran.report.fuel_used.unwrap() >= 99_000);
    let used = |limits| rig.ends(&guests::hello(), limits).report.fuel_used.unwrap();
    let first = used(limits());
    assert!(first > 0);
    assert_eq!([used(limits()), used(wanted)], [first; 2]);
}

#[test]
fn fuel_of_a_plain_module_is_refused() {
    let rig = Rig::new(Flavour::Plain);
    let task = Task::new(
        "guest",
        RunLimits {
            fuel: Some(1),
            ..limits()
        },
    );
    let why = task.check(&rig.program(&guests::hello())).unwrap_err();
    assert!(why.contains("metered"), "{why}");
}

#[test]
fn a_flood_is_cut_and_counted_to_the_byte() {
    let rig = Rig::new(Flavour::Plain);
    let ran = rig.ends(&guests::floods(100), limits());
    assert_eq!(ran.report.exit, Some(ExitStatus::Exit { code: 0 }));
    assert_eq!(ran.report.stdout.total, 100 * 32_768);
    assert_eq!(ran.report.stdout.kept, 1 << 20);
    assert_eq!(ran.stdout.len(), 1 << 20);
    assert_eq!(ran.report.denied[0].which, Resource::Output);
}

#[test]
fn a_flood_ends_the_run_where_it_was_asked_to() {
    let rig = Rig::new(Flavour::Plain);
    let ran = rig.ends(
        &guests::floods(-1),
        RunLimits {
            output_kill: true,
            ..limits()
        },
    );
    let hit = ran.report.killed_by.unwrap();
    assert_eq!((hit.which, hit.limit), (Resource::Output, 1 << 20));
    assert_eq!(ran.stdout.len(), 1 << 20);
}

#[test]
fn too_many_instances_are_refused() {
    let rig = Rig::new(Flavour::Plain);
    let text = guests::hello();
    let ran = rig.ends(
        &text,
        RunLimits {
            instances: 0,
            ..limits()
        },
    );
    assert_eq!(
        ran.report.exit,
        Some(ExitStatus::NotExecutable),
        "{:?}",
        ran.report
    );
    assert!(ran.report.detail.unwrap().contains("instance"));
}
