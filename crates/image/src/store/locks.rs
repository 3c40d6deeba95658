//! Locks between processes and threads: `flock`, which a process that dies lets go of.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::files::open_lock;
use super::{Scope, Store};
use crate::error::{ImageError, Result, at};

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Between two looks at a lock that somebody else holds.
const LOOK: Duration = Duration::from_millis(50);
/// Most processes that an error names.
const HOLDERS_MAX: usize = 4;

/// How somebody else's work is waited for.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    /// What is waited for, in words.
    pub(crate) what: &'a str,
    /// How long at most, from the beginning or from when [`Waiting::grows`] grew last.
    pub(crate) most: Duration,
    /// A file that grows while the work goes on.
    pub(crate) grows: Option<PathBuf>,
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
            None => Err(ImageError::Busy(format!(
                "the image store is in use by {}",
                holders(&self.at("locks").join(COLLECT))
            ))),
        }
    }

    /// Is the one who changes the records of a scope.
    pub(super) fn records(&self, scope: &Scope) -> Result<Lock> {
        let name = format!("records-{}", scope.name());
        self.lock(&name, FlockOperation::LockExclusive)
    }

    /// Is the one who gives unpacked layers their names.
    pub(super) fn layer_names(&self) -> Result<Lock> {
        self.lock("layers", FlockOperation::LockExclusive)
    }

    /// Is the one who does what this name stands for; waits for whoever does it now, within a bound.
    ///
    /// # Errors
    /// When it takes too long, with what was waited for and who does it.
    pub(crate) fn once(
        &self,
        name: &str,
        waiting: &Waiting<'_>,
        told: impl FnOnce(),
    ) -> Result<Lock> {
        if let Some(lock) = self.try_lock(name)? {
            return Ok(lock);
        }
        told();
        let length = || {
            let file = waiting.grows.as_ref()?;
            Some(std::fs::metadata(file).ok()?.len())
        };
        let (mut since, mut seen) = (Instant::now(), length());
        loop {
            thread::sleep(LOOK);
            if let Some(lock) = self.try_lock(name)? {
                return Ok(lock);
            }
            let now = length();
            if now != seen {
                (since, seen) = (Instant::now(), now);
            }
            if since.elapsed() >= waiting.most {
                let holders = holders(&self.at("locks").join(name));
                return Err(ImageError::Busy(format!(
                    "{} was waited for in vain: {holders} is at it",
                    waiting.what
                )));
            }
        }
    }

    fn lock(&self, name: &str, how: FlockOperation) -> Result<Lock> {
        let path = self.at("locks").join(name);
        let file = open_lock(&path)?;
        rustix::io::retry_on_intr(|| flock(&file, how)).map_err(at("lock", path))?;
        Ok(Lock { _file: file })
    }

    pub(super) fn try_lock(&self, name: &str) -> Result<Option<Lock>> {
        let path = self.at("locks").join(name);
        let file = open_lock(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(at("lock", path)(error)),
        }
    }
}

/// Who holds a lock, in words, as the kernel lists it.
fn holders(path: &Path) -> String {
    let listed = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let inode = std::fs::metadata(path).map_or(0, |found| found.ino());
    let ending = format!(":{inode}");
    let mut found: Vec<String> = listed
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            // One that waits has an arrow before its kind.
            let [_, "FLOCK", _, _, process, file, ..] = words.as_slice() else {
                return None;
            };
            file.ends_with(&ending)
                .then(|| format!("process {process}"))
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found.truncate(HOLDERS_MAX);
    match found.is_empty() {
        true => "a process that cannot be seen from here".to_owned(),
        false => found.join(", "),
    }
}
