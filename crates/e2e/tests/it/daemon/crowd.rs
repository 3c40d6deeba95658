//! Many sandboxes and a daemon that is away (P85): deadlines hold, nothing is lost, no neighbour is touched;
//! and a drain that leaves what runs to the next start.

use std::time::{Duration, Instant};

use leasehold_e2e::{Daemon, Instance, Running, patience, until};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{AGREE, SOON, agree, assert_nothing_left, assert_proven, facts, reason, script};

/// How many stream, and how many are near their deadline.
const STREAMING: usize = 12;
const NEAR: usize = 8;
/// Numbers that a streaming one writes, one every tenth of a second.
const NUMBERS: usize = 80;
/// The deadline of those that are near theirs.
const DEADLINE: Duration = Duration::from_secs(3);

fn started(daemon: &Daemon, body: &Value) -> String {
    let answer = daemon.post("/v1/runs?wait=none", &[], body);
    answer.status_is(202).run()
}

/// The runs whose record, written by the worker, tells their end.
fn recorded(daemon: &Daemon, runs: &[String]) -> usize {
    let ended = |run: &&String| {
        let path = daemon
            .worker_state()
            .join("runs")
            .join(run)
            .join("record.json");
        let text = std::fs::read(path).unwrap_or_default();
        let record: Value = serde_json::from_slice(&text).unwrap_or_default();
        record["end"]["reason"] == "timeout"
    };
    runs.iter().filter(ended).count()
}

#[test]
fn p85_twenty_sandboxes_outlive_a_killed_daemon_and_keep_their_deadlines() {
    let mut daemon = Daemon::start(&["--warm", "0"], &[]);
    // The neighbours: another daemon, and a command line alone.
    let (other, alone) = (Daemon::start(&["--warm", "1"], &[]), Instance::new());
    let neighbour = started(&other, &script("sleep 60"));
    let lonely = alone.start(["run", "--", "sh", "-c", "echo up; sleep 60"]);
    lonely.await_out("up", SOON);
    let text = format!("i=0; while [ $i -lt {NUMBERS} ]; do echo $i; i=$((i+1)); sleep 0.1; done");
    let streaming: Vec<String> = (0..STREAMING)
        .map(|_| started(&daemon, &script(&text)))
        .collect();
    let body = json!({"command": ["sh", "-c", "echo up; sleep 60"],
        "limits": {"timeout": format!("{}s", DEADLINE.as_secs()), "grace": "200ms"}});
    let near: Vec<String> = (0..NEAR).map(|_| started(&daemon, &body)).collect();
    until("twenty sandboxes", SOON, || {
        let up = near.iter().all(|run| {
            let log = daemon.get(&format!("/v1/runs/{run}/logs/stdout"));
            log.text.contains("up")
        });
        (up && daemon.inventory().inits().len() >= NEAR).then_some(())
    });
    until("the neighbour's sandbox", SOON, || {
        (other.inventory().inits().len() == 2).then_some(())
    });
    let before = (other.inventory().inits(), alone.inventory().inits());
    daemon.kill();
    let away = Instant::now();
    until("deadlines kept without a daemon", DEADLINE * 2, || {
        (recorded(&daemon, &near) == NEAR).then_some(())
    });
    assert!(away.elapsed() < (DEADLINE + Duration::from_secs(2)) * patience());
    daemon.restart(&[]);
    agree(&daemon, AGREE);
    assert_eq!(
        before,
        (other.inventory().inits(), alone.inventory().inits())
    );
    let whole: String = (0..NUMBERS).map(|number| format!("{number}\n")).collect();
    for run in &streaming {
        let row = daemon.sealed(run, SOON);
        assert_eq!(reason(&row), "completed", "{row:#}");
        let log = daemon.get(&format!("/v1/runs/{run}/logs/stdout"));
        assert_eq!(log.text, whole, "the output of {run}");
    }
    for run in &near {
        let row = daemon.sealed(run, SOON);
        assert_eq!(reason(&row), "timeout", "{row:#}");
        assert_eq!(
            daemon.get(&format!("/v1/runs/{run}/logs/stdout")).text,
            "up\n"
        );
    }
    assert_eq!(daemon.taken(), STREAMING + NEAR, "each was begun once");
    assert_proven(&daemon, &streaming[0]);
    assert_proven(&daemon, &near[0]);
    assert_nothing_left(&daemon);
    assert_eq!(
        before,
        (other.inventory().inits(), alone.inventory().inits())
    );
    assert_eq!(other.row(&neighbour)["state"], "running");
    lonely.signal(Signal::INT);
    lonely.wait(SOON).status_is(130);
}

