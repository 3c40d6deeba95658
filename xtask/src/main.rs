//! The project's own tasks: `cargo xtask ci|tidy|bench|test-v2|setup|demo`.
//!
//! All automation is here, in Rust, so that a person and CI run the same code. Nothing of the product
//! may depend on it.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it is a program for people; its output is its result"
)]

mod step;
mod tally;
mod tree;
mod v2;

use std::process::ExitCode;

use anyhow::{Result, bail};
use tally::Tally;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match dispatch(&words) {
        Ok(tally) if tally.good() => {
            println!("{}", tally.closing());
            ExitCode::SUCCESS
        }
        Ok(tally) => {
            println!("{}", tally.closing());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[&str]) -> Result<Tally> {
    match words {
        ["test-v2"] => v2::run(None),
        ["test-v2", filter] => v2::run(Some(filter)),
        _ => bail!("usage: cargo xtask ci|tidy|bench|test-v2 [FILTER]|setup|demo"),
    }
}
