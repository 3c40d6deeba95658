//! Modules that were made to break something.

use leasehold_core::end::ExitStatus;
use leasehold_protocol::wasm::{Flavour, Kind};
use leasehold_wasm::compile::Compiler;

use crate::guests;
use crate::numbers::Numbers;
use crate::rig::{Rig, limits, sealed};

#[test]
fn cut_and_changed_modules_are_refused_or_run_within_their_limits() {
    let rig = Rig::new(Flavour::Plain);
    let compiler = Compiler::new(Flavour::Plain).unwrap();
    let good = wat::parse_str(guests::copies()).unwrap();
    // Cut before its last section, which holds names, it is a module still.
    let lengths = (0..good.len()).step_by(7);
    let valid = lengths.filter(|length| compiler.compile(&good[..*length]).is_ok());
    assert!(valid.count() <= 1);
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut ran = 0;
    for _ in 0..400 {
        let mut bytes = good.clone();
        for _ in 0..1 + numbers.below(4) {
            let at = numbers.below(bytes.len());
            bytes[at] = numbers.next() as u8;
        }
        let Ok((kind, code)) = compiler.compile(&bytes) else {
            continue;
        };
        let Ok(program) = rig.loader.load(kind, Flavour::Plain, sealed(&code)) else {
            continue;
        };
        let limits = leasehold_protocol::wasm::RunLimits {
            wall_ms: 50,
            ..limits()
        };
        let report = rig
            .run(&program, leasehold_wasm::run::Task::new("guest", limits))
            .report;
        assert_eq!(report.crashed, None);
        ran += 1;
    }
    assert!(
        ran > 20,
        "only {ran} were runnable: the changes are too coarse to test anything"
    );
    assert_eq!(rig.ends(&guests::hello(), limits()).stdout, b"hello\n");
}

