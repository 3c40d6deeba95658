//! The project's own tasks: `cargo xtask ci|tidy|bench|soak|test-v2|setup|demo|wasm|templates`.
//!
//! All automation is here, in Rust, so that a person and CI run the same code. Nothing of the product
//! may depend on it.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it is a program for people; its output is its result"
)]

mod bench;
mod ci;
mod demo;
mod runner;
mod setup;
mod step;
mod tally;
mod templates;
mod tidy;
mod tree;
mod v2;
mod wasm;

use std::process::ExitCode;

use anyhow::{Result, bail};
use tally::Tally;

/// The tasks and what each does.
const TASKS: [(&str, &str); 9] = [
    ("ci", "all that CI runs, in its order"),
    ("tidy", "rules of the work tree that no compiler holds"),
    (
        "bench",
        "build for release and measure against other runtimes",
    ),
    (
        "soak",
        "2,000 cycles through a daemon; what it holds must not grow",
    ),
    (
        "test-v2",
        "run tests on a pure cgroup v2 kernel in QEMU; takes a word to choose cases",
    ),
    (
        "setup",
        "install with apt-get what building, tests and demo need",
    ),
    ("demo", "two runs that show what it is"),
    (
        "wasm",
        "build the programs that compile and run WebAssembly; --dev builds them fast, for tests",
    ),
    (
        "templates",
        "build the snapshot templates of Python and JavaScript; takes one's name to build it alone",
    ),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match dispatch(&words) {
        Ok(tally) => {
            println!("{}", tally.closing());
            if tally.good() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[&str]) -> Result<Tally> {
    match words {
        ["ci"] => ci::run(),
        ["tidy"] => tidy::run(),
        ["bench", rest @ ..] => bench::run(rest),
        ["soak"] => bench::soak(),
        ["setup"] => setup::all(),
        ["demo"] => demo::run(),
        ["wasm"] => wasm::run(wasm::Speed::Release),
        ["wasm", "--dev"] => wasm::run(wasm::Speed::Dev),
        ["templates", names @ ..] => templates::run(names),
        ["test-v2"] => v2::run(None),
        ["test-v2", filter] => v2::run(Some(filter)),
        _ => bail!("usage: cargo xtask TASK\n{}", usage()),
    }
}

fn usage() -> String {
    let line = |(name, what): &(&str, &str)| format!("  {name:<9} {what}\n");
    TASKS.iter().map(line).collect()
}
