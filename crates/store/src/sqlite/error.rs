//! What an error of the engine means to callers.

use std::path::PathBuf;

use leasehold_core::digest::CanonicalError;
use leasehold_core::error::Internal;
use rusqlite::ErrorCode;

use crate::seam::StoreError;

/// Why a database was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{} is in use by another daemon", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A newer program wrote it.
    #[error(
        "{} was written by a newer version (format {found}, this program knows up to {known}); install that version or restore a copy from before",
        path.display()
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format known here.
        known: u32,
    },
    /// It is no database, or pages of it are broken.
    #[error("{} is damaged: {detail}; it was left as it is", path.display())]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What was seen.
        detail: String,
    },
    /// A migration or a setting failed; the database is as before.
    #[error("{} cannot be opened", path.display())]
    Engine {
        /// The database.
        path: PathBuf,
        /// What the engine said.
        #[source]
        source: rusqlite::Error,
    },
    /// The file system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// Whether the failure is for want of room.
pub(super) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// What callers are told of a failure of the engine. The text is for the log alone.
pub(super) fn classify(error: &rusqlite::Error) -> StoreError {
    let detail = Internal::new(error.to_string());
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::ReadOnly) => StoreError::Unwritable(detail),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Damaged(detail),
        _ => StoreError::Engine(detail),
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        classify(&error)
    }
}

impl From<CanonicalError> for StoreError {
    fn from(error: CanonicalError) -> Self {
        Self::Engine(Internal::new(format!("no canonical form: {error}")))
    }
}

/// A row that does not read back as what was written.
pub(super) fn damaged(what: &str, error: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged(Internal::new(format!("{what}: {error}")))
}
