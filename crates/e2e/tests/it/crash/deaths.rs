//! Who is dead how soon: seen on the host before anybody of ours looks, and what the next one mends.

use std::fs;
use std::time::{Duration, Instant};

use leasehold_e2e::{Instance, Inventory, Need, Running, need, patience, until};

use super::{SOON, STAGES, await_stage, gone, kill};
use crate::record::{assert_clean, assert_nothing_left, reason};

/// How soon all that a dead supervisor owned is dead, too.
const DEAD: Duration = Duration::from_secs(1);
/// How soon the next call has removed what is left.
const SWEPT: Duration = Duration::from_secs(2);
/// What a dead supervisor can leave that no parent-death signal removes.
const LEAVABLE: [&str; 9] = [
    "processes",
    "cgroups",
    "mounts",
    "netns",
    "loops",
    "uids",
    "scratch",
    "temp",
    "holders",
];

/// Waits until no process of the instance lives, for the bound of the design.
#[track_caller]
fn all_dead(instance: &Instance, what: &str) {
    until(&format!("no process of {what}"), DEAD, || {
        (instance.inventory().count("processes") == 0).then_some(())
    });
}

#[track_caller]
fn nothing_but_sockets(left: &Inventory) {
    for kind in LEAVABLE {
        assert_eq!(left.count(kind), 0, "{kind} are left:\n{left}");
    }
}

/// The children of a process, each with its name.
pub(super) fn all_children(parent: u32) -> Vec<(u32, String)> {
    let tasks = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let tasks = tasks.unwrap_or_default();
    let pids = tasks.split_whitespace().filter_map(|pid| pid.parse().ok());
    let named = |pid: u32| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        (pid, comm.trim().to_owned())
    };
    pids.map(named).collect()
}

/// The children of `parent` whose name is `name`.
pub(super) fn children(parent: u32, name: &str) -> Vec<u32> {
    let all = all_children(parent).into_iter();
    all.filter_map(|(pid, comm)| (comm == name).then_some(pid))
        .collect()
}

/// The limits of a run are its supervisor's business, whoever follows it.
#[test]
fn a_deadline_holds_without_the_command_line() {
    let instance = Instance::new();
    let script = "trap '' TERM INT HUP; echo up; while :; do sleep 1; done";
    let flags = [
        "run",
        "--timeout",
        "1500ms",
        "--grace",
        "200ms",
        "--",
        "sh",
        "-c",
    ];
    let run = instance.start([&flags[..], &[script]].concat());
    run.await_out("up", SOON);
    let killed = Instant::now();
    kill(run.pid());
    run.wait(SOON);
    assert_eq!(instance.inventory().inits().len(), 1, "the run goes on");
    // Nothing of ours is called: the state directory and the host are looked at.
    let record = instance.last_record();
    assert!(killed.elapsed() < Duration::from_secs(5) * patience());
    assert_eq!(reason(&record), "timeout", "{record:#}");
    assert_clean(&record);
    assert_eq!(instance.inventory().count("scratch"), 0);
    assert_nothing_left(&instance);
}

/// Nobody who could mend anything is left: the command line dies first, its supervisor next.
#[test]
fn all_of_a_dead_supervisor_is_dead_at_once_and_swept_by_the_next_call() {
    for (turn, stage) in STAGES.into_iter().enumerate() {
        eprintln!("stage {stage}");
        let instance = Instance::new();
        let mut command = instance.command(["run", "--", "sh", "-c", "echo ran"]);
        command.env("LEASEHOLD_HOLD", format!("{stage}:20000"));
        let run = Running::start(&mut command, None);
        await_stage(&instance, &run, stage);
        let supervisor = instance.supervisor().expect("a supervisor");
        kill(run.pid());
        run.wait(SOON);
        kill(supervisor);
        all_dead(&instance, stage);
        if !matches!(stage, "destroy" | "cleanup") {
            // The control: without the next call there is something to be swept.
            let left = instance.inventory();
            assert!(left.count("scratch") > 0, "{stage}: {left}");
            assert!(left.count("cgroups") > 0, "{stage}: {left}");
        }
        if turn % 2 == 0 {
            instance.cli(["sweep"]).status_is(0).within(SWEPT);
            nothing_but_sockets(&instance.inventory());
            let record = instance.last_record();
            let held = matches!(stage, "allocate" | "initialize" | "inject");
            let expected = if held {
                &["host_lost"][..]
            } else {
                &["host_lost", "completed"]
            };
            assert!(expected.contains(&reason(&record)), "{stage}: {record:#}");
            assert_clean(&record);
            instance.run(["--", "true"]).status_is(0);
        } else {
            let lost = instance.last_run();
            instance.run(["--", "true"]).status_is(0).within(SWEPT);
            assert_clean(&instance.record(&lost));
        }
        assert_nothing_left(&instance);
    }
}

