//! What one parked sandbox costs in memory.
//!
//! Counted twice. *Kernel and private*: how much the sum of anonymous, slab, stack, page-table,
//! per-cpu and shared-memory pages of `/proc/meminfo` grows while many are parked, divided by their
//! number; shared file pages are not in it. *PSS*: the proportional set size of init and stub alone,
//! from `smaps_rollup`.

use std::collections::HashMap;
use std::fs;

use leasehold_backend::process::client::Client;
use leasehold_core::spec::SandboxSpec;
use leasehold_protocol::supervisor::{Event, Request};

use super::Interrupt;
use super::arena::{self, Arena, PATIENCE};
use super::bars::{Bar, Must};
use super::ground::Ground;
use super::report::Report;
use crate::fault::Fault;
use crate::place;

/// How many are parked for the measurement.
const PARKED: usize = 48;
/// Lines of `/proc/meminfo` that are counted.
const COUNTED: [&str; 6] = [
    "AnonPages",
    "Slab",
    "KernelStack",
    "PageTables",
    "Percpu",
    "Shmem",
];

/// Measures and reports.
///
/// # Errors
/// When something of ours fails.
pub(crate) fn measure(
    ground: &Ground,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<(), Fault> {
    let arena = Arena::new(ground, "memory")?;
    let mut client = arena.client()?;
    // The first ones also pay for what is made once.
    for _ in 0..4 {
        arena::provision(&mut client, SandboxSpec::default(), &[])?;
    }
    let before = counted()?;
    for _ in 0..PARKED {
        interrupt.check()?;
        arena::provision(&mut client, SandboxSpec::default(), &[])?;
    }
    let after = counted()?;
    let mut sum = 0;
    for name in COUNTED {
        let grown = after[name] - before[name];
        sum += grown;
        let each = grown as f64 / PARKED as f64;
        report.note(format!("parked: {name} grew by {each:.1} KiB for each"));
    }
    let each = sum as f64 / PARKED as f64 / 1024.0;
    let processes = processes(&mut client)?;
    let pss: u64 = processes
        .iter()
        .filter_map(|pid| rollup_kib(*pid, "Pss"))
        .sum();
    report.note(format!(
        "parked: PSS of init and stub together {:.0} KiB for each, {} processes seen",
        pss as f64 / (PARKED + 4) as f64,
        processes.len()
    ));
    report.bar(Bar::judge(
        format!("kernel and private memory of one of {PARKED} parked"),
        Ok(each),
        Must::AtMost(1.0),
        " MiB",
    ));
    Ok(())
}

/// The counted lines, in KiB.
fn counted() -> Result<HashMap<&'static str, i64>, Fault> {
    let text = fs::read_to_string("/proc/meminfo")
        .map_err(|error| Fault::host("cannot read /proc/meminfo").because(&error))?;
    Ok(COUNTED
        .map(|name| (name, line(&text, name).unwrap_or(0)))
        .into())
}

fn line(text: &str, name: &str) -> Option<i64> {
    let line = text.lines().find(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(':'))
    })?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Every init and its children.
fn processes(client: &mut Client) -> Result<Vec<u32>, Fault> {
    let (event, _) = client
        .ask(Request::Status, &[], PATIENCE)
        .map_err(place::client_fault)?;
    let Event::Status { sandboxes } = event else {
        return Err(Fault::host(
            "the supervisor answered `status` with something else",
        ));
    };
    let mut all = Vec::new();
    for init in sandboxes.iter().map(|sandbox| sandbox.init_pid) {
        let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children"));
        all.push(init);
        all.extend(
            children
                .unwrap_or_default()
                .split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    Ok(all)
}

/// One line of what a process has mapped, in KiB: `Pss`, `Rss`.
pub(crate) fn rollup_kib(pid: u32, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    line(&text, name).and_then(|kib| u64::try_from(kib).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_line_of_that_name_counts() {
        let text = "PageTables:  12 kB\nSecPageTables: 99 kB\nShmemHugePages: 7 kB\nShmem: 5 kB\n";
        assert_eq!(line(text, "PageTables"), Some(12));
        assert_eq!(line(text, "Shmem"), Some(5));
        assert_eq!(line(text, "Slab"), None);
    }
}
