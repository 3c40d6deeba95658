//! Tools in WebAssembly through the real daemon: the examples of the repository, how they end, and who is held
//! up or lost when a module is a bomb or the daemon dies.
//!
//! The programs are built by `cargo xtask wasm --dev`, the interpreters by `cargo xtask templates`; where they
//! are not there a test says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use leasehold_e2e::{Daemon, Outcome, leasehold, skip, until};
use serde_json::{Value, json};

use super::crowd::leaves_by_itself;
use super::{SOON, assert_proven, facts, reason, tenant};
use crate::binary::{Binary, MEMORIES, NOTHING, TYPES, command};
use crate::guests;
use crate::module_ends;
use crate::modules::{copy_files, kept_code, traps};

/// Time to compile an interpreter on a slow machine.
const COMPILE: Duration = Duration::from_secs(300);

/// A daemon that has the programs, and takes every tool of its first tenant for first-party.
struct Rig {
    daemon: Daemon,
}

impl Rig {
    fn new(test: &str) -> Option<Self> {
        Self::with_template(test, None)
    }

    /// One with this template, and its code as far as an earlier test compiled it.
    fn with_template(test: &str, template: Option<&str>) -> Option<Self> {
        let programs = leasehold().parent().unwrap().join("wasm");
        if !programs.join("leasehold-wasm-host").is_file() {
            skip(test, "no programs for WebAssembly: cargo xtask wasm --dev");
            return None;
        }
        let mut daemon = Daemon::prepared(&["--warm", "0"]).with_modules();
        if let Some(name) = template {
            let target = leasehold().ancestors().nth(2).unwrap().join("templates");
            let wasm = daemon.instance().state().join("wasm");
            let shelf = wasm.join("templates");
            fs::create_dir_all(&shelf).unwrap();
            for ending in ["wasm", "json"] {
                let file = format!("{name}.{ending}");
                if fs::copy(target.join(&file), shelf.join(&file)).is_err() {
                    let reason = format!("no template of {name}: cargo xtask templates {name}");
                    skip(test, &reason);
                    return None;
                }
            }
            let code = wasm.join("code");
            fs::create_dir_all(&code).unwrap();
            let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            fs::set_permissions(&code, closed).unwrap();
            copy_files(&kept_code(), &code);
        }
        daemon.restart(&[]);
        if let Some(name) = template {
            // Its code is kept for the next test.
            let code = if name == "python" { "-c" } else { "-e" };
            let head = ["run", "--alone", "--deterministic", "--interpreter", name];
            let words = head.into_iter().chain(["--", code, "1"]);
            daemon.instance().start(words).wait(COMPILE).status_is(0);
            fs::create_dir_all(kept_code()).unwrap();
            copy_files(&daemon.instance().state().join("wasm/code"), &kept_code());
        }
        let rig = Self { daemon };
        rig.policy("");
        Some(rig)
    }

    /// Sets the operator's policy for the first tenant, with another field.
    fn policy(&self, field: &str) {
        let file = self.daemon.instance().scratch("policies").join("default");
        let text = format!(
            "version: 1\n{field}\nallow: {{tools: ['*'], commands: ['*'], permissions: inherit, egress: [], \
             credentials: [], workspaces: ['*'], trust: ['*'], backends: ['*'], placement: ['*']}}\n\
             trust: {{commands: first_party, tools: {{'*': first_party}}}}\n"
        );
        self.daemon.instance().write(&file, &text);
        let words = ["policy", "set", "platform/tenant/default"];
        let file = file.display().to_string();
        let words = words.into_iter().chain([file.as_str()]);
        self.daemon.cli(words).status_is(0);
    }

    /// After the end of daemon and worker nothing is on the host. Before, the hosts of tenants wait for more.
    #[track_caller]
    fn assert_nothing_left(&self) {
        let left = self.daemon.stopped_inventory();
        assert!(left.is_empty(), "left on the host:\n{left}");
    }

