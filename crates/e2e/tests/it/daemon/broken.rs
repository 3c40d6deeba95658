//! What is broken by hand before its end (P86), and what is left behind on purpose: it converges, and the
//! evidence says what was seen.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_e2e::{Daemon, Need, Running, need, skip, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{SOON, assert_nothing_left, assert_proven, facts, reason, script};

/// Where a v1 freezer is mounted, if one is.
const FREEZER: &str = "/sys/fs/cgroup/freezer";

/// A daemon with one run that is up.
#[track_caller]
fn up(variables: &[(&str, &str)], flags: &Value, text: &str) -> (Daemon, String) {
    let daemon = Daemon::start(&["--warm", "0"], variables);
    let mut body = script(text);
    if !flags.is_null() {
        body["limits"] = flags.clone();
    }
    let run = daemon
        .post("/v1/runs?wait=none", &[], &body)
        .status_is(202)
        .run();
    until("the run to be up", SOON, || {
        let log = daemon.get(&format!("/v1/runs/{run}/logs/stdout"));
        log.text.contains("up").then_some(())
    });
    (daemon, run)
}

fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process(pid, Signal::KILL).ok();
    }
}

/// The groups of the one sandbox: those that have its id in their path, deepest first.
fn groups(daemon: &Daemon) -> Vec<PathBuf> {
    let sandbox = daemon.sandboxes().pop().expect("a sandbox");
    let all = daemon
        .inventory()
        .all("cgroups")
        .into_iter()
        .map(PathBuf::from);
    let mut of_it: Vec<PathBuf> = all
        .filter(|group| group.display().to_string().contains(&sandbox))
        .collect();
    of_it.sort_by_key(|group| std::cmp::Reverse(group.components().count()));
    of_it
}

/// The rows of the inventory in a run's evidence that were not clean.
#[track_caller]
fn unclean(daemon: &Daemon, run: &str) -> Vec<String> {
    let cleaned = facts(daemon, run, "cleaned").pop().expect("an inventory");
    let residues = &cleaned["observed"]["residues"];
    let rows = residues.as_array().expect("a list");
    let left = rows.iter().filter(|row| row["clean"] == false);
    left.map(|row| row["resource"].as_str().expect("a name").to_owned())
        .collect()
}

#[track_caller]
fn cancel(daemon: &Daemon, run: &str) -> Value {
    let path = format!("/v1/runs/{run}/cancel");
    daemon.post(&path, &[], &Value::Null).json
}

#[test]
fn p86_a_run_whose_init_was_killed_by_hand_ends_clean() {
    let (daemon, run) = up(&[], &Value::Null, "echo up; sleep 60");
    kill(daemon.inventory().inits()[0]);
    let row = daemon.sealed(&run, SOON);
    assert_eq!(reason(&row), "sandbox_crashed", "{row:#}");
    assert_proven(&daemon, &run);
    assert_nothing_left(&daemon);
}

#[test]
fn p86_what_was_removed_by_hand_is_told_as_gone_already() {
    let (daemon, run) = up(
        &[],
        &Value::Null,
        "trap '' TERM; echo up; while :; do sleep 1; done",
    );
    let groups = groups(&daemon);
    assert!(!groups.is_empty(), "{}", daemon.inventory());
    // Out of its groups, then the groups go, while it lives.
    let pids: Vec<String> = groups
        .iter()
        .filter_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok())
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    for group in &groups {
        let mut top = group.clone();
        while top
            .file_name()
            .is_some_and(|name| !name.to_string_lossy().starts_with("leasehold-"))
        {
            top.pop();
        }
        for pid in &pids {
            fs::write(top.parent().unwrap().join("cgroup.procs"), pid).ok();
        }
    }
    let gone = groups
        .iter()
        .filter(|group| fs::remove_dir(group).is_ok())
        .count();
    assert!(gone > 0, "no group could be removed: {groups:?}");
    // Three at once, and again when it is over.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| cancel(&daemon, &run));
        }
    });
    let row = daemon.sealed(&run, SOON);
    // A sandbox whose limits were taken away is ended at once, and no limit is blamed.
    let ends = ["sandbox_crashed", "cancelled"];
    assert!(ends.contains(&reason(&row)), "{row:#}");
    assert_eq!(cancel(&daemon, &run)["state"], "sealed");
    let bundle = daemon.get(&format!("/v1/runs/{run}/evidence")).text;
    assert!(bundle.contains("already gone"), "{bundle}");
    assert_proven(&daemon, &run);
    assert_nothing_left(&daemon);
}

