//! Ordinary users: with and without a range of ids, with and without control groups; and other users,
//! who must not get at a supervisor.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_e2e::{Instance, Need, Running, Who, need, skip, until};
use rustix::process::Signal;
use serde_json::Value;

use super::SOON;
use super::deaths::{all_children, children};
use crate::record::{assert_clean, assert_nothing_left, exceeded, reason};

const PYTHON: &str = "/usr/bin/python3";
/// Says what becomes of a connection on which nothing is said.
const CONNECT: &str = "
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
try:
    s.connect(sys.argv[1])
    s.settimeout(1)
    print('closed' if s.recv(1) == b'' else 'answered')
except socket.timeout:
    print('open')
except OSError as error:
    print('refused', error.errno)
";

/// `command` as the last words of a shell script that prepares its place, run as root.
fn after(script: &str, unshared: bool, command: &Command) -> Command {
    let mut words: Vec<&str> = Vec::new();
    if unshared {
        words.extend(["unshare", "--mount", "--propagation", "private"]);
    }
    words.extend(["sh", "-ec", script, "sh"]);
    let mut wrapped = Command::new(words[0]);
    wrapped
        .args(&words[1..])
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            wrapped.env(name, value);
        }
    }
    if let Some(place) = command.get_current_dir() {
        wrapped.current_dir(place);
    }
    wrapped
}

/// Runs with these words as `/etc/subuid` and `/etc/subgid`, which only this call sees.
#[track_caller]
pub(crate) fn with_ranges(instance: &Instance, ranges: &str, args: &[&str]) -> Running {
    let file = instance.scratch("etc").join("ranges");
    fs::write(&file, ranges).unwrap();
    let file = file.display();
    let script =
        format!("mount --bind {file} /etc/subuid; mount --bind {file} /etc/subgid; exec \"$@\"");
    Running::start(&mut after(&script, true, &instance.command(args)), None)
}

/// The user on the host whose process it is.
#[track_caller]
fn owner(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let first = ids.and_then(|ids| ids.split_whitespace().next()?.parse().ok());
    first.expect("a process")
}

fn posture<'a>(record: &'a Value, field: &str) -> &'a Value {
    &record["contract"]["posture"][field]
}

/// How a limit of the run is held.
fn how<'a>(record: &'a Value, which: &str) -> &'a str {
    let rows = record["contract"]["enforcement"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["which"] == which);
    row.and_then(|row| row["how"].as_str()).expect("a row")
}

const WHO: &str = "id -u; id -g; id -G; cat /proc/self/uid_map | tr -s ' '; \
    touch /workspace/mine; stat -c %u /workspace/mine";

#[test]
fn an_ordinary_user_with_a_range_of_ids() {
    let name = "crash::an_ordinary_user_with_a_range_of_ids";
    let tools = ["setpriv", "unshare", "mount", "newuidmap", "newgidmap"].map(Need::Program);
    let files = ["/etc/subuid", "/etc/subgid"].map(Need::Path);
    if !need(name, &[&[Need::Root], &tools[..], &files[..]].concat()) {
        return;
    }
    let instance = Instance::of(Who::Ordinary);
    let script = format!("{WHO}; echo up; exec sleep 60");
    let args = ["run", "--", "sh", "-c", &script];
    let run = with_ranges(&instance, "1000:700000:65536\n", &args);
    run.await_out("up", SOON);
    // From outside: init is of the range, the workload is the caller.
    let supervisor = instance.supervisor().expect("a supervisor");
    let below = all_children(supervisor).into_iter();
    let inits: Vec<u32> = below
        .filter_map(|(pid, name)| (name != "lease-spawner").then_some(pid))
        .collect();
    assert_eq!(inits.len(), 1, "{}", instance.inventory());
    assert_eq!(owner(inits[0]), 700_000);
    let workload = until("the workload", SOON, || children(inits[0], "sleep").pop());
    assert_eq!(owner(workload), 1000);
    let out = run.out();
    assert!(out.starts_with("1000\n1000\n1000\n"), "{out}");
    assert!(out.ends_with("\n1000\nup\n"), "{out}");
    run.signal(Signal::INT);
    run.wait(SOON).status_is(130);
    let record = instance.last_record();
    assert_eq!(reason(&record), "cancelled", "{record:#}");
    assert_eq!(posture(&record, "maker"), "user");
    assert_eq!(posture(&record, "single_uid"), false, "{record:#}");
    assert_clean(&record);
    assert_nothing_left(&instance);
}

