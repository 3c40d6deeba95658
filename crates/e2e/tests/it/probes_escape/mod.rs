//! Probes of escape and of what is visible: a hostile guest, judged from the host.
//!
//! Each answers one or a few numbered probes of the design, and each has its control in the same test:
//! the same attempt with the guard off must be seen to have its bad effect. The wisdom is in
//! `posture.txt` (what a process of a sandbox must look like) and in `helpers/calls.txt` (what it may
//! call).

mod binaries;
mod calls;
mod descriptors;
mod downgrade;
mod network;
mod peers;
mod posture;
mod snapshot;
mod surface;
mod terminal;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_e2e::{Instance, Need, Outcome, Running, Who, c_helper, need, patience, skip};

/// Longest that a sandbox may take to be there, or a helper to do its work.
const PATIENCE: Duration = Duration::from_secs(30);

/// A sandbox whose command goes on until it is dropped, and its processes on the host.
struct Held {
    /// The command line; dropped, it ends, and the sandbox with it.
    _running: Running,
    init: i32,
    workload: i32,
}

/// Runs a command that does not end by itself, and waits until a process of that name is there.
fn hold(instance: &Instance, args: &[&str], name: &str) -> Held {
    let running = instance.start(args);
    let (init, workload) = await_workload(instance, name, || running.err());
    Held {
        _running: running,
        init,
        workload,
    }
}

/// The first sandbox of an instance with a process of that name: its init and that process.
fn await_workload(instance: &Instance, name: &str, told: impl Fn() -> String) -> (i32, i32) {
    let end = Instant::now() + PATIENCE * patience();
    loop {
        let parents = parents();
        let found = inits(instance, &parents).into_iter().find_map(|init| {
            let mut all = below(init, &parents).into_iter();
            Some((init, all.find(|pid| comm(*pid) == name)?))
        });
        match found {
            Some(found) => return found,
            None if Instant::now() > end => panic!("no process `{name}` in a sandbox: {}", told()),
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Process ids of every process 1 of a sandbox: the children of the supervisor that are first in a pid
/// namespace.
fn inits(instance: &Instance, parents: &BTreeMap<i32, i32>) -> Vec<i32> {
    let supervisor = instance.supervisor().unwrap_or(0).cast_signed();
    parents
        .iter()
        .filter(|(_, parent)| **parent == supervisor)
        .map(|(pid, _)| *pid)
        .filter(|pid| {
            let ids = field(*pid, "NSpid");
            let ids: Vec<&str> = ids.split_whitespace().collect();
            ids.len() > 1 && ids.last() == Some(&"1")
        })
        .collect()
}

/// Every process of the host with its parent.
fn parents() -> BTreeMap<i32, i32> {
    let Ok(listing) = fs::read_dir("/proc") else {
        return BTreeMap::new();
    };
    listing
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, field(pid, "PPid").parse().ok()?)))
        .collect()
}

/// Everything below a process.
fn below(top: i32, parents: &BTreeMap<i32, i32>) -> Vec<i32> {
    let mut found = vec![top];
    let mut at = 0;
    while at < found.len() {
        let children = parents.iter().filter(|(_, parent)| **parent == found[at]);
        found.extend(children.map(|(pid, _)| *pid).collect::<Vec<_>>());
        at += 1;
    }
    found.remove(0);
    found
}

fn comm(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim().to_owned()
}

/// One field of `/proc/PID/status`.
fn field(pid: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// What the descriptors of a process lead to, by number.
fn descriptors_of(pid: i32) -> BTreeMap<i32, String> {
    let Ok(listing) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return BTreeMap::new();
    };
    listing
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let number = path.file_name()?.to_str()?.parse().ok()?;
            Some((number, fs::read_link(&path).ok()?.display().to_string()))
        })
        .collect()
}

/// Whoever may make sandboxes here: root, and a user without rights where one can be become.
fn everybody(test: &str) -> Vec<Who> {
    if need(
        &format!("{test} (ordinary user)"),
        &[Need::Program("setpriv")],
    ) {
        vec![Who::Me, Who::Ordinary]
    } else {
        vec![Who::Me]
    }
}

/// A static helper; a loud skip where it cannot be compiled.
fn helper(test: &str, name: &str, source: &str) -> Option<PathBuf> {
    let found = c_helper(name, source);
    if found.is_none() {
        skip(test, "needs the program gcc");
    }
    found
}

/// A folder with a copy of a helper in it, to be given as a workspace.
fn workspace_with(instance: &Instance, helper: &Path) -> String {
    let folder = instance.scratch("guest");
    let copy = folder.join("helper");
    fs::copy(helper, &copy).expect("copy the helper");
    folder.display().to_string()
}

/// Runs a program outside every sandbox and waits for its end.
fn outside(words: &[&str], input: Option<Vec<u8>>) -> Outcome {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    Running::start(&mut command, input).wait(PATIENCE)
}
