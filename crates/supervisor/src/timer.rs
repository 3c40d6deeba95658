//! Deadlines on the monotonic clock, as one ordered set. A pending deadline is removed with its
//! owner, so the set never outgrows what lives.
//!
//! The clock does not count time in suspend: a sandbox is not blamed for a sleeping host.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Pending deadlines of anything that is told apart by `T`.
#[derive(Debug)]
pub(crate) struct Timers<T: Ord + Copy>(BTreeSet<(Instant, T)>);

impl<T: Ord + Copy> Timers<T> {
    pub(crate) const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// Sets a deadline and returns it, which is what [`Timers::clear`] wants.
    pub(crate) fn set(&mut self, at: Instant, what: T) -> Instant {
        self.0.insert((at, what));
        at
    }

    /// Forgets a deadline. Idempotent.
    pub(crate) fn clear(&mut self, at: &mut Option<Instant>, what: T) {
        if let Some(at) = at.take() {
            self.0.remove(&(at, what));
        }
    }

    /// Takes the earliest deadline that has come.
    pub(crate) fn due(&mut self, now: Instant) -> Option<T> {
        let first = *self.0.first()?;
        (first.0 <= now).then(|| {
            self.0.remove(&first);
            first.1
        })
    }

    /// Time until the earliest deadline; none when there is none.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        self.0
            .first()
            .map(|(at, _)| at.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_in_order_and_leave_nothing_behind() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::new();
        let mut cleared = Some(timers.set(at(5), 'b'));
        timers.set(at(9), 'c');
        timers.set(at(1), 'a');
        assert_eq!(timers.wait(start), Some(Duration::from_millis(1)));
        assert_eq!(timers.due(start), None);
        assert_eq!(timers.due(at(8)), Some('a'));
        timers.clear(&mut cleared, 'b');
        timers.clear(&mut cleared, 'b');
        assert_eq!(timers.due(at(8)), None);
        assert_eq!(timers.due(at(9)), Some('c'));
        assert_eq!(timers.wait(start), None);
    }
}
