//! `leasehold bench`: what this host can do, against other runtimes in the same run.
//!
//! Shared machines are noisy, so a bar is a ratio to a peer that was measured interleaved, never a
//! time alone; and what cannot be measured here is said to be so, never to be met. Each part has a
//! supervisor of its own in a directory of its own ([`arena`]).

mod arena;
mod bars;
mod crowd;
mod daemon;
mod floor;
mod ground;
mod latency;
mod library;
mod memory;
mod modules;
mod orphans;
mod peer;
mod program;
mod python;
mod report;
mod sample;
mod service;
mod smallest;
mod wire;

use crate::cli::BenchFlags;
use crate::fault::Fault;
use crate::run::signals::Signals;
use crate::voice;
use ground::Ground;
use report::Report;

/// The parts, in their order.
const PARTS: [&str; 7] = [
    "latency",
    "service",
    "concurrency",
    "sustain",
    "memory",
    "python",
    "sweep",
];

/// Ends a measurement between two samples, so that everything is removed on the way out.
pub(crate) struct Interrupt(Signals);

impl Interrupt {
    /// Goes on unless somebody wants us to end.
    ///
    /// # Errors
    /// When somebody does.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.0.asked().end {
            return Err(Fault::host("interrupted"));
        }
        Ok(())
    }
}

/// `leasehold bench`.
///
/// # Errors
/// When the flags are wrong or something of ours fails. A bar that is missed is no error.
pub(crate) fn main(flags: &BenchFlags) -> Result<u8, Fault> {
    let parts: &[&str] = match flags.backend.as_str() {
        "process" => &PARTS,
        "wasm" => &["modules"],
        other => {
            return Err(Fault::usage(format!(
                "there is no backend {other:?} to measure: known are process and wasm"
            )));
        }
    };
    for part in &flags.only {
        if !parts.contains(&part.as_str()) {
            return Err(Fault::usage(format!(
                "`--only` is {part:?}: known are {}",
                parts.join(", ")
            )));
        }
    }
    if flags.library.is_some() && flags.backend != "wasm" {
        return Err(Fault::usage("`--library` is of the backend wasm"));
    }
    if !(1..=100_000).contains(&flags.runs) || !(1..=3_600).contains(&flags.sustain) {
        return Err(Fault::usage(
            "`--runs` must be 1 to 100000 and `--sustain` 1 to 3600 seconds",
        ));
    }
    if cfg!(debug_assertions) {
        voice::note("this is a debug build: figures are for trying out only");
    }
    let signals =
        Signals::take().map_err(|error| Fault::host("cannot take signals").because(&error))?;
    let interrupt = Interrupt(signals);
    let mut report = Report::new(&flags.backend);
    let ground = Ground::default();
    for part in parts.iter().copied() {
        if !flags.only.is_empty() && !flags.only.iter().any(|only| only == part) {
            continue;
        }
        voice::note(&format!("measuring {part} …"));
        match part {
            "latency" => latency::measure(flags.runs, &ground, &interrupt, &mut report)?,
            "service" => service::measure(flags.runs, &ground, &interrupt, &mut report)?,
            "concurrency" => crowd::bursts(flags.runs, &ground, &interrupt, &mut report)?,
            "sustain" => crowd::sustained(flags.sustain, &ground, &interrupt, &mut report)?,
            "memory" => memory::measure(&ground, &interrupt, &mut report)?,
            "modules" => {
                let library = flags.library.as_deref();
                modules::measure(flags.runs, library, &ground, &interrupt, &mut report)?;
            }
            "python" => python::measure(flags.runs, &ground, &interrupt, &mut report)?,
            _ => orphans::measure(&ground, &interrupt, &mut report)?,
        }
    }
    if flags.json {
        voice::json(&report)?;
    } else {
        voice::data(report.page().as_bytes())?;
    }
    Ok(0)
}
