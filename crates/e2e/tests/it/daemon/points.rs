//! The supervisor of a daemon dies before and after every resource of the host that it makes or removes (P84).
//!
//! The points are those of `leasehold_jail::failpoint`, which only builds with debug assertions have.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold_e2e::{Daemon, Need, need, patience, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{AGREE, SOON, assert_nothing_left, assert_proven, facts, lines, reason};

/// Names the file that says where the next supervisor dies.
const POINT: &str = "LEASEHOLD_POINT";
/// How a first process is called that has come to its point.
const AT_POINT: &str = "lease-at-point";
/// A run that leaves a line each time it is executed, and a file that is collected.
const WITNESS: &str = "echo x >> log; sleep 0.1";

/// What is made for a run until its command begins.
const BEFORE_COMMAND: [&str; 9] = [
    "folder", "spools", "record", "publish", "ledger", "holder", "uids", "cgroup", "cgroups",
];
/// What hands it over to the spawner and to its command.
const HAND_OVER: [&str; 4] = ["sockets", "order", "pipes", "message"];
/// What the spawner and the first process make.
const OF_SPAWNER: [&str; 6] = ["netns", "process", "userns", "enter", "mounts", "identity"];
/// What is made and removed from the end of the command on.
const AFTER_COMMAND: [&str; 6] = [
    "collector",
    "outcome",
    "cgroups_gone",
    "uids_gone",
    "ledger_gone",
    "last",
];
/// What is made of a disk larger than memory.
const DISK: [&str; 2] = ["image", "loop"];

/// One daemon whose first supervisor dies at one point.
struct Case {
    about: String,
    daemon: Daemon,
    file: PathBuf,
    folder: PathBuf,
    /// Whether the run works in a directory of the host, where it leaves its lines.
    lent: bool,
    worker: u32,
}

impl Case {
    /// The daemon, with a supervisor that has its order to die.
    fn new(point: &str, warm: &str) -> Self {
        let mut daemon = Daemon::prepared(&["--warm", warm]);
        let file = daemon.instance().scratch("points").join("point");
        let path = file.display().to_string();
        daemon.restart(&[(POINT, &path)]);
        // What a daemon tries out with its first worker is not what is to come to the point.
        let body = json!({"command": ["true"]});
        let first = daemon.post("/v1/runs?wait=cleanup", &[], &body);
        assert_eq!(reason(&first.status_is(200).json), "completed");
        fs::write(&file, point).unwrap();
        kill(daemon.supervisor().expect("a worker"));
        let folder = daemon.instance().scratch("lent");
        let taken = file.with_extension("pid");
        let worker = until("a worker that has taken its order", SOON, || {
            // Whoever asks has it started.
            daemon.get("/readyz");
            fs::read_to_string(&taken).ok()?.parse().ok()
        });
        Self {
            about: point.to_owned(),
            daemon,
            file,
            folder,
            lent: true,
            worker,
        }
    }

    /// Begins the run in a directory of the host.
    fn send(&self, body: &Value) -> String {
        // While the worker is away nothing is taken, and that is said.
        until("a run to be taken", SOON, || {
            let ticket = self
                .lent
                .then(|| self.daemon.offer(&self.folder, "read_write"));
            let headers: Vec<_> = ticket
                .iter()
                .map(|ticket| ("leasehold-directory", ticket.as_str()))
                .collect();
            let answer = self.daemon.post("/v1/runs?wait=none", &headers, body);
            (answer.status != 503).then(|| answer.status_is(202).run())
        })
    }

    /// Waits for the death; a first process that has come to its point has its supervisor killed here.
    fn await_death(&self) {
        until(&format!("the death at {}", self.about), SOON, || {
            let inventory = self.daemon.inventory();
            let at_point = |line: &String| line.contains(AT_POINT);
            if inventory.all("processes").iter().any(at_point) {
                kill(self.worker);
            }
            is_gone(self.worker).then_some(())
        });
    }