    fn publish(&self, folder: &Path) {
        let folder = folder.display().to_string();
        self.daemon.cli(["tool", "publish", &folder]).status_is(0);
    }

    /// Publishes the tool `test.NAME` of one module, with more lines of its manifest.
    fn publish_module(&self, name: &str, module: &[u8], more: &str) {
        let folder = self.daemon.instance().scratch(name);
        fs::write(folder.join("tool.wasm"), module).unwrap();
        let manifest = format!(
            "id: test.{name}\nversion: 1.0.0\ncategory: test\nowner: tests\ndescription: A test.\n\
             entrypoint: {{runtime: wasm, file: tool.wasm}}\nsandbox: {{isolation: wasm, trust: first_party}}\n{more}\n"
        );
        fs::write(folder.join("tool.yaml"), manifest).unwrap();
        self.publish(&folder);
    }

    fn run(&self, tool: &str, input: &Value) -> Outcome {
        let input = input.to_string();
        let words = ["run", "--tool", tool, "--input", &input];
        self.daemon.instance().start(words).wait(COMPILE)
    }

    /// Begins a run over HTTP and waits for nothing.
    fn begin(&self, tool: &str) -> String {
        let body = json!({"tool": tool, "input": {}});
        let begun = self.daemon.post("/v1/runs?wait=none", &[], &body);
        begun.status_is(202).run()
    }

