//! Deterministic runs of scripts.

use std::fs;

use serde_json::json;

use super::Rig;

/// A hundred runs of a script with fixed clock and seed are equal to the byte; without, no two are.
fn a_hundred_are_equal(test: &str, interpreter: &str, file: &str, script: &str) {
    let Some(rig) = Rig::with_template(test, Some(interpreter)) else {
        return;
    };
    let publish = |name: &str, deterministic: bool| {
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
    publish("fixed", true);
    publish("free", false);
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

#[test]
fn a_hundred_runs_of_javascript_are_byte_identical() {
    let script = "const c = require('crypto');
        console.log(Math.random(), Date.now(), performance.now(), new Date().toISOString(), c.randomUUID());";
    let test = "a_hundred_runs_of_javascript_are_byte_identical";
    a_hundred_are_equal(test, "javascript", "tool.js", script);
}

#[test]
fn a_hundred_runs_of_python_are_byte_identical() {
    let script = "import os, random, time, uuid\n\
        print(random.random(), time.time(), time.monotonic(), os.urandom(8).hex(), uuid.uuid4(), {'a', 'b', 'c'})\n";
    let test = "a_hundred_runs_of_python_are_byte_identical";
    a_hundred_are_equal(test, "python", "tool.py", script);
}
