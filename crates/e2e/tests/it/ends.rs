//! How a run ends: the status, the reason and the record of each end that a user can cause.

use std::time::Duration;

use leasehold_e2e::{Instance, Need, need, patience};
use rustix::process::Signal;

use crate::record::{assert_clean, assert_nothing_left, exceeded, reason};

const SOON: Duration = Duration::from_secs(20);

/// A time flag that leaves an emulated machine time to get going.
fn stretched(ms: u32) -> String {
    format!("{}ms", ms * patience())
}

#[test]
fn success_is_completed_and_nothing_is_left() {
    let instance = Instance::new();
    let outcome = instance.run(["--", "true"]).status_is(0);
    assert!(outcome.stdout.is_empty(), "{}", outcome.story());
    let record = instance.last_record();
    assert_eq!(reason(&record), "completed");
    assert_clean(&record);
    assert_nothing_left(&instance);
}

/// The control of every "nothing is left": while a sandbox lives, the inventory does see it.
#[test]
fn the_inventory_sees_a_live_sandbox() {
    let instance = Instance::new();
    let run = instance.start(["run", "--", "sh", "-c", "echo up; sleep 30"]);
    run.await_out("up", SOON);
    let live = instance.inventory();
    assert!(live.count("processes") >= 3, "{live}");
    assert!(live.count("sockets") >= 1, "{live}");
    assert!(live.count("scratch") >= 1, "{live}");
    run.signal(Signal::INT);
    run.wait(SOON).status_is(130);
    assert_clean(&instance.last_record());
    assert_nothing_left(&instance);
}

