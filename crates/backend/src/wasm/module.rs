//! A WebAssembly binary as whoever asks for a run has it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;

use leasehold_core::digest::Digest;
use leasehold_core::error::PublicError;
use leasehold_protocol::memory;

use super::sealed::{self, FromStart};
use crate::seam::Doing;

/// Where the bytes of a module are, for whoever would rather not have them read until they are needed: they
/// are not once the module was compiled.
pub trait ModuleSource: Send + Sync {
    /// Opens them. What is read must have the digest that was named, or the run is refused.
    ///
    /// # Errors
    /// When they cannot be had.
    fn open(&self) -> Doing<'_, Result<File, PublicError>>;
}

/// A module: its digest, and where its bytes are. Cheap to clone.
#[derive(Clone)]
pub struct Module {
    digest: Digest,
    source: Source,
}

#[derive(Clone)]
enum Source {
    File(Arc<File>),
    Asked(Arc<dyn ModuleSource>),
}

impl fmt::Debug for Module {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Module").field(&self.digest).finish()
    }
}

impl Module {
    /// These bytes.
    ///
    /// # Errors
    /// When there is no memory for a copy.
    pub fn of_bytes(bytes: &[u8]) -> io::Result<Self> {
        Ok(Self {
            digest: Digest::of(bytes),
            source: Source::File(Arc::new(memory::sealed("leasehold-module", bytes)?.into())),
        })
    }

    /// All of a file, which is read once for its digest. It is read again when it must be compiled, and
    /// refused if it changed meanwhile.
    ///
    /// # Errors
    /// When it cannot be read, or is longer than `most` bytes.
    pub fn of_file(file: File, most: u64) -> io::Result<Self> {
        let mut bounded = FromStart::of(&file).take(most.saturating_add(1));
        let digest = sealed::digest(&mut bounded)?;
        if bounded.limit() == 0 {
            let why = format!("the module is longer than {most} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self {
            digest,
            source: Source::File(Arc::new(file)),
        })
    }

    /// A file whose digest is known, which is not read until it must be compiled, and refused then if its bytes
    /// are others.
    #[must_use]
    pub fn known(digest: Digest, file: File) -> Self {
        Self {
            digest,
            source: Source::File(Arc::new(file)),
        }
    }

    /// A module whose digest is known and whose bytes are opened when they are needed.
    #[must_use]
    pub fn asked(digest: Digest, source: Arc<dyn ModuleSource>) -> Self {
        Self {
            digest,
            source: Source::Asked(source),
        }
    }

    /// Digest of its bytes, as whoever made this says.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Its bytes, not yet looked at.
    ///
    /// # Errors
    /// When they cannot be had.
    pub async fn open(&self) -> Result<Arc<File>, PublicError> {
        match &self.source {
            Source::File(file) => Ok(Arc::clone(file)),
            Source::Asked(source) => Ok(Arc::new(source.open().await?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_known_by_all_its_bytes_within_a_bound() {
        let bytes = Module::of_bytes(b"\0asm").unwrap();
        assert_eq!(*bytes.digest(), Digest::of(b"\0asm"));
        let file = || File::from(memory::sealed("test", b"\0asm").unwrap());
        let read = Module::of_file(file(), 4).unwrap();
        assert_eq!(read.digest(), bytes.digest());
        let refused = Module::of_file(file(), 3).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        assert!(refused.to_string().contains("3 bytes"));
    }
}
