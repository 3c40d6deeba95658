//! How many were admitted in the last minute.
//!
//! Exact in the direction that matters: never more than the limit in any sixty seconds. It counts by the
//! second, so that a busy tenant costs no more memory than a quiet one.

use std::time::Duration;

/// Sixty whole seconds and the one that has begun.
const SECONDS: u64 = 61;

/// The admissions of one tenant.
#[derive(Debug, Clone)]
pub(super) struct Rate {
    /// Admissions in the second whose number, modulo [`SECONDS`], is the place.
    counts: [u32; SECONDS as usize],
    /// The newest second that is counted.
    newest: u64,
    sum: u64,
}

impl Default for Rate {
    fn default() -> Self {
        Self {
            counts: [0; SECONDS as usize],
            newest: 0,
            sum: 0,
        }
    }
}

fn place(second: u64) -> usize {
    // Less than 61.
    usize::try_from(second % SECONDS).unwrap_or(0)
}

impl Rate {
    fn forget(&mut self, now: Duration) {
        let second = now.as_secs();
        let steps = second.saturating_sub(self.newest).min(SECONDS);
        for step in 1..=steps {
            let old = &mut self.counts[place(self.newest + step)];
            self.sum -= u64::from(*old);
            *old = 0;
        }
        self.newest = self.newest.max(second);
        if steps == SECONDS {
            self.counts = [0; SECONDS as usize];
            self.sum = 0;
        }
    }

    /// Counts one admission, or says how long it takes until one more fits.
    pub(super) fn take(&mut self, now: Duration, per_minute_max: u32) -> Result<(), Duration> {
        self.forget(now);
        let most = u64::from(per_minute_max);
        if self.sum < most {
            self.counts[place(self.newest)] += 1;
            self.sum += 1;
            return Ok(());
        }
        let oldest = self.newest.saturating_sub(SECONDS - 1);
        let mut left = self.sum;
        for second in oldest..=self.newest {
            left -= u64::from(self.counts[place(second)]);
            if left < most {
                return Err(Duration::from_secs(second + SECONDS).saturating_sub(now));
            }
        }
        Err(Duration::from_secs(SECONDS))
    }

    /// Takes back the newest admission: nothing came of it.
    pub(super) fn give_back(&mut self, now: Duration) {
        self.forget(now);
        for back in 0..SECONDS {
            let Some(second) = self.newest.checked_sub(back) else {
                return;
            };
            let count = &mut self.counts[place(second)];
            if *count > 0 {
                *count -= 1;
                self.sum -= 1;
                return;
            }
        }
    }

    /// Whether nothing is counted any more.
    pub(super) fn idle(&mut self, now: Duration) -> bool {
        self.forget(now);
        self.sum == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn never_more_than_the_limit_in_any_minute() {
        let mut rate = Rate::default();
        let mut taken: Vec<u64> = Vec::new();
        for at in (0..400_000).step_by(170) {
            match rate.take(ms(at), 50) {
                Ok(()) => taken.push(at),
                Err(wait) => {
                    assert!(wait > Duration::ZERO && wait <= Duration::from_secs(61));
                    let mut later = rate.clone();
                    assert_eq!(
                        later.take(ms(at) + wait, 50),
                        Ok(()),
                        "told to wait {wait:?}"
                    );
                }
            }
        }
        for (at, first) in taken.iter().enumerate() {
            let within = taken[at..].iter().filter(|&&next| next < first + 60_000);
            assert!(within.count() <= 50, "from {first}");
        }
        assert!(taken.len() >= 50 * 6, "only {} of 400 s", taken.len());
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let mut rate = Rate::default();
        assert_eq!(rate.take(ms(5_000), 1), Ok(()));
        assert_eq!(rate.take(ms(5_500), 1), Err(ms(60_500)));
        rate.give_back(ms(6_000));
        assert!(rate.idle(ms(6_000)));
        assert_eq!(rate.take(ms(6_000), 1), Ok(()));
        assert!(rate.take(ms(6_000), 0).is_err());
        assert!(rate.idle(ms(900_000)));
    }
}
