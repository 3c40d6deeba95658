//! How many streams of events each tenant has open: one that opens ever more of them takes no connection
//! of anybody else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::name::Name;

/// Most streams of one tenant at once.
const FOLLOWERS_MAX: u32 = 128;

/// The streams that are open. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Followers {
    open: Arc<Mutex<HashMap<Name, u32>>>,
}

/// One stream; it is over when this is dropped.
pub(crate) struct Following {
    followers: Followers,
    tenant: Name,
}

impl Followers {
    /// Counts one more stream of a tenant.
    ///
    /// # Errors
    /// `quota` when it has as many as it may.
    pub(crate) fn enter(&self, tenant: &Name) -> Result<Following, PublicError> {
        let mut open = self.open();
        let count = open.entry(tenant.clone()).or_default();
        if *count >= FOLLOWERS_MAX {
            return Err(PublicError::new(
                ErrorKind::Quota,
                format!("the tenant follows {FOLLOWERS_MAX} runs already, the most it may"),
            )
            .hint("close a stream that is not needed"));
        }
        *count += 1;
        Ok(Following {
            followers: self.clone(),
            tenant: tenant.clone(),
        })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Name, u32>> {
        // Nothing panics while it holds the lock.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut open = self.followers.open();
        if let Some(count) = open.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_takes_nobody_elses_and_what_is_closed_is_free_again() {
        let followers = Followers::default();
        let [acme, globex] = ["acme", "globex"].map(|name| Name::parse(name).unwrap());
        let mut held: Vec<_> = (0..FOLLOWERS_MAX)
            .map(|_| followers.enter(&acme).unwrap())
            .collect();
        let refused = followers.enter(&acme).err().unwrap();
        assert_eq!(refused.kind, ErrorKind::Quota);
        drop(followers.enter(&globex).unwrap());
        held.pop();
        drop(followers.enter(&acme).unwrap());
        held.clear();
        assert!(followers.open().is_empty());
    }
}