#[test]
fn every_stage_has_its_time_in_order() {
    let instance = Instance::new();
    let record = instance.record_of(&[], "true");
    let stages: Vec<&str> = record["stages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|stage| stage["stage"].as_str())
        .collect();
    assert_eq!(
        stages,
        [
            "allocate",
            "initialize",
            "inject",
            "execute",
            "collect",
            "destroy",
            "cleanup"
        ],
        "{record:#}"
    );
}

#[test]
fn a_failing_command_gives_its_own_status() {
    let instance = Instance::new();
    instance.sh(&[], "exit 7").status_is(7);
    assert_eq!(reason(&instance.last_record()), "tool_error");
    instance.sh(&[], "kill -SEGV $$").status_is(128 + 11);
    instance.run(["--", "/no/such/command"]).status_is(127);
    instance.run(["--", "/etc/passwd"]).status_is(126);
    instance.run(["--", "no-such-command"]).status_is(127);
    assert_nothing_left(&instance);
}

#[test]
fn the_wall_limit_ends_a_stubborn_command_and_keeps_its_output() {
    let instance = Instance::new();
    let outcome = instance
        .sh(
            &["--timeout", &stretched(1_000), "--grace", "200ms"],
            "trap '' TERM; echo before; while :; do sleep 1; done",
        )
        .status_is(124);
    assert!(outcome.out().contains("before"), "{}", outcome.story());
    assert!(
        outcome.elapsed >= Duration::from_secs(1),
        "{}",
        outcome.story()
    );
    outcome.within(Duration::from_secs(8));
    let record = instance.last_record();
    assert_eq!(reason(&record), "timeout");
    assert_clean(&record);
}

#[test]
fn a_polite_command_may_end_within_the_grace() {
    let instance = Instance::new();
    let outcome = instance
        .sh(
            &["--timeout", &stretched(500), "--grace", &stretched(10_000)],
            "trap 'echo bye; exit 0' TERM; while :; do sleep 0.1; done",
        )
        .status_is(124);
    assert!(outcome.out().contains("bye"), "{}", outcome.story());
    outcome.within(Duration::from_secs(8));
}

#[test]
fn a_memory_hog_ends_for_memory_and_is_told_so() {
    let instance = Instance::new();
    let hog = "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done";
    let outcome = instance.sh(&["--memory", "64M"], hog).status_is(137);
    assert!(outcome.err().contains("memory"), "{}", outcome.story());
    let record = instance.last_record();
    assert_eq!(exceeded(&record), "memory");
    assert_eq!(record["end"]["limit"], 64 << 20, "{record:#}");
    assert_clean(&record);
    assert_nothing_left(&instance);
}

/// Signal 9 from inside is no memory end: the host's counters decide, not the number.
#[test]
fn a_kill_from_inside_is_not_taken_for_the_memory_limit() {
    let instance = Instance::new();
    instance
        .sh(&["--memory", "64M"], "kill -KILL $$")
        .status_is(137);
    assert_eq!(reason(&instance.last_record()), "tool_error");
}

#[test]
fn a_fork_bomb_that_fails_ends_for_pids() {
    let instance = Instance::new();
    let bomb = "i=0; while [ $i -lt 64 ]; do sleep 20 & i=$((i+1)); done; echo unbounded";
    let outcome = instance.sh(&["--pids", "16"], bomb).status_is(137);
    assert!(!outcome.out().contains("unbounded"), "{}", outcome.story());
    let record = instance.last_record();
    assert_eq!(exceeded(&record), "pids");
    assert_clean(&record);
    // Without that limit the same bomb gets through.
    let outcome = instance.sh(&["--pids", "128"], bomb).status_is(0);
    assert!(outcome.out().contains("unbounded"), "{}", outcome.story());
    assert_nothing_left(&instance);
}

#[test]
fn a_full_disk_is_named_when_the_command_fails_of_it() {
    let instance = Instance::new();
    let fill = "dd if=/dev/zero of=/workspace/big bs=1048576 count=64 2>/dev/null";
    instance.sh(&["--disk", "16M"], fill).status_is(137);
    assert_eq!(exceeded(&instance.last_record()), "disk");
    let survives = format!("{fill}; echo full; exit 0");
    let outcome = instance.sh(&["--disk", "16M"], &survives).status_is(0);
    assert!(outcome.out().contains("full"), "{}", outcome.story());
    let record = instance.last_record();
    assert_eq!(record["limits_hit"][0]["which"], "disk", "{record:#}");
    instance
        .sh(&["--disk", "128M", "--memory", "512M"], fill)
        .status_is(0);
}

#[test]
fn inodes_are_bounded_apart_from_bytes() {
    let instance = Instance::new();
    let many = "i=0; while [ $i -lt 400 ]; do : > /workspace/$i || exit 1; i=$((i+1)); done";
    instance.sh(&["--inodes", "200"], many).status_is(137);
    assert_eq!(exceeded(&instance.last_record()), "inodes");
    instance.sh(&["--inodes", "1000"], many).status_is(0);
}

#[test]
fn processor_time_is_bounded() {
    let instance = Instance::new();
    let outcome = instance
        .sh(
            &["--cpu-time", "1s", "--timeout", "30s"],
            "while :; do :; done",
        )
        .status_is(137);
    outcome.within(Duration::from_secs(15));
    assert_eq!(exceeded(&instance.last_record()), "cpu_time");
}

#[test]
fn the_processor_share_bites() {
    let instance = Instance::new();
    let record = instance.record_of(&["--cpu", "0.2", "--timeout", "3s"], "while :; do :; done");
    assert_eq!(reason(&record), "timeout", "{record:#}");
    let used = record["usage"]["cpu_micros"].as_u64().unwrap_or(u64::MAX);
    // A fifth of three seconds and the grace, with slack for the quota's period.
    assert!(used < 1_500_000, "used {used} µs: {record:#}");
    let throttled = record["usage"]["throttled_micros"].as_u64().unwrap_or(0);
    assert!(throttled > 0, "never throttled: {record:#}");
}

#[test]
fn output_beyond_its_limit_is_cut_or_ends_the_run() {
    let instance = Instance::new();
    let flood = "yes 0123456 | head -c 4000000; echo; echo done >&2";
    let outcome = instance.sh(&["--output-limit", "1M"], flood).status_is(0);
    assert!(
        outcome.stdout.len() <= 1 << 20,
        "{} bytes",
        outcome.stdout.len()
    );
    assert!(outcome.err().contains("done"), "{}", outcome.story());
    let record = instance.last_record();
    assert_eq!(record["stdout"]["truncated"], true, "{record:#}");
    assert_eq!(record["stdout"]["kept"], 1 << 20, "{record:#}");
    assert_eq!(record["stdout"]["written"], 4_000_001, "{record:#}");
    let flags = ["--output-limit", "1M", "--on-output-limit", "kill"];
    instance.sh(&flags, "yes; sleep 60").status_is(137);
    assert_eq!(exceeded(&instance.last_record()), "output");
}

#[test]
fn an_interrupt_cancels_with_grace_and_a_second_one_at_once() {
    let instance = Instance::new();
    let polite = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let run = instance.start(["run", "--", "sh", "-c", polite]);
    run.await_out("up", SOON);
    run.signal(Signal::INT);
    let outcome = run.wait(SOON).status_is(130);
    assert!(outcome.out().contains("bye"), "{}", outcome.story());
    assert_eq!(reason(&instance.last_record()), "cancelled");

    let stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done";
    let run = instance.start(["run", "--grace", "60s", "--", "sh", "-c", stubborn]);
    run.await_out("up", SOON);
    run.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(300));
    run.signal(Signal::INT);
    run.wait(SOON).status_is(130);
    assert_nothing_left(&instance);
}

