//! How modules end, and who is beside them.

use std::fs;

use leasehold_e2e::until;
use serde_json::{Value, json};

use super::super::{SOON, assert_proven, reason};
use super::{Rig, compiled};
use crate::guests;
use crate::module_ends;
use crate::modules::traps;

#[test]
fn a_tool_that_traps_is_told_with_the_name_of_the_trap() {
    let Some(rig) = Rig::new("a_tool_that_traps_is_told_with_the_name_of_the_trap") else {
        return;
    };
    rig.publish_module("traps", &compiled(&traps()), "");
    let trap = rig.run("test.traps", &json!({}));
    assert_ne!(trap.status, 0);
    assert!(trap.err().contains("unreachable"), "{}", trap.story());
    let row = rig.daemon.row(&rig.begin("test.traps"));
    let row = rig.daemon.sealed(row["run"].as_str().unwrap(), SOON);
    assert_eq!(reason(&row), "tool_error", "{row:#}");
    let exit = &row["error"]["details"]["exit"];
    assert_eq!(exit["kind"], "trap", "{row:#}");
    let name = exit["name"].as_str().unwrap();
    assert!(name.contains("unreachable"), "{row:#}");
    rig.assert_nothing_left();
}

#[test]
fn a_floor_above_wasm_refuses_a_module_with_the_reason() {
    let Some(rig) = Rig::new("a_floor_above_wasm_refuses_a_module_with_the_reason") else {
        return;
    };
    rig.publish_module("hello", &compiled(&guests::hello()), "");
    rig.run("test.hello", &json!({})).status_is(0);
    rig.policy("isolation_floor: container");
    let refused = rig.run("test.hello", &json!({}));
    assert_ne!(refused.status, 0);
    assert!(refused.err().contains("container"), "{}", refused.story());
    assert_eq!(rig.daemon.rows("").len(), 1);
    rig.assert_nothing_left();
}

/// Each end in the host of a run that stays, which must not notice.
#[test]
fn every_end_of_a_shared_run_is_told_and_leaves_its_neighbour_alone() {
    let test = "every_end_of_a_shared_run_is_told_and_leaves_its_neighbour_alone";
    let Some(rig) = Rig::new(test) else { return };
    rig.publish_module(
        "stays",
        &compiled(&guests::sleeps()),
        "limits: {timeout: 10m}",
    );
    let stays = rig.begin("test.stays");
    let sandbox = until("the neighbour to run", SOON, || {
        let row = rig.daemon.row(&stays);
        let runs = row["state"] == "running";
        runs.then(|| row["sandbox"].as_str().map(str::to_owned))
            .flatten()
    });
    let path = rig.daemon.instance().scratch("modules").join("guest.wasm");
    let mut wrong = Vec::new();
    for case in module_ends::cases() {
        fs::write(&path, compiled(&case.text)).unwrap();
        let shown = path.display().to_string();
        let words = ["run", "--isolation", "wasm", "--json"];
        let words = words.iter().chain(case.flags).copied();
        let words = words.chain(["--", shown.as_str()]);
        let outcome = rig.daemon.instance().start(words).wait(SOON);
        let view: Value = serde_json::from_str(&outcome.out()).unwrap_or_default();
        wrong.extend(case.mistake(&view["outcome"]["end"]));
        if outcome.status != case.status {
            wrong.push(format!("{}: {}", case.name, outcome.story()));
        }
        if view["sandbox"] != sandbox.as_str() {
            wrong.push(format!("{} was beside nobody: {view:#}", case.name));
        }
        let row = rig.daemon.row(&stays);
        assert_eq!(row["state"], "running", "after {}: {row:#}", case.name);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    rig.daemon.cli(["cancel", &stays]).status_is(0);
    let row = rig.daemon.sealed(&stays, SOON);
    assert_eq!(reason(&row), "cancelled", "{row:#}");
    assert_proven(&rig.daemon, &stays);
    rig.assert_nothing_left();
}
