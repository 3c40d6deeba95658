//! Output and input of a run, byte for byte, also when somebody does not behave.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use leasehold_e2e::{Instance, Running, patience};

use crate::record::{assert_clean, assert_nothing_left};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn both_streams_arrive_unaltered_and_apart() {
    let instance = Instance::new();
    let script = r#"i=0; while [ $i -lt 256 ]; do printf "\\$(printf %03o $i)"; i=$((i+1)); done; printf 'err\377\0' >&2"#;
    let outcome = instance.sh(&["--quiet"], script).status_is(0);
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(outcome.stdout, all);
    assert_eq!(outcome.stderr, b"err\xff\0");
}

#[test]
fn input_from_a_pipe_arrives_unaltered_and_ends() {
    let instance = Instance::new();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at * 7 % 251) as u8).collect();
    let mut command = instance.command(["run", "--quiet", "--", "cat"]);
    let outcome = Running::start(&mut command, Some(bytes.clone()))
        .wait(SOON)
        .status_is(0);
    assert!(
        outcome.stdout == bytes,
        "{} of {} bytes",
        outcome.stdout.len(),
        bytes.len()
    );
}

/// Standard input that is not wanted is empty, never open: programs that read it must not hang.
#[test]
fn a_reader_of_no_input_sees_its_end() {
    let instance = Instance::new();
    let outcome = instance.run(["--", "cat"]).status_is(0);
    outcome.within(Duration::from_secs(10));
}

#[test]
fn output_is_seen_while_the_run_goes_on() {
    let instance = Instance::new();
    let run = instance.start(["run", "--", "sh", "-c", "echo first; sleep 20"]);
    run.await_out("first", Duration::from_secs(10));
    run.signal(rustix::process::Signal::INT);
    run.wait(SOON).status_is(130);
}

/// Main exits while a grandchild holds its output open: the run ends by the drain rule, not by the
/// grandchild.
#[test]
fn a_held_pipe_does_not_hold_the_run() {
    let instance = Instance::new();
    let outcome = instance
        .sh(&[], "echo main; (setsid sleep 40 &)")
        .status_is(0);
    assert!(outcome.out().contains("main"));
    outcome.within(Duration::from_secs(10));
    assert_clean(&instance.last_record());
    assert_nothing_left(&instance);
}

/// Much output through a limit that keeps little: memory of the supervisor does not grow with it.
#[test]
fn a_flood_is_counted_to_the_byte_and_does_not_fill_memory() {
    let instance = Instance::new();
    let bytes = 300_000_000 / patience();
    let flood = format!("head -c {bytes} /dev/zero");
    let outcome = instance
        .sh(&["--output-limit", "1M", "--timeout", "60s"], &flood)
        .status_is(0);
    assert_eq!(outcome.stdout_bytes, 1 << 20);
    let record = instance.last_record();
    assert_eq!(record["stdout"]["written"], bytes, "{record:#}");
    if let Some(pid) = instance.supervisor() {
        let peak = peak_kib(pid);
        assert!(peak < 64 << 10, "the supervisor's peak is {peak} KiB");
    }
}

fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").trim().parse().ok())
        .unwrap_or(0)
}

/// A reader that takes nothing neither blocks the command nor loses what is kept.
#[test]
fn a_slow_reader_gets_everything_that_is_kept() {
    let instance = Instance::new();
    let script = "head -c 8000000 /dev/zero; echo end >&2";
    let mut command = instance.command(["run", "--quiet", "--", "sh", "-c", script]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Nothing is read until the run itself is over, which its record shows.
    let record = instance.last_record();
    assert_eq!(record["end"]["reason"], "completed", "{record:#}");
    let mut bytes = Vec::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    assert_eq!(bytes.len(), 8_000_000);
    assert!(child.wait().unwrap().success());
}

/// A reader that goes away ends the command line, and the run's record is completed all the same.
#[test]
fn a_vanished_reader_leaves_a_complete_record() {
    let instance = Instance::new();
    let mut command = instance.command([
        "run",
        "--timeout",
        "20s",
        "--",
        "sh",
        "-c",
        "yes | head -c 50000000",
    ]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut few = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut few).unwrap();
    let record = instance.last_record();
    assert_clean(&record);
    let end = Instant::now() + SOON * patience();
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "the command line did not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_nothing_left(&instance);
}

#[test]
fn many_runs_at_once_do_not_mix() {
    let instance = Instance::new();
    let runs: Vec<_> = (0..8)
        .map(|number| {
            let script =
                format!("i=0; while [ $i -lt 200 ]; do echo line-{number}; i=$((i+1)); done");
            instance.start(["run", "--quiet", "--", "sh", "-c", &script])
        })
        .collect();
    for (number, run) in runs.into_iter().enumerate() {
        let outcome = run.wait(Duration::from_secs(60)).status_is(0);
        assert_eq!(outcome.out(), format!("line-{number}\n").repeat(200));
    }
    assert_nothing_left(&instance);
}
