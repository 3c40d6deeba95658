//! Deadlines on the monotonic clock: at most one per thing that can be due, removed with its owner,
//! so that the set never outgrows what lives.
//!
//! The clock does not count time in suspend: a sandbox is not blamed for a sleeping host.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Pending deadlines of anything that is told apart by `T`.
#[derive(Debug)]
pub(crate) struct Timers<T> {
    queue: BTreeSet<(Instant, T)>,
    at: HashMap<T, Instant>,
}

impl<T: Ord + Hash + Copy> Timers<T> {
    pub(crate) fn new() -> Self {
        Self {
            queue: BTreeSet::new(),
            at: HashMap::new(),
        }
    }

    /// Sets a deadline in place of the one before. One beyond the clock's range never comes.
    pub(crate) fn set(&mut self, what: T, now: Instant, delay: Duration) {
        self.clear(what);
        if let Some(at) = now.checked_add(delay) {
            self.queue.insert((at, what));
            self.at.insert(what, at);
        }
    }

    /// Forgets a deadline. Idempotent.
    pub(crate) fn clear(&mut self, what: T) {
        if let Some(at) = self.at.remove(&what) {
            self.queue.remove(&(at, what));
        }
    }

    /// Whether a deadline is pending.
    pub(crate) fn pending(&self, what: T) -> bool {
        self.at.contains_key(&what)
    }

    /// Takes the earliest deadline that has come.
    pub(crate) fn due(&mut self, now: Instant) -> Option<T> {
        let (at, what) = *self.queue.first()?;
        (at <= now).then(|| {
            self.clear(what);
            what
        })
    }

    /// Time until the earliest deadline; none when there is none.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        self.queue
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
        let ms = Duration::from_millis;
        let mut timers = Timers::new();
        timers.set('b', start, ms(5));
        timers.set('c', start, ms(2));
        timers.set('c', start, ms(9));
        timers.set('a', start, ms(1));
        timers.set('n', start, Duration::MAX);
        assert_eq!(timers.wait(start), Some(ms(1)));
        assert_eq!(timers.due(start), None);
        assert_eq!(timers.due(start + ms(8)), Some('a'));
        assert!(timers.pending('b') && !timers.pending('a'));
        timers.clear('b');
        timers.clear('b');
        assert_eq!(
            timers.due(start + ms(8)),
            None,
            "the deadline replaced still comes"
        );
        assert_eq!(timers.due(start + ms(9)), Some('c'));
        assert_eq!(timers.wait(start), None);
        assert!(timers.at.is_empty() && timers.queue.is_empty());
    }
}
