//! Descriptors of this process: what a run must find free before it begins, and what is set aside for ends.
//!
//! A process may have so many numbers for what it opens, and the bound can be cut while it runs. So a run has its
//! turn only with numbers for all that it will open, and a few low numbers are set aside: whatever ends something,
//! and the caller who asks for that, gets them when there are no others. Until they are set aside again nothing
//! begins. It is the descriptors' side of the room that the store keeps of a disk.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};
use tokio::sync::{Semaphore, SemaphorePermit};

/// What a run that is carried has open at most: its two streams here and where they are read, its workspace or
/// its input, and what is copied at its end.
const OF_A_RUN: usize = 6;
/// What an end may open at one moment: a copy of a stream, an object and its directory, or the connection to a worker
/// that has to be started.
const OF_AN_END: usize = 8;
/// What callers get in all, one each.
const OF_CALLERS: usize = 4;
/// What this process has open by itself: runtime, database and its readers, logs, locks, signals, the worker.
const OWN: u64 = 48;

/// Numbers for descriptors.
#[derive(Debug)]
pub struct Descriptors {
    /// What the numbers that are set aside stand for; without it nothing is bounded.
    nothing: Option<File>,
    state: Mutex<State>,
    ends: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    aside: Vec<OwnedFd>,
    /// So many are given up for now.
    lent: usize,
}

/// Numbers that a run finds free once this is dropped.
#[derive(Debug, Default)]
pub struct Held(#[allow(dead_code, reason = "it is there to be dropped")] Vec<OwnedFd>);

/// Numbers that were set aside and are free until this is dropped.
#[derive(Debug)]
pub struct Lent {
    of: Arc<Descriptors>,
    count: usize,
}

/// The same for the one end whose turn it is.
#[derive(Debug)]
pub(crate) struct ForAnEnd<'a> {
    _lent: Lent,
    _turn: SemaphorePermit<'a>,
}

/// How many this process may have.
fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Most runs at once of a process that may have so many descriptors, of which `connections` are for callers; one at
/// the least.
#[must_use]
pub fn runs_carried(descriptors: u64, connections: u64) -> u32 {
    let aside = (OF_AN_END + OF_CALLERS) as u64;
    let left = descriptors.saturating_sub(connections + OWN + aside);
    u32::try_from(left / OF_A_RUN as u64)
        .unwrap_or(u32::MAX)
        .max(1)
}

impl Descriptors {
    /// Nothing is set aside and nothing bounded.
    #[must_use]
    pub fn unbounded() -> Arc<Self> {
        Arc::new(Self {
            nothing: None,
            state: Mutex::default(),
            ends: Semaphore::new(1),
        })
    }

    /// Sets some aside: as early as may be, so that their numbers are low and still there when the bound is cut.
    ///
    /// # Errors
    /// When this process may not even have these.
    pub fn set_aside() -> io::Result<Arc<Self>> {
        let all = Self {
            nothing: Some(File::open("/dev/null")?),
            state: Mutex::default(),
            ends: Semaphore::new(1),
        };
        let filled = all.is_filled(&mut all.state());
        match filled {
            true => Ok(Arc::new(all)),
            false => Err(rustix::io::Errno::MFILE.into()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One number more, the lowest that is free.
    fn number(&self) -> Option<OwnedFd> {
        fcntl_dupfd_cloexec(self.nothing.as_ref()?, 0).ok()
    }

    /// So many numbers more, or none at all.
    fn numbers(&self, count: usize) -> Option<Vec<OwnedFd>> {
        (0..count).map(|_| self.number()).collect()
    }

    /// Whether all that is to be set aside is, or given up; what is missing is set aside where it can be.
    fn is_filled(&self, state: &mut State) -> bool {
        if self.nothing.is_none() {
            return true;
        }
        let limit = limit();
        let below = |fd: &OwnedFd| u64::try_from(fd.as_raw_fd()).is_ok_and(|number| number < limit);
        // One beyond the bound is none that anybody could get.
        state.aside.retain(below);
        while state.aside.len() + state.lent < OF_AN_END + OF_CALLERS {
            match self.number() {
                Some(number) => state.aside.push(number),
                None => return false,
            }
        }
        true
    }

    /// Whether there are none but those set aside, some of which are given up: they are for whoever got them.
    pub fn are_scarce(&self) -> bool {
        let mut state = self.state();
        !self.is_filled(&mut state)
            || (state.lent > 0 && self.numbers(state.lent + OF_AN_END).is_none())
    }

    /// Takes lower numbers in the place of those set aside, where there are any.
    pub(crate) fn settle(&self) {
        let mut state = self.state();
        if !self.is_filled(&mut state) || self.nothing.is_none() {
            return;
        }
        state.aside.sort_by_key(AsRawFd::as_raw_fd);
        while let (Some(highest), Some(free)) = (state.aside.last(), self.number()) {
            if free.as_raw_fd() > highest.as_raw_fd() {
                return;
            }
            state.aside.pop();
            state.aside.insert(0, free);
        }
    }

    /// Numbers for a run that is to begin; `None` while there are none, or too few for ends.
    pub(crate) fn for_a_run(&self) -> Option<Held> {
        if self.nothing.is_none() {
            return Some(Held::default());
        }
        let mut state = self.state();
        if !self.is_filled(&mut state) {
            return None;
        }
        // Those that are given up look free and are not.
        let mut held = self.numbers(OF_A_RUN + state.lent)?;
        held.truncate(OF_A_RUN);
        Some(Held(held))
    }

    fn lend(self: &Arc<Self>, count: usize, spared: usize) -> Option<Lent> {
        let mut state = self.state();
        self.is_filled(&mut state);
        let left = state.aside.len().checked_sub(count)?;
        if left < spared {
            return None;
        }
        // The lowest come first, and go last.
        state
            .aside
            .sort_by_key(|fd| std::cmp::Reverse(fd.as_raw_fd()));
        state.aside.truncate(left);
        state.lent += count;
        Some(Lent {
            of: Arc::clone(self),
            count,
        })
    }

    /// Gives one up for a caller that could not be let in, who may want the end of something. `None` when as many
    /// callers have one as may.
    #[must_use]
    pub fn for_a_caller(self: &Arc<Self>) -> Option<Lent> {
        let spared = OF_AN_END.saturating_sub(self.lent_to_an_end());
        self.lend(1, spared)
    }

    fn lent_to_an_end(&self) -> usize {
        match self.ends.available_permits() {
            0 => OF_AN_END,
            _ => 0,
        }
    }

    /// Gives up what an end may need, to one after another. `None` when there are others, or none can be given.
    pub(crate) async fn for_an_end(self: &Arc<Self>) -> Option<ForAnEnd<'_>> {
        self.nothing.as_ref()?;
        let turn = self.ends.acquire().await.ok()?;
        let lent = self.state().lent;
        if self.numbers(OF_AN_END + lent).is_some() {
            return None;
        }
        Some(ForAnEnd {
            _lent: self.lend(OF_AN_END, 0)?,
            _turn: turn,
        })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.lent -= self.count;
        self.of.is_filled(&mut state);
    }
}

#[cfg(test)]
mod tests;
