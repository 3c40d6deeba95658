//! Every end that a module can come to by itself: the same cases from the command line and through a daemon, where
//! they share the host of a run that must not notice.

use leasehold_e2e::Running;
use serde_json::Value;

use crate::asking::asks;
use crate::guests;
use crate::modules::{Rig, SOON, traps};
use crate::record::assert_nothing_left;

/// A module, what bounds it, and its end.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) text: String,
    pub(crate) flags: &'static [&'static str],
    /// Of `leasehold run`.
    pub(crate) status: i32,
    pub(crate) reason: &'static str,
    /// The limit, where one ended it.
    pub(crate) which: Option<&'static str>,
    /// Words that are said of it.
    pub(crate) said: &'static [&'static str],
}

impl Case {
    /// What is wrong with an end as the record has it.
    pub(crate) fn mistake(&self, end: &Value) -> Option<String> {
        let which = end["which"].as_str();
        let same = end["reason"] == self.reason && which == self.which;
        (!same).then(|| format!("{}: {end}", self.name))
    }
}

/// A component whose `run` is this.
fn component(body: &str) -> String {
    format!(
        r#"(component
  (core module $m (memory 1) (func (export "run") (result i32) {body}))
  (core instance $i (instantiate $m))
  (func $run (result (result)) (canon lift (core func $i "run")))
  (instance $out (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $out)))"#
    )
}

/// A module that begins with this and never gets to its work.
fn begins(body: &str) -> String {
    format!(
        "(module (memory (export \"memory\") 1) (func $begin {body}) (start $begin) (func (export \"_start\")))"
    )
}

