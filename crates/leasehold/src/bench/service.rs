//! The whole service: a run asked for over HTTP, with everything durable that a run leaves, against the same
//! run given to a supervisor alone, against the smallest service there can be and against `bwrap`, round
//! by round; then many at once, and what the daemon holds of the memory.
//!
//! What is not asked for over HTTP goes to a supervisor of the bench's own: the daemon's ends, within 2 s, what no
//! daemon knows.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use leasehold_backend::process::client::Client;
use leasehold_core::spec::SandboxSpec;
use leasehold_protocol::supervisor::Target;
use serde_json::Value;

use super::Interrupt;
use super::arena::{self, Arena};
use super::bars::{Bar, Measured, Must, ratio};
use super::crowd::{CROWDS, growth};
use super::daemon::Daemon;
use super::ground::Ground;
use super::peer;
use super::report::Report;
use super::sample::{Samples, Summary};
use super::smallest::Smallest;
use super::wire::{Answer, Wire};
use crate::fault::Fault;

/// What is run, by all.
const TRUE: &str = "/usr/bin/true";
/// The same as a request: no word of it but the command, so that everything is the default.
const REQUEST: &[u8] = br#"{"command":["/usr/bin/true"]}"#;
/// Sandboxes kept parked.
const PARKED: u32 = 8;
/// Between two samples, so that the end of one is not measured with the next: the kernel takes about so
/// long to let a network namespace go.
const REST: Duration = Duration::from_millis(40);
/// Runs after which the daemon's memory is looked at again.
const RUNS: u32 = 1_000;

/// What is sampled in every round.
#[derive(Default)]
struct Rows {
    http: Samples,
    direct: Samples,
    smallest: Samples,
    cold_direct: u32,
}

/// Counters of the daemon that matter here.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    warm: f64,
    cold: f64,
    writes: f64,
    commits: f64,
}

/// Measures and reports.
///
/// # Errors
/// When something of ours fails; `bwrap` that fails is reported as not run here.
pub(crate) fn measure(
    runs: u32,
    ground: &Ground,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<(), Fault> {
    let arena = Arena::new(ground, "service")?;
    let apart = Arena::new(ground, "service-alone")?;
    let mut alone = apart.client()?;
    let daemon = Daemon::start(&arena, PARKED)?;
    let mut worker = daemon.worker()?;
    full(&mut worker)?;
    full(&mut alone)?;
    std::thread::sleep(REST * 10);
    memory(&daemon, "after its start", report)?;
    let mut wire = daemon.wire()?;
    let smallest = Smallest::start(&apart, TRUE, apart.client()?)?;
    single(
        runs,
        &arena,
        (&mut wire, smallest),
        (&mut worker, &mut alone),
        interrupt,
        report,
    )?;
    drop(alone);
    apart.stop()?;
    crowds(runs, &daemon, &mut wire, &mut worker, interrupt, report)?;
    for _ in 0..RUNS {
        interrupt.check()?;
        run(&mut wire)?;
    }
    std::thread::sleep(REST * 50);
    memory(&daemon, &format!("after {RUNS} runs more"), report)
}

/// One at a time, interleaved.
fn single(
    runs: u32,
    arena: &Arena,
    (wire, mut smallest): (&mut Wire, Smallest),
    (worker, alone): (&mut Client, &mut Client),
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<(), Fault> {
    let mut bwrap = peer::bwrap_with(arena, TRUE);
    let mut peers = Samples::default();
    let mut rows = Rows::default();
    let mut before = Counted::default();
    for round in 0..=runs {
        interrupt.check()?;
        let took = run(wire)?;
        full(worker)?;
        let target = Target::New(SandboxSpec::default());
        let times = arena::once(alone, target, arena::command(&[TRUE]), &[])?;
        full(alone)?;
        let least = answered(&mut smallest.wire)?.0;
        full(alone)?;
        if round == 0 {
            // It also paid for what is made once.
            before = counted(wire)?;
            continue;
        }
        rows.http.add(took);
        rows.smallest.add(least);
        match times.record.warm {
            true => rows.direct.add(times.ended),
            false => rows.cold_direct += 1,
        }
        if let Ok(peer) = &mut bwrap {
            match peer.once() {
                Ok(took) => peers.add(took),
                Err(reason) => bwrap = Err(reason),
            }
        }
    }
    let after = counted(wire)?;
    let bwrap = bwrap.and_then(|_| said(&peers));
    tell(runs, &rows, bwrap, (before, after), report);
    Ok(())
}

fn tell(
    runs: u32,
    rows: &Rows,
    bwrap: Measured,
    (before, after): (Counted, Counted),
    report: &mut Report,
) {
    let (http, direct) = (said(&rows.http), said(&rows.direct));
    report.row("POST /v1/runs, warm → outcome in the answer", http.clone());
    report.row("the same run by a supervisor alone → ended", direct.clone());
    let smallest = said(&rows.smallest);
    report.row(
        "the smallest service: HTTP, two synced rows, the same run",
        smallest.clone(),
    );
    report.row(format!("bwrap, {TRUE}"), bwrap.clone());
    let over = match (&http, &direct) {
        (Ok(http), Ok(direct)) => Ok(http.p50_ms - direct.p50_ms),
        (Err(why), _) | (_, Err(why)) => Err(why.clone()),
    };
    let p50 = |summary: &Summary| summary.p50_ms;
    report.bar(Bar::judge(
        "HTTP − the same run in the supervisor, p50",
        over,
        Must::AtMost(2.5),
        " ms",
    ));
    report.bar(Bar::judge(
        "bwrap ÷ POST /v1/runs, p50",
        ratio(&bwrap, &http, p50),
        Must::AtLeast(4.0),
        "",
    ));
    for (name, of) in [
        ("p50", p50 as fn(&Summary) -> f64),
        ("p95", |summary| summary.p95_ms),
    ] {
        if let (Ok(ours), Ok(bwrap)) = (ratio(&http, &smallest, of), ratio(&bwrap, &smallest, of)) {
            report.note(format!(
                "{name}: POST /v1/runs ÷ the smallest service {ours:.2}; bwrap ÷ the smallest service {bwrap:.2}"
            ));
        }
    }
    let each = |of: fn(&Counted) -> f64| (of(&after) - of(&before)) / f64::from(runs);
    report.note(format!(
        "one at a time: {:.2} writes in {:.2} commits for each run over HTTP; {} of {runs} were cold, and {} by the supervisor alone",
        each(|counted| counted.writes),
        each(|counted| counted.commits),
        after.cold - before.cold,
        rows.cold_direct
    ));
    let warm = after.warm - before.warm;
    if warm < f64::from(runs) {
        report.note(format!("only {warm} of {runs} runs over HTTP were warm"));
    }
}

/// Many at the same moment, each on a connection of its own.
fn crowds(
    runs: u32,
    daemon: &Daemon,
    wire: &mut Wire,
    worker: &mut Client,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<(), Fault> {
    let mut ends: Vec<(u32, Option<Summary>)> = Vec::new();
    let mut failures = 0;
    for crowd in CROWDS {
        let mut ended = Samples::default();
        let mut wires = Vec::new();
        for _ in 0..crowd {
            wires.push(daemon.wire()?);
        }
        let before = counted(wire)?;
        let mut asked = 0;
        for _ in 0..runs.div_ceil(crowd).max(2) {
            interrupt.check()?;
            full(worker)?;
            failures += burst(&mut wires, &mut ended);
            asked += crowd;
        }
        full(worker)?;
        let after = counted(wire)?;
        let none = || "every run failed".to_owned();
        report.row(
            format!("{crowd} at once over HTTP → outcome in the answer"),
            ended.summary().ok_or_else(none),
        );
        report.note(format!(
            "{crowd} at once: {:.2} commits for each run, {:.2} writes in each commit, {:.0} % warm",
            (after.commits - before.commits) / f64::from(asked),
            (after.writes - before.writes) / (after.commits - before.commits),
            100.0 * (after.warm - before.warm) / f64::from(asked)
        ));
        ends.push((crowd, ended.summary()));
    }
    for bar in growth("HTTP", &ends, failures) {
        report.bar(bar);
    }
    Ok(())
}

/// Asks for a run on every connection at the same moment. Says how many failed.
fn burst(wires: &mut [Wire], ended: &mut Samples) -> u32 {
    let start = Barrier::new(wires.len());
    let mut failures = 0;
    std::thread::scope(|scope| {
        let asked: Vec<_> = wires
            .iter_mut()
            .map(|wire| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    run(wire)
                })
            })
            .collect();
        for one in asked {
            match one.join() {
                Ok(Ok(took)) => ended.add(took),
                _ => failures += 1,
            }
        }
    });
    failures
}

