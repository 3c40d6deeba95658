//! P31: output faster than anybody reads, from many at once, and readers that misbehave.

use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use leasehold_e2e::{Instance, Running, patience};

use crate::record::{assert_clean, assert_nothing_left, exceeded};

/// Most that the supervisor's memory may grow.
const GROWTH_KIB: u64 = 64 << 10;
const SOON: Duration = Duration::from_secs(40);

/// One line of a process's status, in KiB.
fn kib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// The supervisor, started, with its memory now.
fn supervisor(instance: &Instance) -> (u32, u64) {
    instance.run(["--quiet", "--", "true"]).status_is(0);
    let pid = instance.supervisor().expect("a supervisor");
    let now = kib(pid, "VmRSS:");
    assert!(now > 0, "no memory of process {pid}");
    (pid, now)
}

#[track_caller]
fn assert_bounded((pid, before): (u32, u64)) {
    let peak = kib(pid, "VmHWM:");
    assert!(peak > 0, "the supervisor is gone");
    assert!(
        peak <= before + GROWTH_KIB,
        "grew from {before} to {peak} KiB"
    );
}

/// Floods whose readers never read, read a little and vanish, or read slowly, all at once: a well-behaved
/// run beside them is served, the supervisor does not grow, and no run is held by its reader.
#[test]
fn p31_many_floods_with_bad_readers_hold_nobody() {
    let instance = Instance::new();
    let before = supervisor(&instance);
    let flood = [
        "--output-limit",
        "2M",
        "--",
        "sh",
        "-c",
        "yes flood | head -c 30000000",
    ];
    let start = || {
        let mut command = instance.command(["run", "--quiet"].iter().chain(&flood));
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut never: Vec<_> = (0..3).map(|_| start()).collect();
    let mut vanishing: Vec<_> = (0..3).map(|_| start()).collect();
    let mut slow = start();
    for child in &mut vanishing {
        let mut few = [0; 3];
        let mut pipe = child.stdout.take().unwrap();
        pipe.read_exact(&mut few).unwrap();
    }
    let mut byte = [0];
    let mut pipe = slow.stdout.take().unwrap();
    for _ in 0..20 {
        pipe.read_exact(&mut byte).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    let outcome = instance.run(["--quiet", "--", "echo", "served"]);
    assert_eq!(outcome.status_is(0).out(), "served\n");
    // Every run is over although nobody took its output.
    await_records(&instance, 9);
    for record in records(&instance) {
        assert_clean(&record);
        let written = record["stdout"]["written"].as_u64().unwrap();
        let kept = record["stdout"]["kept"].as_u64().unwrap();
        if written == 30_000_000 {
            assert_eq!(kept, 2 << 20, "{record:#}");
            assert_eq!(record["stdout"]["truncated"], true);
            let file = instance.run_record_folder(record["run"].as_str().unwrap());
            assert_eq!(fs::metadata(file.join("stdout")).unwrap().len(), 2 << 20);
        }
    }
    let mut rest = Vec::new();
    pipe.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len() + 20, 2 << 20);
    for mut child in never.drain(..) {
        let mut all = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 2 << 20);
        child.wait().unwrap();
    }
    for child in vanishing.iter_mut().chain([&mut slow]) {
        child.wait().unwrap();
    }
    assert_bounded(before);
    assert_nothing_left(&instance);
}

fn records(instance: &Instance) -> Vec<serde_json::Value> {
    let runs = fs::read_dir(instance.state().join("runs"))
        .into_iter()
        .flatten();
    runs.filter_map(|run| {
        let text = fs::read(run.ok()?.path().join("record.json")).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&text).ok()?;
        record.get("cleanup").filter(|done| !done.is_null())?;
        Some(record)
    })
    .collect()
}

fn await_records(instance: &Instance, count: usize) {
    leasehold_e2e::until("every run to be over", SOON, || {
        (records(instance).len() == count).then_some(())
    });
}

/// The control of a bound on memory: who keeps what it reads does grow by it.
#[test]
fn p31_control_growth_is_seen() {
    let before = kib(std::process::id(), "VmRSS:");
    let held = vec![1_u8; 200 << 20];
    let grown = kib(std::process::id(), "VmRSS:");
    assert!(grown > before + GROWTH_KIB, "{before} to {grown} KiB");
    drop(held);
}

/// An endless flood is ended by contract after little more than what is kept.
#[test]
fn p31_an_endless_flood_is_ended_by_contract() {
    let instance = Instance::new();
    let before = supervisor(&instance);
    let begun = Instant::now();
    let flags = [
        "--output-limit",
        "4M",
        "--on-output-limit",
        "kill",
        "--json",
    ];
    let words = [&["run"], &flags[..], &["--", "yes"]].concat();
    let outcome = Running::start(&mut instance.command(words), None).wait(SOON);
    let record = outcome.status_is(137).json();
    assert_eq!(exceeded(&record), "output");
    assert_eq!(record["stdout"]["kept"], 4 << 20, "{record:#}");
    assert!(begun.elapsed() < Duration::from_secs(10) * patience());
    assert_bounded(before);
}
