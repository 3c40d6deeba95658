//! P28: a guest that wants more processor than it has.

use std::fs;
use std::time::{Duration, Instant};

use leasehold_e2e::{Instance, Need, Running, need, until};

use super::{Hostile, PATIENCE, hostile};
use crate::record::assert_nothing_left;

const SPINNER: &str = include_str!("../../../helpers/spinner.c");

/// Nanoseconds of processor that the instance's sandboxes used, as their groups on the host count.
fn used(instance: &Instance) -> Option<u64> {
    let groups = instance.inventory().all("cgroups");
    let count = |group: &String| -> Option<u64> {
        if let Ok(text) = fs::read_to_string(format!("{group}/cpuacct.usage")) {
            return text.trim().parse().ok();
        }
        let text = fs::read_to_string(format!("{group}/cpu.stat")).ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "))?;
        line.parse::<u64>().ok().map(|micros| micros * 1000)
    };
    groups.iter().filter_map(count).max()
}

/// Cores that a spinner in a sandbox uses, measured on the host over a second and a half.
fn cores(instance: &Instance, spinner: &Hostile, share: &str) -> (f64, Running) {
    let run = spinner.inside(instance, &["--cpu", share], &["30", "8"]);
    run.await_out("up", PATIENCE);
    let first = until("counts of the processor", PATIENCE, || used(instance));
    let begun = Instant::now();
    std::thread::sleep(Duration::from_millis(1500));
    let second = used(instance).expect("counts");
    let cores = (second - first) as f64 / begun.elapsed().as_nanos() as f64;
    (cores, run)
}

#[test]
fn p28_spinning_threads_and_timers_stay_within_the_share() {
    let test = "p28_spinning_threads_and_timers_stay_within_the_share";
    if !need(test, &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let Some(spinner) = hostile(test, &instance, "spinner", SPINNER) else {
        return;
    };
    let (within, run) = cores(&instance, &spinner, "0.2");
    let told = run.out();
    drop(run);
    assert_eq!(told, "up\n", "a privilege over the scheduler was granted");
    // A tenth more than the share, and what one period may add at either end.
    assert!(within <= 0.22 + 0.03, "{within} cores of 0.2");
    let other = Instance::new();
    let spinner = hostile(test, &other, "spinner", SPINNER).expect("compiled before");
    let (without, run) = cores(&other, &spinner, "2");
    drop(run);
    assert!(without > 0.3, "{without} cores with the share raised");
    assert_nothing_left(&instance);
    // The privilege is there outside.
    let outcome = spinner.outside(&other, &["0", "1"]).wait(PATIENCE);
    assert!(outcome.out().contains("nice"), "{}", outcome.story());
}