#[test]
fn a_module_that_exports_no_memory_ends_by_its_own_fault_when_it_calls() {
    let rig = Rig::new(Flavour::Plain);
    let calls = "(module
        (import \"wasi_snapshot_preview1\" \"random_get\" (func $random (param i32 i32) (result i32)))
        (memory EXPORT 1)
        (func (export \"_start\") (drop (call $random (i32.const 0) (i32.const 4)))))";
    let with = calls.replace("EXPORT", "(export \"memory\")");
    let control = rig.ends(&with, limits()).report;
    assert_eq!(control.exit, Some(ExitStatus::Exit { code: 0 }));
    let report = rig.ends(&calls.replace("EXPORT", ""), limits()).report;
    assert_eq!(report.crashed, None);
    let Some(ExitStatus::Trap { name }) = report.exit else {
        panic!("{report:?}");
    };
    assert!(name.contains("exports no memory"), "{name}");
    assert!(!report.backtrace.is_empty());
}

#[test]
fn code_that_is_not_ours_is_refused() {
    let rig = Rig::new(Flavour::Plain);
    let (kind, code) = rig.compile(&guests::hello());
    let load = |kind, bytes: &[u8]| rig.loader.load(kind, Flavour::Plain, sealed(bytes));
    assert!(load(kind, &code).is_ok());
    assert!(
        load(Kind::Component, &code).is_err(),
        "a core module is no component"
    );
    assert!(load(kind, b"").is_err());
    assert!(load(kind, &code[..code.len() / 2]).is_err());
    assert!(
        load(kind, &wat::parse_str(guests::hello()).unwrap()).is_err(),
        "it is not compiled"
    );
    // Of another flavour.
    let metered = Compiler::new(Flavour::Metered).unwrap();
    let (kind, other) = metered
        .compile(&wat::parse_str(guests::hello()).unwrap())
        .unwrap();
    let error = load(kind, &other).unwrap_err().to_string();
    assert!(error.contains("fuel"), "{error}");
}

#[test]
fn code_that_could_change_is_not_loaded() {
    use std::io::Write as _;
    let rig = Rig::new(Flavour::Plain);
    let (kind, code) = rig.compile(&guests::hello());
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let mut open = std::fs::File::from(rustix::fs::memfd_create("code", flags).unwrap());
    open.write_all(&code).unwrap();
    let error = rig.loader.load(kind, Flavour::Plain, open).unwrap_err();
    assert!(error.to_string().contains("sealed"), "{error}");
}

/// Addresses and lengths that lead out of a module's memory lead nowhere on the host's side either.
#[test]
fn p18_no_call_reads_or_writes_beyond_a_modules_memory() {
    let rig = Rig::new(Flavour::Plain);
    let list = |at: &str, length: &str| {
        format!(
            "(i32.store (i32.const 16) (i32.const {at})) (i32.store (i32.const 20) (i32.const {length}))"
        )
    };
    // Bytes and calls: with the address inside it is done, with any of the others it is not.
    let calls = [
        (
            "(call $fd_write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 32))",
            "64",
        ),
        (
            "(call $random_get (i32.load (i32.const 16)) (i32.load (i32.const 20)))",
            "64",
        ),
        (
            "(call $clock_time_get (i32.const 0) (i64.const 1) (i32.load (i32.const 16)))",
            "8",
        ),
    ];
    for (call, length) in calls {
        let run = |at: &str, length: &str| {
            let body = format!("(block (result i32) {} {call})", list(at, length));
            rig.ends(
                &guests::module(&format!("(call $proc_exit {body})")),
                limits(),
            )
        };
        let inside = run("1024", length);
        assert_eq!(
            inside.report.exit,
            Some(ExitStatus::Exit { code: 0 }),
            "{call}"
        );
        for at in ["65535", "65536", "0x7fffffff", "0xfffffff8"] {
            let ran = run(at, length);
            assert_eq!(ran.report.crashed, None, "{call} at {at}");
            assert_ne!(
                ran.report.exit,
                Some(ExitStatus::Exit { code: 0 }),
                "{call} at {at}"
            );
            assert!(ran.stdout.is_empty(), "{call} at {at}: {:?}", ran.stdout);
        }
    }
}

/// A module has its own memories and tables and no others: there is nothing that two could share.
#[test]
fn p18_memory_of_somebody_else_cannot_be_asked_for() {
    let rig = Rig::new(Flavour::Plain);
    let compiler = Compiler::new(Flavour::Plain).unwrap();
    let shared = r#"(module (memory 1 1 shared) (func (export "_start")))"#;
    let refused = compiler.compile(&wat::parse_str(shared).unwrap());
    assert!(refused.unwrap_err().to_string().contains("shared"));
    let control = shared.replace(" shared", "");
    assert!(compiler.compile(&wat::parse_str(control).unwrap()).is_ok());
    for import in [
        r#"(import "env" "memory" (memory 1))"#,
        r#"(import "wasi_snapshot_preview1" "memory" (memory 1))"#,
        r#"(import "env" "table" (table 1 funcref))"#,
        r#"(import "env" "global" (global (mut i32)))"#,
        r#"(import "wasi_snapshot_preview1" "proc_exec" (func (param i32)))"#,
    ] {
        let (kind, code) = rig.compile(&format!("(module {import} (func (export \"_start\")))"));
        let error = rig
            .loader
            .load(kind, Flavour::Plain, sealed(&code))
            .unwrap_err();
        assert!(
            error.to_string().contains("unknown import"),
            "{import}: {error}"
        );
    }
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

/// In a process of its own: other tests take memory too.
#[test]
fn ten_thousand_runs_are_flat_in_memory() {
    if leasehold_e2e::alone("hostile::ten_thousand_runs_are_flat_in_memory") {
        runs_ten_thousand_times();
    }
}

fn runs_ten_thousand_times() {
    let rig = Rig::new(Flavour::Plain);
    let program = rig.program(&guests::hello());
    let run = |times: usize| {
        for _ in 0..times {
            let ran = rig.run(&program, leasehold_wasm::run::Task::new("guest", limits()));
            assert_eq!(ran.report.exit, Some(ExitStatus::Exit { code: 0 }));
        }
    };
    run(1_000);
    let before = resident();
    run(10_000);
    let grown = resident().saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes more than before");
}

#[test]
fn no_run_sees_what_another_left() {
    let rig = Rig::new(Flavour::Plain);
    // Fills its memory and a fresh page, and first says whether any of it is not zero.
    let text = guests::module(
        "(local $at i32)
         (drop (memory.grow (i32.const 4)))
         (local.set $at (i32.const 0))
         (loop $look
           (if (i64.ne (i64.load (local.get $at)) (i64.const 0)) (then (call $proc_exit (i32.const 9))))
           (local.set $at (i32.add (local.get $at) (i32.const 8)))
           (br_if $look (i32.lt_u (local.get $at) (i32.const 327680))))
         (memory.fill (i32.const 0) (i32.const 170) (i32.const 327680))",
    );
    let program = rig.program(&text);
    for _ in 0..50 {
        let ran = rig.run(&program, leasehold_wasm::run::Task::new("guest", limits()));
        assert_eq!(ran.report.exit, Some(ExitStatus::Exit { code: 0 }));
    }
}
