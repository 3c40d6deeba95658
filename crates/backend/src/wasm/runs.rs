//! The shared runs of this process: those in progress, and the newest of those that are over.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use leasehold_core::end::EndReason;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::name::Name;
use leasehold_core::record::RunRecord;
use tokio::sync::mpsc;

use super::host::Host;
use super::journal::Journal;
use super::run::{SharedRun, gone_with_its_owner};
use crate::execution::{EVENTS_MAX, Events, Execution};
use crate::kept::Kept;

/// A shared run and where it is.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub(super) tenant: Name,
    pub(super) run: Arc<SharedRun>,
    pub(super) sandbox: SandboxId,
    /// Its host, and its number there.
    pub(super) host: Weak<Host>,
    pub(super) number: u32,
}

#[derive(Debug)]
pub(super) struct Runs {
    path: PathBuf,
    ended_kept: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: HashMap<RunId, Option<Placed>>,
    /// Those that are over, oldest first.
    ended: VecDeque<RunId>,
    journal: Option<Journal>,
}

impl Runs {
    pub(super) fn new(path: PathBuf, ended_kept: usize) -> Self {
        Self {
            path,
            ended_kept,
            held: Mutex::default(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Nothing panics while it holds this lock.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an id for a run, durably enough that no later process begins it again.
    ///
    /// # Errors
    /// `exists` when it was taken before. Any other error says that no run can be noted here: it can still be
    /// carried out in a sandbox of its own.
    pub(super) fn reserve(&self, run: &RunId) -> Result<(), Reserve> {
        let mut held = self.held();
        let Held { all, journal, .. } = &mut *held;
        if all.contains_key(run) {
            return Err(Reserve::Exists);
        }
        let journal = opened(journal, &self.path).map_err(Reserve::Unable)?;
        if journal.has(run) {
            return Err(Reserve::Exists);
        }
        let lives = |run: &RunId| all.contains_key(run);
        journal.begin(run, lives).map_err(Reserve::Unable)?;
        all.insert(run.clone(), None);
        Ok(())
    }

    /// Notes where a run is.
    pub(super) fn place(&self, run: RunId, placed: Placed) {
        self.held().all.insert(run, Some(placed));
    }

    /// Notes that a run is over; the oldest of those are forgotten.
    pub(super) fn over(&self, run: &RunId) {
        let mut held = self.held();
        held.ended.push_back(run.clone());
        while held.ended.len() > self.ended_kept {
            if let Some(oldest) = held.ended.pop_front() {
                held.all.remove(&oldest);
            }
        }
    }

    /// Forgets the run that has been over for longest, of any tenant or of one, so that what is kept of it makes room.
    /// Says whether there was one.
    pub(super) fn forget_oldest(&self, tenant: Option<&Name>) -> bool {
        let mut held = self.held();
        let Held { all, ended, .. } = &mut *held;
        let counts = |run: &RunId| {
            let placed = all.get(run).and_then(Option::as_ref);
            tenant.is_none_or(|tenant| placed.is_some_and(|placed| placed.tenant == *tenant))
        };
        let at = ended.iter().position(counts);
        let oldest = at.and_then(|at| ended.remove(at));
        oldest.is_some_and(|oldest| {
            all.remove(&oldest);
            true
        })
    }

    pub(super) fn get(&self, run: &RunId) -> Option<Placed> {
        self.held().all.get(run).cloned().flatten()
    }

    /// Those in progress.
    pub(super) fn running(&self) -> Vec<(RunId, SandboxId)> {
        let held = self.held();
        let placed = held.all.iter();
        let placed = placed.filter_map(|(run, placed)| Some((run, placed.as_ref()?)));
        let lives = placed.filter(|(_, placed)| !placed.run.over());
        lives
            .map(|(run, placed)| (run.clone(), placed.sandbox.clone()))
            .collect()
    }

    /// A run of this process that is followed again, if there is such.
    ///
    /// # Errors
    /// When there is no descriptor for it.
    pub(super) fn attach(&self, run: &RunId) -> io::Result<Option<Execution>> {
        let Some(placed) = self.get(run) else {
            return Ok(None);
        };
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        placed.run.kept.follow(sender);
        let execution = placed.run.kept.execution(None, Events::Channel(events))?;
        Ok(Some(execution))
    }

    /// A run that was begun here, by this process or an earlier one, and of which nothing is left: it is over,
    /// and was lost.
    ///
    /// # Errors
    /// When there is no descriptor for it.
    pub(super) fn lost(&self, run: &RunId) -> io::Result<Option<Execution>> {
        let begun = {
            let mut held = self.held();
            // Who never had a shared run has no such file, and asks for none.
            let asked = held.journal.is_some() || self.path.exists();
            asked && opened(&mut held.journal, &self.path)?.has(run)
        };
        if !begun {
            return Ok(None);
        }
        let record = RunRecord {
            end: Some(EndReason::HostLost),
            cleanup: Some(gone_with_its_owner()),
            ..RunRecord::accepted(run.clone(), no_sandbox(), 0)
        };
        let kept = Kept::new(record)?;
        kept.end();
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        kept.follow(sender);
        kept.execution(None, Events::Channel(events)).map(Some)
    }
}

/// Why a run cannot be noted.
#[derive(Debug)]
pub(super) enum Reserve {
    Exists,
    Unable(io::Error),
}

/// Nobody knows any more which one it was.
fn no_sandbox() -> SandboxId {
    SandboxId::from_entropy(&[0; 13])
}

fn opened<'a>(
    journal: &'a mut Option<Journal>,
    path: &std::path::Path,
) -> io::Result<&'a mut Journal> {
    match journal {
        Some(journal) => Ok(journal),
        None => Ok(journal.insert(Journal::open(path)?)),
    }
}

pub(super) fn exists(run: &RunId) -> PublicError {
    PublicError::new(ErrorKind::Exists, format!("run `{run}` exists already"))
}