#[test]
fn p86_a_run_whose_ledger_entry_was_removed_by_hand_ends() {
    let (daemon, run) = up(&[], &Value::Null, "echo up; sleep 60");
    let sandbox = daemon.sandboxes().pop().expect("a sandbox");
    fs::remove_file(daemon.worker_state().join(format!("ledger/{sandbox}.json"))).unwrap();
    cancel(&daemon, &run);
    assert_eq!(reason(&daemon.sealed(&run, SOON)), "cancelled");
    assert_nothing_left(&daemon);
}

/// The evidence names what is left, and nobody calls it clean.
#[track_caller]
fn assert_told(daemon: &Daemon, run: &str, resource: &str) {
    let left = unclean(daemon, run);
    assert!(
        left.iter().any(|row| row == resource),
        "{resource}: {left:?}"
    );
    let verdict = daemon.cli(["verify", "--json", run]).status_is(1).json();
    assert_eq!(verdict["holds"], true, "it is whole: {verdict:#}");
    assert_eq!(verdict["clean"], false, "{verdict:#}");
    let said = daemon.cli(["verify", run]).status_is(1).out();
    assert!(
        said.contains("not clean") && said.contains(resource),
        "{said}"
    );
    let told = daemon.cli(["explain", run]).status_is(0).out();
    assert!(told.contains("LEFT") && told.contains(resource), "{told}");
}

/// What a removal that fails leaves: a control group, the lease of a uid block, a file on the disk.
#[test]
fn i7_what_a_failed_removal_leaves_is_named_by_the_evidence() {
    let name = "daemon::broken::i7_what_a_failed_removal_leaves_is_named_by_the_evidence";
    if !need(name, &[Need::Root]) {
        return;
    }
    for (fault, kind) in [
        ("cgroups", "cgroups"),
        ("uids", "uids"),
        ("scratch", "scratch"),
    ] {
        eprintln!("{fault}");
        let disk = serde_json::json!({"disk": "300M"});
        let limits = if fault == "scratch" {
            disk
        } else {
            Value::Null
        };
        let (mut daemon, run) = up(&[("LEASEHOLD_FAULT", fault)], &limits, "echo up; sleep 0.2");
        let row = daemon.sealed(&run, SOON);
        assert_eq!(reason(&row), "completed", "{row:#}");
        let left = daemon.inventory();
        assert!(left.count(kind) > 0, "really left: {left}");
        if kind == "cgroups" {
            // Those of the sandbox, not the one that they are in; nothing runs in them.
            assert_idle(&groups(&daemon));
        }
        assert!(left.count("scratch") > 0, "its ledger entry stays: {left}");
        assert_told(&daemon, &run, fault);
        // A worker without the fault mends it.
        daemon.kill();
        kill(daemon.supervisor().expect("a worker").cast_signed());
        daemon.restart(&[]);
        assert_nothing_left(&daemon);
    }
}

/// They are there, and no process is in any.
#[track_caller]
fn assert_idle(groups: &[PathBuf]) {
    assert!(!groups.is_empty(), "no group of the sandbox is there");
    for group in groups {
        let procs = fs::read_to_string(group.join("cgroup.procs")).expect("a group that is there");
        assert_eq!(procs, "", "{}", group.display());
    }
}

