//! What is known of a run while it is carried: one level that anybody may look at, never a queue that
//! somebody could fill.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::digest::Digest;
use leasehold_core::end::CancelledBy;
use leasehold_core::id::{KeyId, RunId, SandboxId};
use leasehold_core::name::Name;
use leasehold_core::stage::StageTime;
use leasehold_store::seam::RunRow;
use tokio::sync::watch;

/// Something that happened and is no output; the same facts in the same order as in the chain.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Note {
    Queued { ahead: u32 },
    Compiling { module: Digest },
    Compiled { module: Digest, micros: u64 },
    Pulling { image: Digest },
    Pulled { image: Digest, micros: u64 },
    Start { sandbox: SandboxId, warm: bool },
    Stage(StageTime),
}

/// The present of a run.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Its row as of the last write.
    pub(crate) row: RunRow,
    /// What happened so far.
    pub(crate) notes: Vec<Note>,
    /// Bytes of standard output and standard error in the spools.
    pub(crate) output: [u64; 2],
    /// Its carrier has stopped and will write nothing any more.
    pub(crate) left: bool,
}

/// A wish for the end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cancel {
    pub(crate) by: CancelledBy,
    pub(crate) key: Option<KeyId>,
}

/// A run that is carried by this process.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) run: RunId,
    pub(crate) tenant: Name,
    pub(crate) seen: watch::Sender<Seen>,
    pub(crate) cancel: watch::Sender<Option<Cancel>>,
    spools: Mutex<Option<Arc<[File; 2]>>>,
}

impl Live {
    pub(crate) fn new(row: RunRow) -> Arc<Self> {
        let cancel = row.cancel_requested.then_some(Cancel {
            by: CancelledBy::Caller,
            key: None,
        });
        Arc::new(Self {
            run: row.run.clone(),
            tenant: row.tenant.clone(),
            seen: watch::Sender::new(Seen {
                row,
                notes: Vec::new(),
                output: [0; 2],
                left: false,
            }),
            cancel: watch::Sender::new(cancel),
            spools: Mutex::new(None),
        })
    }

    /// Changes what is seen.
    pub(crate) fn see(&self, change: impl FnOnce(&mut Seen)) {
        self.seen.send_modify(change);
    }

    /// Adds what happened.
    pub(crate) fn note(&self, note: Note) {
        self.see(|seen| seen.notes.push(note));
    }

    /// The row as of now.
    pub(crate) fn row(&self) -> RunRow {
        self.seen.borrow().row.clone()
    }

    /// Asks for its end; the first wish stands.
    pub(crate) fn ask_end(&self, cancel: Cancel) {
        self.cancel.send_if_modified(|wish| {
            let first = wish.is_none();
            if first {
                *wish = Some(cancel);
            }
            first
        });
        self.see(|seen| {
            if !seen.row.state.is_over() {
                seen.row.cancel_requested = true;
            }
        });
    }

    /// Gives the files its output grows in.
    pub(crate) fn set_spools(&self, files: [File; 2]) {
        *self.spools.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(files));
    }

    /// The files its output grows in, once there are any.
    pub(crate) fn spools(&self) -> Option<Arc<[File; 2]>> {
        self.spools
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
