//! A worker that is stopped for longer than its lease and then goes on (P70): the run is over without it, and it
//! changes nothing any more.

use std::path::Path;
use std::time::Duration;

use leasehold_e2e::{Daemon, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{SOON, agree, assert_nothing_left, facts, lines, reason, script};

/// How long a run may take whose worker is stopped: its lease, and how long the worker may leave orders unanswered.
const GIVEN_UP: Duration = Duration::from_secs(90);
/// How soon a worker that goes on has ended what is not its own any more.
const ENDED: Duration = Duration::from_secs(5);
/// A run that leaves a line ten times a second.
const BEATS: &str = "echo up; while :; do echo x >> log; sleep 0.1; done";

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// A worker that is stopped, and goes on when the value goes.
struct Stopped(u32);

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0.cast_signed()) {
            kill_process(pid, Signal::CONT).ok();
        }
    }
}

impl Stopped {
    fn now(daemon: &Daemon) -> Self {
        let worker = daemon.supervisor().expect("a worker");
        signal(worker, Signal::STOP);
        until("a stopped worker", SOON, || {
            let stat = std::fs::read_to_string(format!("/proc/{worker}/stat")).ok()?;
            stat.contains(") T ").then_some(())
        });
        Self(worker)
    }
}

fn up(daemon: &Daemon, folder: &Path) -> String {
    let ticket = daemon.offer(folder, "read_write");
    let headers = [("leasehold-directory", ticket.as_str())];
    let body = json!({"command": ["sh", "-c", BEATS], "limits": {"timeout": "3s", "grace": "0s"},
        "lifetimes": {"hard_deadline": "4s"}});
    let run = daemon.post("/v1/runs?wait=none", &headers, &body).run();
    until("the run to beat", SOON, || {
        (lines(&folder.join("log")) > 0).then_some(())
    });
    run
}

/// All that is kept of a run: its row, its chain, its evidence.
fn kept(daemon: &Daemon, run: &str) -> [Value; 2] {
    let row = daemon.row(run);
    let audit = daemon.get(&format!("/v1/runs/{run}/audit"));
    [row, audit.status_is(200).json]
}

/// The run is over with one result, and nothing of what the worker does afterwards is in it.
fn assert_fenced(daemon: &Daemon, run: &str, folder: &Path, stopped: Stopped) {
    let row = daemon.sealed(run, GIVEN_UP);
    assert_eq!(reason(&row), "host_lost", "{row:#}");
    // The control: without its worker what was begun goes on, so that there is something to be fenced off.
    let beats = lines(&folder.join("log"));
    std::thread::sleep(Duration::from_millis(500));
    assert!(
        lines(&folder.join("log")) > beats,
        "it does not beat any more"
    );
    let before = kept(daemon, run);
    drop(stopped);
    until("the end of the sandbox", ENDED, || {
        (daemon.inventory().inits().is_empty() && daemon.sandboxes().is_empty()).then_some(())
    });
    let beats = lines(&folder.join("log"));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(lines(&folder.join("log")), beats, "its copy is ended");
    assert_eq!(kept(daemon, run), before, "it changed what was fixed");
    for kind in ["ended", "concluded", "authority_revoked"] {
        let told = facts(daemon, run, kind);
        assert_eq!(told.len(), 1, "{kind}: {told:?}");
    }
    // Whole, and honest about what nobody saw.
    let verdict = daemon.cli(["verify", "--json", run]).status_is(1).json();
    assert_eq!(verdict["holds"], true, "{verdict:#}");
    assert_eq!(verdict["clean"], false, "{verdict:#}");
    agree(daemon, ENDED);
    let next = daemon.post("/v1/runs?wait=cleanup", &[], &script("true"));
    assert_eq!(reason(&next.status_is(200).json), "completed");
    assert_nothing_left(daemon);
}

#[test]
fn p70_a_worker_that_was_stopped_past_its_lease_changes_nothing_when_it_goes_on() {
    let daemon = Daemon::start(&["--warm", "0"], &[]);
    let folder = daemon.instance().scratch("lent");
    let run = up(&daemon, &folder);
    let stopped = Stopped::now(&daemon);
    assert_fenced(&daemon, &run, &folder, stopped);
}

/// A daemon that is stopped itself keeps its lock: nobody else can take its runs, and it holds to their deadlines
/// when it goes on.
#[test]
fn p70_a_stopped_daemon_keeps_its_store_and_its_worker_keeps_the_deadline() {
    let mut daemon = Daemon::start(&["--warm", "0"], &[]);
    let folder = daemon.instance().scratch("lent");
    let run = up(&daemon, &folder);
    daemon.signal(Signal::STOP);
    let mut second = daemon.serve_command();
    let refused = leasehold_e2e::Running::start(&mut second, None).wait(SOON);
    assert_ne!(refused.status, 0, "{}", refused.story());
    assert!(
        refused.err().contains("a daemon runs here already"),
        "{}",
        refused.story()
    );
    until("the deadline, kept by the worker alone", SOON, || {
        daemon.inventory().inits().is_empty().then_some(())
    });
    daemon.signal(Signal::CONT);
    let row = daemon.sealed(&run, SOON);
    assert_eq!(reason(&row), "timeout", "{row:#}");
    assert_eq!(facts(&daemon, &run, "concluded").len(), 1);
    super::assert_proven(&daemon, &run);
    daemon.kill();
    daemon.restart(&[]);
    assert_eq!(kept(&daemon, &run)[0], row);
    assert_nothing_left(&daemon);
}
