//! The real daemon: `leasehold serve` on directories of its own, driven over HTTP and by the command line.
//!
//! - `kills`: the daemon dies before and after every durable write and message.
//! - `workers`: its supervisor dies at every stage.
//! - `points`: its supervisor dies before and after every resource of the host.
//! - `crowd`: many sandboxes, a daemon that is away, a neighbour, a drain.
//! - `shares`: one key for two hundred, one tenant against another.
//! - `broken`: what is broken by hand, and what is left behind on purpose.
//! - `modules`: tools in WebAssembly: the examples, their ends, a bomb, a floor, a daemon that dies.
//! - `proof`: evidence that was tampered with.
//! - `door`: who is let in, what is refused, what is told.
//! - `doors`: many connections, half requests, no descriptors.
//! - `scarce`: no descriptors, no room on the disk.
//! - `images`: images pulled, run in, left and refused.
//! - `fenced`: a worker that is stopped past its lease, a daemon that is stopped.
//! - `upgrade`: a newer version over what an older one left, and the other way round.
//! - `soak`: many cycles, with random deaths and without.

mod broken;
mod crowd;
mod door;
mod doors;
mod fenced;
mod images;
mod kills;
mod modules;
mod points;
mod proof;
mod scarce;
mod shares;
mod soak;
mod upgrade;
mod workers;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use leasehold_e2e::Daemon;
use serde_json::{Value, json};

/// How long what is no measured bound may take.
const SOON: Duration = Duration::from_secs(30);
/// How soon host and database agree after a restart.
const AGREE: Duration = Duration::from_secs(2);

/// A request for a shell script.
fn script(text: &str) -> Value {
    json!({"command": ["sh", "-c", text]})
}

/// The word for how the run ended.
#[track_caller]
fn reason(row: &Value) -> &str {
    let end = row["outcome"]["end"]["reason"].as_str();
    end.unwrap_or_else(|| panic!("no end in {row:#}"))
}

/// What the chain of a run tells, of one kind.
#[track_caller]
fn facts(daemon: &Daemon, run: &str, kind: &str) -> Vec<Value> {
    let mut page = daemon
        .get(&format!("/v1/runs/{run}/audit"))
        .status_is(200)
        .json;
    let events = page["events"].as_array_mut().expect("events");
    let facts = events.iter_mut().map(|event| event["fact"].take());
    facts.filter(|fact| fact["kind"] == kind).collect()
}

/// Waits until the sandboxes on the host are those that the database says are there.
#[track_caller]
fn agree(daemon: &Daemon, limit: Duration) {
    let mut last = (BTreeSet::new(), BTreeSet::new());
    let end = std::time::Instant::now() + limit * leasehold_e2e::patience();
    loop {
        let known: BTreeSet<String> = ["running", "ended"]
            .iter()
            .flat_map(|state| daemon.rows(&format!("&state={state}")))
            .filter_map(|row| row["sandbox"].as_str().map(str::to_owned))
            .collect();
        let there: BTreeSet<String> = daemon.sandboxes().into_iter().collect();
        if known == there {
            return;
        }
        last = match std::time::Instant::now() < end {
            true => (known, there),
            false => panic!("known and there differ: {last:?}, {known:?}, {there:?}"),
        };
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Nothing of any sandbox is on the host, and after the end of the worker nothing of it either.
#[track_caller]
fn assert_nothing_left(daemon: &Daemon) {
    let end = std::time::Instant::now() + AGREE * leasehold_e2e::patience();
    loop {
        let now = daemon.inventory();
        let none = ["scratch", "uids", "loops", "temp"]
            .iter()
            .all(|kind| now.count(kind) == 0);
        if none && now.inits().is_empty() {
            break;
        }
        assert!(
            std::time::Instant::now() < end,
            "sandboxes are left:\n{now}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = daemon.stopped_inventory();
    assert!(left.is_empty(), "left on the host:\n{left}");
}

/// The evidence of a run holds, and what was seen after its removal was clean.
#[track_caller]
fn assert_proven(daemon: &Daemon, run: &str) {
    let verdict = daemon.cli(["verify", "--json", run]).status_is(0).json();
    assert_eq!(verdict["holds"], true, "{verdict:#}");
    assert_eq!(verdict["clean"], true, "{verdict:#}");
}

/// Lines of a file; none where there is no file.
fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// Makes a tenant that may run what it likes, with this share, and gives a key of a developer in it.
#[track_caller]
fn tenant(daemon: &Daemon, name: &str, share: &str) -> String {
    daemon.cli(["tenant", "create", name]).status_is(0);
    let file = daemon.instance().scratch("policies").join(name);
    let text = format!(
        "version: 1\nshare: {share}\nallow: {{tools: ['*'], commands: ['*'], permissions: inherit, \
         egress: [], credentials: [], workspaces: ['*'], trust: ['*'], backends: ['*'], placement: ['*']}}\n\
         trust: {{commands: first_party}}\n"
    );
    daemon.instance().write(&file, &text);
    let scope = format!("platform/tenant/{name}");
    let file = file.display().to_string();
    daemon.cli(["policy", "set", &scope, &file]).status_is(0);
    let made = daemon.cli([
        "key",
        "create",
        "somebody",
        "--role",
        "developer",
        "--tenant",
        name,
    ]);
    let said = made.status_is(0).out();
    let token = said.split_whitespace().find(|word| word.starts_with("lh_"));
    token
        .unwrap_or_else(|| panic!("no token in {said}"))
        .to_owned()
}