/// Something mounted over a directory, which then cannot be removed. Gone on drop.
struct Lid(PathBuf);

impl Lid {
    fn over(group: &Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=4k", "lid"])
            .arg(group);
        let done = mount.status().is_ok_and(|status| status.success());
        done.then(|| Self(group.to_owned()))
    }
}

impl Drop for Lid {
    fn drop(&mut self) {
        Command::new("umount").arg(&self.0).status().ok();
    }
}

/// A group in which nothing runs any more and that cannot be removed is told, not taken for gone because it is idle.
#[test]
fn i7_an_idle_group_that_cannot_be_removed_is_named_by_the_evidence() {
    let name = "daemon::broken::i7_an_idle_group_that_cannot_be_removed_is_named_by_the_evidence";
    if !need(name, &[Need::Root, Need::Program("mount")]) {
        return;
    }
    let (mut daemon, run) = up(&[], &Value::Null, "echo up; sleep 60");
    let all = groups(&daemon);
    let Some(lid) = all.first().and_then(|group| Lid::over(group)) else {
        skip(name, "nothing can be mounted over a control group here");
        return;
    };
    cancel(&daemon, &run);
    assert_eq!(reason(&daemon.sealed(&run, SOON)), "cancelled");
    assert_told(&daemon, &run, "cgroups");
    let left = unclean(&daemon, &run);
    assert!(
        !left.iter().any(|row| row == "processes"),
        "it is idle: {left:?}"
    );
    let covered = lid.0.clone();
    drop(lid);
    assert_idle(&[covered]);
    // A run beside it is clean all the same.
    let next = daemon
        .post("/v1/runs?wait=cleanup", &[], &script("true"))
        .run();
    assert_proven(&daemon, &next);
    daemon.kill();
    kill(daemon.supervisor().expect("a worker").cast_signed());
    daemon.restart(&[]);
    assert_nothing_left(&daemon);
}

/// A group of the v1 freezer. What is in it is thawed, and the group removed, on drop.
struct Ice(PathBuf);

