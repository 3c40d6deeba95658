//! Counters of the engine. Labels are words of closed lists, never names or ids.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::end::EndReason;
use leasehold_store::seam::Commits;

use super::warm::MISSES;

/// Upper bounds of the buckets of a duration, in microseconds.
const BUCKETS: [u64; 14] = [
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
    30_000_000,
    300_000_000,
    3_600_000_000,
];

/// Words of the ends, in the order of [`end_place`].
const ENDS: [&str; 10] = [
    "sandbox_unavailable",
    "cancelled",
    "lease_expired",
    "timeout",
    "resource_exceeded",
    "host_lost",
    "sandbox_crashed",
    "tool_error",
    "invalid_output",
    "completed",
];

fn end_place(end: &EndReason) -> usize {
    match end {
        EndReason::SandboxUnavailable { .. } => 0,
        EndReason::Cancelled { .. } => 1,
        EndReason::LeaseExpired { .. } => 2,
        EndReason::Timeout { .. } => 3,
        EndReason::ResourceExceeded { .. } => 4,
        EndReason::HostLost => 5,
        EndReason::SandboxCrashed { .. } => 6,
        EndReason::ToolError { .. } => 7,
        EndReason::InvalidOutput { .. } => 8,
        EndReason::Completed => 9,
    }
}

/// How often something took how long.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn add(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        for (bound, bucket) in BUCKETS.iter().zip(&self.buckets) {
            if micros <= *bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn print(&self, name: &str, out: &mut String) {
        // Writing to a text cannot fail.
        let _ = writeln!(out, "# TYPE {name} histogram");
        for (bound, bucket) in BUCKETS.iter().zip(&self.buckets) {
            let seconds = Duration::from_micros(*bound).as_secs_f64();
            let count = bucket.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{le=\"{seconds}\"}} {count}");
        }
        let count = self.count.load(Ordering::Relaxed);
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let sum = Duration::from_micros(self.micros.load(Ordering::Relaxed)).as_secs_f64();
        let _ = writeln!(out, "{name}_sum {sum}\n{name}_count {count}");
    }
}

macro_rules! counters {
    ($($name:ident: $doc:literal,)+) => {
        /// What is counted.
        #[derive(Debug, Default)]
        pub(crate) struct Metrics {
            ends: [AtomicU64; ENDS.len()],
            pub(crate) misses: [AtomicU64; MISSES.len()],
            pub(crate) waited: Histogram,
            pub(crate) launched: Histogram,
            pub(crate) whole: Histogram,
            pub(crate) removed: Histogram,
            $(pub(crate) $name: AtomicU64,)+
        }

        impl Metrics {
            fn plain(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $doc, self.$name.load(Ordering::Relaxed)),)+]
            }
        }
    };
}

counters! {
    admitted: "Runs admitted.",
    refused: "Runs refused for a full queue or a rate.",
    cached: "Runs answered from an earlier equal one.",
    warm: "Runs served by a parked computer.",
    cold: "Runs whose computer was made for them.",
    adopted: "Runs taken up again after a restart.",
    rescheduled: "Runs launched again after their host was lost.",
    fell: "Tasks of runs that fell over.",
    fenced: "Runs whose right had passed on while they were held.",
    store_errors: "Writes that the store did not do at once.",
    object_errors: "Objects that could not be kept at once.",
    objects_lost: "Objects that were given up.",
    objects_removed: "Objects whose retention was over and that were removed.",
    rows_compared: "Rows read to compare them with what is carried.",
    backend_errors: "Calls that the backend broke off.",
    orphans: "Computers and runs that nobody knew and that were ended.",
    not_clean: "Removals after which something was left.",
    quarantined: "Runs that are stuck and wait for an operator.",
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Adds some.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Metrics {
    pub(crate) fn ended(&self, end: &EndReason) {
        count(&self.ends[end_place(end)]);
    }

    /// The text form that Prometheus reads.
    pub(crate) fn print(&self, tenants: &[(u32, u32)], store: Commits) -> String {
        let mut out = String::with_capacity(8_192);
        let Commits { writes, commits } = store;
        let durable = [
            ("store_writes", "Durable writes of the store.", writes),
            ("store_commits", "Commits that they went in.", commits),
        ];
        for (name, doc, value) in self.plain().into_iter().chain(durable) {
            let name = format!("leasehold_{name}_total");
            let _ = writeln!(
                out,
                "# HELP {name} {doc}\n# TYPE {name} counter\n{name} {value}"
            );
        }
        let name = "leasehold_runs_ended_total";
        let _ = writeln!(
            out,
            "# HELP {name} Runs by their end.\n# TYPE {name} counter"
        );
        for (word, count) in ENDS.iter().zip(&self.ends) {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}{{end=\"{word}\"}} {count}");
        }
        let name = "leasehold_pool_misses_total";
        let _ = writeln!(
            out,
            "# HELP {name} Runs that no parked computer served, by why.\n# TYPE {name} counter"
        );
        for (word, count) in MISSES.iter().zip(&self.misses) {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}{{reason=\"{word}\"}} {count}");
        }
        let queued: u64 = tenants.iter().map(|(queued, _)| u64::from(*queued)).sum();
        let running: u64 = tenants.iter().map(|(_, running)| u64::from(*running)).sum();
        let waiting = tenants.iter().filter(|(queued, _)| *queued > 0).count();
        let deepest = tenants.iter().map(|(queued, _)| *queued).max().unwrap_or(0);
        for (name, doc, value) in [
            ("leasehold_runs_queued", "Runs that wait.", queued),
            (
                "leasehold_runs_running",
                "Runs that hold a computer.",
                running,
            ),
            (
                "leasehold_tenants_waiting",
                "Tenants with runs that wait.",
                waiting as u64,
            ),
            (
                "leasehold_queue_deepest",
                "Runs that wait of the tenant with most.",
                deepest.into(),
            ),
        ] {
            let _ = writeln!(
                out,
                "# HELP {name} {doc}\n# TYPE {name} gauge\n{name} {value}"
            );
        }
        self.waited.print("leasehold_wait_seconds", &mut out);
        self.launched.print("leasehold_launch_seconds", &mut out);
        self.whole.print("leasehold_run_seconds", &mut out);
        self.removed.print("leasehold_removal_seconds", &mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_printed() {
        let metrics = Metrics::default();
        count(&metrics.warm);
        metrics.ended(&EndReason::HostLost);
        metrics.waited.add(Duration::from_millis(3));
        let text = metrics.print(
            &[(7, 2), (0, 1)],
            Commits {
                writes: 9,
                commits: 4,
            },
        );
        for line in [
            "leasehold_warm_total 1",
            "leasehold_store_writes_total 9",
            "leasehold_store_commits_total 4",
            "leasehold_runs_ended_total{end=\"host_lost\"} 1",
            "leasehold_runs_queued 7",
            "leasehold_runs_running 3",
            "leasehold_tenants_waiting 1",
            "leasehold_wait_seconds_bucket{le=\"0.002\"} 0",
            "leasehold_wait_seconds_bucket{le=\"0.005\"} 1",
            "leasehold_wait_seconds_count 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
