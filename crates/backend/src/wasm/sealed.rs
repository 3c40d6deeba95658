//! Copies into memory that nobody can change any more: what was looked at is what is used.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use leasehold_core::digest::Digest;
use leasehold_protocol::memory;
use sha2::{Digest as _, Sha256};

/// Bytes that are copied at once.
const PIECE: usize = 256 << 10;

/// Bytes in a memory file of which nothing can change any more.
#[derive(Debug)]
pub(super) struct Sealed {
    /// The file.
    pub(super) file: OwnedFd,
    /// Its length.
    pub(super) bytes: u64,
    /// What it holds.
    pub(super) digest: Digest,
}

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    /// There are more bytes than may be.
    #[error("it is longer than {0} bytes")]
    TooLong(u64),
    /// It cannot be read, or there is no memory for it.
    #[error("it cannot be copied into memory")]
    Io(#[from] io::Error),
}

/// Copies all of `source`, at most `most` bytes. `label` is what `/proc` shows of the copy.
///
/// # Errors
/// When it is longer, cannot be read, or no memory is left.
pub(super) fn copy(label: &str, source: &mut dyn Read, most: u64) -> Result<Sealed, CopyError> {
    let mut file = File::from(memory::create(label)?);
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE];
    let mut bytes = 0;
    loop {
        let got = match source.read(&mut piece) {
            Ok(0) => break,
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        bytes += got as u64;
        if bytes > most {
            return Err(CopyError::TooLong(most));
        }
        hash.update(&piece[..got]);
        file.write_all(&piece[..got])?;
    }
    memory::seal(&file)?;
    Ok(Sealed {
        file: file.into(),
        bytes,
        digest: Digest::from_bytes(hash.finalize().into()),
    })
}

/// A file from its beginning, whatever its own position, which copies of a descriptor share.
#[derive(Debug)]
pub(super) struct FromStart<'a> {
    file: &'a File,
    at: u64,
}

impl<'a> FromStart<'a> {
    pub(super) fn of(file: &'a File) -> Self {
        Self { file, at: 0 }
    }
}

impl Read for FromStart<'_> {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read_at(piece, self.at)?;
        self.at += got as u64;
        Ok(got)
    }
}

/// The digest of what is left of `source`.
///
/// # Errors
/// When it cannot be read.
pub(super) fn digest(source: &mut dyn Read) -> io::Result<Digest> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE];
    loop {
        match source.read(&mut piece) {
            Ok(0) => return Ok(Digest::from_bytes(hash.finalize().into())),
            Ok(got) => hash.update(&piece[..got]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_sealed_whole_and_known_by_its_digest() {
        let bytes: Vec<u8> = (0..PIECE + 7).map(|at| (at % 251) as u8).collect();
        let copied = copy("test", &mut bytes.as_slice(), bytes.len() as u64).unwrap();
        assert!(memory::is_sealed(&copied.file));
        assert_eq!(copied.bytes, bytes.len() as u64);
        assert_eq!(copied.digest, Digest::of(&bytes));
        assert_eq!(digest(&mut bytes.as_slice()).unwrap(), copied.digest);
        let less = bytes.len() as u64 - 1;
        let refused = copy("test", &mut bytes.as_slice(), less).unwrap_err();
        assert!(matches!(refused, CopyError::TooLong(most) if most == less));
    }
}
