//! Measured values and what is said of them. Pure.

use std::time::Duration;

use serde::Serialize;

/// Values of one measured thing, in microseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

/// What is said of them, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// How many.
    pub(crate) count: usize,
    /// Least.
    pub(crate) min_ms: f64,
    /// Median.
    pub(crate) p50_ms: f64,
    /// 95 of 100 are at most this.
    pub(crate) p95_ms: f64,
    /// 99 of 100 are at most this.
    pub(crate) p99_ms: f64,
}

impl Samples {
    /// Adds one.
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1e6);
    }

    /// The value that `share` of all are at most, by nearest rank; nothing of nothing.
    fn rank(sorted: &[f64], share: f64) -> Option<f64> {
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied()
    }

    /// What is said of them; nothing of nothing.
    pub(crate) fn summary(&self) -> Option<Summary> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |share| Self::rank(&sorted, share).map(|micros| micros / 1e3);
        Some(Summary {
            count: sorted.len(),
            min_ms: at(0.0)?,
            p50_ms: at(0.50)?,
            p95_ms: at(0.95)?,
            p99_ms: at(0.99)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut samples = Samples::default();
        assert_eq!(samples.summary(), None);
        for value in (1..=100).rev() {
            samples.add(Duration::from_millis(value));
        }
        let said = samples.summary().unwrap();
        assert_eq!(
            (
                said.count,
                said.min_ms,
                said.p50_ms,
                said.p95_ms,
                said.p99_ms
            ),
            (100, 1.0, 50.0, 95.0, 99.0)
        );
        let mut one = Samples::default();
        one.add(Duration::from_millis(7));
        assert_eq!(one.summary().unwrap().p99_ms, 7.0);
    }
}
