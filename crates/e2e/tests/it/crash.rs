//! Who dies when, and what is left: the command line, the supervisor, init, at each stage of a run.
//!
//! The stages are held by `LEASEHOLD_HOLD`, which only builds with debug assertions read. More of it is
//! in `deaths` (who is dead how soon), `leftovers` (what an inventory sees and a sweep takes away),
//! `crowd` (many at once and in a row), `ordinary` (other users) and `told` (what is said of it all).

mod crowd;
mod deaths;
mod leftovers;
mod ordinary;
pub(crate) use ordinary::with_ranges;
mod told;

use std::time::Duration;

use leasehold_e2e::{Instance, Running, until};
use rustix::process::{Pid, Signal, kill_process};

use crate::record::{assert_clean, assert_nothing_left, reason};

const SOON: Duration = Duration::from_secs(20);
/// The seven stages, by the words of the record.
pub(crate) const STAGES: [&str; 7] = [
    "allocate",
    "initialize",
    "inject",
    "execute",
    "collect",
    "destroy",
    "cleanup",
];

/// How long a run is held at the end of a stage.
const HOLD_MS: u32 = 1500;

fn held(instance: &Instance, stage: &str) -> Running {
    let mut command = instance.command(["run", "--timeout", "20s", "--", "sh", "-c", "echo ran"]);
    command.env("LEASEHOLD_HOLD", format!("{stage}:{HOLD_MS}"));
    Running::start(&mut command, None)
}

/// Waits until the run is on its way: its ledger entry is there and, from the stage in which the command
/// runs, its output.
fn await_stage(instance: &Instance, run: &Running, stage: &str) {
    until(&format!("a run on its way to {stage}"), SOON, || {
        (instance.inventory().count("scratch") > 0 || !run.out().is_empty()).then_some(())
    });
    if !matches!(stage, "allocate" | "initialize" | "inject") {
        run.await_out("ran", SOON);
    }
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    // Until it is gone it holds its lock, and a sweep rightly leaves alone what is owned.
    until("a killed process to be gone", SOON, || {
        gone(pid.as_raw_nonzero().get()).then_some(())
    });
}

/// Whether a process ended, waited for or not.
fn gone(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    status.map_or(true, |text| text.contains(") Z "))
}

#[test]
fn a_run_outlives_its_command_line_and_is_completed() {
    for stage in STAGES {
        eprintln!("stage {stage}");
        let instance = Instance::new();
        let run = held(&instance, stage);
        await_stage(&instance, &run, stage);
        kill(run.pid());
        run.wait(SOON);
        let record = instance.last_record();
        assert_eq!(reason(&record), "completed", "{stage}: {record:#}");
        assert_eq!(record["stdout"]["kept"], 4, "{stage}: {record:#}");
        let passed = record["stages"].as_array().expect("stages").iter();
        let passed: Vec<&str> = passed.filter_map(|time| time["stage"].as_str()).collect();
        assert_eq!(passed, STAGES, "{stage}: {record:#}");
        assert_clean(&record);
        assert_nothing_left(&instance);
    }
}

/// Whoever comes next sweeps what a dead supervisor left and completes its record (P84).
#[test]
fn a_killed_supervisor_leaves_nothing_after_the_next_call() {
    for stage in STAGES {
        eprintln!("stage {stage}");
        let instance = Instance::new();
        let run = held(&instance, stage);
        await_stage(&instance, &run, stage);
        let supervisor = instance.supervisor().expect("a supervisor");
        kill(supervisor);
        let outcome = run.wait(SOON);
        assert!(
            matches!(outcome.status, 0 | 125),
            "{stage}: {}",
            outcome.story()
        );
        instance.cli(["sweep"]).status_is(0);
        let record = instance.last_record();
        assert!(
            matches!(reason(&record), "host_lost" | "completed"),
            "{stage}: {record:#}"
        );
        assert_clean(&record);
        // A socket that nobody listens on stays until the next supervisor makes its own.
        instance.run(["--", "true"]).status_is(0);
        assert_nothing_left(&instance);
    }
}

#[test]
fn a_dead_supervisor_takes_its_sandboxes_along() {
    let instance = Instance::new();
    let run = instance.start(["run", "--", "sh", "-c", "echo up; sleep 60"]);
    run.await_out("up", SOON);
    let before = instance.inventory();
    assert!(before.count("processes") >= 3, "{before}");
    kill(instance.supervisor().expect("a supervisor"));
    run.wait(SOON).status_is(125);
    until("no process of the sandbox", Duration::from_secs(5), || {
        let now = instance.inventory();
        now.all("processes")
            .iter()
            .all(|process| !process.contains("sleep"))
            .then_some(())
    });
    let record = instance.last_record();
    assert_eq!(reason(&record), "host_lost");
    assert_nothing_left(&instance);
}

/// Init ends when somebody kills it from the host; the run says so, and nothing is left.
#[test]
fn a_killed_init_is_a_crash() {
    let instance = Instance::new();
    let run = instance.start(["run", "--", "sh", "-c", "echo up; sleep 60"]);
    run.await_out("up", SOON);
    let inits = instance.inventory().inits();
    assert_eq!(inits.len(), 1, "{}", instance.inventory());
    kill(inits[0].cast_unsigned());
    run.wait(SOON).status_is(125);
    let record = instance.last_record();
    assert_eq!(reason(&record), "sandbox_crashed", "{record:#}");
    assert_clean(&record);
    assert_nothing_left(&instance);
}

#[test]
fn two_instances_leave_each_other_alone() {
    let (first, second) = (Instance::new(), Instance::new());
    let run = first.start(["run", "--", "sh", "-c", "echo up; sleep 60"]);
    run.await_out("up", SOON);
    second.run(["--", "true"]).status_is(0);
    second.cli(["sweep"]).status_is(0);
    assert_nothing_left(&second);
    assert!(first.inventory().count("processes") >= 3);
    run.signal(Signal::INT);
    run.wait(SOON).status_is(130);
}

#[test]
fn a_sweep_of_nothing_removes_nothing() {
    let instance = Instance::new();
    let outcome = instance.cli(["sweep", "--dry-run"]).status_is(0);
    outcome.within(Duration::from_secs(5));
    instance.run(["--", "true"]).status_is(0);
    instance.last_record();
    instance.cli(["sweep"]).status_is(0);
    assert_eq!(reason(&instance.last_record()), "completed");
}