#[test]
fn a_limit_that_makes_no_sense_is_refused_with_its_name() {
    let instance = Instance::new();
    for (flag, value) in [
        ("--memory", "0"),
        ("--memory", "12Q"),
        ("--cpu", "-1"),
        ("--cpu", "NaN"),
        ("--timeout", "soon"),
        ("--pids", "99999999999999999999"),
    ] {
        let outcome = instance
            .run([&format!("{flag}={value}"), "--", "true"])
            .status_is(2);
        let told = outcome.err();
        assert!(
            told.contains(&flag[2..]),
            "{flag} {value}: {}",
            outcome.story()
        );
    }
    let untouched = instance.inventory();
    assert_eq!(untouched.count("processes"), 0, "{untouched}");
}

#[test]
fn a_boundary_that_is_not_there_is_refused_never_weakened() {
    let instance = Instance::new();
    for (flag, value) in [("--isolation", "microvm"), ("--trust", "untrusted")] {
        let outcome = instance.run([flag, value, "--", "true"]);
        assert!(
            outcome.status == 125 || outcome.status == 2,
            "{}",
            outcome.story()
        );
    }
}

#[test]
fn runs_are_shown_after_they_are_gone() {
    let instance = Instance::new();
    instance.sh(&[], "echo kept; exit 3").status_is(3);
    let record = instance.last_record();
    let run = record["run"].as_str().unwrap_or_default();
    assert!(instance.cli(["runs"]).status_is(0).out().contains(run));
    let shown = instance.cli(["show", run]).status_is(0).out();
    assert!(shown.contains("exit status 3"), "{shown}");
    let json = instance.cli(["show", run, "--json"]).status_is(0).json();
    assert_eq!(json["run"], record["run"]);
    assert_eq!(instance.cli(["logs", run]).status_is(0).out(), "kept\n");
    assert_ne!(instance.cli(["show", "r-no-such-run"]).status, 0);
}

/// No value of the environment is in the record, not even for a failed run (invariant I8).
#[test]
fn i8_values_of_the_environment_are_nowhere_in_the_state() {
    let instance = Instance::new();
    let canary = "canary-5e0c1b";
    let outcome = instance
        .sh(
            &["--env", &format!("TOKEN={canary}")],
            "test -n \"$TOKEN\"; exit 9",
        )
        .status_is(9);
    assert!(!outcome.err().contains(canary));
    let record = instance.last_record();
    assert!(record.to_string().contains("TOKEN"), "{record:#}");
    let found = grep(&instance.state(), canary);
    assert!(found.is_empty(), "in {found:?}");
}

