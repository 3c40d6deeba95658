//! `cargo xtask bench`: builds for release and measures, handing its arguments on. `cargo xtask soak`: the long form of a
//! test that looks whether anything grows.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::tally::Tally;
use crate::{setup, step, tree};

/// Builds and runs `leasehold bench process` with `words`.
///
/// # Errors
/// When building or measuring fails.
pub(crate) fn run(words: &[&str]) -> Result<Tally> {
    let mut tally = setup::run(&setup::TESTS)?;
    let hour = Duration::from_secs(3600);
    let mut build = step::cargo();
    build
        .args(["build", "--release", "-p", "leasehold"])
        .current_dir(tree::root());
    step::tee("build", &mut build, hour)?;
    let mut bench = Command::new(tree::target().join("release/leasehold"));
    bench.args(["bench", "process"]).args(words);
    step::tee("bench", &mut bench, hour)?;
    tally.passed += 1;
    Ok(tally)
}

/// Cycles of a soak.
const CYCLES: &str = "2000";

/// The tests that take so many: without deaths, and with.
const TESTS: [&str; 2] = [
    "daemon::soak::p88_after_many_cycles_daemon_worker_and_host_hold_what_they_held",
    "daemon::soak::p88_after_cycles_with_deaths_the_daemon_holds_what_it_held",
];

/// Builds and has the tests do their cycles many more times than beside others.
///
/// # Errors
/// When building fails or something grows.
pub(crate) fn soak() -> Result<Tally> {
    let mut tally = setup::run(&setup::TESTS)?;
    let hour = Duration::from_secs(3600);
    let mut build = step::cargo();
    build
        .args(["build", "-p", "leasehold"])
        .current_dir(tree::root());
    step::tee("build", &mut build, hour)?;
    for name in TESTS {
        let mut test = step::cargo();
        test.args(["test", "-p", "leasehold-e2e", "--test", "it", "--"])
            .args(["--exact", "--nocapture", name])
            .env("LEASEHOLD_SOAK", CYCLES)
            .env("LEASEHOLD_BIN", tree::target().join("debug/leasehold"))
            .current_dir(tree::root());
        step::tee("soak", &mut test, hour)?;
        tally.passed += 1;
    }
    Ok(tally)
}