#[test]
fn an_ordinary_user_without_a_range_of_ids() {
    let name = "crash::an_ordinary_user_without_a_range_of_ids";
    let tools = ["setpriv", "unshare", "mount"].map(Need::Program);
    let files = ["/etc/subuid", "/etc/subgid"].map(Need::Path);
    if !need(name, &[&[Need::Root], &tools[..], &files[..]].concat()) {
        return;
    }
    let instance = Instance::of(Who::Ordinary);
    let args = ["run", "--json", "--", "sh", "-c", WHO];
    let record = with_ranges(&instance, "", &args).wait(SOON).json();
    assert_eq!(reason(&record), "completed", "{record:#}");
    assert_eq!(posture(&record, "single_uid"), true, "{record:#}");
    assert_clean(&record);
    let run = record["run"].as_str().expect("a run");
    let out = instance.cli(["logs", run]).out();
    assert!(out.starts_with("1000\n1000\n"), "{out}");
    assert_nothing_left(&instance);
}

/// Without control groups: what is asked is refused with the mend, what is not asked is said.
#[test]
fn i6_limits_of_an_ordinary_user_without_control_groups() {
    let name = "crash::i6_limits_of_an_ordinary_user_without_control_groups";
    if !need(name, &[Need::Root, Need::Program("setpriv")]) {
        return;
    }
    let instance = Instance::of(Who::Ordinary);
    let record = instance.record_of(&[], "true");
    if how(&record, "memory") == "enforced" {
        skip(name, "control groups are delegated to user 1000 here");
        return;
    }
    for which in ["memory", "pids", "cpu"] {
        assert_eq!(how(&record, which), "best_effort", "{record:#}");
    }
    for which in ["wall", "files", "inodes", "output"] {
        assert_eq!(how(&record, which), "enforced", "{record:#}");
    }
    let runs = || fs::read_dir(instance.state().join("runs")).unwrap().count();
    let before = runs();
    for asked in [["--memory", "64M"], ["--pids", "20"], ["--cpu", "0.5"]] {
        let refused = instance.sh(&asked, "true").status_is(125);
        let said = refused.err();
        assert!(said.contains("cannot be enforced here"), "{said}");
        assert!(said.contains("leasehold doctor"), "{said}");
        assert!(said.contains("--allow-unenforced"), "{said}");
    }
    assert_eq!(runs(), before, "a refused run is none");
    let record = instance.record_of(&["--memory", "64M", "--allow-unenforced"], "true");
    assert_eq!(how(&record, "memory"), "unenforced", "{record:#}");
    // The control: the limit really does not hold.
    let eater = format!("exec {PYTHON} -c 'x = bytearray(100 << 20); print(len(x))'");
    if Path::new(PYTHON).exists() {
        let flags = ["--memory", "64M", "--allow-unenforced"];
        let outcome = instance.sh(&flags, &eater).status_is(0);
        assert_eq!(outcome.out(), "104857600\n");
    }
    assert_nothing_left(&instance);
}

/// Groups of a test's own, given to user 1000, in every hierarchy that takes them.
struct Delegated(Vec<PathBuf>);

