//! What makes a process the supervisor of its directories: two locks, held for life.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::paths::Paths;

/// The locks of a run directory and of a state directory. Given back on drop and by death.
#[derive(Debug)]
pub struct Lock {
    _run: File,
    _state: File,
}

/// Why nobody can be the supervisor here.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// A supervisor with another run directory has the state directory.
    #[error("state directory `{0}` is in use by a supervisor with another run directory")]
    Shared(String),
    /// A lock file cannot be used.
    #[error("lock file `{path}` cannot be used")]
    Io {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Lock {
    /// Takes both locks without waiting; `None` when a supervisor has them.
    ///
    /// # Errors
    /// When a file cannot be used, or only the state directory is taken.
    pub fn try_take(paths: &Paths) -> Result<Option<Self>, LockError> {
        let Some(run) = take(&paths.lock())? else {
            return Ok(None);
        };
        match take(&paths.owner())? {
            Some(state) => Ok(Some(Self {
                _run: run,
                _state: state,
            })),
            None => Err(LockError::Shared(paths.state().display().to_string())),
        }
    }
}

fn take(path: &std::path::Path) -> Result<Option<File>, LockError> {
    let failed = |source| LockError::Io {
        path: path.display().to_string(),
        source,
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(failed(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch_directory::ScratchDirectory;

    #[test]
    fn one_process_leads_and_a_state_directory_has_one_run_directory() {
        let place = ScratchDirectory::new("lock");
        let state = place.path().join("state");
        let paths = Paths::new(&state, &place.path().join("run"));
        let other = Paths::new(&state, &place.path().join("other"));
        paths.create().unwrap();
        other.create().unwrap();
        let held = Lock::try_take(&paths).unwrap();
        assert!(held.is_some());
        assert!(Lock::try_take(&paths).unwrap().is_none());
        assert!(matches!(Lock::try_take(&other), Err(LockError::Shared(_))));
        drop(held);
        assert!(Lock::try_take(&other).unwrap().is_some());
    }
}
