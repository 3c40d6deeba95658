//! `cargo xtask ci`: everything that CI runs, in its order, the same for a person.
//!
//! Each step prints its own command and its time. A step that fails does not hide the later ones, but
//! nothing is tested that could not be built. The last line is the count over all test runners.
//!
//! The step *tests* is every crate but `e2e`: with the suite of the store, the engine of `control` over a failing
//! store and host, and `api`, whose description of the HTTP interface is compared with the committed one.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::runner::{self, Runner};
use crate::tally::Tally;
use crate::{setup, step, templates, tidy, tree, v2, wasm};

/// Longest that building may take on two slow cores, and longest for one step of tests.
const BUILD_MAX: Duration = Duration::from_secs(25 * 60);
const TEST_MAX: Duration = Duration::from_secs(20 * 60);

/// Runs it all.
///
/// # Errors
/// When a step cannot be carried out at all. Failures of steps are in the tally.
pub(crate) fn run() -> Result<Tally> {
    let started = Instant::now();
    let mut tally = Tally::default();
    let mut ready = setup::all()?;
    // Packages are no tests.
    ready.passed = 0;
    tally.add(ready);
    check(&mut tally, "fmt", cargo(&["fmt", "--all", "--check"]))?;
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    check(&mut tally, "clippy", cargo(&clippy))?;
    println!("\n==> tidy: cargo xtask tidy");
    tally.add(tidy::run()?);
    if check(&mut tally, "build", cargo(&["build", "-p", "leasehold"]))? {
        println!("\n==> wasm: cargo xtask wasm --dev");
        match wasm::run(wasm::Speed::Dev) {
            Ok(built) => tally.add(built),
            Err(error) => tally.fail(&format!("wasm: {error:#}")),
        }
        println!("\n==> templates: cargo xtask templates");
        tally.add(templates::where_possible()?);
        tests(&mut tally)?;
    }
    println!("\nci: {:.0} s in all", started.elapsed().as_secs_f64());
    Ok(tally)
}

/// Everything that runs tests. The binary under test is the one just built.
fn tests(tally: &mut Tally) -> Result<()> {
    let folder = tree::target().join("e2e");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let skips = folder.join("skips");
    fs::write(&skips, "").with_context(|| format!("empty {}", skips.display()))?;
    let runner = Runner::here();
    for (name, chosen) in [
        ("tests", &["--workspace", "--exclude", "leasehold-e2e"][..]),
        ("e2e", &["-p", "leasehold-e2e"]),
    ] {
        let mut command = runner.command(chosen);
        command
            .env("LEASEHOLD_BIN", tree::target().join("debug/leasehold"))
            .env("LEASEHOLD_SKIPS", &skips);
        let (text, status) = step::tee_status(name, &mut command, TEST_MAX + BUILD_MAX)?;
        tally.add(runner::read(name, &text, status.success()));
    }
    let listed = fs::read_to_string(&skips).unwrap_or_default();
    tally.add(runner::skips(&listed));
    println!("\n==> test-v2: cargo xtask test-v2 {}", v2::IN_CI);
    tally.add(v2::run(Some(v2::IN_CI))?);
    Ok(())
}

/// Runs one check and says whether it passed.
fn check(tally: &mut Tally, name: &str, mut command: Command) -> Result<bool> {
    let (_, status) = step::tee_status(name, &mut command, BUILD_MAX)?;
    if status.success() {
        tally.passed += 1;
    } else {
        tally.fail(&format!("{name}: {}", step::shown(&command)));
    }
    Ok(status.success())
}

fn cargo(args: &[&str]) -> Command {
    let mut command = step::cargo();
    command.args(args).current_dir(tree::root());
    command
}
