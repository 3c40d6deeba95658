//! Each target over changed seeds, for some seconds each; `LEASEHOLD_FUZZ_SECONDS` says how many, and
//! `LEASEHOLD_FUZZ_SEED` which changes. What is found is a file that its test names.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "all of it is test code"
)]

use std::path::Path;
use std::time::Duration;

use leasehold_fuzz::{TARGETS, Target, drive, target};

fn variable(name: &str, otherwise: u64) -> u64 {
    let said = std::env::var(name);
    said.map_or(otherwise, |said| said.parse().expect("a number"))
}

/// Runs one, and keeps what it does not bear.
fn bears(name: &str) {
    let time = Duration::from_secs(variable("LEASEHOLD_FUZZ_SECONDS", 5));
    let seed = variable("LEASEHOLD_FUZZ_SEED", 0x9e37_79b9_7f4a_7c15);
    match drive(target(name), time, seed) {
        Ok(count) => eprintln!("{name}: {count} inputs"),
        Err(found) => {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
            std::fs::write(&path, &found.input).unwrap();
            panic!("{name}: {}: the input is {}", found.what, path.display());
        }
    }
}

#[test]
fn modules_cut_and_changed_break_nothing() {
    bears("module");
}

#[test]
fn frames_between_owner_and_host_break_nothing() {
    bears("host_wire");
}

#[test]
fn frames_of_the_supervisor_break_nothing() {
    bears("supervisor_frames");
}

#[test]
fn frames_of_the_guest_break_nothing() {
    bears("guest_frames");
}

#[test]
fn manifests_cut_and_changed_break_nothing() {
    bears("manifest");
}

#[test]
fn archives_cut_and_changed_break_nothing() {
    bears("archive");
}

/// The control: a reader that has a mistake is found out, and so is one that takes long.
#[test]
fn a_reader_with_a_mistake_is_found_out() {
    let wrong = Target {
        name: "wrong",
        body: |data| {
            assert!(
                !data.starts_with(b"\0asm") || data.get(4) == Some(&1),
                "a mistake"
            )
        },
        seeds: || vec![b"\0asm\x01\0\0\0".to_vec()],
    };
    let found = drive(wrong, Duration::from_secs(60), 7).unwrap_err();
    assert!(found.input.starts_with(b"\0asm"));
    assert_eq!(found.what, "a mistake");
    let again = drive(wrong, Duration::from_secs(60), 7).unwrap_err();
    assert_eq!(again, found, "the same changes for the same number");
}

/// Each target begins with what it reads, and has a file in the folder of cargo-fuzz.
#[test]
fn every_target_has_its_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let files = std::fs::read_dir(folder.join("fuzz_targets"))
        .unwrap()
        .count();
    assert_eq!(files, TARGETS.len());
    for target in TARGETS {
        let file = format!("fuzz_targets/{}.rs", target.name);
        let text = std::fs::read_to_string(folder.join(&file)).unwrap();
        assert!(
            text.contains(&format!("target({:?})", target.name)),
            "{file}"
        );
        assert!(manifest.contains(&format!("path = {file:?}")), "{file}");
        assert!((target.seeds)().len() > 1);
    }
}
