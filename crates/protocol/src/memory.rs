//! Memory files that one process fills and another uses: sealed, so that what was looked at is what is used.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

/// Nothing about the bytes can change any more, nor can this be taken back.
const SEALS: SealFlags = SealFlags::WRITE
    .union(SealFlags::GROW)
    .union(SealFlags::SHRINK)
    .union(SealFlags::SEAL);

/// An empty file of no name that can be sealed, close-on-exec. `label` is what `/proc` shows of it.
///
/// # Errors
/// As `memfd_create(2)`.
pub fn create(label: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(memfd_create(label, flags)?)
}

/// Fixes bytes and length of a file for good. Nobody may have it mapped for writing.
///
/// # Errors
/// As `fcntl(2)`.
pub fn seal(file: impl AsFd) -> io::Result<()> {
    Ok(fcntl_add_seals(file, SEALS)?)
}

/// A sealed file of these bytes, at its beginning. Whoever is passed a copy of the descriptor shares the place in
/// the file: read it by offset where more than one may.
///
/// # Errors
/// When there is no memory for it, or the kernel refuses.
pub fn sealed(label: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = create(label)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => rest = &rest[count..],
        }
    }
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    seal(&file)?;
    Ok(file)
}

/// Whether it is a memory file of which nothing can change any more.
#[must_use]
pub fn is_sealed(file: impl AsFd) -> bool {
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_file_holds_its_bytes_and_takes_no_others() {
        let file = sealed("test", b"abc").unwrap();
        assert!(is_sealed(&file));
        let mut bytes = [0; 8];
        assert_eq!(rustix::io::pread(&file, &mut bytes, 0), Ok(3));
        assert_eq!(&bytes[..3], b"abc");
        assert!(rustix::io::pwrite(&file, b"x", 0).is_err());
        assert!(rustix::io::write(&file, b"x").is_err());
        assert!(rustix::fs::ftruncate(&file, 1).is_err());
        assert!(fcntl_add_seals(&file, SealFlags::empty()).is_err());
    }

    #[test]
    fn what_can_change_is_not_sealed() {
        let open = create("test").unwrap();
        assert!(!is_sealed(&open));
        fcntl_add_seals(&open, SealFlags::WRITE | SealFlags::SEAL).unwrap();
        assert!(!is_sealed(&open), "its length can change");
        assert!(!is_sealed(std::fs::File::open("/proc/self/exe").unwrap()));
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_sealed(&socket));
    }
}
