//! The examples of the repository, in C, Rust, Python and JavaScript.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_e2e::{Daemon, Outcome, skip};
use serde_json::{Value, json};

use super::super::{SOON, assert_proven, facts};
use super::Rig;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

impl Rig {
    /// Publishes an example, runs it twice, and compares both outputs and what is known of the second.
    fn example(&self, tool: &str, input: &Value, expected: &Value) {
        let folder = tool.rsplit('.').next().unwrap();
        self.publish(&examples().join("tools").join(folder));
        let first = self.run(tool, input).status_is(0);
        let answer: Value = serde_json::from_str(&first.out()).unwrap();
        assert_eq!(&answer, expected, "{}", first.story());
        let again = self.run(tool, input).status_is(0);
        assert_eq!(again.stdout, first.stdout, "byte for byte");
        let rows = self.daemon.rows("");
        assert_eq!(rows.len(), 2);
        // Newest first: what was kept held no computer, the control did.
        let run = |row: &Value| row["run"].as_str().unwrap().to_owned();
        let (kept, begun) = (run(&rows[0]), run(&rows[1]));
        let leased = |run: &str| facts(&self.daemon, run, "leased").len();
        assert_eq!((leased(&kept), leased(&begun)), (0, 1));
        let refused = self.run(tool, &json!({"other": 1})).status_is(2);
        assert!(refused.err().contains("input"), "{}", refused.story());
        assert_eq!(self.daemon.rows("").len(), 2);
        self.daemon.sealed(&begun, SOON);
        assert_proven(&self.daemon, &begun);
    }
}

#[test]
fn a_tool_in_c_is_run_and_its_result_is_kept() {
    let Some(rig) = Rig::new("a_tool_in_c_is_run_and_its_result_is_kept") else {
        return;
    };
    rig.example(
        "text.checksum",
        &json!({"text": "123456789"}),
        &json!({"bytes": 9, "crc32": "cbf43926"}),
    );
    // Escapes, and a character beyond the first plane, by the same rule as any JSON reader.
    let other = rig.run("text.checksum", &json!({"text": "\"\\\n\u{1}\u{1f600}é"}));
    let other: Value = serde_json::from_str(&other.status_is(0).out()).unwrap();
    assert_eq!(other["bytes"], 10);
    rig.assert_nothing_left();
}

#[test]
fn a_tool_in_python_is_run_and_its_result_is_kept() {
    let test = "a_tool_in_python_is_run_and_its_result_is_kept";
    let Some(rig) = Rig::with_template(test, Some("python")) else {
        return;
    };
    rig.example(
        "data.summary",
        &json!({"numbers": [4, 1, 2.5, 9]}),
        &json!({"count": 4, "least": 1, "most": 9, "mean": 4.125, "median": 3.25}),
    );
    rig.assert_nothing_left();
}

#[test]
fn a_tool_in_javascript_is_run_and_its_result_is_kept() {
    let test = "a_tool_in_javascript_is_run_and_its_result_is_kept";
    let Some(rig) = Rig::with_template(test, Some("javascript")) else {
        return;
    };
    rig.example(
        "text.slug",
        &json!({"title": "Cream tea – twice!"}),
        &json!({"slug": "cream-tea-twice", "shortened": true}),
    );
    rig.assert_nothing_left();
}

#[test]
fn a_component_in_rust_is_run_and_its_result_is_kept() {
    let Some(rig) = Rig::new("a_component_in_rust_is_run_and_its_result_is_kept") else {
        return;
    };
    rig.example(
        "dates.calendar",
        &json!({"date": "2024-02-28", "days": 366}),
        &json!({"date": "2025-02-28", "weekday": "friday", "day_of_year": 59, "leap_year": false}),
    );
    // Leap years, and a day that there is not.
    let day = |date: &str, days: i64| {
        let input = json!({"date": date, "days": days});
        rig.run("dates.calendar", &input)
    };
    let said =
        |outcome: Outcome| -> Value { serde_json::from_str(&outcome.status_is(0).out()).unwrap() };
    assert_eq!(said(day("2000-02-28", 1))["date"], "2000-02-29");
    assert_eq!(said(day("1900-02-28", 1))["date"], "1900-03-01");
    assert_eq!(said(day("1970-01-01", 0))["weekday"], "thursday");
    assert_eq!(said(day("2000-03-01", -60))["date"], "2000-01-01");
    let wrong = day("2023-02-29", 0).status_is(1);
    assert!(wrong.err().contains("is no day"), "{}", wrong.story());
    rig.assert_nothing_left();
}

/// The module beside the manifest is what its source gives, where the compiler is that of Debian 12.
#[test]
fn the_tool_in_c_is_what_its_source_gives() {
    const TEST: &str = "the_tool_in_c_is_what_its_source_gives";
    let version = Command::new("clang").arg("--version").output();
    let version = version.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
    let same = version.is_ok_and(|said| said.starts_with("Debian clang version 14.0.6"));
    if !same || !Path::new("/usr/lib/wasm32-wasi/libc.a").is_file() {
        skip(TEST, "no Debian clang 14.0.6 with wasi-libc");
        return;
    }
    let folder = Daemon::prepared(&[]);
    let output = folder.instance().scratch("c").join("checksum.wasm");
    let built = Command::new(examples().join("c/build.sh"))
        .arg(&output)
        .output();
    let built = built.unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let there = fs::read(examples().join("tools/checksum/checksum.wasm")).unwrap();
    assert!(
        fs::read(output).unwrap() == there,
        "examples/c/build.sh was not run"
    );
}