    /// Waits until a run has said this on standard error.
    fn await_word(&self, run: &str, word: &str) {
        let stderr = format!("/v1/runs/{run}/logs/stderr");
        until("the tool to be up", SOON, || {
            self.daemon.get(&stderr).text.contains(word).then_some(())
        });
    }

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

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn compiled(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
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

/// Few bytes of which the compiler makes millions of edges of one function, until its memory is full.
fn bomb() -> Vec<u8> {
    let table = format!("(block (br_table {} (local.get 0)))", "0 ".repeat(65_001));
    let tables = table.repeat(110);
    compiled(&format!(
        "(module (memory (export \"memory\") 1) (func (export \"_start\")) (func (param i32) {tables}))"
    ))
}

#[test]
fn a_bomb_for_the_compiler_ends_by_its_limit_and_holds_up_no_other_tenant() {
    let test = "a_bomb_for_the_compiler_ends_by_its_limit_and_holds_up_no_other_tenant";
    let Some(rig) = Rig::new(test) else { return };
    let other = tenant(&rig.daemon, "other", "{running: 4}");
    let file = rig.daemon.instance().scratch("bomb").join("bomb.wasm");
    fs::write(&file, bomb()).unwrap();
    let words = ["run", "--isolation", "wasm", "--", file.to_str().unwrap()];
    let running = rig.daemon.instance().start(words);
    let bomb = until("the bomb to be admitted", SOON, || {
        let rows = rig.daemon.rows("");
        rows.first()?["run"].as_str().map(str::to_owned)
    });
    let asked = |body: &Value| rig.daemon.ask("POST", "/v1/runs", &other, &[], Some(body));
    let mut beside = 0;
    let over = loop {
        let done = asked(&json!({"command": ["true"]})).unwrap().status_is(200);
        assert_eq!(reason(&done.json), "completed");
        let row = rig.daemon.row(&bomb);
        if row["outcome"].is_object() {
            break row;
        }
        beside += 1;
    };
    assert!(
        beside > 0,
        "the bomb was over before anybody else ran: {over:#}"
    );
    assert_eq!(reason(&over), "resource_exceeded", "{over:#}");
    assert_eq!(over["error"]["details"]["which"], "compile", "{over:#}");
    let detail = over["outcome"]["module"]["detail"].to_string();
    assert!(detail.contains("memory"), "{over:#}");
    rig.daemon.sealed(&bomb, SOON);
    let told = |kind| facts(&rig.daemon, &bomb, kind).len();
    assert_eq!(
        (told("compiling"), told("compiled"), told("leased")),
        (1, 0, 0)
    );
    let told = running.wait(SOON).status_is(137);
    assert!(
        told.err().contains("compiles the module first"),
        "{}",
        told.story()
    );
    // It is no tool either.
    let folder = file.parent().unwrap();
    let manifest = "id: test.bomb\nversion: 1.0.0\nentrypoint: {runtime: wasm, file: bomb.wasm}\n";
    fs::write(folder.join("tool.yaml"), manifest).unwrap();
    let folder = folder.display().to_string();
    let refused = rig.daemon.cli(["tool", "publish", &folder]).status_is(2);
    assert!(
        refused.err().contains("compile_limit"),
        "{}",
        refused.story()
    );
    rig.assert_nothing_left();
}

/// Modules that are dear to read or to compile, each with the word for its end and the words for its reason.
fn dear() -> Vec<(&'static str, Vec<u8>, &'static str, &'static str)> {
    let body = |instructions: usize| [&[0][..], &[1].repeat(instructions), &[0x0b]].concat();
    let long = command(&body(8_000_000), |module| module);
    let large = command(&body(1), |module| module.raw(0, &vec![0; 65 << 20]));
    let types = Binary::default().many(TYPES, 1_100_000, NOTHING).bytes();
    let memory = command(&body(1), |module| {
        module.many(MEMORIES, 1, &[0, 0x80, 0x80, 4])
    });
    let boasts = [
        Binary::default().bytes(),
        vec![TYPES, 0xff, 0xff, 0xff, 0xff, 0x0f, 0xff],
    ]
    .concat();
    vec![
        ("a bomb", bomb(), "resource_exceeded", "memory"),
        ("a long function", long, "tool_error", "size"),
        ("many types", types, "tool_error", "types"),
        ("a section that boasts", boasts, "tool_error", "end-of-file"),
        ("four gigabytes", memory, "resource_exceeded", ""),
        ("a long module", large, "", "64"),
    ]
}

/// Resident bytes of a process at their most.
fn most_resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().nth(1));
    kibibytes.unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn modules_that_are_dear_to_compile_are_refused_by_name_and_the_daemon_is_unhurt() {
    let test = "modules_that_are_dear_to_compile_are_refused_by_name_and_the_daemon_is_unhurt";
    let Some(rig) = Rig::new(test) else { return };
    let before = most_resident(rig.daemon.pid());
    let folder = rig.daemon.instance().scratch("modules");
    let (mut worst, mut wrong) = (Duration::ZERO, Vec::new());
    for (name, wasm, reason, words) in dear() {
        let path = folder.join("guest.wasm");
        fs::write(&path, wasm).unwrap();
        let shown = path.display().to_string();
        let words_of = ["run", "--isolation", "wasm", "--json", "--", &shown];
        let running = rig.daemon.instance().start(words_of);
        let (done, over) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| done.send(running.wait(COMPILE)).unwrap());
            let outcome = loop {
                let asked = std::time::Instant::now();
                rig.daemon.get("/healthz").status_is(200);
                worst = worst.max(asked.elapsed());
                if let Ok(outcome) = over.recv_timeout(Duration::from_millis(50)) {
                    break outcome;
                }
            };
            let view: Value = serde_json::from_str(&outcome.out()).unwrap_or_default();
            let end = &view["outcome"]["end"]["reason"];
            let said = format!("{}{view}", outcome.err());
            if outcome.status == 0
                || end.as_str().unwrap_or_default() != reason
                || !said.contains(words)
            {
                wrong.push(format!("{name}: {end}: {}", outcome.story()));
            }
        });
    }
    let most = most_resident(rig.daemon.pid());
    eprintln!("the daemon came from {before} to {most} bytes, and answered within {worst:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // What is sent to it is written to disk piece by piece; some of it may be in memory at one time.
    assert!(most < before + (192 << 20), "{before} {most}");
    assert!(
        worst < Duration::from_secs(2) * leasehold_e2e::patience(),
        "{worst:?}"
    );
    rig.publish_module("hello", &compiled(&guests::hello()), "");
    rig.run("test.hello", &json!({})).status_is(0);
    rig.assert_nothing_left();
}

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
