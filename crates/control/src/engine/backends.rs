//! The ways of making computers of one worker: a run goes to the one that its contract names, at its launch
//! and at whatever comes after.

use std::collections::HashMap;
use std::sync::Arc;

use leasehold_backend::error::BackendError;
use leasehold_backend::seam::Backend;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::{RunId, SandboxId};

/// What some backends have running, and which of them could not be asked.
pub(crate) struct Running<'a> {
    /// Each run once, with its computer and the first backend that told of it.
    pub(crate) runs: HashMap<RunId, (SandboxId, &'a Arc<dyn Backend>)>,
    /// Failures, by the name of the backend.
    pub(crate) failures: Vec<(&'static str, BackendError)>,
}

/// A few backends with different names; never none. Cheap to clone.
#[derive(Clone)]
pub struct Backends(Arc<[Arc<dyn Backend>]>);

impl Backends {
    /// One backend.
    #[must_use]
    pub fn of(backend: Arc<dyn Backend>) -> Self {
        Self(Arc::new([backend]))
    }

    /// These and one more, in the place of one that has its name.
    #[must_use]
    pub fn with(&self, backend: Arc<dyn Backend>) -> Self {
        let others = self.0.iter().filter(|each| each.name() != backend.name());
        let mut all: Vec<Arc<dyn Backend>> = others.cloned().collect();
        all.push(backend);
        Self(all.into())
    }

    /// The one that came first.
    #[must_use]
    pub fn first(&self) -> &Arc<dyn Backend> {
        &self.0[0]
    }

    /// Each of them, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Backend>> {
        self.0.iter()
    }

    /// The one with this name.
    ///
    /// # Errors
    /// `unsupported` where none has it.
    pub fn named(&self, name: &str) -> Result<&Arc<dyn Backend>, PublicError> {
        let found = self.iter().find(|backend| backend.name() == name);
        found.ok_or_else(|| {
            let message = format!("this daemon has no backend `{name}`");
            PublicError::new(ErrorKind::Unsupported, message)
        })
    }

    /// What all of them have running. Two may know the same run, where one works over the other.
    pub(crate) async fn running(&self) -> Running<'_> {
        let mut all = Running {
            runs: HashMap::new(),
            failures: Vec::new(),
        };
        for backend in self.iter() {
            match backend.running().await {
                Ok(running) => {
                    for (run, sandbox) in running {
                        all.runs.entry(run).or_insert((sandbox, backend));
                    }
                }
                Err(error) => all.failures.push((backend.name(), error)),
            }
        }
        all
    }
}
