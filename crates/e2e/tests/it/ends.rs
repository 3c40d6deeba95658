//! How a run ends: the status, the reason and the record of each end that a user can cause.

use std::time::Duration;

use leasehold_e2e::Instance;
use serde_json::Value;

#[track_caller]
fn reason(record: &Value) -> &str {
    record["end"]["reason"]
        .as_str()
        .unwrap_or_else(|| panic!("no end in {record:#}"))
}

/// Every record says what was seen after removal, and that it was clean.
#[track_caller]
fn assert_clean(record: &Value) {
    let residues = record["cleanup"]["residues"].as_array();
    let residues = residues.unwrap_or_else(|| panic!("no cleanup inventory in {record:#}"));
    assert!(
        !residues.is_empty(),
        "an empty inventory proves nothing: {record:#}"
    );
    for residue in residues {
        assert_eq!(residue["clean"], true, "{record:#}");
    }
}

#[test]
fn success_is_completed_and_clean() {
    let instance = Instance::new();
    let outcome = instance.run(["--", "true"]).status_is(0);
    assert!(outcome.stdout.is_empty(), "{}", outcome.story());
    let record = instance.last_record();
    assert_eq!(reason(&record), "completed");
    assert_clean(&record);
    let left = instance.stopped_inventory();
    assert!(left.is_empty(), "{left}");
}

#[test]
fn a_failing_command_gives_its_own_status() {
    let instance = Instance::new();
    instance.sh(&[], "exit 7").status_is(7);
    assert_eq!(reason(&instance.last_record()), "tool_error");
    instance.sh(&[], "kill -SEGV $$").status_is(128 + 11);
    instance.run(["--", "/no/such/command"]).status_is(127);
    instance.run(["--", "/etc/passwd"]).status_is(126);
}

#[test]
fn the_wall_limit_ends_a_stubborn_command_and_keeps_its_output() {
    let instance = Instance::new();
    let outcome = instance
        .sh(
            &["--timeout", "1s", "--grace", "200ms"],
            "trap '' TERM; echo before; while :; do sleep 1; done",
        )
        .status_is(124);
    assert!(outcome.out().contains("before"), "{}", outcome.story());
    assert!(
        outcome.elapsed < Duration::from_secs(10),
        "{}",
        outcome.story()
    );
    let record = instance.last_record();
    assert_eq!(reason(&record), "timeout");
    assert_clean(&record);
}

#[test]
fn a_memory_hog_ends_for_memory_and_is_told_so() {
    let instance = Instance::new();
    let outcome = instance
        .sh(&["--memory", "64M"], "x=a; while :; do x=$x$x; done")
        .status_is(137);
    assert!(outcome.err().contains("memory"), "{}", outcome.story());
    let record = instance.last_record();
    assert_eq!(reason(&record), "resource_exceeded");
    assert_eq!(record["end"]["which"], "memory", "{record:#}");
    assert_clean(&record);
}
