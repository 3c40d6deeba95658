//! For whom a pool is kept, and how long.

use std::time::Duration;

use leasehold_core::end::CancelledBy;
use leasehold_core::spec::SandboxSpec;
use leasehold_protocol::supervisor::{Event, Request, SandboxStatus, Target};

use crate::harness::{Client, Supervisor, eventually, run_id, shell};

/// How long these supervisors stay with nothing to do, and how much longer is surely over.
const IDLE_MS: &str = "1500";
const LONGER: Duration = Duration::from_millis(3_500);

fn pool(count: u32, held: bool) -> Request {
    Request::Pool {
        sandbox: SandboxSpec::default(),
        count,
        held,
    }
}

/// A supervisor with a pool of two whose caller is gone; with another caller.
fn forsaken(test: &str, held: bool) -> Option<(Supervisor, Client)> {
    let mut supervisor = Supervisor::start(test)?;
    supervisor.hurry(IDLE_MS);
    let mut first = supervisor.connect();
    assert_eq!(first.ask(pool(2, held)).0, Event::Done);
    let other = supervisor.connect();
    drop(first);
    Some((supervisor, other))
}

fn sandboxes(client: &mut Client) -> Vec<SandboxStatus> {
    match client.ask(Request::Status).0 {
        Event::Status { sandboxes } => sandboxes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pool_that_was_kept_for_a_caller_is_let_go_when_that_stays_away() {
    let Some((mut supervisor, mut other)) = forsaken("pools-held", true) else {
        return;
    };
    other.start(
        1,
        Target::New(SandboxSpec::default()),
        shell("sleep 600"),
        &[],
    );
    eventually("the run alone is left", || {
        let all = sandboxes(&mut other);
        matches!(&all[..], [one] if one.run == Some(run_id(1)))
    });
    let cancel = Request::Cancel {
        run: run_id(1),
        by: CancelledBy::Caller,
        at_once: true,
    };
    assert_eq!(other.ask(cancel).0, Event::Done);
    eventually("the run is gone", || sandboxes(&mut other).is_empty());
    drop(other);
    assert!(supervisor.child.wait().unwrap().success());
    assert!(supervisor.cgroups().is_empty());
    supervisor.succeed();
}

#[test]
fn a_pool_that_is_asked_for_anew_or_is_nobodys_stays() {
    for held in [true, false] {
        let Some((_supervisor, mut other)) = forsaken("pools-kept", held) else {
            return;
        };
        if held {
            assert_eq!(other.ask(pool(2, held)).0, Event::Done);
        }
        std::thread::sleep(LONGER);
        let pooled = |one: &SandboxStatus| one.pooled;
        let parked = sandboxes(&mut other).into_iter().filter(pooled).count();
        assert_eq!(parked, 2, "held: {held}");
        let done = other.run(1, SandboxSpec::default(), shell("echo x"));
        assert!(done.ended.warm, "held: {held}");
    }
}
