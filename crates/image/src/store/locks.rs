//! Locks between processes and threads: `flock`, which a process that dies lets go of.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::Store;
use super::files::open_lock;
use crate::error::{ImageError, Result, at};

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Name of the lock between those who bring images in and the one who collects.
const COLLECT: &str = "collect";

impl Store {
    /// Keeps collection away for as long as it is held.
    pub(crate) fn keep(&self) -> Result<Lock> {
        self.lock(COLLECT, FlockOperation::LockShared)
    }

    /// Is alone in the store.
    ///
    /// # Errors
    /// When somebody brings an image in.
    pub(super) fn alone(&self) -> Result<Lock> {
        match self.try_lock(COLLECT)? {
            Some(lock) => Ok(lock),
            None => Err(ImageError::Busy("the image store")),
        }
    }

    /// Is the one who does what this name stands for; waits for whoever does it now.
    pub(crate) fn once(&self, name: &str, waiting: impl FnOnce()) -> Result<Lock> {
        if let Some(lock) = self.try_lock(name)? {
            return Ok(lock);
        }
        waiting();
        self.lock(name, FlockOperation::LockExclusive)
    }

    fn lock(&self, name: &str, how: FlockOperation) -> Result<Lock> {
        let path = self.at("locks").join(name);
        let file = open_lock(&path)?;
        rustix::io::retry_on_intr(|| flock(&file, how)).map_err(at("lock", path))?;
        Ok(Lock { _file: file })
    }

    fn try_lock(&self, name: &str) -> Result<Option<Lock>> {
        let path = self.at("locks").join(name);
        let file = open_lock(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(at("lock", path)(error)),
        }
    }
}
