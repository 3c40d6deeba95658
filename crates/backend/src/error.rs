//! Why a backend could not do what it was asked.

use std::error::Error;

use leasehold_core::end::EndReason;
use leasehold_core::error::{ErrorKind, PublicError};

/// A failure of a backend. How a run ended is never one of these: that is in its record.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// It said no, in words that may be shown.
    #[error(transparent)]
    Refused(#[from] PublicError),
    /// Nothing was begun, and would not be another time: what it was to run cannot be run, such as a module that
    /// takes more to compile than it may. That is how such a run ends.
    #[error("{detail}")]
    Unrunnable {
        /// The end.
        end: Box<EndReason>,
        /// What is wrong with it, in words that may be shown.
        detail: String,
    },
    /// What makes the computers is not there, or broke off.
    #[error("backend {backend} cannot be used")]
    Lost {
        /// Which backend.
        backend: &'static str,
        /// What kind of failure it is.
        kind: ErrorKind,
        /// What is known.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl BackendError {
    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused(error) => error.kind,
            Self::Unrunnable { .. } => ErrorKind::Invalid,
            Self::Lost { kind, .. } => *kind,
        }
    }

    /// What is wrong with all its causes, in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }
}
