//! A count that many draw from and give back to, such as bytes that may be held.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is left of a bound.
#[derive(Debug)]
pub(super) struct Room {
    whole: u64,
    left: AtomicU64,
}

/// A part of it, given back when this is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    room: Arc<Room>,
    count: u64,
}

impl Room {
    pub(super) fn of(count: u64) -> Arc<Self> {
        Arc::new(Self {
            whole: count,
            left: AtomicU64::new(count),
        })
    }

    /// Whether so many could be taken if nobody had any.
    pub(super) fn could_have(&self, count: u64) -> bool {
        count <= self.whole
    }

    /// Takes so many, or none at all.
    pub(super) fn take(self: &Arc<Self>, count: u64) -> Option<Taken> {
        let less = |left: u64| left.checked_sub(count);
        let order = Ordering::Relaxed;
        self.left.fetch_update(order, order, less).ok()?;
        Some(Taken {
            room: Arc::clone(self),
            count,
        })
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }
}

impl Taken {
    /// Keeps so many at most, and gives the rest back.
    pub(super) fn shrink(&mut self, count: u64) {
        let back = self.count.saturating_sub(count);
        self.count -= back;
        self.room.left.fetch_add(back, Ordering::Relaxed);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back_once() {
        let room = Room::of(10);
        let mut first = room.take(7).unwrap();
        assert!(room.take(4).is_none());
        first.shrink(9);
        assert_eq!(room.left(), 3);
        first.shrink(2);
        let second = room.take(8).unwrap();
        drop(first);
        assert_eq!(room.left(), 2);
        drop(second);
        assert_eq!(room.left(), 10);
    }
}