/// Whoever follows or waits is told that the run goes on, and the daemon does not wait for them to go.
#[test]
fn p85_a_drained_daemon_tells_its_followers_and_ends() {
    let mut daemon = Daemon::start(&["--warm", "0", "--drain", "100ms"], &[]);
    let body = script("echo first; while [ ! -e /workspace/go ]; do sleep 0.05; done; echo last");
    let folder = daemon.instance().scratch("shared");
    let ticket = daemon.offer(&folder, "read_write");
    let headers = [("leasehold-directory", ticket.as_str())];
    let run = daemon.post("/v1/runs?wait=none", &headers, &body).run();
    let logs = format!("/v1/runs/{run}/logs/stdout");
    until("its first line", SOON, || {
        daemon.get(&logs).text.contains("first").then_some(())
    });
    let mut command = daemon.instance().command(["logs", "-f", &run]);
    let follower = Running::start(&mut command, None);
    follower.await_out("first", SOON);
    daemon.signal(Signal::TERM);
    let ended = daemon.await_end();
    assert_eq!(ended.status, 0, "{}", ended.story());
    let told = follower.wait(SOON);
    assert_eq!(told.status, 125, "{}", told.story());
    assert!(
        told.err()
            .contains("the daemon is leaving; the run goes on"),
        "{}",
        told.story()
    );
    assert!(
        told.err().contains(&format!("`leasehold logs -f {run}`")),
        "{}",
        told.story()
    );
    daemon.instance().write(&folder.join("go"), "");
    daemon.restart(&[]);
    let rest = daemon.cli(["logs", "-f", &run]).status_is(0);
    assert_eq!(rest.out(), "first\nlast\n");
    assert_eq!(reason(&daemon.sealed(&run, SOON)), "completed");
    assert_nothing_left(&daemon);
}

#[test]
fn p85_a_drained_daemon_leaves_what_runs_to_the_next_start() {
    let mut daemon = Daemon::start(&["--warm", "0", "--drain", "300ms"], &[]);
    let run = started(&daemon, &script("echo one; sleep 3; echo two"));
    let log = format!("/v1/runs/{run}/logs/stdout");
    until("its first word", SOON, || {
        (daemon.get(&log).text == "one\n").then_some(())
    });
    let inits = daemon.inventory().inits();
    daemon.signal(Signal::TERM);
    daemon
        .await_end()
        .status_is(0)
        .within(Duration::from_secs(8));
    assert_eq!(daemon.inventory().inits(), inits, "it goes on");
    daemon.restart(&[]);
    agree(&daemon, AGREE);
    let row = daemon.sealed(&run, SOON);
    assert_eq!(reason(&row), "completed", "{row:#}");
    assert_eq!(daemon.get(&log).text, "one\ntwo\n");
    assert_eq!(facts(&daemon, &run, "adopted").len(), 1);
    assert_eq!(daemon.taken(), 1);
    assert_proven(&daemon, &run);
    assert_nothing_left(&daemon);
}

/// A daemon that keeps two computers parked, once they are.
fn with_parked() -> Daemon {
    let daemon = Daemon::start(&["--warm", "2", "--drain", "100ms"], &[]);
    until("two are parked", SOON, || {
        (daemon.sandboxes().len() == 2).then_some(())
    });
    daemon
}

/// Waits until nothing of a worker is on the host that nobody ended: twice the time after which one leaves.
#[track_caller]
pub(super) fn leaves_by_itself(daemon: &Daemon) {
    until("the worker leaves", 3 * SOON, || {
        daemon.inventory().is_empty().then_some(())
    });
}

#[test]
fn p85_a_worker_leaves_after_its_daemon_was_drained() {
    let mut daemon = with_parked();
    daemon.post("/v1/runs", &[], &script("true")).status_is(200);
    assert!(daemon.supervisor().is_some(), "the look sees it");
    daemon.signal(Signal::TERM);
    daemon.await_end().status_is(0);
    leaves_by_itself(&daemon);
    daemon.restart(&[]);
    until("two are parked again", SOON, || {
        (daemon.sandboxes().len() == 2).then_some(())
    });
    let left = daemon.stopped_inventory();
    assert!(left.is_empty(), "left on the host:\n{left}");
}

#[test]
fn p85_a_worker_leaves_when_its_killed_daemon_stays_away_and_what_it_ran_is_taken_up() {
    let mut daemon = with_parked();
    let run = started(&daemon, &script("sleep 2; echo over"));
    daemon.kill();
    assert!(daemon.inventory().inits().len() >= 2, "the look sees them");
    leaves_by_itself(&daemon);
    daemon.restart(&[]);
    let row = daemon.sealed(&run, SOON);
    assert_eq!(reason(&row), "completed", "{row:#}");
    assert_eq!(
        daemon.get(&format!("/v1/runs/{run}/logs/stdout")).text,
        "over\n"
    );
    assert_eq!(daemon.taken(), 1);
    assert_proven(&daemon, &run);
    let left = daemon.stopped_inventory();
    assert!(left.is_empty(), "left on the host:\n{left}");
}
