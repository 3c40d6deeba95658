//! Sandboxes made by the real spawner on the real kernel, looked at from the host and from inside.
//!
//! This program is two things. Outside it runs the cases one after another (a name given as argument
//! selects those that contain it; `--bench` and `--park` measure instead). Inside a sandbox it *is* the first program: the
//! spawner executes a copy of it, and it answers requests on its control socket.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test without a harness: it reports on its streams and fails by panicking"
)]

#[path = "spawn/bench.rs"]
mod bench;
#[path = "spawn/cases.rs"]
mod cases;
#[path = "spawn/failures.rs"]
mod failures;
#[path = "spawn/inside.rs"]
mod inside;
#[path = "spawn/orders.rs"]
mod orders;
#[path = "spawn/probe.rs"]
mod probe;
#[path = "spawn/rig.rs"]
mod rig;
#[path = "spawn/rootless.rs"]
mod rootless;
#[path = "spawn/workspaces.rs"]
mod workspaces;

use std::process::ExitCode;

/// What a case says.
pub(crate) type Outcome = Result<(), String>;

/// A named case.
pub(crate) type Case = (&'static str, fn() -> Outcome);

fn main() -> ExitCode {
    let mut args = std::env::args();
    let program = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    if program == "leasehold-init" {
        return probe::run(&rest);
    }
    if rest.first().is_some_and(|first| first == rootless::MARK) {
        return rootless::inner(&rest[1..]);
    }
    if rest.first().is_some_and(|first| first == workspaces::MARK) {
        return workspaces::inner(&rest[1..]);
    }
    if rest.first().is_some_and(|first| first == failures::MARK) {
        return failures::doomed();
    }
    if rest.iter().any(|arg| arg == "--bench") {
        return bench::run(&rest);
    }
    if rest.iter().any(|arg| arg == "--park") {
        return bench::park(&rest);
    }
    if rest.iter().any(|arg| arg == "--list") {
        return ExitCode::SUCCESS;
    }
    let filter = rest.iter().find(|arg| !arg.starts_with('-')).cloned();
    let all = cases::CASES
        .iter()
        .chain(inside::CASES)
        .chain(failures::CASES)
        .chain(orders::CASES)
        .chain(workspaces::CASES)
        .chain(rootless::CASES);
    let mut failed = 0;
    for (name, case) in all {
        if filter
            .as_ref()
            .is_some_and(|filter| !name.contains(filter.as_str()))
        {
            continue;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIP {name}: needs root");
            continue;
        }
        match case() {
            Ok(()) => println!("ok   {name}"),
            Err(reason) if reason.starts_with("SKIP") => eprintln!("{reason} ({name})"),
            Err(reason) => {
                failed += 1;
                println!("FAIL {name}: {reason}");
            }
        }
    }
    ExitCode::from(u8::from(failed > 0))
}
