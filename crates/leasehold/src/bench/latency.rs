//! One at a time: how long from wanting a command to run until it has ended and is gone, ours and
//! other runtimes', interleaved round by round so that the machine's moods hit all alike.

use std::time::{Duration, Instant};

use leasehold_backend::process::client::Client;
use leasehold_core::spec::SandboxSpec;
use leasehold_core::stage::Stage;
use leasehold_protocol::supervisor::Target;

use super::Interrupt;
use super::arena::{self, Arena, Times};
use super::bars::{Bar, Measured, Must, ratio};
use super::floor::{Floor, Way};
use super::ground::Ground;
use super::peer::{self, Peer};
use super::report::Report;
use super::sample::{Samples, Summary};
use crate::fault::Fault;

/// The program that needs nothing, where it is in every sandbox.
const TRUE: &str = "/workspace/true";
/// The one that writes a byte first.
const BYTE: &str = "/workspace/byte";
/// The host's own, for sandboxes without a workspace of ours.
const SYSTEM_TRUE: &str = "/usr/bin/true";

/// Sandboxes in the pool: enough that one claim does not set off the refill beside the run.
const POOL: u32 = 8;

/// What is sampled in every round.
#[derive(Default)]
struct Rows {
    make: Samples,
    warm: Samples,
    warm_stages: Stages,
    first_byte: Samples,
    gone: Samples,
    pool: Samples,
    pool_misses: u32,
    pool_stages: Stages,
    cold: Samples,
    cold_gone: Samples,
    cold_stages: Stages,
    cli: Samples,
    cli_cold: Samples,
    peers: Vec<(&'static str, Result<Samples, String>)>,
    floor: Samples,
    relayed: Samples,
}

/// What the supervisor's own clock says of each stage.
#[derive(Default)]
struct Stages([Samples; Stage::ALL.len()]);

impl Stages {
    fn add(&mut self, times: &Times) {
        for time in &times.record.stages {
            let place = Stage::ALL.iter().position(|stage| *stage == time.stage);
            if let Some(samples) = place.and_then(|place| self.0.get_mut(place)) {
                samples.add(Duration::from_micros(time.micros));
            }
        }
    }

