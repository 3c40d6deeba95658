//! P25: bombs of processes, of daemons and of threads.

use std::fs;
use std::time::{Duration, Instant};

use leasehold_e2e::{Instance, Need, Running, need, patience, until};
use rustix::process::{Pid, Signal, kill_process};

use super::{Hostile, PATIENCE, hostile, with_word};
use crate::record::{assert_clean, assert_nothing_left};

const BOMB: &str = include_str!("../../../helpers/bomb.c");
const LIMIT: usize = 40;
const CAP: usize = 120;

/// How many it says it made.
fn made(run: &Running) -> usize {
    until("a bomb that is done", PATIENCE, || {
        let out = run.out();
        let line = out.lines().find_map(|line| line.strip_prefix("made "))?;
        line.parse().ok()
    })
}

/// Tasks of the host in the sandbox's groups: threads as well.
fn tasks(instance: &Instance) -> usize {
    let groups = instance.inventory().all("cgroups");
    let pids = groups.iter().filter(|group| group.contains("/pids/"));
    pids.filter_map(|group| {
        let text = fs::read_to_string(format!("{group}/pids.current")).ok()?;
        text.trim().parse().ok()
    })
    .max()
    .unwrap_or(0)
}

fn stops_at_the_limit(kind: &str) {
    let test = format!("p25_{kind}");
    if !need(&test, &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let Some(bomb) = hostile(&test, &instance, "bomb", BOMB) else {
        return;
    };
    let cap = CAP.to_string();
    let run = bomb.inside(&instance, &["--pids", "40"], &[kind, &cap]);
    let count = made(&run);
    // Init is counted beside the limit.
    assert!(count > 0 && count < LIMIT + 2, "made {count}");
    let seen = tasks(&instance);
    // Init, and what the group holds beside the sandbox, are few.
    assert!(seen <= LIMIT + 4, "{seen} tasks on the host");
    // A peer of the same supervisor starts and ends meanwhile.
    instance.run(["--quiet", "--", "true"]).status_is(0);
    run.signal(Signal::INT);
    run.signal(Signal::INT);
    run.wait(PATIENCE).status_is(130);
    let gone = Instant::now();
    until("no task of the bomb", Duration::from_secs(2), || {
        (tasks(&instance) <= 4).then_some(())
    });
    assert!(gone.elapsed() < Duration::from_secs(2) * patience());

    beyond_without(&instance, &bomb, kind);
    assert_nothing_left(&instance);
}

/// The control: with the limit raised, and outside of any, the bomb gets all it wants.
fn beyond_without(instance: &Instance, bomb: &Hostile, kind: &str) {
    let cap = CAP.to_string();
    let run = bomb.inside(instance, &["--pids", "400"], &[kind, &cap]);
    assert_eq!(made(&run), CAP);
    assert!(tasks(instance) >= CAP, "{} tasks", tasks(instance));
    drop(run);
    let run = bomb.outside(instance, &[kind, &cap]);
    assert_eq!(made(&run), CAP);
}

#[test]
fn p25_processes_stop_at_the_limit() {
    stops_at_the_limit("forks");
}

#[test]
fn p25_threads_stop_at_the_limit() {
    stops_at_the_limit("threads");
}

/// Renamed daemons of sessions of their own; outside they outlive who made them.
#[test]
fn p25_daemons_stop_at_the_limit_and_do_not_get_away() {
    stops_at_the_limit("daemons");
    let instance = Instance::new();
    let test = "p25_daemons_outside";
    let Some(bomb) = hostile(test, &instance, "bomb", BOMB) else {
        return;
    };
    let run = bomb.outside(&instance, &["daemons", "7"]);
    assert_eq!(made(&run), 7);
    drop(run);
    let program = bomb.program.display().to_string();
    let left = with_word(&program);
    let mine: Vec<i32> = left
        .into_iter()
        .filter(|pid| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.ends_with(b"daemons\x007\x00")
        })
        .collect();
    assert!(!mine.is_empty(), "none got away outside");
    for pid in mine {
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).ok();
    }
}

/// The shell's own classic ends with the limit named and nothing left.
#[test]
fn p25_the_shells_bomb_is_named() {
    let test = "p25_the_shells_bomb_is_named";
    if !need(test, &[Need::Root, Need::Program("bash")]) {
        return;
    }
    let instance = Instance::new();
    let flags = [
        "--pids",
        "40",
        "--timeout",
        "2s",
        "--grace",
        "100ms",
        "--json",
    ];
    let script = "bomb() { bomb | bomb & }; bomb; while :; do sleep 0.2; done 2>/dev/null";
    let words = [&["run"], &flags[..], &["--", "bash", "-c", script]].concat();
    let record = instance.cli(words).json();
    let which = record["limits_hit"][0]["which"].as_str();
    assert_eq!(which, Some("pids"), "{record:#}");
    assert_clean(&record);
    assert_nothing_left(&instance);
}
