//! What something else of the host holds of a sandbox that is gone: a descriptor, a process, a socket. It is
//! named, held apart, and freed when its holder is gone.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::process::{Child, Command};

use leasehold_core::end::CancelledBy;
use leasehold_core::record::Observed;
use leasehold_core::spec::SandboxSpec;
use leasehold_core::stage::Stage;
use leasehold_protocol::supervisor::{Event, Request, Target};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::harness::{Client, Supervisor, eventually, namespaces_are_seen, run_id, shell};

/// Something of the host that holds a namespace, as long as it is there.
enum Holder {
    Descriptor(#[allow(dead_code, reason = "it is held")] File),
    Process(Child),
    Socket(#[allow(dead_code, reason = "it is held")] TcpListener),
}

impl Drop for Holder {
    fn drop(&mut self) {
        if let Self::Process(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn descriptor(init: u32, kind: &str) -> Holder {
    Holder::Descriptor(File::open(format!("/proc/{init}/ns/{kind}")).unwrap())
}

fn process(init: u32, kind: &str) -> Holder {
    let (target, ours) = (init.to_string(), format!("/proc/self/ns/{kind}"));
    let mut command = Command::new("nsenter");
    command.args([
        "--target",
        &target,
        &format!("--{kind}"),
        "/usr/bin/sleep",
        "600",
    ]);
    let child = command.spawn().unwrap();
    let theirs = format!(
        "/proc/{}/ns/{}",
        child.id(),
        if kind == "mount" { "mnt" } else { kind }
    );
    let ours = std::fs::read_link(ours.replace("mount", "mnt")).unwrap();
    eventually("it is inside", || {
        std::fs::read_link(&theirs).is_ok_and(|link| link != ours)
    });
    Holder::Process(child)
}

/// A listening socket that was made inside by a thread of ours, which is gone.
fn socket(init: u32) -> Holder {
    let namespace = File::open(format!("/proc/{init}/ns/net")).unwrap();
    let made = std::thread::spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        TcpListener::bind("127.0.0.1:0").unwrap()
    });
    Holder::Socket(made.join().unwrap())
}

/// Ends a run while something is held of its sandbox.
fn ended_beside(
    client: &mut Client,
    letter: u8,
    hold: impl Fn(u32) -> Holder,
) -> (Observed, Holder) {
    let exec = shell("sleep 1000");
    client.start(letter, Target::New(SandboxSpec::default()), exec, &[]);
    while !matches!(client.next().unwrap().0.event, Event::Stage(t) if t.stage == Stage::Inject) {}
    let status = match client.ask(Request::Status).0 {
        Event::Status { sandboxes } => sandboxes,
        other => panic!("{other:?}"),
    };
    let own = status
        .iter()
        .find(|one| one.run == Some(run_id(letter)))
        .unwrap();
    let holder = hold(own.init_pid);
    let (run, by, at_once) = (run_id(letter), CancelledBy::Caller, true);
    client.send(Request::Cancel { run, by, at_once }, &[]);
    loop {
        if let Event::Cleaned(record) = client.next().unwrap().0.event {
            return (record.cleanup.unwrap(), holder);
        }
    }
}

fn left(observed: &Observed) -> Vec<&str> {
    let rows = observed.residues.iter().filter(|row| !row.clean);
    rows.map(|row| row.resource.as_str()).collect()
}

/// Kinds that are looked at themselves.
const SEEN: [&str; 4] = ["mounts", "netns", "namespaces", "sockets"];

#[test]
fn what_the_host_holds_of_a_sandbox_is_named_and_freed_when_its_holder_is_gone() {
    let Some(supervisor) = Supervisor::start("held-run") else {
        return;
    };
    if !namespaces_are_seen("held-run") {
        return;
    }
    let mut client = supervisor.connect();
    type Hold = fn(u32) -> Holder;
    let cases: [(&str, Hold, &[&str]); 6] = [
        (
            "a mount namespace, open",
            |init| descriptor(init, "mnt"),
            &["mounts", "scratch", "uids"],
        ),
        (
            "a mount namespace, entered",
            |init| process(init, "mount"),
            &["mounts", "scratch", "uids"],
        ),
        (
            "a network, open",
            |init| descriptor(init, "net"),
            &["netns", "sockets", "uids"],
        ),
        (
            "a network, entered",
            |init| process(init, "net"),
            &["netns", "sockets", "uids"],
        ),
        (
            "a socket in a network",
            socket,
            &["netns", "sockets", "uids"],
        ),
        (
            "a host name, open",
            |init| descriptor(init, "uts"),
            &["namespaces", "uids"],
        ),
    ];
    let mut holders = Vec::new();
    for (letter, (what, hold, wanted)) in (1..).zip(cases) {
        let (observed, holder) = ended_beside(&mut client, letter, hold);
        assert_eq!(left(&observed), wanted, "{what}: {observed:?}");
        holders.push(holder);
    }
    assert!(
        supervisor
            .log()
            .contains(&format!("is held by process {}", std::process::id()))
    );
    // The control: with no holder all is gone, and was looked at.
    let (observed, _) = ended_beside(&mut client, 100, |_| descriptor(std::process::id(), "mnt"));
    assert!(observed.clean(), "{observed:?}");
    let rows = observed
        .residues
        .iter()
        .filter(|row| SEEN.contains(&row.resource.as_str()));
    assert_eq!(
        rows.filter(|row| !row.inferred).count(),
        SEEN.len(),
        "{observed:?}"
    );
    assert_eq!(supervisor.ledger().len(), cases.len());
    drop(holders);
    eventually("all is freed", || supervisor.ledger().is_empty());
}

#[test]
fn what_is_held_over_the_end_of_a_supervisor_is_held_apart_by_the_next() {
    let Some(mut supervisor) = Supervisor::start("held-on") else {
        return;
    };
    if !namespaces_are_seen("held-on") {
        return;
    }
    let (observed, holder) = ended_beside(&mut supervisor.connect(), 1, socket);
    assert_eq!(left(&observed), ["netns", "sockets", "uids"]);
    supervisor.kill();
    supervisor.succeed();
    assert_eq!(supervisor.ledger().len(), 1, "{}", supervisor.log());
    drop(holder);
    supervisor.kill();
    supervisor.succeed();
    // At once, or with an attempt of its own: the kernel frees a listening socket a moment later.
    eventually("it is freed", || supervisor.ledger().is_empty());
}
