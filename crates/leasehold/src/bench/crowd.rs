//! Many at once, and many one after another: latency at 1, 10, 50 and 100 runs asked for at the same
//! moment, and runs per second for a while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use leasehold_backend::process::client::Client;
use leasehold_core::spec::SandboxSpec;
use leasehold_protocol::supervisor::{Event, Target};

use super::Interrupt;
use super::arena::{self, Arena};
use super::bars::{Bar, Must};
use super::ground::Ground;
use super::report::Report;
use super::sample::{Samples, Summary};
use crate::fault::Fault;

/// How many at once.
pub(crate) const CROWDS: [u32; 4] = [1, 10, 50, 100];
/// Runs that are open at any time in the sustained part.
const OPEN: usize = 8;
/// Sandboxes kept parked in the sustained part.
const PARKED: u32 = 16;
/// What the kernel counts processor time in, the same on every architecture sandboxes run on.
const TICKS_PER_SECOND: f64 = 100.0;
const SYSTEM_TRUE: &str = "/usr/bin/true";

/// Measures bursts and reports.
///
/// # Errors
/// When something of ours fails.
pub(crate) fn bursts(
    runs: u32,
    ground: &Ground,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<(), Fault> {
    let arena = Arena::new(ground, "crowd")?;
    let mut client = arena.client()?;
    for warm in [false, true] {
        let mut ends: Vec<(u32, Option<Summary>)> = Vec::new();
        let mut failures = 0;
        for crowd in CROWDS {
            let mut ended = Samples::default();
            let mut gone = Samples::default();
            for _ in 0..runs.div_ceil(crowd).max(2) {
                interrupt.check()?;
                let pool = if warm { crowd } else { 0 };
                arena::pool(&mut client, SandboxSpec::default(), pool)?;
                failures += burst(&mut client, crowd, &mut ended, &mut gone)?;
            }
            let kind = if warm {
                "from a pool"
            } else {
                "made from nothing"
            };
            let none = || "every run failed".to_owned();
            let name = format!("{crowd} at once, {kind} → ended");
            report.row(name, ended.summary().ok_or_else(none));
            let name = format!("{crowd} at once, {kind} → gone");
            report.row(name, gone.summary().ok_or_else(none));
            ends.push((crowd, ended.summary()));
        }
        arena::pool(&mut client, SandboxSpec::default(), 0)?;
        let kind = if warm { "pool" } else { "cold" };
        for bar in growth(kind, &ends, failures) {
            report.bar(bar);
        }
    }
    Ok(())
}

/// That p95 grows at most linearly with the queue for each core: once there is a queue, ten times as
/// many at once take at most ten times as long. And, more than that, that a run in a crowd costs no
/// more than one alone would on one core, though one alone has the help of all of them.
pub(crate) fn growth(kind: &str, ends: &[(u32, Option<Summary>)], failures: u32) -> Vec<Bar> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let at = |wanted: u32| {
        let found = ends.iter().find(|(crowd, _)| *crowd == wanted);
        found.and_then(|(_, said)| *said).map(|said| said.p95_ms)
    };
    let grown = |from: u32, turns: f64| match (at(from), at(100)) {
        (Some(few), Some(many)) => Ok(many / (few * turns.max(1.0))),
        _ => Err("a burst failed".to_owned()),
    };
    vec![
        Bar::judge(
            format!("{kind}: p95 at 100 ÷ (10 × p95 at 10)"),
            grown(10, 10.0),
            Must::AtMost(1.0),
            "",
        ),
        Bar::judge(
            format!("{kind}: p95 at 100 ÷ (p95 at 1 × 100/cores)"),
            grown(1, 100.0 / cores),
            Must::AtMost(1.0),
            "",
        ),
        Bar::judge(
            format!("{kind}: failures at 1, 10, 50, 100 at once"),
            Ok(f64::from(failures)),
            Must::AtMost(0.0),
            "",
        ),
    ]
}

/// Asks for `crowd` runs at the same moment. Says how many failed.
fn burst(
    client: &mut Client,
    crowd: u32,
    ended: &mut Samples,
    gone: &mut Samples,
) -> Result<u32, Fault> {
    let begun = Instant::now();
    let mut open = HashMap::new();
    for _ in 0..crowd {
        let target = Target::New(SandboxSpec::default());
        let tag = arena::begin(client, target, arena::command(&[SYSTEM_TRUE]), &[])?;
        open.insert(tag, ());
    }
    let mut failures = 0;
    while !open.is_empty() {
        let notice = arena::next(client)?;
        match notice.event {
            _ if !open.contains_key(&notice.tag) => {}
            Event::Ended(_) => ended.add(begun.elapsed()),
            Event::Cleaned(record) => {
                gone.add(begun.elapsed());
                failures += u32::from(arena::completed(&record).is_err());
                open.remove(&notice.tag);
            }
            _ => {}
        }
    }
    Ok(failures)
}

