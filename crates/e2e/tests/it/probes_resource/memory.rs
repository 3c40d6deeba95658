//! P26: memory by every pool of the kernel that a guest can fill.

use leasehold_e2e::{Instance, Need, need};
use rustix::process::Signal;

use super::{Hostile, PATIENCE, hostile};
use crate::record::{assert_clean, assert_nothing_left, exceeded, reason};

const HOG: &str = include_str!("../../../helpers/hog.c");
/// The limit, and what each attempt wants to have.
const LIMIT: u64 = 48 << 20;
const WANTED: &str = "96";
/// So many tasks and files that memory is what gives out.
const PLENTY: [&str; 4] = ["--pids", "4096", "--files", "100000"];

/// How many bytes of the host may be swapped out.
fn swap_used() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        kib.unwrap_or(0)
    };
    (field("SwapTotal:") - field("SwapFree:")) << 10
}

fn attempt(instance: &Instance, hog: &Hostile, pool: &str, memory: &str) -> (String, u64) {
    let disk = ["--memory", memory, "--disk", "200M", "--timeout", "30s"];
    let flags = [&disk[..], &PLENTY, &["--json"]].concat();
    let run = hog.inside(instance, &flags, &[pool, WANTED]);
    let outcome = run.wait(PATIENCE);
    let record = outcome.json();
    assert_clean(&record);
    let told = match reason(&record) {
        "resource_exceeded" => {
            assert_eq!(outcome.status, 137, "{pool}: {}", outcome.story());
            exceeded(&record).to_owned()
        }
        other => other.to_owned(),
    };
    let peak = record["usage"]["memory_peak_bytes"].as_u64();
    (told, peak.unwrap_or_else(|| panic!("{record:#}")))
}

/// Every pool ends the sandbox for memory; with the limit raised the same attempt is seen to get
/// more than the limit was.
fn pool_is_counted(pool: &str) {
    let instance = Instance::new();
    let test = format!("p26_{pool}");
    if !need(&test, &[Need::Root]) {
        return;
    }
    let Some(hog) = hostile(&test, &instance, "hog", HOG) else {
        return;
    };
    let peer = instance.start(["run", "--", "sh", "-c", "echo up; sleep 60"]);
    peer.await_out("up", PATIENCE);
    let supervisor = instance.supervisor().expect("a supervisor");
    let (told, peak) = attempt(&instance, &hog, pool, "48M");
    assert_eq!(told, "memory", "{pool}, peak {peak}");
    assert!(peak <= LIMIT, "{pool}: {peak} bytes at one time");
    let (told, peak) = attempt(&instance, &hog, pool, "512M");
    assert_eq!(told, "completed", "{pool} without the limit, peak {peak}");
    assert!(peak > LIMIT, "{pool} took no memory: {peak} bytes");
    // Neither a peer nor ours was chosen.
    peer.signal(Signal::INT);
    peer.wait(PATIENCE).status_is(130);
    assert_eq!(instance.supervisor(), Some(supervisor));
    assert_nothing_left(&instance);
}

#[test]
fn p26_anonymous_memory() {
    let swapped = swap_used();
    pool_is_counted("anonymous");
    assert!(swap_used() <= swapped + (8 << 20), "a limit was swapped");
}

#[test]
fn p26_memory_files() {
    pool_is_counted("memfd");
}

#[test]
fn p26_shared_segments() {
    pool_is_counted("sysv");
}

#[test]
fn p26_pipes() {
    pool_is_counted("pipes");
}

#[test]
fn p26_sockets() {
    pool_is_counted("sockets");
}

#[test]
fn p26_one_huge_stack() {
    pool_is_counted("stack");
}

#[test]
fn p26_many_idle_threads() {
    pool_is_counted("threads");
}

/// Files in memory count as the memory they are: what is on both of them leaves less for the rest.
#[test]
fn p26_files_in_memory() {
    if !need("p26_files_in_memory", &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let Some(hog) = hostile("p26_files_in_memory", &instance, "hog", HOG) else {
        return;
    };
    let run = |memory: &str, mib: &str| {
        let flags = ["--memory", memory, "--json", "--timeout", "30s"];
        let outcome = hog
            .inside(&instance, &flags, &["tmpfs", mib])
            .wait(PATIENCE);
        outcome.json()
    };
    // A quarter of 76 MiB on each fits; with the other half beside them the whole does not.
    let record = run("64M", "76");
    assert_eq!(exceeded(&record), "memory", "{record:#}");
    assert_clean(&record);
    assert_eq!(reason(&run("256M", "76")), "completed");
    // The parts alone fit in the smaller one.
    assert_eq!(reason(&run("64M", "44")), "completed");
    assert_nothing_left(&instance);
}

/// Pages of a file on disk may be given back, so they slow a program down and never end it.
#[test]
fn p26_page_cache_is_given_back() {
    let test = "p26_page_cache_is_given_back";
    if !need(test, &[Need::Root, Need::Path("/dev/loop-control")]) {
        return;
    }
    let instance = Instance::new();
    let Some(hog) = hostile(test, &instance, "hog", HOG) else {
        return;
    };
    let (told, peak) = attempt(&instance, &hog, "cache", "48M");
    assert_eq!(told, "completed");
    assert!(peak <= LIMIT, "{peak} bytes at one time");
    assert_nothing_left(&instance);
}

/// Memory that cannot be given back is bounded apart from the rest.
#[test]
fn p26_locked_memory_is_refused() {
    let instance = Instance::new();
    let test = "p26_locked_memory_is_refused";
    if !need(test, &[Need::Root]) {
        return;
    }
    let Some(hog) = hostile(test, &instance, "hog", HOG) else {
        return;
    };
    let run = hog.inside(&instance, &["--memory", "512M"], &["locked", WANTED]);
    let outcome = run.wait(PATIENCE).status_is(3);
    assert!(outcome.err().contains("mlock"), "{}", outcome.story());
    // Where the privilege is there, it is granted.
    let outcome = hog.outside(&instance, &["locked", WANTED]).wait(PATIENCE);
    assert!(outcome.out().contains("through"), "{}", outcome.story());
}

/// Just under the limit is not over it.
#[test]
fn p26_just_under_the_limit_is_left_alone() {
    let python = "/usr/bin/python3";
    let test = "p26_just_under_the_limit_is_left_alone";
    if !need(test, &[Need::Root, Need::Path(python)]) {
        return;
    }
    let instance = Instance::new();
    let hold = |mib: u32| {
        let script =
            format!("import time; x = bytearray({mib} << 20); time.sleep(2); print(len(x))");
        let outcome = instance.run(["--memory", "64M", "--", python, "-c", &script]);
        (outcome.status, instance.last_record())
    };
    let (status, record) = hold(52);
    assert_eq!(status, 0, "{record:#}");
    assert!(record["limits_hit"].as_array().is_none_or(Vec::is_empty));
    let (status, record) = hold(66);
    assert_eq!(status, 137, "{record:#}");
    assert_eq!(exceeded(&record), "memory");
}