impl Delegated {
    fn new(name: &str) -> Self {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut groups = Vec::new();
        for line in table.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            // A group of a cpuset holds no process before it has processors.
            if !right.starts_with("cgroup") || right.contains("cpuset") {
                continue;
            }
            let mount = PathBuf::from(left.split(' ').nth(4).unwrap_or("/"));
            let group = mount.join(name);
            if fs::create_dir(&group).is_ok() {
                groups.push(group);
            }
        }
        let delegated = Self(groups);
        for group in &delegated.0 {
            pass_on(group.parent().expect("a mount"));
            let files = [
                "",
                "cgroup.procs",
                "tasks",
                "cgroup.threads",
                "cgroup.subtree_control",
            ];
            for file in files.map(|file| group.join(file)) {
                if file.exists() {
                    chown(&file, Some(1000), Some(1000)).unwrap();
                }
            }
        }
        delegated
    }

    /// A script that enters them all and goes on as the words after it. On cgroup2 it enters a group
    /// below, since a group with processes passes nothing on.
    fn enter(&self) -> String {
        let mut script = String::new();
        for group in &self.0 {
            let group = group.display();
            script += &format!(
                "if [ -e {group}/cgroup.controllers ]; then mkdir -p {group}/shell; \
                 chown -R 1000:1000 {group}/shell; echo 0 > {group}/shell/cgroup.procs; \
                 else echo 0 > {group}/cgroup.procs; fi; "
            );
        }
        script + "exec \"$@\""
    }
}

/// On cgroup2 controllers have to be passed on; on v1 there is no such file.
fn pass_on(group: &Path) {
    for controller in ["+memory", "+pids", "+cpu"] {
        fs::write(group.join("cgroup.subtree_control"), controller).ok();
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for group in &self.0 {
            fs::remove_dir(group.join("shell")).ok();
            fs::remove_dir(group).ok();
        }
    }
}

/// What root gives away by `chown` is used: the same limits then hold for an ordinary user.
#[test]
fn limits_of_an_ordinary_user_hold_in_delegated_groups() {
    let name = "crash::limits_of_an_ordinary_user_hold_in_delegated_groups";
    let needs = [Need::Root, Need::Program("setpriv"), Need::Path(PYTHON)];
    if !need(name, &needs) {
        return;
    }
    let instance = Instance::of(Who::Ordinary);
    let delegated = Delegated::new(&format!("e2e-{}", instance.name()));
    if delegated.0.is_empty() {
        skip(name, "no control group can be made here");
        return;
    }
    let script = delegated.enter();
    let call = |args: &[&str]| {
        Running::start(&mut after(&script, false, &instance.command(args)), None).wait(SOON)
    };
    let flags = [
        "run", "--json", "--memory", "64M", "--pids", "20", "--cpu", "0.5", "--",
    ];
    let eater = "x = bytearray(100 << 20); print(len(x))";
    let record = call(&[&flags[..], &[PYTHON, "-c", eater]].concat()).json();
    for which in ["memory", "pids", "cpu"] {
        assert_eq!(how(&record, which), "enforced", "{record:#}");
    }
    assert_eq!(posture(&record, "maker"), "user");
    assert_eq!(exceeded(&record), "memory");
    assert_clean(&record);
    // The control: the same program where the limit is above what it takes.
    let wide = ["run", "--memory", "256M", "--", PYTHON, "-c", eater];
    assert_eq!(call(&wide).status_is(0).out(), "104857600\n");
    let bomb = "i=0; while [ $i -lt 40 ]; do sleep 2 & i=$((i+1)); done; wait";
    let record = call(&[&flags[..], &["sh", "-c", bomb]].concat()).json();
    let hit = record["limits_hit"].as_array().expect("limits");
    assert!(hit.iter().any(|hit| hit["which"] == "pids"), "{record:#}");
    assert_nothing_left(&instance);
    until("the delegated groups to be empty", SOON, || {
        let mut below = delegated
            .0
            .iter()
            .map(|group| group.join("shell/cgroup.procs"));
        below
            .all(|procs| fs::read_to_string(procs).unwrap_or_default().is_empty())
            .then_some(())
    });
}