fn grep(folder: &std::path::Path, word: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(grep(&path, word));
        } else if std::fs::read(&path).is_ok_and(|bytes| {
            bytes
                .windows(word.len())
                .any(|window| window == word.as_bytes())
        }) {
            found.push(path);
        }
    }
    found
}

#[test]
fn an_ordinary_user_gets_the_same_ends() {
    let name = "ends::an_ordinary_user_gets_the_same_ends";
    if !need(name, &[Need::Root, Need::Program("setpriv")]) {
        return;
    }
    let instance = Instance::of(leasehold_e2e::Who::Ordinary);
    instance.sh(&[], "exit 7").status_is(7);
    let record = instance.last_record();
    assert_eq!(record["contract"]["posture"]["maker"], "user", "{record:#}");
    assert_clean(&record);
    instance
        .sh(&["--timeout", "500ms", "--grace", "100ms"], "sleep 30")
        .status_is(124);
    assert_nothing_left(&instance);
}

const PYTHON: &str = "/usr/bin/python3";

/// Runs a Python program that says `before` first, and sees that its status, its record, what is kept of
/// its output and `show` agree on how it ended.
#[track_caller]
fn python_ends(instance: &Instance, flags: &str, program: &str, status: i32, end: &str) {
    let program = format!("print('before', flush=True)\n{program}");
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let tail = ["--", PYTHON, "-c", &program];
    let outcome = instance.cli([&["run", "--json"], &flags[..], &tail].concat());
    let record = outcome.status_is(status).within(SOON).json();
    let which = record["end"]["which"].as_str();
    assert_eq!(which.unwrap_or(reason(&record)), end, "{record:#}");
    assert_eq!(record["exit_status"], status, "{record:#}");
    let kept = std::fs::read(record["files"]["stdout"].as_str().unwrap()).unwrap();
    assert!(kept.starts_with(b"before\n"), "{record:#}");
    assert!(!kept.ends_with(b"survived\n"), "{record:#}");
    assert_clean(&record);
    let shown = instance.cli(["show", record["run"].as_str().unwrap()]);
    let shown = shown.status_is(0).out();
    if let Some(which) = which {
        // The number of the signal that ended it would explain nothing.
        let word = which.split('_').next().unwrap();
        assert!(shown.contains(word), "{shown}");
        assert!(!shown.contains("signal 9"), "{shown}");
    }
}

/// Every end that a program can bring about, from another kind of program than a shell.
#[test]
fn programs_of_every_kind_are_told_their_end() {
    let name = "ends::programs_of_every_kind_are_told_their_end";
    if !need(name, &[Need::Root, Need::Path(PYTHON)]) {
        return;
    }
    let instance = Instance::new();
    let ends = |flags: &str, program: &str, status: i32, end: &str| {
        python_ends(&instance, flags, program, status, end);
    };
    let hog = "x = []\nwhile True: x.append(bytearray(1 << 20))";
    ends("--memory 64M", hog, 137, "memory");
    // One process is chosen by the kernel; the sandbox ends as one all the same.
    let child = "import os\nif os.fork() == 0:\n  x = []\n  while True: x.append(bytearray(1 << 20))\nos.wait()\nprint('survived')";
    ends("--memory 64M", child, 137, "memory");
    let forks =
        "import os, time\nfor _ in range(99):\n  if os.fork() == 0: time.sleep(9); os._exit(0)";
    ends("--pids 20", forks, 137, "pids");
    let filler = "with open('/tmp/f', 'wb') as f:\n  for _ in range(64): f.write(bytes(1 << 20))";
    ends("--disk 16M", filler, 137, "disk");
    let files = "for at in range(900): open(f'/home/user/{at}', 'w')";
    ends("--inodes 300", files, 137, "inodes");
    ends("--cpu-time 500ms", "while True: pass", 137, "cpu_time");
    let flood = "import os\nwhile True: os.write(1, b'x' * 65536)";
    let flooded = "--output-limit 1M --on-output-limit kill";
    ends(flooded, flood, 137, "output");
    let sleeper = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(60)";
    ends("--timeout 1s --grace 100ms", sleeper, 124, "timeout");
    ends("", "import os; os.abort()", 134, "tool_error");
    ends("", "raise SystemExit(99)", 99, "tool_error");
    assert_nothing_left(&instance);
}

