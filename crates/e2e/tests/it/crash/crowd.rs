//! Many callers at once, and many runs in a row with callers that die: nothing grows, nobody is lost.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_e2e::{Instance, Outcome, Running, until};

use super::{SOON, kill};
use crate::record::{assert_clean, assert_nothing_left};

/// How long a crowd may take on a machine that is busy with others.
const CROWD: Duration = Duration::from_secs(60);

/// Starts `count` runs at once; each says its number and ends with a status of its own.
fn crowd(instance: &Instance, count: i32) -> Vec<Outcome> {
    let start = |number: i32| {
        let script = format!("echo {number}; exit {}", number % 100);
        instance.start(["run", "--", "sh", "-c", &script])
    };
    let runs: Vec<Running> = (0..count).map(start).collect();
    runs.into_iter().map(|run| run.wait(CROWD)).collect()
}

#[track_caller]
fn each_is_right(outcomes: &[Outcome]) {
    for (number, outcome) in (0_i32..).zip(outcomes) {
        assert_eq!(outcome.out(), format!("{number}\n"), "{}", outcome.story());
        assert_eq!(outcome.status, number % 100, "{}", outcome.story());
    }
}

/// How many supervisors the instance has: processes of that command line that are no helpers.
fn supervisors(instance: &Instance) -> usize {
    let all = instance.inventory().all("processes");
    let pids = all.iter().filter_map(|line| line.split(' ').next());
    let named = |pid: &&str, file: &str, wanted: &str| {
        let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        text.split(|byte| *byte == 0 || *byte == b'\n')
            .any(|word| word == wanted.as_bytes())
    };
    let leaders = pids
        .filter(|pid| named(pid, "cmdline", "supervisor") && !named(pid, "comm", "lease-spawner"));
    leaders.count()
}

#[test]
fn ten_at_once_without_a_supervisor_make_one() {
    let instance = Instance::new();
    let outcomes = crowd(&instance, 10);
    each_is_right(&outcomes);
    // Those that came second leave by themselves.
    until("one supervisor", SOON, || {
        (supervisors(&instance) == 1).then_some(())
    });
    assert_nothing_left(&instance);
    assert_eq!(supervisors(&instance), 0);
}

#[test]
fn a_hundred_at_once_all_end_right_and_leave_nothing() {
    let instance = Instance::new();
    let outcomes = crowd(&instance, 100);
    each_is_right(&outcomes);
    let runs = fs::read_dir(instance.state().join("runs")).unwrap();
    let runs: Vec<String> = runs
        .map(|run| run.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(runs.len(), 100);
    runs.iter()
        .for_each(|run| assert_clean(&instance.record(run)));
    assert_nothing_left(&instance);
}

/// What must not grow with the number of runs.
type Sizes = BTreeMap<&'static str, u64>;

fn lines(path: &str) -> u64 {
    fs::read_to_string(path).map_or(0, |text| text.lines().count() as u64)
}

fn sizes(instance: &Instance, supervisor: u32) -> Sizes {
    let count = |path: String| fs::read_dir(path).map_or(0, |all| all.count() as u64);
    let status = fs::read_to_string(format!("/proc/{supervisor}/status")).unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|text| text.split_whitespace().next()?.parse().ok());
    let inventory = instance.inventory();
    let mut sizes = Sizes::from([
        ("resident KiB", resident.unwrap_or(0)),
        ("descriptors", count(format!("/proc/{supervisor}/fd"))),
        ("threads", count(format!("/proc/{supervisor}/task"))),
        ("mounts", lines(&format!("/proc/{supervisor}/mountinfo"))),
    ]);
    for pid in super::deaths::children(supervisor, "lease-spawner") {
        sizes.insert("spawner's descriptors", count(format!("/proc/{pid}/fd")));
        sizes.insert("spawner's mounts", lines(&format!("/proc/{pid}/mountinfo")));
    }
    for kind in [
        "processes",
        "cgroups",
        "uids",
        "scratch",
        "temp",
        "mounts",
        "loops",
        "netns",
    ] {
        let name = match kind {
            "mounts" => "mounts of the host",
            other => other,
        };
        sizes.insert(name, inventory.count(kind) as u64);
    }
    sizes
}

/// The sizes when nothing runs: those read once the ledger is empty and the helpers have settled.
#[track_caller]
fn at_rest(instance: &Instance, supervisor: u32) -> Sizes {
    until("a supervisor at rest", SOON, || {
        (instance.inventory().count("temp") == 0).then_some(())
    });
    let mut before = sizes(instance, supervisor);
    until("sizes that stand still", SOON, || {
        std::thread::sleep(Duration::from_millis(100));
        let now = sizes(instance, supervisor);
        let same = now == before && now["scratch"] == 0;
        before = now;
        same.then(|| before.clone())
    })
}

/// `count` short runs, four at a time; the command line of every twentieth is killed on its way.
fn soak(instance: &Instance, count: u32) {
    let next = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let run = instance.start(["run", "--", "echo", "short"]);
                    if number % 20 == 7 {
                        // Somewhere between its start and its end, another place each time.
                        std::thread::sleep(Duration::from_millis(u64::from(number / 20 * 5)));
                        kill(run.pid());
                        run.wait(SOON);
                        continue;
                    }
                    let outcome = run.wait(CROWD).status_is(0);
                    assert_eq!(outcome.out(), "short\n", "{}", outcome.story());
                }
            });
        }
    });
}

#[test]
fn three_hundred_runs_with_dying_callers_leave_the_supervisor_as_it_was() {
    let instance = Instance::new();
    soak(&instance, 60);
    let supervisor = instance.supervisor().expect("a supervisor");
    let before = at_rest(&instance, supervisor);
    soak(&instance, 300);
    let after = at_rest(&instance, supervisor);
    assert_eq!(instance.supervisor(), Some(supervisor), "the same one");
    for (name, size) in &after {
        let most = match *name {
            // 5 %, and room for one more page run of the allocator.
            "resident KiB" => before[name] + before[name] / 20 + 512,
            _ => before[name],
        };
        assert!(*size <= most, "{name} grew: {before:?} {after:?}");
    }
    assert_nothing_left(&instance);
}
