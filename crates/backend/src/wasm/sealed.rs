//! What files hold, by digest.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;

use leasehold_core::digest::Digest;
use sha2::{Digest as _, Sha256};

/// Bytes that are copied at once.
const PIECE: usize = 256 << 10;

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
