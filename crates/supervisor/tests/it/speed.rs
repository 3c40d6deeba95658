//! Figures, printed and not asserted: how long a run takes on the supervisor's own clock.

use leasehold_core::sandbox::state::State;
use leasehold_core::spec::{ExecSpec, SandboxSpec};
use leasehold_protocol::supervisor::{Event, Request};

use crate::harness::{Supervisor, eventually};

#[test]
fn from_claim_to_exit() {
    let Some(supervisor) = Supervisor::start("speed") else {
        return;
    };
    let mut client = supervisor.connect();
    let done = client.run(200, SandboxSpec::default(), ExecSpec::command(["true"]));
    eprintln!("cold: {:?} {:?}", done.took, done.stages);
    let pool = Request::Pool {
        sandbox: SandboxSpec::default(),
        count: 4,
    };
    assert_eq!(client.ask(pool).0, Event::Done);
    let mut rows: Vec<[u64; 7]> = Vec::new();
    let mut took = Vec::new();
    for letter in 0..100 {
        // Full again, so that nothing is made beside it.
        eventually("the pool is full", || {
            let Event::Status { sandboxes } = client.ask(Request::Status).0 else {
                return false;
            };
            sandboxes
                .iter()
                .filter(|one| one.state == State::Parked)
                .count()
                == 4
        });
        let done = client.run(
            letter,
            SandboxSpec::default(),
            ExecSpec::command(["/usr/bin/true"]),
        );
        if done.ended.warm {
            let mut row = [0; 7];
            for (at, time) in done.cleaned.stages.iter().enumerate() {
                row[at] = time.micros;
            }
            rows.push(row);
            took.push(done.took.as_micros());
        }
    }
    took.sort_unstable();
    eprintln!(
        "warm runs: {} of 100, request to outcome p50 {} µs",
        rows.len(),
        took[took.len() / 2]
    );
    for (at, stage) in leasehold_core::stage::Stage::ALL.into_iter().enumerate() {
        let mut column: Vec<u64> = rows.iter().map(|row| row[at]).collect();
        column.sort_unstable();
        let pick = |share: usize| column[(column.len() - 1) * share / 100];
        eprintln!(
            "{:>10}: p10 {:>6} p50 {:>6} p95 {:>6} µs",
            stage.word(),
            pick(10),
            pick(50),
            pick(95)
        );
    }
}
