//! Output and input of a run, byte for byte, also when somebody does not behave.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use leasehold_e2e::{Instance, Need, Running, need, patience};
use sha2::{Digest, Sha256};

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

const PYTHON: &str = "/usr/bin/python3";

/// A gibibyte in which no block is like another arrives as it was written, and the supervisor does not
/// grow by it.
#[test]
fn a_gibibyte_arrives_byte_for_byte() {
    let name = "streams::a_gibibyte_arrives_byte_for_byte";
    if !need(name, &[Need::Path(PYTHON)]) {
        return;
    }
    let instance = Instance::new();
    instance.run(["--quiet", "--", "true"]).status_is(0);
    let supervisor = instance.supervisor().expect("a supervisor");
    let before = peak_kib(supervisor);
    let script = "import os\nb = bytearray(os.urandom(1 << 20))\nfor at in range(1024):\n  b[:8] = at.to_bytes(8, 'little')\n  v = memoryview(b)\n  while v: v = v[os.write(1, v):]\nos.write(2, bytes(b[8:]))";
    let limits = ["run", "--quiet", "--output-limit", "1G", "--timeout", "3m"];
    let mut child = instance
        .command([&limits[..], &["--", PYTHON, "-c", script]].concat())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut err = child.stderr.take().unwrap();
    let tail = std::thread::spawn(move || {
        let mut tail = Vec::new();
        err.read_to_end(&mut tail).map(|_| tail)
    });
    let mut blocks = Vec::with_capacity(1024);
    let mut block = vec![0; 1 << 20];
    while out.read_exact(&mut block).is_ok() {
        blocks.push(<[u8; 32]>::from(Sha256::digest(&block)));
    }
    assert!(child.wait().unwrap().success());
    let tail = tail.join().unwrap().unwrap();
    assert_eq!(blocks.len(), 1024);
    for (at, digest) in blocks.iter().enumerate() {
        let head = (at as u64).to_le_bytes();
        let wanted = Sha256::new().chain_update(head).chain_update(&tail);
        assert_eq!(digest, &<[u8; 32]>::from(wanted.finalize()), "block {at}");
    }
    let record = instance.last_record();
    assert_eq!(record["stdout"]["kept"], 1 << 30, "{record:#}");
    assert_eq!(record["stdout"]["truncated"], false);
    let grown = peak_kib(supervisor).saturating_sub(before);
    assert!(grown <= 64 << 10, "the supervisor grew by {grown} KiB");
}

#[test]
fn many_tiny_writes_and_one_long_line_arrive() {
    let name = "streams::many_tiny_writes_and_one_long_line_arrive";
    if !need(name, &[Need::Path(PYTHON)]) {
        return;
    }
    let instance = Instance::new();
    let tiny = "import os\nfor at in range(200000): os.write(1, bytes([at % 251]))";
    let outcome = instance
        .run(["--quiet", "--", PYTHON, "-c", tiny])
        .status_is(0);
    let wanted: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
    assert!(outcome.stdout == wanted, "{} bytes", outcome.stdout.len());
    let line = "import sys\nsys.stdout.write('ab' * (16 << 20))";
    let outcome = instance
        .run(["--quiet", "--", PYTHON, "-c", line])
        .status_is(0);
    assert_eq!(outcome.stdout.len(), 32 << 20);
    assert!(outcome.stdout.chunks(2).all(|two| two == b"ab"));
}

/// Half of a character in one write and half in the next, and bytes that are no text at all: nobody
/// mends them, also not in what is kept and shown later.
#[test]
fn text_that_is_none_is_left_as_it_is() {
    let name = "streams::text_that_is_none_is_left_as_it_is";
    if !need(name, &[Need::Path(PYTHON)]) {
        return;
    }
    let instance = Instance::new();
    let script = "import os, time\nfor piece in (b'\\xe2', b'\\x82', b'\\xac', b'\\xff\\xfe\\x00', b'\\xf0\\x9f', b'\\r\\n', b'\\x1b[2J', b'\\xed\\xa0\\x80'):\n  os.write(1, piece); time.sleep(0.02)";
    let outcome = instance
        .run(["--quiet", "--", PYTHON, "-c", script])
        .status_is(0);
    let wanted = b"\xe2\x82\xac\xff\xfe\x00\xf0\x9f\r\n\x1b[2J\xed\xa0\x80";
    assert_eq!(outcome.stdout, wanted);
    let record = instance.last_record();
    let run = record["run"].as_str().unwrap();
    assert_eq!(instance.cli(["logs", run]).status_is(0).stdout, wanted);
}

#[test]
fn a_large_input_arrives_byte_for_byte() {
    let instance = Instance::new();
    let mut bytes = vec![0; 64 << 20];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for eight in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        eight.copy_from_slice(&state.to_le_bytes());
    }
    let digest = Sha256::digest(&bytes);
    let wanted: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = instance.command(["run", "--quiet", "--", "sha256sum"]);
    let outcome = Running::start(&mut command, Some(bytes)).wait(SOON * 2);
    assert!(outcome.out().starts_with(&wanted), "{}", outcome.story());
}

/// Input that is forbidden is not passed on, although there is some.
#[test]
fn no_input_means_none() {
    let instance = Instance::new();
    for (flag, wanted) in [("--no-stdin", ""), ("--stdin", "given")] {
        let mut command = instance.command(["run", "--quiet", flag, "--", "cat"]);
        let outcome = Running::start(&mut command, Some(b"given".to_vec())).wait(SOON);
        assert_eq!(outcome.status_is(0).out(), wanted, "{flag}");
    }
}

/// Who follows a run later gets all of it, from the first byte to the last, and its status; also after
/// the first reader is gone, and also while it still runs.
#[test]
fn a_second_reader_gets_everything_from_the_first_byte() {
    let instance = Instance::new();
    let script = "i=0; while [ $i -lt 40 ]; do echo line-$i; echo err-$i >&2; i=$((i+1)); sleep 0.05; done; exit 5";
    let first = instance.start(["run", "--quiet", "--", "sh", "-c", script]);
    first.await_out("line-3", SOON);
    let runs = std::fs::read_dir(instance.state().join("runs")).unwrap();
    let run = runs.flatten().next().unwrap().file_name();
    let run = run.to_string_lossy().into_owned();
    let second = instance.start(["attach", "--quiet", &run]);
    second.await_out("line-5", SOON);
    // The first one dies without a word; the run and its other reader go on.
    drop(first);
    let outcome = second.wait(SOON).status_is(5);
    let lines = |head: &str| -> String { (0..40).map(|at| format!("{head}-{at}\n")).collect() };
    assert_eq!(outcome.out(), lines("line"));
    assert_eq!(outcome.err(), lines("err"));
    let outcome = instance.cli(["attach", "--quiet", &run]);
    assert_eq!(outcome.status_is(5).out(), lines("line"));
    assert_clean(&instance.record(&run));
    assert_nothing_left(&instance);
}
