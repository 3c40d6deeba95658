//! How long the few expensive things take on this host: what a run may be expected to cost.

use std::time::{Duration, Instant};

use leasehold_core::limits::Limits;
use leasehold_core::spec::{ExecSpec, SandboxSpec};
use leasehold_core::stage::Stage;
use leasehold_jail::cgroup::warm_attach;
use leasehold_jail::measure;
use rustix::fs::{Mode, OFlags};

use super::facts::Facts;
use super::report::Timing;
use super::ward::Ward;
use crate::place;

/// Samples of each.
const SAMPLES: usize = 5;
/// After so long without a move between groups the kernel's lock is cold again.
const QUIET: Duration = Duration::from_millis(60);

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn median(mut samples: Vec<u64>) -> Option<u64> {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied()
}

/// Runs of a command that does nothing, each in a sandbox made for it.
pub(super) fn runs(ward: &mut Ward) -> Vec<Timing> {
    let (mut totals, mut made) = (Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        let sandbox = SandboxSpec {
            limits: Limits::default(),
            ..SandboxSpec::default()
        };
        let Ok(seen) = ward.run(sandbox, ExecSpec::command(["/bin/sh", "-c", "exit 0"])) else {
            continue;
        };
        totals.push(micros(seen.took));
        let stages = seen.record.stages.iter();
        made.extend(
            stages
                .filter(|time| time.stage == Stage::Allocate)
                .map(|time| time.micros),
        );
    }
    let row = |what, samples, meaning| {
        median(samples).map(|micros| Timing {
            what,
            micros,
            meaning,
        })
    };
    [
        row(
            "a whole run",
            totals,
            "expect this for a command that does nothing, none parked",
        ),
        row(
            "making its sandbox",
            made,
            "the part of it that a pool saves (leasehold pool)",
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The host's own prices.
pub(super) fn host(facts: &Facts) -> Vec<Timing> {
    let mut rows = Vec::new();
    let attach = (0..SAMPLES).filter_map(|_| {
        std::thread::sleep(QUIET);
        warm_attach().ok().flatten().map(micros)
    });
    if let Some(micros) = median(attach.collect()) {
        rows.push(Timing {
            what: "a cold attach",
            micros,
            meaning: "moving a process to a group after a quiet spell; sandboxes are born in theirs",
        });
    }
    if facts.root() {
        let made = (0..SAMPLES).filter_map(|_| measure::network_namespace().ok().map(micros));
        if let Some(micros) = median(made.collect()) {
            rows.push(Timing {
                what: "a network namespace",
                micros,
                meaning: "part of making a sandbox, the largest on most hosts",
            });
        }
    }
    if let Some(micros) = median(fsyncs()) {
        rows.push(Timing {
            what: "an fsync of 4 KiB",
            micros,
            meaning: "what one durable commit costs where the state directory is",
        });
    }
    rows
}

/// Into a file without a name, in the state directory or the nearest one above that is there.
fn fsyncs() -> Vec<u64> {
    let Ok(paths) = place::paths() else {
        return Vec::new();
    };
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = paths
        .state()
        .ancestors()
        .find_map(|place| rustix::fs::open(place, flags, Mode::from_raw_mode(0o600)).ok());
    let Some(file) = file else {
        return Vec::new();
    };
    let one = |at: usize| {
        let begun = Instant::now();
        rustix::io::pwrite(&file, &[1; 4_096], at as u64 * 4_096).ok()?;
        rustix::fs::fsync(&file).ok()?;
        Some(micros(begun.elapsed()))
    };
    (0..SAMPLES).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_what_is_there() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![9, 1, 5]), Some(5));
    }

    #[test]
    fn an_fsync_can_be_timed_without_leaving_a_file() {
        for micros in fsyncs() {
            assert!(micros < 60_000_000);
        }
    }
}
