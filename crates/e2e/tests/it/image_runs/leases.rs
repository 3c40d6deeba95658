//! What keeps an image while a sandbox has it, and what lets it go, whoever dies.

use std::fs;
use std::time::Duration;

use leasehold_e2e::{Instance, Running, until};
use rustix::process::{Pid, Signal, kill_process};

use super::{SOON, can, image, layers};
use crate::record::{assert_clean, assert_nothing_left};

/// Waits in an image, looks at a file of it when told to, and waits again.
const SCRIPT: &str = "echo up; until [ -e /workspace/go ]; do sleep 0.1; done; cat /deep/file /bin/busybox > /dev/null; \
    cat /deep/file; sleep 60";

fn begin(instance: &Instance) -> (Running, std::path::PathBuf) {
    let layers = [
        "mkdir -p etc deep; echo lower > deep/file",
        "echo upper > deep/file",
    ];
    let _ = image(instance, "tool:1", &layers, &[]);
    let work = instance.scratch("work");
    let at = format!("{}:rw", work.display());
    let flags = [
        "run",
        "--image",
        "tool:1",
        "--workspace",
        &at,
        "--",
        "sh",
        "-c",
        SCRIPT,
    ];
    let running = instance.start(flags);
    running.await_out("up", SOON);
    (running, work)
}

/// Frees what can be freed, and how many layers and live leases there were.
fn collect(instance: &Instance) -> (u64, u64) {
    let done = instance.cli(["image", "gc", "--json"]).status_is(0).json();
    (
        done["layers"].as_u64().unwrap(),
        done["leases"].as_u64().unwrap(),
    )
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn an_image_in_use_is_not_collected() {
    if !can("an_image_in_use_is_not_collected") {
        return;
    }
    let instance = Instance::new();
    let (running, work) = begin(&instance);
    instance.cli(["image", "rm", "tool:1"]).status_is(0);
    instance.sh(&["--image", "tool:1"], "true").status_is(2);
    assert_eq!(collect(&instance), (0, 1));
    assert_eq!(layers(&instance).len(), 2);
    fs::write(work.join("go"), "").unwrap();
    running.await_out("upper", SOON);
    running.signal(Signal::INT);
    running.wait(SOON).status_is(130);
    assert_clean(&instance.last_record());
    // The control: with the sandbox gone it is garbage, and the lease with it.
    assert_eq!(collect(&instance), (2, 0));
    assert_eq!(layers(&instance).len(), 0);
    assert_eq!(
        fs::read_dir(instance.state().join("images/leases"))
            .unwrap()
            .count(),
        0
    );
    assert_nothing_left(&instance);
}

/// The lease is the supervisor's: it outlives the command line, and no longer than the sandbox.
#[test]
fn an_image_is_kept_without_the_command_line_and_let_go_without_the_supervisor() {
    if !can("an_image_is_kept_without_the_command_line_and_let_go_without_the_supervisor") {
        return;
    }
    let instance = Instance::new();
    let (running, _) = begin(&instance);
    instance.cli(["image", "rm", "tool:1"]).status_is(0);
    let supervisor = instance.supervisor().unwrap();
    kill(running.pid());
    running.wait(SOON);
    assert_eq!(collect(&instance), (0, 1), "after the command line's death");
    kill(supervisor);
    until("no process of it", Duration::from_secs(2), || {
        (instance.inventory().count("processes") == 0).then_some(())
    });
    assert_eq!(collect(&instance), (2, 0), "after the supervisor's death");
    // Its successor removes the rest.
    let swept = instance.cli(["sweep", "--json"]).status_is(0);
    assert!(!swept.out().is_empty());
    assert_nothing_left(&instance);
}

/// An image that could not be made a root is not held either.
#[test]
fn a_run_that_never_began_keeps_nothing() {
    if !can("a_run_that_never_began_keeps_nothing") {
        return;
    }
    let instance = Instance::new();
    let _ = image(
        &instance,
        "tool:1",
        &["mkdir etc home; touch home/user"],
        &[],
    );
    instance.sh(&["--image", "tool:1"], "true").status_is(125);
    instance.cli(["image", "rm", "tool:1"]).status_is(0);
    assert_eq!(collect(&instance), (1, 0));
    assert_nothing_left(&instance);
}
