//! A daemon that dies with runs in its hosts.

use serde_json::Value;

use super::super::crowd::leaves_by_itself;
use super::super::{SOON, assert_proven, facts, reason};
use super::{Rig, compiled};
use crate::guests;

/// Says `up`, sleeps for three seconds, and is done.
fn waits() -> Vec<u8> {
    compiled(&guests::with(
        r#"(data (i32.const 512) "up\n")"#,
        "(drop (call $put (i32.const 2) (i32.const 512) (i32.const 3)))
         (i32.store (i32.const 16) (i32.const 1)) ;; monotonic
         (i64.store (i32.const 24) (i64.const 3000000000))
         (drop (call $poll_oneoff (i32.const 0) (i32.const 128) (i32.const 1) (i32.const 256)))",
    ))
}

/// Kills the daemon in the middle of a run of a tool with these lines, starts it again, and gives the run's
/// row once it is sealed, with how often it was begun.
fn killed(rig: &mut Rig, name: &str, more: &str) -> (Value, usize) {
    killed_and_back(rig, name, more, &[])
}

/// The same, with these variables for the daemon that comes back.
fn killed_and_back(
    rig: &mut Rig,
    name: &str,
    more: &str,
    variables: &[(&str, &str)],
) -> (Value, usize) {
    rig.publish_module(name, &waits(), more);
    let run = rig.begin(&format!("test.{name}"));
    rig.await_word(&run, "up");
    rig.daemon.kill();
    rig.daemon.restart(variables);
    let row = rig.daemon.sealed(&run, SOON);
    let begun = facts(&rig.daemon, &run, "leased").len();
    assert_eq!(facts(&rig.daemon, &run, "concluded").len(), 1);
    assert_proven(&rig.daemon, &run);
    (row, begun)
}

#[test]
fn a_daemon_killed_in_the_middle_loses_what_shares_a_host_and_takes_up_what_has_its_own() {
    let test =
        "a_daemon_killed_in_the_middle_loses_what_shares_a_host_and_takes_up_what_has_its_own";
    let Some(mut rig) = Rig::new(test) else {
        return;
    };
    let (row, begun) = killed(&mut rig, "lost", "");
    assert_eq!((reason(&row), begun), ("host_lost", 1), "{row:#}");
    let (row, begun) = killed(&mut rig, "again", "idempotent: true");
    assert_eq!((reason(&row), begun), ("completed", 2), "{row:#}");
    let own = "filesystem: {artifacts: ['*.txt']}";
    let (row, begun) = killed(&mut rig, "single", own);
    assert_eq!((reason(&row), begun), ("completed", 1), "{row:#}");
    rig.assert_nothing_left();
}

#[test]
fn a_daemon_that_comes_back_without_the_programs_says_of_a_shared_run_that_it_was_lost() {
    let test =
        "a_daemon_that_comes_back_without_the_programs_says_of_a_shared_run_that_it_was_lost";
    let Some(mut rig) = Rig::new(test) else {
        return;
    };
    let without = [("LEASEHOLD_WASM_DIR", "/nonexistent")];
    let (row, begun) = killed_and_back(&mut rig, "lost", "", &without);
    assert_eq!((reason(&row), begun), ("host_lost", 1), "{row:#}");
    rig.assert_nothing_left();
}

#[test]
fn p85_a_worker_leaves_when_its_killed_daemon_had_hosts() {
    let test = "p85_a_worker_leaves_when_its_killed_daemon_had_hosts";
    let Some(mut rig) = Rig::new(test) else {
        return;
    };
    rig.publish_module("waits", &waits(), "");
    let run = rig.begin("test.waits");
    // Untouched hosts are being started beside the one that has the run.
    rig.await_word(&run, "up");
    assert!(
        !rig.daemon.inventory().inits().is_empty(),
        "the look sees it"
    );
    rig.daemon.kill();
    leaves_by_itself(&rig.daemon);
    rig.daemon.restart(&[]);
    assert_eq!(reason(&rig.daemon.sealed(&run, SOON)), "host_lost");
    rig.assert_nothing_left();
}
