//! A count that many draw from and give back to, such as bytes that may be held.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use leasehold_core::name::Name;

/// What is left of a bound.
#[derive(Debug)]
pub(super) struct Room {
    left: AtomicU64,
}

/// A part of it, given back when this is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    room: Arc<Room>,
    count: u64,
    /// What was taken of a tenant's own bound with it.
    own: Option<Box<Taken>>,
}

/// A room of which no tenant has more than its part.
#[derive(Debug)]
pub(super) struct Shares {
    all: Arc<Room>,
    of_one: u64,
    tenants: Mutex<HashMap<Name, Weak<Room>>>,
}

/// Why nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// Nobody can have so many.
    Never,
    /// The tenant has so many already, of at most so many.
    Tenant { has: u64, most: u64 },
    /// All tenants together have the rest.
    All,
}

impl Shares {
    pub(super) fn of(count: u64, of_one: u64) -> Self {
        Self {
            all: Room::of(count),
            of_one: of_one.min(count),
            tenants: Mutex::default(),
        }
    }

    /// Takes so many for a tenant, or none at all.
    pub(super) fn take(&self, tenant: &Name, count: u64) -> Result<Taken, Full> {
        if count > self.of_one {
            return Err(Full::Never);
        }
        let own = self.of_tenant(tenant);
        let Some(taken) = own.take(count) else {
            return Err(Full::Tenant {
                has: self.of_one - own.left.load(Ordering::Relaxed),
                most: self.of_one,
            });
        };
        let mut all = self.all.take(count).ok_or(Full::All)?;
        all.own = Some(Box::new(taken));
        Ok(all)
    }

    /// The part of a tenant; it is there as long as anything of it is taken.
    fn of_tenant(&self, tenant: &Name) -> Arc<Room> {
        // Nothing panics while it holds this lock.
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = tenants.get(tenant).and_then(Weak::upgrade) {
            return room;
        }
        tenants.retain(|_, room| room.strong_count() > 0);
        let room = Room::of(self.of_one);
        tenants.insert(tenant.clone(), Arc::downgrade(&room));
        room
    }
}

impl Room {
    pub(super) fn of(count: u64) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicU64::new(count),
        })
    }

    /// Takes so many, or none at all.
    pub(super) fn take(self: &Arc<Self>, count: u64) -> Option<Taken> {
        let less = |left: u64| left.checked_sub(count);
        let order = Ordering::Relaxed;
        self.left.fetch_update(order, order, less).ok()?;
        Some(Taken {
            room: Arc::clone(self),
            count,
            own: None,
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
        if let Some(own) = &mut self.own {
            own.shrink(count);
        }
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

    #[test]
    fn one_tenant_leaves_others_their_part() {
        let [ada, bob] = ["ada", "bob"].map(|name| Name::parse(name).unwrap());
        let shares = Shares::of(10, 6);
        let first = shares.take(&ada, 4).unwrap();
        let full = Full::Tenant { has: 4, most: 6 };
        assert_eq!(shares.take(&ada, 3).unwrap_err(), full);
        let mut second = shares.take(&bob, 6).unwrap();
        assert_eq!(shares.take(&ada, 1).unwrap_err(), Full::All);
        assert_eq!(shares.take(&ada, 7).unwrap_err(), Full::Never);
        second.shrink(1);
        let third = shares.take(&ada, 2).unwrap();
        drop((first, second, third));
        assert_eq!(shares.all.left(), 10);
        drop(shares.take(&ada, 6).unwrap());
        let tenants = shares.tenants.lock().unwrap();
        assert_eq!(tenants.len(), 1, "who has nothing is forgotten");
    }
}
