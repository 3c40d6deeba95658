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
        held: false,
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

#[test]
fn runs_per_second() {
    let Some(supervisor) = Supervisor::start("speed-rate") else {
        return;
    };
    let pool = Request::Pool {
        sandbox: SandboxSpec::default(),
        count: 32,
        held: false,
    };
    assert_eq!(supervisor.connect().ask(pool).0, Event::Done);
    let memory = supervisor.rss_kb();
    let (own, all) = supervisor.cpu_ms();
    let begun = std::time::Instant::now();
    let rows: Vec<(u32, u32)> = std::thread::scope(|scope| {
        let supervisor = &supervisor;
        let loops: Vec<_> = (0..4u8)
            .map(|lane| {
                scope.spawn(move || {
                    let mut client = supervisor.connect();
                    let (mut runs, mut warm) = (0u32, 0u32);
                    while begun.elapsed().as_secs() < 4 {
                        let exec = ExecSpec::command(["/usr/bin/true"]);
                        let done = client.run_as(lane, runs, SandboxSpec::default(), exec);
                        runs += 1;
                        warm += u32::from(done.ended.warm);
                    }
                    (runs, warm)
                })
            })
            .collect();
        loops.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let seconds = begun.elapsed().as_secs_f64();
    let (runs, warm) = rows
        .iter()
        .fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    let grown = supervisor.rss_kb().saturating_sub(memory);
    let rate = f64::from(runs) / seconds;
    let per_run = |ms: u64| ms as f64 / f64::from(runs);
    let (own, all) = (supervisor.cpu_ms().0 - own, supervisor.cpu_ms().1 - all);
    eprintln!(
        "processor time per run: supervisor {:.2} ms, spawner and sandboxes {:.2} ms",
        per_run(own),
        per_run(all)
    );
    eprintln!("{rate:.0} runs/s by 4 callers, {warm} of {runs} warm, {grown} KiB more memory");
}
