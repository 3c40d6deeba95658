//! The supervisor of a daemon dies at every stage of a run (P84): the run ends as lost, or is begun once more
//! where its tool says that this does no harm.

use std::time::Duration;

use leasehold_e2e::{Daemon, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::crash::STAGES;

use super::{SOON, agree, assert_nothing_left, assert_proven, facts, lines, reason, script};

/// How long a run is held at the end of a stage.
const HOLD_MS: u32 = 1_000;
/// Removal of what a dead worker left waits for the next one and its sweep.
const AGREE: Duration = Duration::from_secs(4);

fn kill_worker(daemon: &Daemon) {
    let worker = daemon.supervisor().expect("a worker");
    let pid = Pid::from_raw(worker.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn p84_a_worker_killed_at_any_stage_loses_the_run_and_nothing_else() {
    for stage in STAGES {
        eprintln!("stage {stage}");
        let hold = format!("{stage}:{HOLD_MS}");
        let daemon = Daemon::start(&["--warm", "0"], &[("LEASEHOLD_HOLD", &hold)]);
        let folder = daemon.instance().scratch("lent");
        let ticket = daemon.offer(&folder, "read_write");
        let headers = [("leasehold-directory", ticket.as_str())];
        let body = script("echo x >> log");
        let run = daemon.post("/v1/runs?wait=none", &headers, &body).run();
        until(&format!("a run on its way to {stage}"), SOON, || {
            let begun = !daemon.sandboxes().is_empty();
            let executed = lines(&folder.join("log")) > 0;
            let early = matches!(stage, "allocate" | "initialize" | "inject");
            (executed || early && begun).then_some(())
        });
        kill_worker(&daemon);
        let row = daemon.sealed(&run, SOON);
        let early = matches!(stage, "allocate" | "initialize" | "inject" | "execute");
        match reason(&row) {
            "host_lost" => {}
            // Its outcome was fixed already.
            "completed" if !early => {}
            _ => panic!("{stage}: {row:#}"),
        }
        agree(&daemon, AGREE);
        assert!(lines(&folder.join("log")) <= 1, "{stage}: executed once");
        assert_eq!(daemon.taken(), 1, "{stage}: begun once");
        assert_proven(&daemon, &run);
        // The next worker serves.
        let next = daemon.post("/v1/runs", &[], &script("true")).status_is(200);
        assert_eq!(reason(&next.json), "completed");
        daemon.sealed(&next.run(), SOON);
        assert_nothing_left(&daemon);
    }
}

#[test]
fn p84_an_idempotent_tool_is_begun_once_more_when_its_worker_is_lost() {
    let daemon = Daemon::start(&["--warm", "0"], &[]);
    let folder = daemon.instance().scratch("tool");
    let manifest = "id: test.twice\nversion: 1.0.0\ncategory: test\nowner: tests\n\
        description: Waits and says so.\nentrypoint:\n  runtime: command\n  \
        argv: [sh, -c, 'echo up >&2; sleep 1; echo done']\nsandbox: {trust: first_party}\nidempotent: true\n";
    daemon.instance().write(&folder.join("tool.yaml"), manifest);
    let path = folder.display().to_string();
    daemon.cli(["tool", "publish", &path]).status_is(0);
    let policy = folder.join("policy");
    let text = "version: 1\nallow: {tools: ['*'], commands: ['*'], permissions: inherit, egress: [], \
        credentials: [], workspaces: ['*'], trust: ['*'], backends: ['*'], placement: ['*']}\n\
        trust: {commands: first_party, tools: {test.twice: first_party}}\n";
    daemon.instance().write(&policy, text);
    let policy = policy.display().to_string();
    daemon
        .cli(["policy", "set", "platform/tenant/default", &policy])
        .status_is(0);
    let body = json!({"tool": "test.twice", "input": {}});
    let run = daemon.post("/v1/runs?wait=none", &[], &body).run();
    let stderr = format!("/v1/runs/{run}/logs/stderr");
    until("the tool to be up", SOON, || {
        daemon.get(&stderr).text.contains("up").then_some(())
    });
    kill_worker(&daemon);
    let row = daemon.sealed(&run, SOON);
    assert_eq!(reason(&row), "completed", "{row:#}");
    assert_eq!(daemon.taken(), 2, "begun twice");
    assert_eq!(facts(&daemon, &run, "leased").len(), 2);
    assert_eq!(facts(&daemon, &run, "concluded").len(), 1);
    assert_proven(&daemon, &run);
    assert_nothing_left(&daemon);
}
