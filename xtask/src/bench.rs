//! `cargo xtask bench`: builds for release and measures, handing its arguments on.

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
