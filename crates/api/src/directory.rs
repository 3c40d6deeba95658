//! Directories that local callers pass beside their requests.
//!
//! HTTP never takes a host path. Whoever may reach the daemon's local socket passes a descriptor there and
//! gets a ticket that is good once and for a minute; the request names it in a header.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::spec::WorkspaceMode;

use crate::error::Refusal;

/// Header that names a ticket.
pub const TICKET_HEADER: &str = "leasehold-directory";
/// How long a ticket is good for.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// Most directories that are held for requests to come.
const HELD_MAX: usize = 256;

struct Held {
    directory: OwnedFd,
    mode: WorkspaceMode,
    since: Instant,
}

/// The directories that were passed and not yet used. Cheap to clone.
#[derive(Clone, Default)]
pub struct Directories {
    held: Arc<Mutex<HashMap<String, Held>>>,
}

impl Directories {
    /// Holds a directory for the request that will name this ticket, which nobody can guess.
    ///
    /// # Errors
    /// `quota` when too many wait.
    pub fn offer(
        &self,
        ticket: String,
        directory: OwnedFd,
        mode: WorkspaceMode,
    ) -> Result<(), PublicError> {
        // Nothing panics while it holds the lock.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, held| held.since.elapsed() < GOOD_FOR);
        if held.len() >= HELD_MAX {
            return Err(PublicError::new(
                ErrorKind::Quota,
                format!("{HELD_MAX} directories wait for their requests already"),
            ));
        }
        let since = Instant::now();
        let entry = Held {
            directory,
            mode,
            since,
        };
        held.insert(ticket, entry);
        Ok(())
    }

    /// Takes the directory that a request names, if it names one.
    pub(crate) fn take(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<(OwnedFd, WorkspaceMode)>, Refusal> {
        let Some(ticket) = headers.get(TICKET_HEADER) else {
            return Ok(None);
        };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = ticket.to_str().ok().and_then(|ticket| held.remove(ticket));
        entry
            .filter(|entry| entry.since.elapsed() < GOOD_FOR)
            .map(|entry| Some((entry.directory, entry.mode)))
            .ok_or_else(|| {
                PublicError::new(
                    ErrorKind::Invalid,
                    "the directory of this request was used already or is not held any more",
                )
                .into()
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_once() {
        let directories = Directories::default();
        let directory = std::fs::File::open("/").unwrap();
        let mode = WorkspaceMode::ReadOnly;
        directories
            .offer("t".into(), directory.into(), mode)
            .unwrap();
        let mut headers = HeaderMap::new();
        assert!(directories.take(&headers).unwrap().is_none());
        headers.insert(TICKET_HEADER, "t".parse().unwrap());
        assert_eq!(directories.take(&headers).unwrap().unwrap().1, mode);
        assert!(directories.take(&headers).is_err());
    }
}
