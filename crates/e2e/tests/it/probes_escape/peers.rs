//! P14: no other sandbox and none of our own processes can be seen, signalled, read or written.

use leasehold_e2e::{Instance, Need, Outcome, Running, Who, need};

use super::{PATIENCE, await_workload, field, helper, outside, workspace_with};

const PROWLER: &str = include_str!("../../../helpers/prowler.c");
const SHARED: [&str; 5] = ["segment", "file", "queue", "posix", "socket"];

/// Starts a victim in a sandbox.
fn victim(instance: &Instance, workspace: &str) -> Running {
    let words = [
        "run",
        "-q",
        "--workspace",
        workspace,
        "--",
        "/workspace/helper",
        "victim",
    ];
    let running = instance.start(words);
    // A message queue of POSIX cannot be made: no rule of Landlock reaches its file system.
    running.await_out("victim 1 1 1 0 1", PATIENCE);
    running
}

/// Prowls in a sandbox, and strikes everything at the end.
fn prowl(instance: &Instance, workspace: &str) -> Outcome {
    let words = [
        "run",
        "-q",
        "--workspace",
        workspace,
        "--",
        "/workspace/helper",
        "prowl",
        "all",
    ];
    instance.start(words).wait(PATIENCE)
}

/// The numbers after a word, one from each line that begins with it.
fn told<'a>(outcome: &'a str, word: &str) -> Vec<&'a str> {
    let lines = outcome
        .lines()
        .filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    lines.filter_map(|rest| rest.split(' ').next()).collect()
}

/// Whether a process is there and goes on.
fn alive(pid: i32) -> bool {
    field(pid, "State").starts_with('S')
}

#[track_caller]
fn harmless(outcome: &Outcome, single: bool) {
    let out = outcome.out();
    for word in ["read", "mem", "traced", "stolen"] {
        assert_eq!(told(&out, word), [""; 0], "{}", outcome.story());
    }
    // Init is there; the workload may signal it where both have one id, which does nothing to it.
    let (may, exists) = (told(&out, "may"), told(&out, "exists"));
    if single {
        assert_eq!((may, exists), (vec!["1"], vec![]), "{}", outcome.story());
    } else {
        assert_eq!((may, exists), (vec![], vec!["1"]), "{}", outcome.story());
    }
    for thing in SHARED {
        assert_eq!(told(&out, thing), ["none"], "{}", outcome.story());
    }
    assert!(out.contains("struck all"), "{}", outcome.story());
}

#[test]
fn p14_neither_peers_nor_our_processes_can_be_reached() {
    let test = "p14_neither_peers_nor_our_processes";
    if !need(
        test,
        &[
            Need::Root,
            Need::Program("unshare"),
            Need::Program("setpriv"),
        ],
    ) {
        return;
    }
    let Some(program) = helper(test, "prowler", PROWLER) else {
        return;
    };
    let (ours, theirs) = (Instance::new(), Instance::new());
    let workspace = workspace_with(&ours, &program);
    let peers = [victim(&ours, &workspace), victim(&theirs, &workspace)];
    let (init, workload) = await_workload(&ours, "helper", || peers[0].err());
    let outcome = prowl(&ours, &workspace).status_is(0);
    harmless(&outcome, false);
    for peer in &peers {
        assert!(!peer.out().contains("hit"), "{}", peer.out());
    }
    for (pid, name) in [(init, "leasehold-init"), (workload, "helper")] {
        assert!(alive(pid), "process `{name}` of a peer is gone");
    }

    strikes_without_walls(&ours, &program.display().to_string());
}

/// The control: the same two programs of one user in one place without anything between them.
#[track_caller]
fn strikes_without_walls(instance: &Instance, program: &str) {
    let script = "trap '' INT HUP QUIT TERM; \"$0\" victim > $1/out & for i in $(seq 200); do grep -q victim $1/out && break; sleep 0.05; done; \"$0\" prowl all; sleep 0.2; cat $1/out; kill -0 $! && echo survived";
    let folder = instance.scratch("control");
    std::os::unix::fs::chown(&folder, Some(65534), Some(65534)).expect("give it away");
    let top = folder.parent().expect("a parent");
    std::fs::set_permissions(top, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("open it");
    let words = [
        "unshare",
        "--pid",
        "--ipc",
        "--net",
        "--mount",
        "--mount-proc",
        "--fork",
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "--inh-caps=-all",
        "--",
        "sh",
        "-c",
        script,
        program,
        &folder.display().to_string(),
    ];
    let free = outside(&words, None);
    let out = free.out();
    let may = told(&out, "may");
    assert!(!may.is_empty(), "{}", free.story());
    assert!(
        out.contains("secret-of-the-victim") && !told(&out, "read").is_empty(),
        "{}",
        free.story()
    );
    assert!(
        !told(&out, "mem").is_empty() && !told(&out, "traced").is_empty(),
        "{}",
        free.story()
    );
    for thing in SHARED {
        assert_eq!(told(&out, thing), ["reached"], "{}", free.story());
    }
    assert!(
        out.contains("hit 10\n") && out.contains("hit 15\n"),
        "{}",
        free.story()
    );
    assert!(!out.contains("survived"), "{}", free.story());
}

#[test]
fn p14_with_one_id_our_processes_are_out_of_reach_too() {
    let test = "p14_with_one_id";
    if !need(test, &[Need::Root, Need::Program("setpriv")]) {
        return;
    }
    let Some(program) = helper(test, "prowler", PROWLER) else {
        return;
    };
    let instance = Instance::of(Who::Ordinary);
    let single = instance.record_of(&[], "true")["contract"]["posture"]["single_uid"] == true;
    let workspace = workspace_with(&instance, &program);
    let peer = victim(&instance, &workspace);
    let (init, workload) = await_workload(&instance, "helper", || peer.err());
    // The control is above: what is told to be there in one place is all of it.
    let outcome = prowl(&instance, &workspace).status_is(0);
    harmless(&outcome, single);
    assert!(!peer.out().contains("hit"), "{}", peer.out());
    assert!(alive(init) && alive(workload), "a peer is gone");
}