    /// Every stage with its median.
    fn line(&self) -> String {
        let named = Stage::ALL.iter().zip(&self.0);
        let told: Vec<String> = named
            .filter_map(|(stage, samples)| {
                let said = samples.summary()?;
                Some(format!("{} {:.2}", stage.word(), said.p50_ms))
            })
            .collect();
        told.join(" · ")
    }
}

/// Measures and reports.
///
/// # Errors
/// When something of ours fails; a peer that fails is reported as not run here.
pub(crate) fn measure(
    runs: u32,
    ground: &Ground,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<(), Fault> {
    let arena = Arena::new(ground, "latency")?;
    let cold_arena = Arena::new(ground, "cold")?;
    let mut floor = Floor::new(&arena);
    let mut peers = peer::all(&arena);
    let mut rows = Rows {
        peers: peers
            .iter()
            .map(|(name, peer)| {
                (
                    *name,
                    peer.as_ref()
                        .map(|_| Samples::default())
                        .map_err(Clone::clone),
                )
            })
            .collect(),
        ..Rows::default()
    };
    let mut client = arena.client()?;
    arena::pool(&mut client, SandboxSpec::default(), POOL)?;
    for round in 0..=runs {
        interrupt.check()?;
        let mut scratch = Rows::default();
        // The first round warms caches and is not counted.
        let counted = if round == 0 { &mut scratch } else { &mut rows };
        ours(&mut client, &arena, counted)?;
        sample_floor(&mut floor, Way::Straight, &mut counted.floor);
        sample_floor(&mut floor, Way::Relayed, &mut counted.relayed);
        counted.cli.add(cli(&arena)?);
        counted.cli_cold.add(cli(&cold_arena)?);
        cold_arena.stop()?;
        if round > 0 {
            sample_peers(&mut peers, &mut rows.peers);
        }
    }
    rows.tell(report);
    let straight = floor
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|_| measured(&rows.floor));
    report.row(
        "the floor: a parked stub and nothing else → ended",
        straight,
    );
    let relayed = floor.and_then(|_| measured(&rows.relayed));
    report.row(
        "the relayed floor: told by another, who is answered",
        relayed.clone(),
    );
    rows.judge(&relayed, report);
    Ok(())
}

fn ours(client: &mut Client, arena: &Arena, rows: &mut Rows) -> Result<(), Fault> {
    let programs = [arena.programs_fd()];
    let begun = Instant::now();
    let parked = arena::provision(client, arena::with_programs(), &programs)?;
    rows.make.add(begun.elapsed());
    let warm = arena::once(client, Target::Parked(parked), arena::command(&[TRUE]), &[])?;
    rows.warm.add(warm.ended);
    rows.gone.add(warm.cleaned - warm.ended);
    rows.warm_stages.add(&warm);
    let parked = arena::provision(client, arena::with_programs(), &programs)?;
    let byte = arena::once(client, Target::Parked(parked), arena::command(&[BYTE]), &[])?;
    rows.first_byte.add(byte.first_byte.unwrap_or(byte.ended));
    let target = Target::New(SandboxSpec::default());
    let pool = arena::once(client, target, arena::command(&[SYSTEM_TRUE]), &[])?;
    if pool.record.warm {
        rows.pool.add(pool.ended);
        rows.pool_stages.add(&pool);
    } else {
        rows.pool_misses += 1;
    }
    arena::pool(client, SandboxSpec::default(), POOL)?;
    let target = Target::New(arena::with_programs());
    let cold = arena::once(client, target, arena::command(&[TRUE]), &programs)?;
    rows.cold.add(cold.ended);
    rows.cold_gone.add(cold.cleaned - cold.ended);
    rows.cold_stages.add(&cold);
    Ok(())
}

fn cli(arena: &Arena) -> Result<Duration, Fault> {
    let workspace = format!("{}:ro", arena.programs().display());
    let words = ["run", "--quiet", "--workspace", &workspace, "--", TRUE];
    peer::timed(&mut arena.command(&words)?)
        .map_err(|reason| Fault::host(format!("`leasehold run` failed: {reason}")))
}

fn sample_peers(
    peers: &mut [(&'static str, Result<Peer, String>)],
    rows: &mut [(&'static str, Result<Samples, String>)],
) {
    for ((_, peer), (_, row)) in peers.iter_mut().zip(rows) {
        let (Ok(peer), Ok(samples)) = (peer, row.as_mut()) else {
            continue;
        };
        match peer.once() {
            Ok(took) => samples.add(took),
            Err(reason) => *row = Err(reason),
        }
    }
}

/// One that fails ends the measurement of the floor, with its reason.
fn sample_floor(floor: &mut Result<Floor, String>, way: Way, samples: &mut Samples) {
    let Ok(ground) = floor else { return };
    match ground.once(TRUE, way) {
        Ok(took) => samples.add(took),
        Err(reason) => *floor = Err(reason),
    }
}

fn measured(samples: &Samples) -> Measured {
    samples
        .summary()
        .ok_or_else(|| "no sample was taken".to_owned())
}

impl Rows {
    fn peer(&self, wanted: &str) -> Measured {
        match self.peers.iter().find(|(name, _)| *name == wanted) {
            Some((_, Ok(samples))) => measured(samples),
            Some((_, Err(reason))) => Err(format!("{wanted}: {reason}")),
            None => Err(format!("{wanted} is not known")),
        }
    }

    fn tell(&self, report: &mut Report) {
        let ours = [
            (
                "claim of a parked sandbox → static `true` ended",
                &self.warm,
            ),
            (
                "claim of a parked sandbox → first byte of output",
                &self.first_byte,
            ),
            ("run served by a pool, /usr/bin/true", &self.pool),
            ("run made from nothing, supervisor up", &self.cold),
            ("making a sandbox and parking it", &self.make),
            ("`leasehold run`, supervisor up, no pool", &self.cli),
            ("`leasehold run`, no supervisor", &self.cli_cold),
            ("ended → every removal observed (warm)", &self.gone),
            (
                "ended → every removal observed (made from nothing)",
                &self.cold_gone,
            ),
        ];
        for (name, samples) in ours {
            report.row(name, measured(samples));
        }
        for (name, samples) in &self.peers {
            let summary = samples.as_ref().map_err(Clone::clone).and_then(measured);
            report.row(format!("{name}, the same static `true`"), summary);
            if let Some(version) = peer::version(name) {
                report.note(format!("peer: {version}"));
            }
        }
        for (what, stages) in [
            ("claim of a parked sandbox", &self.warm_stages),
            ("run served by a pool", &self.pool_stages),
            ("run made from nothing", &self.cold_stages),
        ] {
            let line = stages.line();
            report.note(format!(
                "stages by the supervisor's clock, p50 in ms, {what}: {line}"
            ));
        }
        if self.pool_misses > 0 {
            let missed = self.pool_misses;
            report.note(format!(
                "{missed} runs missed the pool and are not in its row"
            ));
        }
    }

    /// The claim against bubblewrap; where even the relayed floor cannot be that far below it, against
    /// that floor.
    fn judge_claim(&self, floor: &Measured, report: &mut Report) {
        let (warm, bwrap) = (measured(&self.warm), self.peer("bwrap"));
        type Pick = fn(&Summary) -> f64;
        let picks: [(&str, f64, Pick); 2] = [
            ("p50", 15.0, |summary| summary.p50_ms),
            ("p95", 8.0, |summary| summary.p95_ms),
        ];
        for (name, least, pick) in picks {
            let ours = ratio(&bwrap, &warm, pick);
            let above = ratio(&warm, floor, pick);
            match ratio(&bwrap, floor, pick) {
                Ok(most) if most < least => {
                    let told = ours.map_or_else(|why| why, |ours| format!("{ours:.2}"));
                    report.note(format!(
                        "bwrap ÷ warm claim, {name}: {told}; bwrap ÷ relayed floor is {most:.2}, \
                         so that {least} cannot be had here and the bar is 1.3 × that floor"
                    ));
                    let what = format!("warm claim ÷ relayed floor, {name}");
                    report.bar(Bar::judge(what, above, Must::AtMost(1.3), ""));
                }
                _ => {
                    let what = format!("bwrap ÷ warm claim, {name}");
                    report.bar(Bar::judge(what, ours, Must::AtLeast(least), ""));
                    if let Ok(above) = above {
                        report.note(format!("warm claim ÷ relayed floor, {name}: {above:.2}"));
                    }
                }
            }
        }
    }

    fn judge(&self, floor: &Measured, report: &mut Report) {
        self.judge_claim(floor, report);
        let p50 = |summary: &Summary| summary.p50_ms;
        let (warm, cold) = (measured(&self.warm), measured(&self.cli_cold));
        let (bwrap, runc, crun) = (self.peer("bwrap"), self.peer("runc"), self.peer("crun"));
        let ratios = [
            (
                "crun ÷ warm claim, p50",
                ratio(&crun, &warm, p50),
                Must::AtLeast(15.0),
            ),
            (
                "cold `leasehold run` ÷ bwrap, p50",
                ratio(&cold, &bwrap, p50),
                Must::AtMost(2.5),
            ),
            (
                "cold `leasehold run` ÷ runc, p50",
                ratio(&cold, &runc, p50),
                Must::AtMost(0.5),
            ),
        ];
        for (what, value, must) in ratios {
            report.bar(Bar::judge(what, value, must, ""));
        }
        let gone = measured(&self.gone).map(|summary| summary.p95_ms);
        report.bar(Bar::judge(
            "removal after the end, p95",
            gone,
            Must::AtMost(30.0),
            " ms",
        ));
    }
}