/// A panic in a function of ours that a module calls; programs that are built for tests have one.
const PANICS: &str = "(module (import \"leasehold_failpoint\" \"panic\" (func $panic))
    (memory (export \"memory\") 1) (func (export \"_start\") (call $panic)))";

fn case(name: &'static str, text: String, flags: &'static [&'static str], status: i32) -> Case {
    let reason = match status {
        0 => "completed",
        124 => "timeout",
        125 => "sandbox_crashed",
        137 => "resource_exceeded",
        _ => "tool_error",
    };
    Case {
        name,
        text,
        flags,
        status,
        reason,
        which: None,
        said: &[],
    }
}

impl Case {
    fn which(mut self, which: &'static str) -> Self {
        self.which = Some(which);
        self
    }

    fn said(mut self, said: &'static [&'static str]) -> Self {
        self.said = said;
        self
    }
}

fn of_time() -> Vec<Case> {
    const SHORT: &[&str] = &["--timeout", "1s"];
    let endless = component("(loop $e (br $e)) unreachable");
    vec![
        case("computes for ever", guests::spins(), SHORT, 124),
        case("asleep in poll_oneoff", guests::sleeps(), SHORT, 124),
        case(
            "a start section without end",
            begins(guests::SPINS),
            SHORT,
            124,
        ),
        case("a component without end", endless, SHORT, 124),
        case(
            "burns processor time",
            guests::spins(),
            &["--cpu-time", "200ms"],
            137,
        )
        .which("cpu_time"),
        case(
            "burns instructions",
            guests::spins(),
            &["--fuel", "1000000"],
            137,
        )
        .which("fuel")
        .said(&["--fuel 2000000"]),
    ]
}

fn of_room() -> Vec<Case> {
    const SMALL: &[&str] = &["--memory", "16M"];
    // Grows until that fails, and gives up.
    let until = |grow: &str| {
        format!(
            "(loop $more (br_if $more (i32.ne {grow} (i32.const -1)))) (call $proc_exit (i32.const 9))"
        )
    };
    let memory = guests::module(&until("(memory.grow (i32.const 16))"));
    let table = until("(table.grow $t (ref.null func) (i32.const 65536))");
    let table = guests::with("(table $t 1 funcref)", &table);
    let large = "(module (memory 16384) (func (export \"_start\")))".to_owned();
    let deep = guests::with("(func $deep (call $deep) (call $deep))", "(call $deep)");
    // All that it may have, to the byte, and every page of it written to: what the kernel needs for that is beside it.
    let all = guests::module(
        "(local $at i32)
         (if (i32.eq (memory.grow (i32.const 16383)) (i32.const -1)) (then (call $proc_exit (i32.const 9))))
         (loop $next
           (i32.store8 (local.get $at) (i32.const 1))
           (local.set $at (i32.add (local.get $at) (i32.const 4096)))
           (br_if $next (i32.lt_u (local.get $at) (i32.const 0x40000000))))",
    );
    const KILL: &[&str] = &["--output-limit", "10K", "--on-output-limit", "kill"];
    vec![
        case("uses all of its memory", all, &["--memory", "1G"], 0),
        case("takes memory", memory, SMALL, 137).which("memory"),
        case("takes tables", table, SMALL, 137).which("memory"),
        case("begins with a gigabyte", large, SMALL, 137).which("memory"),
        case("recurses", deep, &[], 137).which("stack"),
        case("floods", guests::floods(-1), KILL, 137).which("output"),
        case(
            "floods and is cut",
            guests::floods(100),
            &["--output-limit", "10K"],
            0,
        ),
        case(
            "takes handles",
            asks("example.test:80", 100_000),
            &["--files", "32"],
            137,
        )
        .which("handles"),
    ]
}

fn of_its_own() -> Vec<Case> {
    let denied = asks("example.test:80", 3);
    let absent = r#"(module (import "env" "no" (func)) (memory (export "memory") 1) (func (export "_start")))"#;
    vec![
        case("says hello", guests::hello(), &[], 0),
        case("exits", guests::exits(7), &[], 7),
        case(
            "a component that says no",
            component("(i32.const 1)"),
            &[],
            1,
        ),
        case("traps", traps(), &[], 134).said(&["unreachable", "deep", "outer"]),
        case("a component that traps", component("unreachable"), &[], 134).said(&["unreachable"]),
        case("traps as it starts", begins("unreachable"), &[], 134).said(&["unreachable", "begin"]),
        case("imports what there is not", absent.to_owned(), &[], 126).said(&["env"]),
        case("asks by HTTP", denied, &[], 0).said(&[
            "3 outgoing HTTP requests were denied",
            "GET example.test:80",
        ]),
        case(
            "a function of ours that panics",
            PANICS.to_owned(),
            &[],
            125,
        )
        .said(&["failpoint"]),
    ]
}

/// All of them.
pub(crate) fn cases() -> Vec<Case> {
    [of_time(), of_room(), of_its_own()]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn every_end_of_a_module_is_reached_and_told() {
    let Some(rig) = Rig::new("every_end_of_a_module_is_reached_and_told") else {
        return;
    };
    let mut wrong = Vec::new();
    for case in cases() {
        let path = rig.module("guest.wasm", &case.text);
        let words: Vec<&str> = case.flags.iter().copied().chain(["--", &path]).collect();
        let outcome = rig.run(&words);
        let record = rig.instance.last_record();
        wrong.extend(case.mistake(&record["end"]));
        let said = outcome.err();
        let told = case.said.iter().all(|word| said.contains(word));
        if outcome.status != case.status || !told {
            wrong.push(format!("{}: {}", case.name, outcome.story()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_nothing_left(&rig.instance);
}

/// A module sees the variables that it is given and none of those of its caller.
#[test]
fn p18_a_module_sees_no_variable_that_nobody_gave_it() {
    let Some(rig) = Rig::new("p18_a_module_sees_no_variable_that_nobody_gave_it") else {
        return;
    };
    let tells = rig.module(
        "tells.wasm",
        &guests::module(
            "(drop (call $environ_sizes_get (i32.const 0) (i32.const 4)))
             (drop (call $environ_get (i32.const 100) (i32.const 1000)))
             (drop (call $put (i32.const 1) (i32.const 1000) (i32.load (i32.const 4))))",
        ),
    );
    let run = |given: &[&str]| {
        let words = ["run", "--isolation", "wasm", "-q"].iter().chain(given);
        let words = words.copied().chain(["--", tells.as_str()]);
        let mut command = rig.instance.command(words);
        command.env("SECRET", "canary");
        Running::start(&mut command, None)
            .wait(SOON)
            .status_is(0)
            .out()
    };
    let seen = run(&["-e", "WORD=said"]);
    assert!(
        seen.contains("WORD=said\0") && !seen.contains("canary"),
        "{seen:?}"
    );
    // The control: the same variable, given.
    assert!(run(&["-e", "SECRET"]).contains("SECRET=canary\0"));
}