/// Parked sandboxes and one with a disk image, a loop device and all.
#[test]
fn parked_sandboxes_and_disk_images_die_with_their_supervisor() {
    let name = "crash::parked_sandboxes_and_disk_images_die_with_their_supervisor";
    if !need(name, &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    instance.cli(["pool", "3"]).status_is(0);
    let run = instance.start([
        "run",
        "--disk",
        "300M",
        "--",
        "sh",
        "-c",
        "echo up; sleep 60",
    ]);
    run.await_out("up", SOON);
    let before = instance.inventory();
    assert!(before.inits().len() >= 4, "{before}");
    assert!(
        before.count("loops") == 1 && before.count("uids") >= 4,
        "{before}"
    );
    let supervisor = instance.supervisor().expect("a supervisor");
    kill(run.pid());
    run.wait(SOON);
    kill(supervisor);
    all_dead(&instance, "a supervisor with parked sandboxes");
    let left = instance.inventory();
    assert!(
        left.count("uids") >= 4 && left.count("cgroups") > 4,
        "{left}"
    );
    instance.cli(["sweep"]).status_is(0).within(SWEPT);
    nothing_but_sockets(&instance.inventory());
    let record = instance.last_record();
    assert_eq!(reason(&record), "host_lost");
    assert_clean(&record);
    assert_eq!(instance.cli(["sweep"]).out(), "nothing is left behind\n");
    instance.run(["--", "true"]).status_is(0);
    assert_nothing_left(&instance);
}

/// Sandboxes are no children of the spawner: they go on, and another makes the next ones.
#[test]
fn a_killed_spawner_takes_its_own_helpers_along_and_nothing_else() {
    let instance = Instance::new();
    instance.cli(["pool", "1"]).status_is(0);
    let run = instance.start(["run", "--", "sh", "-c", "echo up; sleep 60"]);
    run.await_out("up", SOON);
    let supervisor = instance.supervisor().expect("a supervisor");
    // One in the making has the spawner's name, and is gone or has its own soon.
    let spawner = until("the spawner alone", SOON, || {
        let now = children(supervisor, "lease-spawner");
        (now.len() == 1).then_some(now)
    });
    let helpers = children(spawner[0], "lease-spawner");
    kill(spawner[0]);
    until("the helpers of the dead spawner to end", DEAD, || {
        helpers
            .iter()
            .all(|pid| gone(pid.cast_signed()))
            .then_some(())
    });
    until("another spawner", SOON, || {
        let now = children(supervisor, "lease-spawner");
        (now.len() == 1 && now != spawner).then_some(())
    });
    for _ in 0..3 {
        instance.run(["--", "true"]).status_is(0);
    }
    assert_eq!(
        instance.supervisor(),
        Some(supervisor),
        "the same supervisor"
    );
    until("the run and a parked one", SOON, || {
        (instance.inventory().inits().len() == 2).then_some(())
    });
    run.signal(rustix::process::Signal::INT);
    run.wait(SOON).status_is(130);
    assert_nothing_left(&instance);
}

/// A parked sandbox whose init dies is removed and replaced without a call.
#[test]
fn a_killed_parked_init_is_replaced() {
    let instance = Instance::new();
    instance.cli(["pool", "2"]).status_is(0);
    let before = instance.inventory().inits();
    assert_eq!(before.len(), 2);
    kill(before[0].cast_unsigned());
    until("two parked sandboxes again", SOON, || {
        let now = instance.inventory();
        let inits = now.inits();
        (inits.len() == 2 && !inits.contains(&before[0]) && now.count("scratch") == 2).then_some(())
    });
    instance.run(["--", "true"]).status_is(0);
    assert_nothing_left(&instance);
}