/// What a connection of `uid` comes to.
#[track_caller]
fn connect_as(uid: u32, socket: &Path) -> String {
    let uid = uid.to_string();
    let done = Command::new("setpriv")
        .args([
            "--reuid",
            &uid,
            "--regid",
            &uid,
            "--clear-groups",
            "--",
            PYTHON,
            "-c",
        ])
        .arg(CONNECT)
        .arg(socket)
        .output()
        .expect("start setpriv");
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

/// Even where somebody opened the directory and the socket to everybody, the peer's user counts.
#[test]
fn another_user_cannot_talk_to_a_supervisor() {
    let name = "crash::another_user_cannot_talk_to_a_supervisor";
    let needs = [Need::Root, Need::Program("setpriv"), Need::Path(PYTHON)];
    if !need(name, &needs) {
        return;
    }
    for (who, own, others) in [
        (Who::Me, 0, &[1000, 65_534][..]),
        (Who::Ordinary, 1000, &[0, 1001]),
    ] {
        let instance = Instance::of(who);
        instance.run(["--", "true"]).status_is(0);
        let socket = instance.run_folder().join("supervisor.sock");
        for &other in others.iter().filter(|uid| **uid != 0) {
            assert_eq!(
                connect_as(other, &socket),
                "refused 13",
                "a closed directory"
            );
        }
        let parent = instance.run_folder();
        let parent = parent.parent().expect("a folder");
        for (path, mode) in [
            (parent, 0o755),
            (&instance.run_folder(), 0o755),
            (&socket, 0o666),
        ] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        assert_eq!(
            connect_as(own, &socket),
            "open",
            "the control: its own user"
        );
        for &other in others {
            assert_eq!(connect_as(other, &socket), "closed", "user {other}");
        }
        // It goes on serving its own, once its directory is closed again.
        fs::set_permissions(instance.run_folder(), fs::Permissions::from_mode(0o700)).unwrap();
        instance.run(["--", "true"]).status_is(0);
        assert_nothing_left(&instance);
    }
}

/// A run directory is named where it is refused, and nothing is made in it.
#[test]
fn a_run_directory_of_others_is_refused() {
    let name = "crash::a_run_directory_of_others_is_refused";
    if !need(name, &[Need::Root, Need::Program("setpriv")]) {
        return;
    }
    for who in [Who::Me, Who::Ordinary] {
        let instance = Instance::of(who);
        let place = instance.scratch("elsewhere");
        let own = place.join("own");
        let linked = place.join("linked");
        let foreign = place.join("foreign");
        let wide = place.join("wide");
        for (folder, uid, mode) in [
            (&own, who, 0o700),
            (&foreign, who, 0o700),
            (&wide, who, 0o770),
        ] {
            fs::create_dir(folder).unwrap();
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
            let me = if uid == Who::Me { 0 } else { 1000 };
            chown(folder, Some(me), Some(me)).unwrap();
        }
        chown(&foreign, Some(1001), Some(1001)).unwrap();
        std::os::unix::fs::symlink(&own, &linked).unwrap();
        for (folder, why) in [
            (&linked, "it is a symbolic link"),
            (&foreign, "it belongs to another user"),
            (&wide, "its mode lets other users in"),
        ] {
            let mut command = instance.command(["run", "--", "true"]);
            command.env("LEASEHOLD_RUN_DIR", folder);
            let refused = Running::start(&mut command, None).wait(SOON).status_is(125);
            let said = refused.err();
            assert!(said.contains(&folder.display().to_string()), "{said}");
            assert!(said.contains(why), "{said}");
            assert_eq!(
                fs::read_dir(folder).unwrap().count(),
                0,
                "nothing was made in it"
            );
        }
        // The control: the same directory by its own name is good.
        let mut command = instance.command(["run", "--", "true"]);
        command.env("LEASEHOLD_RUN_DIR", &own);
        Running::start(&mut command, None).wait(SOON).status_is(0);
        let mut stop = instance.command(["stop"]);
        stop.env("LEASEHOLD_RUN_DIR", &own);
        Running::start(&mut stop, None).wait(SOON).status_is(0);
        assert_nothing_left(&instance);
    }
}