/// Measures runs per second for `seconds` and reports.
///
/// # Errors
/// When something of ours fails.
pub(crate) fn sustained(
    seconds: u32,
    ground: &Ground,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<(), Fault> {
    let arena = Arena::new(ground, "sustain")?;
    let mut client = arena.client()?;
    arena::pool(&mut client, SandboxSpec::default(), PARKED)?;
    // Long enough for caches and tables to have their size.
    flow(&mut client, Duration::from_secs(2), interrupt)?;
    let before = resident_kib(client.supervisor_pid());
    let spent = ticks(client.supervisor_pid());
    let flowed = flow(&mut client, Duration::from_secs(seconds.into()), interrupt)?;
    let spent = ticks(client.supervisor_pid()).zip(spent);
    let after = resident_kib(client.supervisor_pid());
    if let Some((after, before)) = spent {
        let ms = after.saturating_sub(before) as f64 * 1e3 / TICKS_PER_SECOND;
        report.note(format!(
            "sustained: {:.2} ms of processor time for each run, of supervisor, spawner and sandboxes \
             together",
            ms / f64::from(flowed.ended.max(1))
        ));
    }
    let rate = f64::from(flowed.ended) / flowed.took.as_secs_f64();
    report.note(format!(
        "sustained: {} runs in {:.1} s, {} open at any time, pool of {PARKED}, {} served warm, {} failed",
        flowed.ended,
        flowed.took.as_secs_f64(),
        OPEN,
        flowed.warm,
        flowed.failed
    ));
    report.bar(Bar::judge(
        "runs per second, all limits on",
        Ok(rate),
        Must::AtLeast(250.0),
        "/s",
    ));
    report.bar(Bar::judge(
        "  … of which failed",
        Ok(f64::from(flowed.failed)),
        Must::AtMost(0.0),
        "",
    ));
    let grown = match (before, after) {
        (Some(before), Some(after)) => Ok(after.saturating_sub(before) as f64 / 1024.0),
        _ => Err("/proc does not tell the supervisor's memory".to_owned()),
    };
    report.bar(Bar::judge(
        "supervisor grew in that time",
        grown,
        Must::AtMost(4.0),
        " MiB",
    ));
    Ok(())
}

struct Flow {
    ended: u32,
    warm: u32,
    failed: u32,
    took: Duration,
}

/// Keeps [`OPEN`] runs open until the time is over, then waits for the last.
fn flow(client: &mut Client, time: Duration, interrupt: &Interrupt) -> Result<Flow, Fault> {
    let begun = Instant::now();
    let mut open = HashMap::new();
    let mut flow = Flow {
        ended: 0,
        warm: 0,
        failed: 0,
        took: Duration::ZERO,
    };
    loop {
        while open.len() < OPEN && begun.elapsed() < time {
            let target = Target::New(SandboxSpec::default());
            let tag = arena::begin(client, target, arena::command(&[SYSTEM_TRUE]), &[])?;
            open.insert(tag, ());
        }
        if open.is_empty() {
            flow.took = begun.elapsed();
            return Ok(flow);
        }
        let notice = arena::next(client)?;
        if let (Event::Cleaned(record), true) = (notice.event, open.contains_key(&notice.tag)) {
            open.remove(&notice.tag);
            flow.ended += 1;
            flow.warm += u32::from(record.warm);
            flow.failed += u32::from(arena::completed(&record).is_err());
            if flow.ended.is_multiple_of(64) {
                interrupt.check()?;
            }
        }
    }
}

/// Processor time of the supervisor, of everything it has reaped, and of its children that live, the
/// spawner among them, in clock ticks.
fn ticks(supervisor: u32) -> Option<u64> {
    let of = |pid: u32| -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let numbers = stat.rsplit_once(')')?.1.split_whitespace();
        // utime, stime, and those of the reaped.
        Some(
            numbers
                .skip(11)
                .take(4)
                .filter_map(|word| word.parse::<u64>().ok())
                .sum(),
        )
    };
    let path = format!("/proc/{supervisor}/task/{supervisor}/children");
    let children = std::fs::read_to_string(path).ok()?;
    let living = children
        .split_whitespace()
        .filter_map(|pid| of(pid.parse().ok()?));
    Some(of(supervisor)? + living.sum::<u64>())
}

/// Resident memory of a process in KiB.
fn resident_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_that_waits_its_turn_meets_the_bar() {
        let said = |p95_ms| {
            Some(Summary {
                count: 1,
                min_ms: 0.0,
                p50_ms: 0.0,
                p95_ms,
                p99_ms: 0.0,
            })
        };
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        let turns = 100.0 / cores;
        let ends = [(1, said(2.0)), (10, said(30.0)), (100, said(2.0 * turns))];
        let fair = growth("x", &ends, 0);
        assert_eq!(fair[0].measured, Some(2.0 * turns / 300.0));
        assert_eq!(fair[1].measured, Some(1.0));
        let failed = growth("x", &[(1, None), (10, said(1.0)), (100, None)], 3);
        assert!(failed[0].measured.is_none() && failed[1].measured.is_none());
        assert_eq!(failed[2].verdict, super::super::bars::Verdict::Missed);
    }
}
