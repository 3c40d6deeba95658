//! Rows that every admission looks at and only [`Store::change`](crate::seam::Store::change) changes, as they
//! were last read.
//!
//! A change holds for whoever reads after it was answered: nothing is remembered while one is under way, what
//! was remembered when it begins is forgotten, and what is being read when it begins or ends is not remembered,
//! since it may be from before the commit. Only what is there is remembered, but for policies, since most scopes
//! have none.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::id::KeyId;
use leasehold_core::name::Name;
use leasehold_core::tenant::Tenant;

use crate::seam::{KeyRow, PolicyRow};

/// Most rows of one kind; then all of them are forgotten.
const ROWS_MAX: usize = 512;
/// Most bytes of a policy that is remembered.
const DOCUMENT_MAX: usize = 16 << 10;
/// Most names in a list of a row that is remembered.
const NAMES_MAX: usize = 256;

/// A row that may be remembered.
pub(super) trait Remembered: Clone + Send + 'static {
    /// Whether it is small enough.
    fn is_small(&self) -> bool;
}

impl Remembered for KeyRow {
    fn is_small(&self) -> bool {
        self.grants.len() <= NAMES_MAX
    }
}

impl Remembered for Tenant {
    fn is_small(&self) -> bool {
        self.projects.len() <= NAMES_MAX
    }
}

impl Remembered for Option<PolicyRow> {
    fn is_small(&self) -> bool {
        self.as_ref()
            .is_none_or(|row| row.document.len() <= DOCUMENT_MAX)
    }
}

/// What is remembered.
#[derive(Default)]
pub(super) struct Kept {
    /// How often a change began or ended so far.
    era: u64,
    /// Changes that are under way.
    changing: usize,
    pub(super) keys: HashMap<KeyId, KeyRow>,
    pub(super) tenants: HashMap<Name, Tenant>,
    pub(super) policies: HashMap<String, Option<PolicyRow>>,
}

/// Where one kind of row is.
pub(super) type Pick<K, V> = fn(&mut Kept) -> &mut HashMap<K, V>;

/// The memory of one store. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Memo(Arc<Mutex<Kept>>);

/// A change that is under way.
pub(super) struct Changing(Memo);

impl Memo {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A row, or the era in which it is read now.
    pub(super) fn get<K: Hash + Eq, V: Remembered>(
        &self,
        pick: Pick<K, V>,
        key: &K,
    ) -> Result<V, u64> {
        let mut kept = self.lock();
        let era = kept.era;
        pick(&mut kept).get(key).cloned().ok_or(era)
    }

    /// Remembers a row, unless a change began or ended since `era` or is under way.
    pub(super) fn put<K: Hash + Eq, V: Remembered>(
        &self,
        pick: Pick<K, V>,
        key: K,
        row: V,
        era: u64,
    ) {
        let mut kept = self.lock();
        if kept.era != era || kept.changing > 0 || !row.is_small() {
            return;
        }
        let rows = pick(&mut kept);
        if rows.len() >= ROWS_MAX {
            rows.clear();
        }
        rows.insert(key, row);
    }

    /// Forgets everything, and remembers nothing until the change is over.
    pub(super) fn change(&self) -> Changing {
        let mut kept = self.lock();
        *kept = Kept {
            era: kept.era + 1,
            changing: kept.changing + 1,
            ..Kept::default()
        };
        drop(kept);
        Changing(self.clone())
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let mut kept = self.0.lock();
        kept.changing -= 1;
        // Who began to read during the change may have seen what was there before its commit.
        kept.era += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICIES: Pick<String, Option<PolicyRow>> = |kept| &mut kept.policies;

    fn read(memo: &Memo, at: &str) -> Result<Option<PolicyRow>, u64> {
        memo.get(POLICIES, &at.to_owned())
    }

    #[test]
    fn nothing_read_before_a_change_is_remembered_after_it() {
        let memo = Memo::default();
        let era = read(&memo, "a").unwrap_err();
        memo.put(POLICIES, "a".to_owned(), None, era);
        assert_eq!(read(&memo, "a"), Ok(None));
        let first = memo.change();
        let second = memo.change();
        let during = read(&memo, "a").unwrap_err();
        drop(first);
        // One of the two is still under way.
        memo.put(POLICIES, "a".to_owned(), None, during);
        assert!(read(&memo, "a").is_err());
        drop(second);
        for (read_in, when) in [(era, "before"), (during, "during")] {
            memo.put(POLICIES, "a".to_owned(), None, read_in);
            assert!(read(&memo, "a").is_err(), "it was read {when} the change");
        }
        let after = read(&memo, "a").unwrap_err();
        memo.put(POLICIES, "a".to_owned(), None, after);
        assert_eq!(read(&memo, "a"), Ok(None));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let memo = Memo::default();
        for at in 0..3 * ROWS_MAX {
            memo.put(POLICIES, at.to_string(), None, 0);
        }
        assert_eq!(memo.lock().policies.len(), ROWS_MAX);
    }
}
