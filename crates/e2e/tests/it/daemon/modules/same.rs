//! Deterministic runs of scripts.

use std::fs;

use serde_json::json;

use super::Rig;

/// A script that does next to nothing, and the most instructions that it may take.
type Least = (&'static str, u64);

/// A hundred runs of a script with fixed clock and seed are equal to the byte; without, no two are. The least script
/// takes more than it may where the template does not hold what an interpreter makes of its own functions when they
/// are called for the first time.
fn a_hundred_are_equal(test: &str, interpreter: &str, file: &str, script: &str, least: Least) {
    let Some(rig) = Rig::with_template(test, Some(interpreter)) else {
        return;
    };
    let publish = |name: &str, deterministic: bool, script: &str| {
        let folder = rig.daemon.instance().scratch(name);
        fs::write(folder.join(file), script).unwrap();
        let manifest = format!(
            "id: test.{name}\nversion: 1.0.0\ncategory: test\nowner: tests\ndescription: A test.\n\
             entrypoint: {{runtime: wasm, interpreter: {interpreter}, file: {file}, deterministic: {deterministic}}}\n\
             sandbox: {{isolation: wasm, trust: first_party}}\n"
        );
        fs::write(folder.join("tool.yaml"), manifest).unwrap();
        rig.publish(&folder);
    };
    publish("least", true, least.0);
    publish("fixed", true, script);
    publish("free", false, script);
    rig.run("test.least", &json!({})).status_is(0);
    assert!(fuel(&rig) <= least.1, "{} of {}", fuel(&rig), least.1);
    let run = |name: &str| {
        let said = rig.run(&format!("test.{name}"), &json!({})).status_is(0);
        assert!(said.stdout.len() > 40, "{}", said.story());
        said.stdout
    };
    let first = run("fixed");
    for _ in 1..100 {
        assert_eq!(run("fixed"), first);
    }
    assert_ne!(run("free"), run("free"));
    let rows = rig.daemon.rows("");
    let begun = rows.iter().filter(|row| row["sandbox"].is_string());
    assert!(begun.count() > 100, "they were all run");
    rig.assert_nothing_left();
}

/// Instructions of the one run that there was.
fn fuel(rig: &Rig) -> u64 {
    let rows = rig.daemon.rows("");
    let run = rows[0]["run"].as_str().unwrap();
    let told = rig.daemon.cli(["explain", run]).status_is(0).out();
    let used = told
        .lines()
        .find_map(|line| line.trim().strip_prefix("fuel: "));
    used.unwrap().split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_hundred_runs_of_javascript_are_byte_identical() {
    let script = "const c = require('crypto');
        console.log(Math.random(), Date.now(), performance.now(), new Date().toISOString(), c.randomUUID());";
    let test = "a_hundred_runs_of_javascript_are_byte_identical";
    let least = ("console.log(1)", 2_500_000);
    a_hundred_are_equal(test, "javascript", "tool.js", script, least);
}

#[test]
fn a_hundred_runs_of_python_are_byte_identical() {
    let script = "import os, random, time, uuid\n\
        print(random.random(), time.time(), time.monotonic(), os.urandom(8).hex(), uuid.uuid4(), {'a', 'b', 'c'})\n";
    let test = "a_hundred_runs_of_python_are_byte_identical";
    let least = ("print(1)", 930_000);
    a_hundred_are_equal(test, "python", "tool.py", script, least);
}
