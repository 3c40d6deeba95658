//! The compiler process: what it makes, and what stops it.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use leasehold_protocol::wasm::{Flavour, Kind, RunLimits};
use leasehold_wasm::run::Task;

use crate::guests;
use crate::rig::{Rig, limits, sealed};

/// Runs the program with these bounds: processor seconds, bytes of address space, bytes of the module.
pub(crate) fn compile(wasm: &[u8], bounds: [&str; 3]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_leasehold-wasm-compiler"))
        .arg("plain")
        .args(bounds)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let wasm = wasm.to_vec();
    // It may end before it has read everything.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&wasm)));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    output
}

/// Bounds that no program meets which is what it seems.
pub(crate) const ROOMY: [&str; 3] = ["60", "4294967296", "67108864"];

#[test]
fn what_it_writes_can_be_run() {
    let made = compile(&wat::parse_str(guests::hello()).unwrap(), ROOMY);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(made.stderr, b"core\n");
    let rig = Rig::new(Flavour::Plain);
    let program = rig
        .loader
        .load(Kind::Core, Flavour::Plain, sealed(&made.stdout))
        .unwrap();
    assert_eq!(
        rig.run(&program, Task::new("guest", limits())).stdout,
        b"hello\n"
    );
}

#[test]
fn what_is_no_module_is_told() {
    for (wasm, word) in [
        (&b"#!/bin/sh\n"[..], "no WebAssembly"),
        (b"", "no WebAssembly"),
        (b"\0asm\x01\0\0\0\xff", "not a valid"),
    ] {
        let made = compile(wasm, ROOMY);
        assert_eq!(made.status.code(), Some(65), "{made:?}");
        let said = String::from_utf8(made.stderr).unwrap();
        assert!(said.contains(word) && made.stdout.is_empty(), "{said}");
    }
}

#[test]
fn a_module_that_is_too_long_is_refused_before_it_is_looked_at() {
    let long = vec![0; 10_001];
    let made = compile(&long, [ROOMY[0], ROOMY[1], "10000"]);
    assert_eq!(made.status.code(), Some(65));
    assert!(
        String::from_utf8(made.stderr)
            .unwrap()
            .contains("10000 bytes")
    );
}

/// One function in which a thousand values are alive over sixty thousand loops.
fn bomb() -> Vec<u8> {
    use std::fmt::Write as _;
    let mut text = String::from("(module (func (export \"_start\") (local");
    for _ in 0..1_000 {
        text.push_str(" i32");
    }
    text.push(')');
    for at in 0..60_000 {
        let (one, other) = (at % 1_000, (at * 7 + 1) % 1_000);
        write!(
            text,
            "(loop (local.set {one} (i32.add (local.get {one}) (local.get {other}))) (br_if 0 (local.get {other})))"
        )
        .unwrap();
    }
    text.push_str("))");
    wat::parse_str(text).unwrap()
}

#[test]
fn a_compile_bomb_ends_at_its_processor_limit() {
    use std::os::unix::process::ExitStatusExt as _;
    let made = compile(&bomb(), ["1", ROOMY[1], ROOMY[2]]);
    // SIGXCPU, or SIGKILL where the two limits are one.
    assert!(
        matches!(made.status.signal(), Some(24 | 9)),
        "{:?}",
        made.status
    );
    assert!(made.stdout.is_empty());
}

#[test]
fn a_compile_bomb_ends_at_its_memory_limit() {
    use std::os::unix::process::ExitStatusExt as _;
    let made = compile(&bomb(), ["60", "134217728", ROOMY[2]]);
    // Where memory is not bounded, its time ends it, by another signal.
    let said = String::from_utf8_lossy(&made.stderr);
    assert_eq!(made.status.signal(), Some(6), "{:?}: {said}", made.status);
    assert!(said.contains("memory allocation of"), "{said}");
    assert!(made.stdout.is_empty());
}

/// What code of a flavour depends on besides the module.
pub(crate) fn fingerprint(flavour: &str) -> String {
    let said = Command::new(env!("CARGO_BIN_EXE_leasehold-wasm-compiler"))
        .args([flavour, "fingerprint"])
        .output()
        .unwrap();
    String::from_utf8(said.stderr).unwrap().trim().to_owned()
}

#[test]
fn keys_differ_between_flavours_and_stay_the_same() {
    assert_eq!(fingerprint("plain"), fingerprint("plain"));
    assert_ne!(fingerprint("plain"), fingerprint("metered"));
    assert_eq!(fingerprint("plain").len(), 32);
}

#[test]
fn a_module_of_very_many_functions_compiles_and_runs() {
    use std::fmt::Write as _;
    let mut text = String::from("(module (func (export \"_start\"))");
    for _ in 0..20_000 {
        write!(text, "(func (param i32) (result i32) local.get 0)").unwrap();
    }
    text.push(')');
    let made = compile(&wat::parse_str(text).unwrap(), ROOMY);
    assert!(made.status.success(), "{:?}", made.status);
    let rig = Rig::new(Flavour::Plain);
    let program = rig
        .loader
        .load(Kind::Core, Flavour::Plain, sealed(&made.stdout))
        .unwrap();
    let limits = RunLimits {
        wall_ms: 5_000,
        ..limits()
    };
    assert!(
        rig.run(&program, Task::new("guest", limits))
            .report
            .exit
            .is_some()
    );
}