impl Ice {
    fn over(pids: &[i32], name: &str) -> Option<Self> {
        let ice = Self(Path::new(FREEZER).join(format!("leasehold-e2e-{}", std::process::id())));
        if let Err(error) = fs::create_dir(&ice.0) {
            skip(name, &format!("no v1 freezer: {error}"));
            return None;
        }
        for pid in pids {
            fs::write(ice.0.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        fs::write(ice.0.join("freezer.state"), "FROZEN").unwrap();
        until("the ice", SOON, || {
            let state = fs::read_to_string(ice.0.join("freezer.state")).ok()?;
            (state.trim() == "FROZEN").then_some(())
        });
        Some(ice)
    }
}

impl Drop for Ice {
    fn drop(&mut self) {
        fs::write(self.0.join("freezer.state"), "THAWED").ok();
        let end = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A process that its kill does not end holds its groups, its mounts and its uid block; all are named.
#[test]
fn i7_a_process_that_is_left_is_named_with_all_it_holds() {
    let name = "daemon::broken::i7_a_process_that_is_left_is_named_with_all_it_holds";
    if !need(name, &[Need::Root]) {
        return;
    }
    let (daemon, run) = up(&[], &Value::Null, "echo up; sleep 60");
    let inits = daemon.inventory().inits();
    let Some(ice) = Ice::over(&inits, name) else {
        return;
    };
    cancel(&daemon, &run);
    let row = daemon.sealed(&run, SOON);
    assert_eq!(reason(&row), "cancelled", "{row:#}");
    for resource in ["processes", "mounts", "netns", "uids"] {
        assert_told(&daemon, &run, resource);
    }
    assert_eq!(daemon.inventory().inits(), inits, "it is really left");
    drop(ice);
    assert_nothing_left(&daemon);
}

/// What holds a part of a sandbox after its end, and what the evidence must name for it.
type Held = (&'static str, fn(&str) -> Running, &'static [&'static str]);

/// A process of the host that entered one kind of namespace of a sandbox, and there does this.
fn entered(init: &str, kind: &str, command: &[&str]) -> Running {
    let (flag, name) = match kind {
        "mnt" => ("--mount", "mnt"),
        other => ("--net", other),
    };
    let mut enter = Command::new("nsenter");
    enter.args(["--target", init, flag]).args(command);
    let inside = Running::start(&mut enter, None);
    let wanted = fs::read_link(format!("/proc/{init}/ns/{name}")).unwrap();
    let held = format!("/proc/{}/ns/{name}", inside.pid());
    until("it to be in there", SOON, || {
        (fs::read_link(&held).ok()? == wanted).then_some(())
    });
    inside
}

/// A shell of the host that has a mount namespace open, and is not in it.
fn open_mounts(init: &str) -> Running {
    let mut command = Command::new("sh");
    let script = format!("exec 7< /proc/{init}/ns/mnt; echo open; exec sleep 600");
    let holder = Running::start(command.args(["-c", &script]), None);
    holder.await_out("open", SOON);
    holder
}

/// A process that listens inside a network.
fn listening(init: &str) -> Running {
    let script = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); \
                  print('listens', flush=True); time.sleep(600)";
    let holder = entered(init, "net", &["python3", "-c", script]);
    holder.await_out("listens", SOON);
    holder
}

/// Whether this kernel tells if a namespace is gone (Linux 6.18).
fn kernel_tells(daemon: &Daemon, run: &str) -> bool {
    let cleaned = facts(daemon, run, "cleaned").pop().expect("an inventory");
    let rows = cleaned["observed"]["residues"]
        .as_array()
        .expect("a list")
        .clone();
    let row = |name: &str| rows.iter().find(|row| row["resource"] == name).cloned();
    row("mounts").is_some_and(|row| row["inferred"] != true)
}

/// A mount namespace that a descriptor or a process holds, a network with a listening socket in it: each is named.
/// The control beside them, a run of the same daemon that nobody touches, is clean, and was looked at.
#[test]
fn i7_what_the_host_holds_of_a_sandbox_is_named_by_the_evidence() {
    let name = "daemon::broken::i7_what_the_host_holds_of_a_sandbox_is_named_by_the_evidence";
    let needs = [
        Need::Root,
        Need::Program("nsenter"),
        Need::Program("python3"),
    ];
    if !need(name, &needs) {
        return;
    }
    let cases: [Held; 3] = [
        ("a mount namespace, open", open_mounts, &["mounts", "uids"]),
        (
            "a mount namespace, entered",
            |init| entered(init, "mnt", &["/usr/bin/sleep", "600"]),
            &["mounts", "uids"],
        ),
        (
            "a socket in a network",
            listening,
            &["netns", "sockets", "uids"],
        ),
    ];
    for (what, hold, wanted) in cases {
        eprintln!("{what}");
        let (mut daemon, run) = up(&[], &Value::Null, "echo up; sleep 60");
        let holder = hold(&daemon.inventory().inits()[0].to_string());
        cancel(&daemon, &run);
        assert_eq!(reason(&daemon.sealed(&run, SOON)), "cancelled");
        let control = daemon.post("/v1/runs", &[], &script("true")).run();
        daemon.sealed(&control, SOON);
        assert_proven(&daemon, &control);
        if !kernel_tells(&daemon, &control) {
            skip(name, "namespaces have no handles before Linux 6.18");
            return;
        }
        for resource in wanted {
            assert_told(&daemon, &run, resource);
        }
        holder.signal(Signal::KILL);
        holder.wait(SOON);
        daemon.kill();
        kill(daemon.supervisor().expect("a worker").cast_signed());
        daemon.restart(&[]);
        until("what was held to be freed", SOON, || {
            (daemon.inventory().count("scratch") == 0).then_some(())
        });
        assert_nothing_left(&daemon);
    }
}