/// What was asked for and cannot be held is refused before anything runs; unasked it is named.
#[test]
fn a_limit_that_cannot_be_held_is_refused_unless_told_otherwise() {
    let name = "ends::a_limit_that_cannot_be_held_is_refused_unless_told_otherwise";
    if !need(name, &[Need::Root, Need::Program("setpriv")]) {
        return;
    }
    let instance = Instance::of(leasehold_e2e::Who::Ordinary);
    let record = instance.record_of(&[], "true");
    let rows = record["contract"]["enforcement"].as_array().unwrap();
    let memory = rows.iter().find(|row| row["which"] == "memory").unwrap();
    if memory["how"] != "best_effort" {
        leasehold_e2e::skip(name, "an ordinary user has control groups here");
        return;
    }
    for (flag, value, word) in [
        ("--memory", "64M", "memory"),
        ("--cpu", "0.5", "cpu"),
        ("--pids", "9", "pids"),
        ("--cpu-time", "1s", "cpu_time"),
    ] {
        let runs = || {
            std::fs::read_dir(instance.state().join("runs"))
                .unwrap()
                .count()
        };
        let before = runs();
        let outcome = instance
            .run([flag, value, "--", "echo", "ran"])
            .status_is(125);
        let named = format!("limit `{word}` cannot be enforced");
        assert!(outcome.err().contains(&named), "{}", outcome.story());
        assert!(!outcome.out().contains("ran"), "{}", outcome.story());
        assert_eq!(runs(), before, "a refused run left a record");
        let words = [
            flag,
            value,
            "--allow-unenforced",
            "--json",
            "--",
            "echo",
            "ran",
        ];
        let record = instance.run(words).status_is(0).json();
        let rows = record["contract"]["enforcement"].as_array().unwrap();
        let row = rows.iter().find(|row| row["which"] == word);
        let row = row.unwrap_or_else(|| panic!("{word}: {record:#}"));
        assert_ne!(row["how"], "enforced", "{record:#}");
    }
    assert_nothing_left(&instance);
}

#[test]
fn what_cannot_be_started_says_which_and_why() {
    let instance = Instance::new();
    let missing = instance.run(["--json", "--", "no-such-command"]);
    let record = missing.status_is(127).json();
    assert_eq!(reason(&record), "tool_error", "{record:#}");
    let script = "printf '#!/no/such/interpreter\\n' > a; chmod +x a; printf x > b; mkdir c; for f in a b c; do ./$f; echo $?; done 2>/dev/null";
    assert_eq!(instance.sh(&["--quiet"], script).out(), "127\n126\n126\n");
    let folder = instance.scratch("project");
    instance.write(&folder.join("text"), "no program");
    let at = folder.display().to_string();
    for (command, status) in [
        ("./text", 126),
        ("./absent", 127),
        ("/tmp", 126),
        ("/", 126),
    ] {
        let outcome = instance.run(["--workspace", &at, "--", command]);
        let outcome = outcome.status_is(status);
        assert!(outcome.err().contains(command), "{}", outcome.story());
        assert_eq!(reason(&instance.last_record()), "tool_error");
    }
    assert_nothing_left(&instance);
}
