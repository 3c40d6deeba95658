//! Modules that are dear to read or to compile hurt nobody but themselves.

use std::fs;
use std::time::Duration;

use leasehold_e2e::until;
use serde_json::{Value, json};

use super::super::{SOON, facts, reason, tenant};
use super::{COMPILE, Rig, compiled};
use crate::binary::{Binary, MEMORIES, NOTHING, TYPES, command};
use crate::guests;

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
    let why = over["outcome"]["module"]["uncompiled"].to_string();
    assert!(why.contains("memory"), "{over:#}");
    rig.daemon.sealed(&bomb, SOON);
    let told = |kind| facts(&rig.daemon, &bomb, kind).len();
    assert_eq!(
        (told("compiling"), told("compiled"), told("leased")),
        (1, 0, 0)
    );
    let told = running.wait(SOON).status_is(137);
    for words in [
        "compiles the module first",
        "the compiler made no code of the module, so nothing of it ran: compile_limit",
    ] {
        assert!(told.err().contains(words), "{}", told.story());
    }
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
