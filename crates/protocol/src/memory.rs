//! Memory files that one process fills and another uses: sealed, so that what was looked at is what is used.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;

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

/// Longest that the kernel may go on to use the pages of a file that is to be sealed.
const PAGES_BUSY: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const AGAIN: Duration = Duration::from_millis(1);

/// Fixes bytes and length of a file for good. Nobody may have it mapped for writing. The kernel refuses as long as
/// it uses a page itself, as it does for a moment when it looks for memory to reclaim: that is waited for,
/// 2 s at most.
///
/// # Errors
/// As `fcntl(2)`; `EBUSY` when it is mapped for writing.
pub fn seal(file: impl AsFd) -> io::Result<()> {
    let until = Instant::now() + PAGES_BUSY;
    loop {
        match fcntl_add_seals(&file, SEALS) {
            Err(Errno::BUSY) if Instant::now() < until => std::thread::sleep(AGAIN),
            other => return Ok(other?),
        }
    }
}

/// A sealed file of these bytes, at its beginning. Whoever is passed a copy of the descriptor shares the place in
/// the file: read it by offset where more than one may.
///
/// # Errors
/// When there is no memory for it, or the kernel refuses.
pub fn sealed(label: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = create(label)?;
    fill(&file, bytes)?;
    Ok(file)
}

/// Puts bytes into an empty file, which is at its beginning then, and seals it.
///
/// # Errors
/// When there is no memory for it, or the kernel refuses.
pub fn fill(file: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => rest = &rest[count..],
        }
    }
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    seal(&file)
}

/// Whether it is a memory file that is sealed or can be.
#[must_use]
pub fn can_be_sealed(file: impl AsFd) -> bool {
    fcntl_get_seals(file)
        .is_ok_and(|seals| !seals.contains(SealFlags::SEAL) || seals.contains(SEALS))
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

    /// A page that the kernel holds for a moment, here in a pipe, is waited for; the control is the bare call.
    #[test]
    fn pages_in_use_are_waited_for() {
        let file = create("test").unwrap();
        rustix::io::write(&file, &[7; 4_096]).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut at = 0;
        let flags = rustix::pipe::SpliceFlags::empty();
        let moved = rustix::pipe::splice(&file, Some(&mut at), &writer, None, 4_096, flags);
        assert_eq!(moved, Ok(4_096));
        let bare = fcntl_add_seals(&file, SealFlags::WRITE);
        if bare.is_ok() {
            // This kernel does not count the pages of a pipe.
            return;
        }
        assert_eq!(bare, Err(Errno::BUSY));
        let freed = std::thread::spawn(move || {
            // Longer than the kernel waits by itself.
            std::thread::sleep(Duration::from_millis(500));
            drop(reader);
            drop(writer);
        });
        seal(&file).unwrap();
        assert!(is_sealed(&file));
        freed.join().unwrap();
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
