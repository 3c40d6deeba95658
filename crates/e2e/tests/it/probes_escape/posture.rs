//! P01: every process of a sandbox is on the host exactly what the record says, whichever way it came in.

use std::process::Command;

use leasehold_e2e::{Instance, Need, Running, Who, need, skip, until};

use crate::terminal::Session;

use super::snapshot::{self, differences};
use super::{PATIENCE, await_workload, below, comm, hold, inits, parents};

/// What a process of a sandbox must look like.
const RECORD: &str = include_str!("posture.txt");

#[track_caller]
fn equals_record(pid: i32, words: &[&str]) {
    let seen = snapshot::of(pid);
    let found = differences(RECORD, words, &seen);
    assert!(found.is_empty(), "{words:?}:\n{}", found.join("\n"));
}

/// The ways in that the command line has.
fn every_way_in(who: Who, word: &str) {
    skip(
        &format!("p01_every_process ({word}, a command of a started agent)"),
        "the command line starts none yet",
    );
    let instance = Instance::of(who);
    let held = hold(&instance, &["run", "--", "sleep", "60"], "sleep");
    equals_record(held.init, &[word, "host", "init"]);
    equals_record(held.workload, &[word, "host", "workload", "cold", "pipes"]);
    drop(held);
    let instance = Instance::of(who);
    let session = Session::start(&instance, &["run", "--tty", "--", "sleep", "60"]);
    let (init, workload) = await_workload(&instance, "sleep", || session.seen());
    equals_record(init, &[word, "host", "init"]);
    equals_record(workload, &[word, "host", "workload", "cold", "tty"]);
    drop(session);
    let instance = Instance::of(who);
    let pool = instance.cli(["pool", "1"]);
    assert_eq!(pool.status, 0, "{}", pool.story());
    let (init, stub) = until("a parked stub", PATIENCE, || {
        let parents = parents();
        let init = *inits(&instance, &parents).first()?;
        Some((init, *below(init, &parents).first()?))
    });
    equals_record(init, &[word, "host", "init"]);
    equals_record(stub, &[word, "host", "stub"]);
}

#[test]
fn p01_every_process_of_roots_sandboxes_is_on_record() {
    if !need("p01_every_process_of_roots_sandboxes", &[Need::Root]) {
        return;
    }
    every_way_in(Who::Me, "root");
}

#[test]
fn p01_every_process_of_an_ordinary_users_sandboxes_is_on_record() {
    let needs = [Need::Root, Need::Program("setpriv")];
    if !need("p01_every_process_of_an_ordinary_users_sandboxes", &needs) {
        return;
    }
    let instance = Instance::of(Who::Ordinary);
    let record = instance.record_of(&[], "true");
    if record["contract"]["posture"]["single_uid"] != true {
        skip(
            "p01_every_process_of_an_ordinary_users_sandboxes",
            "the record is that of a user without a range of ids, and user 1000 has one",
        );
        return;
    }
    drop(instance);
    every_way_in(Who::Ordinary, "user");
}

#[test]
fn p01_a_warm_interpreter_is_on_record() {
    let needs = [Need::Root, Need::Path("/usr/bin/python3")];
    if !need("p01_a_warm_interpreter_is_on_record", &needs) {
        return;
    }
    let instance = Instance::new();
    let script = "import time; time.sleep(60)";
    let running = instance.start(["run", "--warm", "python", "--", "python3", "-c", script]);
    let (init, workload) = await_workload(&instance, "python3", || running.err());
    // It waits for its command under the same name.
    until("the interpreter at its command", PATIENCE, || {
        snapshot::of(workload)
            .contains(&("fd 1".to_owned(), "pipe writes".to_owned()))
            .then_some(())
    });
    equals_record(init, &["root", "host", "init"]);
    equals_record(workload, &["root", "host", "workload", "pipes", "warm"]);
}

/// In an image every process is what it is elsewhere, but for its root.
#[test]
fn p01_every_process_in_an_image_is_on_record() {
    let needs = [Need::Root, Need::Program("umoci"), Need::Program("busybox")];
    if !need("p01_every_process_in_an_image_is_on_record", &needs) {
        return;
    }
    let instance = Instance::new();
    let _ = crate::image_runs::plain(&instance, "tool:1");
    let words = ["run", "--image", "tool:1", "--", "sleep", "60"];
    let held = hold(&instance, &words, "sleep");
    equals_record(held.init, &["root", "image", "init"]);
    let workload = ["root", "image", "workload", "cold", "pipes"];
    equals_record(held.workload, &workload);
    // The control: by the record of a root of the host it differs.
    let seen = snapshot::of(held.workload);
    let found = differences(
        RECORD,
        &["root", "host", "workload", "cold", "pipes"],
        &seen,
    )
    .join("\n");
    for part in ["mount / = ro", "mount / = rw", "mount /usr", "exe"] {
        assert!(found.contains(part), "`{part}` is no difference:\n{found}");
    }
    drop(held);
    let instance = Instance::new();
    let _ = crate::image_runs::plain(&instance, "tool:1");
    let words = ["run", "--tty", "--image", "tool:1", "--", "sleep", "60"];
    let session = Session::start(&instance, &words);
    let (_, workload) = await_workload(&instance, "sleep", || session.seen());
    equals_record(workload, &["root", "image", "workload", "cold", "tty"]);
}

/// The control: a process that nothing confines differs in every group of fields, and a field that the
/// record does not know is a difference.
#[test]
fn p01_what_is_not_confined_differs() {
    if !need("p01_what_is_not_confined_differs", &[Need::Root]) {
        return;
    }
    let mut command = Command::new("sleep");
    let running = Running::start(command.arg("60"), None);
    let pid = i32::try_from(running.pid()).expect("pid");
    until("the program", PATIENCE, || {
        (comm(pid) == "sleep").then_some(())
    });
    let words = ["root", "host", "workload", "cold", "pipes"];
    let found = differences(RECORD, &words, &snapshot::of(pid)).join("\n");
    for part in [
        "status CapEff",
        "status CapBnd",
        "status NoNewPrivs",
        "status Seccomp",
        "status Uid",
        "ns user",
        "ns mnt",
        "ns pid",
        "ns net",
        "ns ipc",
        "ns uts",
        "ns cgroup",
        "uid_map 0",
        "uid_map = contains root of the host",
        "setgroups",
        "mount /proc",
        "limit core file size",
        "cwd",
        "oom_score_adj",
        "env ",
    ] {
        assert!(found.contains(part), "`{part}` is no difference:\n{found}");
    }
    let unknown = ("status Unheard-of".to_owned(), "1".to_owned());
    let told = differences("", &words, &[unknown].into_iter().collect());
    assert_eq!(told, ["seen, not on record: status Unheard-of = 1"]);
    let told = differences(
        "[workload] ns user = own",
        &words,
        &snapshot::Snapshot::new(),
    );
    assert_eq!(told, ["on record, not seen: ns user = own"]);
}
