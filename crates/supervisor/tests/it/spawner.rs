//! Deaths of the spawner: idle, at work, with orders in its socket, and again and again.

use std::time::{Duration, Instant};

use leasehold_core::end::EndReason;
use leasehold_core::id::RunId;
use leasehold_core::spec::SandboxSpec;
use leasehold_protocol::supervisor::{Event, Request, Target};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Client, Supervisor, eventually, shell};

/// Most orders a spawner has at one time.
const ORDERS: usize = 32;

/// The children of a process with their names.
fn children(parent: u32) -> Vec<(u32, String)> {
    let list = format!("/proc/{parent}/task/{parent}/children");
    let list = std::fs::read_to_string(list).unwrap_or_default();
    let pids = list.split_whitespace().map(|pid| pid.parse().unwrap());
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    pids.map(|pid| (pid, name(pid).trim().to_owned())).collect()
}

/// The letter of a process's state; empty when it is gone.
fn state(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    state.chars().take(1).collect()
}

fn zombie(pid: u32) -> bool {
    matches!(state(pid).as_str(), "" | "Z")
}

/// Whether every child of the supervisor lives, and one of them alone is a spawner.
fn one_spawner_and_no_zombie(supervisor: &Supervisor) -> bool {
    let all = children(supervisor.child.id());
    let spawners = all.iter().filter(|(_, name)| name == "lease-spawner");
    spawners.count() == 1 && !all.iter().any(|(pid, _)| zombie(*pid))
}

/// A supervisor whose spawner has made something.
fn started(test: &str) -> Option<(Supervisor, Client)> {
    let supervisor = Supervisor::start(test)?;
    let mut client = supervisor.connect();
    let done = client.run(255, SandboxSpec::default(), shell("true"));
    assert_eq!(done.ended.end, Some(EndReason::Completed));
    Some((supervisor, client))
}

