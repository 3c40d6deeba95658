//! The one tar reader. It reads what tools write and refuses what two readers could read differently.
//!
//! It knows the old format, POSIX (ustar and PAX) and GNU's long names. It reads from front to back, holds one
//! header and its extensions, and makes no file. What a name means is the caller's matter ([`crate::path`]).
//! [`header`] reads one block, [`pax`] the records of an extension, [`reader`] puts entries together.

pub mod header;
pub mod pax;
pub mod reader;

use std::io;

pub use reader::{Entry, Kind, Reader};

/// Bytes of a block.
pub const BLOCK: usize = 512;

/// Why an archive is refused.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The bytes could not be read: of a file, or of what was compressed.
    #[error("the archive cannot be read")]
    Read(#[source] io::Error),
    /// It ends within something.
    #[error("the archive ends within {0}")]
    Short(&'static str),
    /// A header or an extension is wrong.
    #[error("entry {entry:?}: {why}")]
    Entry {
        /// The name of the entry as far as it is known, cut.
        entry: String,
        /// What is wrong with it.
        why: String,
    },
    /// After its end something follows.
    #[error("bytes follow the end of the archive")]
    Trailing,
}

impl TarError {
    pub(crate) fn entry(name: &[u8], why: impl Into<String>) -> Self {
        Self::Entry {
            entry: crate::error::shown(name),
            why: why.into(),
        }
    }
}