/// Asks for one run, from the first byte sent to the last one read.
fn answered(wire: &mut Wire) -> Result<(Duration, Answer), Fault> {
    let failed = |error: std::io::Error| Fault::host("the service did not answer").because(&error);
    let begun = Instant::now();
    let answer = wire.ask("POST", "/v1/runs", REQUEST).map_err(failed)?;
    Ok((begun.elapsed(), answer))
}

/// One run over HTTP that does what it should.
fn run(wire: &mut Wire) -> Result<Duration, Fault> {
    let (took, answer) = answered(wire)?;
    let told: Value = serde_json::from_slice(&answer.body)
        .map_err(|error| Fault::host("the daemon answered no JSON").because(&error))?;
    let completed = told["outcome"].is_object() && told["error"].is_null();
    if answer.status == 200 && completed {
        return Ok(took);
    }
    Err(Fault::host(format!(
        "a run over HTTP did not complete: status {}, state {}, error {}",
        answer.status, told["state"], told["error"]
    )))
}

/// Waits until the pool is full and what came before has had its end.
fn full(worker: &mut Client) -> Result<(), Fault> {
    arena::pool(worker, SandboxSpec::default(), PARKED)?;
    std::thread::sleep(REST);
    Ok(())
}

fn said(samples: &Samples) -> Measured {
    samples
        .summary()
        .ok_or_else(|| "no sample was taken".to_owned())
}

fn memory(daemon: &Daemon, when: &str, report: &mut Report) -> Result<(), Fault> {
    let held = daemon.held()?;
    report.note(format!(
        "the daemon {when}: {:.1} MiB resident, {:.1} MiB proportional",
        held.resident, held.proportional
    ));
    report.bar(Bar::judge(
        format!("memory of the idle daemon {when}"),
        Ok(held.resident),
        Must::AtMost(60.0),
        " MiB",
    ));
    Ok(())
}

fn counted(wire: &mut Wire) -> Result<Counted, Fault> {
    let answer = wire
        .ask("GET", "/metrics", b"")
        .map_err(|error| Fault::host("the daemon did not answer").because(&error))?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    Ok(Counted {
        warm: metric(&text, "leasehold_warm_total"),
        cold: metric(&text, "leasehold_cold_total"),
        writes: metric(&text, "leasehold_store_writes_total"),
        commits: metric(&text, "leasehold_store_commits_total"),
    })
}

fn metric(text: &str, name: &str) -> f64 {
    let found = text.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(' ')?;
        value.parse().ok()
    });
    found.unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_read_by_its_whole_name() {
        let text = "# TYPE a_total counter\na_total_more 1\na_total 7\n";
        assert_eq!(metric(text, "a_total"), 7.0);
        assert!(metric(text, "b_total").is_nan());
    }
}