/// The spawner of a supervisor that makes nothing.
fn spawner(supervisor: &Supervisor) -> u32 {
    let mut found = None;
    eventually("the spawner is alone", || {
        let all = children(supervisor.child.id()).into_iter();
        let all = all.filter(|(_, name)| name == "lease-spawner");
        let pids: Vec<u32> = all.map(|(pid, _)| pid).collect();
        found = pids.first().copied();
        pids.len() == 1
    });
    found.unwrap()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

fn pool(count: u32) -> Request {
    let sandbox = SandboxSpec::default();
    Request::Pool {
        sandbox,
        count,
        held: false,
    }
}

fn parked(client: &mut Client) -> usize {
    match client.ask(Request::Status).0 {
        Event::Status { sandboxes } => sandboxes.len(),
        other => panic!("{other:?}"),
    }
}

/// Times that the supervisor saw a spawner lost.
fn losses(supervisor: &Supervisor) -> usize {
    supervisor.log().matches("the spawner is lost").count()
}

fn nothing_left(supervisor: &Supervisor, client: &mut Client) {
    assert_eq!(client.ask(pool(0)).0, Event::Done);
    eventually("the ledger is empty", || supervisor.ledger().is_empty());
    assert!(supervisor.cgroups().is_empty());
    eventually("one spawner and no zombie", || {
        one_spawner_and_no_zombie(supervisor)
    });
}

/// Before every third order the spawner is dead and nobody knows it yet.
#[test]
fn what_a_dead_spawner_does_not_take_is_made_by_the_next() {
    let fault = [("LEASEHOLD_FAULT", "spawner")];
    let Some(supervisor) = Supervisor::start_with("spawner-orders", &fault) else {
        return;
    };
    let mut client = supervisor.connect();
    for letter in 1..=6 {
        let done = client.run(letter, SandboxSpec::default(), shell("echo x"));
        assert_eq!(done.ended.end, Some(EndReason::Completed), "{letter}");
        assert!(done.cleaned.cleanup.unwrap().clean());
    }
    for _ in 0..3 {
        let sandbox = SandboxSpec::default();
        match client
            .ask(Request::Provision {
                sandbox,
                held: false,
            })
            .0
        {
            Event::Provisioned { sandbox, .. } => {
                let gone = client.ask(Request::Destroy { sandbox }).0;
                assert!(matches!(gone, Event::Destroyed(observed) if observed.clean()));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(losses(&supervisor), 4, "{}", supervisor.log());
    // Of two in the making one may be lost with it; never three in a row.
    assert_eq!(client.ask(pool(8)).0, Event::Done);
    assert_eq!(parked(&mut client), 8);
    assert!(losses(&supervisor) > 5);
    nothing_left(&supervisor, &mut client);
}

/// Both news of one death come at once: that it ended, and that its socket did.
#[test]
fn one_death_is_one_loss() {
    let Some((supervisor, mut client)) = started("spawner-once") else {
        return;
    };
    for round in 1..=3 {
        let first = spawner(&supervisor);
        signal(supervisor.child.id(), Signal::STOP);
        eventually("it is stopped", || state(supervisor.child.id()) == "T");
        // A call first, so that it is ordered of the dead one.
        client.start(
            round,
            Target::New(SandboxSpec::default()),
            shell("echo x"),
            &[],
        );
        signal(first, Signal::KILL);
        eventually("it is dead", || zombie(first));
        signal(supervisor.child.id(), Signal::CONT);
        let done = client.follow(Instant::now());
        assert_eq!(done.ended.end, Some(EndReason::Completed), "{round}");
        assert_ne!(spawner(&supervisor), first);
        assert_eq!(
            losses(&supervisor),
            usize::from(round),
            "{}",
            supervisor.log()
        );
    }
    nothing_left(&supervisor, &mut client);
}

/// A stopped spawner takes orders and does nothing: what is in its socket is lost with it, and told;
/// what had not been ordered is made by its successor.
#[test]
fn sandboxes_that_wait_for_a_dead_spawner_are_ordered_of_its_successor() {
    let Some((supervisor, mut client)) = started("spawner-waiting") else {
        return;
    };
    let first = spawner(&supervisor);
    signal(first, Signal::STOP);
    let waiting = 8;
    for number in 0..ORDERS + waiting {
        let mut entropy = [7; 13];
        entropy[0] = number as u8;
        let run = RunId::from_entropy(&entropy);
        let target = Target::New(SandboxSpec::default());
        let exec = shell("true");
        client.send(Request::run(run, target, exec), &[]);
    }
    eventually("all have their ledger entry", || {
        supervisor.ledger().len() == ORDERS + waiting
    });
    let killed = Instant::now();
    signal(first, Signal::KILL);
    let (mut completed, mut unavailable) = (0, 0);
    while completed + unavailable < ORDERS + waiting {
        let Event::Cleaned(record) = client.next().unwrap().0.event else {
            continue;
        };
        assert!(record.cleanup.unwrap().clean());
        match record.end.unwrap() {
            EndReason::Completed => completed += 1,
            EndReason::SandboxUnavailable { detail } => {
                assert!(detail.contains("the spawner is gone"), "{detail}");
                unavailable += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((completed, unavailable), (waiting, ORDERS));
    assert!(killed.elapsed() < Duration::from_secs(10));
    nothing_left(&supervisor, &mut client);
}

/// In the middle of making many, again and again: whoever waits is answered, and what was half made
/// is ended, removed and reaped.
#[test]
fn a_spawner_killed_while_it_makes_sandboxes_leaves_none_half_made() {
    let Some((supervisor, mut client)) = started("spawner-middle") else {
        return;
    };
    for round in 0..12_u64 {
        let first = spawner(&supervisor);
        let before = losses(&supervisor);
        let begun = Instant::now();
        let tag = client.send(pool(12), &[]);
        eventually("a sandbox in the making", || {
            !supervisor.ledger().is_empty()
        });
        std::thread::sleep(Duration::from_millis(round * 3));
        signal(first, Signal::KILL);
        eventually("the loss is seen", || losses(&supervisor) > before);
        let answer = loop {
            let (notice, _) = client.next().unwrap();
            if notice.tag == tag {
                break notice.event;
            }
        };
        // Two lost at once are no three in a row.
        assert_eq!(answer, Event::Done, "{round}: {}", supervisor.log());
        assert!(begun.elapsed() < Duration::from_secs(20), "{round}");
        eventually("twelve are parked", || parked(&mut client) == 12);
        nothing_left(&supervisor, &mut client);
    }
}

/// One that is alive and does nothing is ended when its time is over.
#[test]
fn a_spawner_that_falls_silent_is_replaced() {
    let Some((supervisor, mut client)) = started("spawner-silent") else {
        return;
    };
    let first = spawner(&supervisor);
    signal(first, Signal::STOP);
    let late = client.run(1, SandboxSpec::default(), shell("true"));
    let end = late.ended.end.unwrap();
    assert!(
        matches!(end, EndReason::SandboxUnavailable { .. }),
        "{end:?}"
    );
    assert!(late.took > Duration::from_secs(11) && late.took < Duration::from_secs(20));
    assert!(late.cleaned.cleanup.unwrap().clean());
    let done = client.run(2, SandboxSpec::default(), shell("true"));
    assert_eq!(done.ended.end, Some(EndReason::Completed));
    assert_ne!(spawner(&supervisor), first);
    nothing_left(&supervisor, &mut client);
}

/// A start whose spawner is killed before it can do anything has another.
#[test]
fn a_spawner_killed_at_the_start_is_replaced() {
    for round in 1..=4 {
        let Some(supervisor) = Supervisor::start("spawner-start") else {
            return;
        };
        signal(spawner(&supervisor), Signal::KILL);
        let mut client = supervisor.connect();
        eventually("the loss is seen", || losses(&supervisor) == 1);
        let done = client.run(round, SandboxSpec::default(), shell("true"));
        assert_eq!(done.ended.end, Some(EndReason::Completed));
        nothing_left(&supervisor, &mut client);
    }
}
