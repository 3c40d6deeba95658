//! How fast runs are, measured where they are launched.

use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::WasmBackend;
use super::sealed::FromStart;
use crate::error::BackendError;
use crate::execution::RunEvent;
use crate::seam::{Backend as _, Launch};

/// What so many runs came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    /// Time of each from its launch until its end was told and its output was read, sorted.
    pub times: Vec<Duration>,
    /// Runs a second.
    pub per_second: f64,
    /// Runs that did not come to a good end, or said something else than the first.
    pub bad: usize,
}

impl Pace {
    /// The time that so many of a hundred runs were below.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Duration {
        let last = self.times.len().saturating_sub(1);
        let at = (self.times.len() * percent.min(100) / 100).min(last);
        self.times.get(at).copied().unwrap_or_default()
    }
}

impl WasmBackend {
    /// Runs what `order` makes so many times, `at_once` of them at one time, each with an id of its own.
    ///
    /// # Errors
    /// When a run cannot be launched or followed.
    pub async fn pace(
        &self,
        runs: usize,
        at_once: usize,
        order: impl Fn() -> Launch + Send + Sync + 'static,
    ) -> Result<Pace, BackendError> {
        let order = Arc::new(order);
        let first = Arc::new(self.timed(order()).await?);
        let begun = Instant::now();
        let mut lanes = tokio::task::JoinSet::new();
        for lane in 0..at_once.max(1) {
            let count = runs / at_once.max(1) + usize::from(lane < runs % at_once.max(1));
            let (backend, order, first) = (self.clone(), Arc::clone(&order), Arc::clone(&first));
            lanes.spawn(async move {
                let mut times = Vec::with_capacity(count);
                let mut bad = 0;
                for _ in 0..count {
                    let ran = backend.timed(order()).await?;
                    times.push(ran.took);
                    bad += usize::from(!ran.well || ran.said != first.said);
                }
                Ok::<_, BackendError>((times, bad))
            });
        }
        let mut pace = Pace {
            times: Vec::with_capacity(runs),
            per_second: 0.0,
            bad: usize::from(!first.well),
        };
        while let Some(lane) = lanes.join_next().await {
            let lane = lane.map_err(|error| BackendError::Lost {
                backend: super::NAME,
                kind: leasehold_core::error::ErrorKind::Internal,
                source: Box::new(error),
            })?;
            let (times, bad) = lane?;
            pace.times.extend(times);
            pace.bad += bad;
        }
        pace.per_second = pace.times.len() as f64 / begun.elapsed().as_secs_f64();
        pace.times.sort_unstable();
        Ok(pace)
    }

    async fn timed(&self, launch: Launch) -> Result<Ran, BackendError> {
        let begun = Instant::now();
        let mut execution = self.launch(launch).await?;
        let mut ran = Ran::default();
        while let Some(event) = execution.next().await {
            if let RunEvent::Ended(record) = event? {
                // What cannot be read is not what the first said.
                let mut stdout = FromStart::of(&execution.stdout).take(record.stdout.kept);
                let _ = stdout.read_to_end(&mut ran.said);
                ran.took = begun.elapsed();
                ran.well = record.end == Some(leasehold_core::end::EndReason::Completed);
            }
        }
        Ok(ran)
    }
}

#[derive(Debug, Default)]
struct Ran {
    took: Duration,
    well: bool,
    said: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times: Vec<Duration> = (1..=200).map(Duration::from_micros).collect();
        let pace = Pace {
            times,
            per_second: 0.0,
            bad: 0,
        };
        let micros = |percent| pace.percentile(percent).as_micros();
        assert_eq!([0, 50, 95, 100, 200].map(micros), [1, 101, 191, 200, 200]);
        let none = Pace {
            times: Vec::new(),
            ..pace
        };
        assert_eq!(none.percentile(50), Duration::ZERO);
    }
}