    /// Waits for the next supervisor: from then on host and database must agree within two seconds.
    fn agree(&self) {
        until("the next worker", SOON, || {
            let next = self.daemon.supervisor();
            next.filter(|next| *next != self.worker)
        });
        let end = Instant::now() + AGREE * patience();
        loop {
            let (known, there) = (known(&self.daemon), on_host(&self.daemon));
            let leases = self.daemon.inventory().count("uids");
            if known == there && leases == there.len() {
                return;
            }
            assert!(
                Instant::now() < end,
                "{}: the database knows {known:?}, the host has {there:?} and {leases} leases:\n{}",
                self.about,
                self.daemon.inventory()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The run is over, once, with a complete record and audit, and the next one works.
    fn settle(&self, run: &str) {
        let row = self.daemon.sealed(run, SOON);
        let executed = lines(&self.folder.join("log"));
        match reason(&row) {
            "completed" => assert_eq!(executed, usize::from(self.lent), "{}: {row:#}", self.about),
            "host_lost" => assert!(executed <= 1, "{}: {row:#}", self.about),
            other => panic!("{}: {other}: {row:#}", self.about),
        }
        // One beside the first.
        assert_eq!(self.daemon.rows("").len(), 2, "{}: one run", self.about);
        assert!(self.daemon.taken() <= 2, "{}: begun once", self.about);
        for kind in ["accepted", "ended", "concluded", "cleaned"] {
            let told = facts(&self.daemon, run, kind);
            assert_eq!(told.len(), 1, "{}: {kind}: {told:?}", self.about);
        }
        assert_proven(&self.daemon, run);
        self.agree();
        let open = self.daemon.worker_state().join("open");
        until("every record to be complete", SOON, || {
            let open = fs::read_dir(&open).into_iter().flatten().count();
            (open == 0).then_some(())
        });
        let body = json!({"command": ["true"]});
        let next = self.daemon.post("/v1/runs?wait=cleanup", &[], &body);
        assert_eq!(reason(&next.status_is(200).json), "completed");
        assert!(!self.file.exists());
    }
}

fn kill(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        kill_process(pid, Signal::KILL).ok();
    }
}

fn is_gone(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |text| text.contains(") Z "))
}

/// Sandboxes that the database says are there.
fn known(daemon: &Daemon) -> BTreeSet<String> {
    let rows = ["running", "ended"]
        .iter()
        .flat_map(|state| daemon.rows(&format!("&state={state}")));
    rows.filter_map(|row| row["sandbox"].as_str().map(str::to_owned))
        .collect()
}

/// Sandboxes of which anything is on the host: a control group, a disk, a device over it, an entry of the
/// ledger, a folder made ahead; and processes of them, whatever group they are in.
fn on_host(daemon: &Daemon) -> BTreeSet<String> {
    let inventory = daemon.inventory();
    let base = format!("leasehold-{}", inventory.instance());
    let name = |path: &String| {
        let word = path.split(' ').next_back().unwrap_or(path);
        let name = Path::new(word).file_name()?.to_string_lossy().into_owned();
        let name = name.split('.').next()?.to_owned();
        (name != base).then_some(name)
    };
    let kinds = ["cgroups", "scratch", "loops", "mounts"];
    let mut found: BTreeSet<String> = kinds
        .iter()
        .flat_map(|kind| inventory.all(kind))
        .filter_map(|path| name(&path))
        .collect();
    let blanks = fs::read_dir(daemon.worker_state().join("blank"));
    let blanks = blanks.into_iter().flatten().filter_map(Result::ok);
    found.extend(blanks.map(|blank| blank.file_name().to_string_lossy().into_owned()));
    let strays = inventory.inits().len().saturating_sub(found.len());
    found.extend((0..strays).map(|number| format!("process {number}")));
    found
}

fn both(points: &[&str]) -> Vec<String> {
    let sides = |point: &&str| [format!("before-{point}"), format!("after-{point}")];
    points.iter().flat_map(sides).collect()
}

/// Walks a run past each of these points.
fn walk(points: &[&str], body: &Value) {
    for point in both(points) {
        let mut case = Case::new(&point, "0");
        // No limit on a disk holds in a directory of the host.
        case.lent = body["limits"].is_null();
        let run = case.send(body);
        case.await_death();
        case.settle(&run);
        assert_nothing_left(&case.daemon);
    }
}

fn witness() -> Value {
    json!({"command": ["sh", "-c", WITNESS], "artifacts": ["log"]})
}

/// Whether this build and this host can; told otherwise.
fn able(name: &str, needs: &[Need<'_>]) -> bool {
    if cfg!(not(debug_assertions)) {
        leasehold_e2e::skip(name, "points are built with debug assertions only");
        return false;
    }
    need(name, &[&[Need::Root], needs].concat())
}

#[test]
fn p84_a_worker_killed_around_each_record_lease_and_group_leaves_nothing() {
    let name =
        "daemon::points::p84_a_worker_killed_around_each_record_lease_and_group_leaves_nothing";
    if able(name, &[]) {
        walk(&BEFORE_COMMAND, &witness());
    }
}

#[test]
fn p84_a_worker_killed_around_each_hand_over_executes_nothing_twice() {
    let name = "daemon::points::p84_a_worker_killed_around_each_hand_over_executes_nothing_twice";
    if able(name, &[]) {
        walk(&HAND_OVER, &witness());
    }
}

#[test]
fn p84_a_worker_killed_while_a_sandbox_is_furnished_leaves_no_namespace_and_no_process() {
    let name = "daemon::points::p84_a_worker_killed_while_a_sandbox_is_furnished_leaves_no_namespace_and_no_process";
    if able(name, &[]) {
        walk(&OF_SPAWNER, &witness());
    }
}

#[test]
fn p84_a_worker_killed_around_each_removal_completes_the_record() {
    let name = "daemon::points::p84_a_worker_killed_around_each_removal_completes_the_record";
    if able(name, &[]) {
        walk(&AFTER_COMMAND, &witness());
    }
}

#[test]
fn p84_a_worker_killed_around_a_disk_leaves_no_image_and_no_device() {
    let name = "daemon::points::p84_a_worker_killed_around_a_disk_leaves_no_image_and_no_device";
    let needs = [Need::Program("mkfs.ext4"), Need::Path("/dev/loop-control")];
    if able(name, &needs) {
        let mut body = witness();
        body["limits"] = json!({"disk": "300M"});
        walk(&DISK, &body);
    }
}

/// What is made ahead for nobody yet, and claimed.
#[test]
fn p84_a_worker_killed_while_it_fills_its_pool_leaves_nothing_that_waits() {
    let name =
        "daemon::points::p84_a_worker_killed_while_it_fills_its_pool_leaves_nothing_that_waits";
    if !able(name, &[]) {
        return;
    }
    for point in both(&[
        "ledger", "cgroups", "process", "identity", "spools", "message",
    ]) {
        let case = Case::new(&point, "1");
        let body = json!({"command": ["sh", "-c", "echo ran"]});
        let run = until("a run to be taken", SOON, || {
            let answer = case.daemon.post("/v1/runs?wait=none", &[], &body);
            (answer.status != 503).then(|| answer.status_is(202).run())
        });
        case.await_death();
        let row = case.daemon.sealed(&run, SOON);
        assert!(matches!(reason(&row), "completed" | "host_lost"), "{row:#}");
        assert_proven(&case.daemon, &run);
        // What waits now is the next worker's, all of it in its ledger.
        until("a whole pool and nothing else", SOON, || {
            let ledger: BTreeSet<String> = case.daemon.sandboxes().into_iter().collect();
            let inits = case.daemon.inventory().inits().len();
            (on_host(&case.daemon) == ledger && inits == ledger.len() && inits > 0).then_some(())
        });
        drop(case);
    }
}
