//! Files that callers leave for those after them: programs and compiled code of theirs, so that a command that
//! lives for milliseconds neither reads nor copies tens of megabytes that the one before it has just checked.
//!
//! They are sealed memory files: nothing about them can change, whoever has them. Under which digest one is kept is
//! the word of a caller, and every caller is this user.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_protocol::memory;

/// Most files.
const FILES_MAX: usize = 16;
/// Most bytes of all of them.
const BYTES_MAX: u64 = 256 << 20;

/// The files, the one that was used last at the end.
#[derive(Debug, Default)]
pub(crate) struct Kept(Vec<Held>);

#[derive(Debug)]
struct Held {
    digest: Digest,
    bytes: u64,
    file: OwnedFd,
}

impl Kept {
    /// Keeps a file in the place of those that were used least.
    ///
    /// # Errors
    /// When it could change, or is too long.
    pub(crate) fn put(&mut self, digest: Digest, file: OwnedFd) -> Result<(), PublicError> {
        let refused = |message: String| PublicError::new(ErrorKind::Invalid, message);
        if !memory::is_sealed(&file) {
            let message = "what is to be kept is no sealed memory file: it could change";
            return Err(refused(message.to_owned()));
        }
        let seen = rustix::fs::fstat(&file).map_err(|errno| refused(errno.to_string()))?;
        let bytes = seen.st_size.unsigned_abs();
        if bytes > BYTES_MAX {
            return Err(refused(format!("{bytes} bytes: most is {BYTES_MAX}")));
        }
        self.0.retain(|held| held.digest != digest);
        let all = |held: &[Held]| held.iter().map(|held| held.bytes).sum::<u64>();
        while self.0.len() >= FILES_MAX || all(&self.0) + bytes > BYTES_MAX {
            self.0.remove(0);
        }
        self.0.push(Held {
            digest,
            bytes,
            file,
        });
        Ok(())
    }

    /// The file that was kept under this digest.
    pub(crate) fn get(&mut self, digest: &Digest) -> Option<BorrowedFd<'_>> {
        let at = self.0.iter().position(|held| held.digest == *digest)?;
        let held = self.0.remove(at);
        self.0.push(held);
        self.0.last().map(|held| held.file.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(of: usize) -> Digest {
        Digest::of(&of.to_le_bytes())
    }

    fn file(bytes: &[u8]) -> OwnedFd {
        memory::sealed("test", bytes).unwrap()
    }

    #[test]
    fn the_files_that_were_used_last_are_kept() {
        let mut kept = Kept::default();
        for at in 0..FILES_MAX {
            kept.put(digest(at), file(&at.to_le_bytes())).unwrap();
        }
        assert!(kept.get(&digest(0)).is_some());
        kept.put(digest(FILES_MAX), file(b"one more")).unwrap();
        assert!(kept.get(&digest(1)).is_none());
        let mut bytes = [0; 8];
        let found = kept.get(&digest(0)).unwrap();
        assert_eq!(rustix::io::pread(found, &mut bytes, 0), Ok(8));
        assert_eq!(bytes, 0_usize.to_le_bytes());
        // Again under the same digest is no second one.
        kept.put(digest(0), file(b"same")).unwrap();
        assert_eq!(kept.0.len(), FILES_MAX);
    }

    #[test]
    fn what_could_change_or_is_too_long_is_not_kept() {
        let mut kept = Kept::default();
        let open = memory::create("test").unwrap();
        let error = kept.put(digest(0), open).unwrap_err();
        assert!(error.message.contains("sealed"), "{error}");
        let long = |bytes| {
            let file = memory::create("test").unwrap();
            rustix::fs::ftruncate(&file, bytes).unwrap();
            memory::seal(&file).unwrap();
            file
        };
        assert!(kept.put(digest(0), long(BYTES_MAX + 1)).is_err());
        kept.put(digest(0), long(BYTES_MAX)).unwrap();
        // It leaves no room for another.
        kept.put(digest(1), long(1)).unwrap();
        assert!(kept.get(&digest(0)).is_none() && kept.get(&digest(1)).is_some());
    }
}
