//! One file from a hostile tree into a file of ours: bounded, hashed, and honest about changes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::fs::{SeekFrom, Stat, fstat, ftruncate, seek};
use rustix::io::{Errno, read, write};
use sha2::{Digest, Sha256};

/// What was copied.
#[derive(Debug)]
pub(super) struct Copied {
    /// Bytes, the holes included.
    pub bytes: u64,
    /// Of these bytes.
    pub sha256: [u8; 32],
    /// Whether the file was not the same before and after, or longer than it said.
    pub changed: bool,
}

/// Why a copy is of no use.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The source cannot be read.
    Source,
    /// The target cannot be written.
    Target,
    /// The time is over.
    Late,
}

/// Copies at most the bytes the file had when it was opened. Holes stay holes.
///
/// # Errors
/// Says which side failed; the target is then of no use.
pub(super) fn copy(
    source: &OwnedFd,
    before: &Stat,
    target: BorrowedFd<'_>,
    buffer: &mut [u8],
    deadline: Instant,
) -> Result<Copied, Broken> {
    let size = u64::try_from(before.st_size).map_err(|_| Broken::Source)?;
    let mut hash = Sha256::new();
    let mut bytes = 0;
    while bytes < size {
        if Instant::now() >= deadline {
            return Err(Broken::Late);
        }
        let room =
            usize::try_from(size - bytes).map_or(buffer.len(), |left| left.min(buffer.len()));
        let got = again(|| read(source, &mut buffer[..room])).map_err(|_| Broken::Source)?;
        if got == 0 {
            break;
        }
        hash.update(&buffer[..got]);
        put(target, &buffer[..got]).map_err(|_| Broken::Target)?;
        bytes += got as u64;
    }
    // The last bytes may be a hole.
    ftruncate(target, bytes).map_err(|_| Broken::Target)?;
    let more = again(|| read(source, &mut buffer[..1])).map_err(|_| Broken::Source)?;
    let after = fstat(source).map_err(|_| Broken::Source)?;
    Ok(Copied {
        bytes,
        sha256: hash.finalize().into(),
        changed: bytes < size || more > 0 || !same(before, &after),
    })
}

fn same(before: &Stat, after: &Stat) -> bool {
    before.st_size == after.st_size
        && (before.st_mtime, before.st_mtime_nsec) == (after.st_mtime, after.st_mtime_nsec)
}

/// Writes all bytes, or steps over them where they are zero.
fn put(target: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    if bytes.iter().all(|byte| *byte == 0) {
        let length = i64::try_from(bytes.len()).map_err(|_| Errno::OVERFLOW)?;
        return seek(target.as_fd(), SeekFrom::Current(length)).map(drop);
    }
    while !bytes.is_empty() {
        let put = again(|| write(target, bytes))?;
        if put == 0 {
            return Err(Errno::IO);
        }
        bytes = &bytes[put..];
    }
    Ok(())
}

fn again<T>(call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    rustix::io::retry_on_intr(call)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};
    use std::time::Duration;

    use super::*;

    fn file() -> std::fs::File {
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::open(std::env::temp_dir(), flags, mode)
            .unwrap()
            .into()
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn bytes_and_holes_come_across() {
        let (mut source, mut target) = (file(), file());
        let mut content = vec![0; 300_000];
        content[200_000..200_003].copy_from_slice(b"end");
        source.write_all(&content).unwrap();
        source.rewind().unwrap();
        let source = OwnedFd::from(source);
        let before = fstat(&source).unwrap();
        let mut buffer = vec![0; 65_536];
        let copied = copy(&source, &before, target.as_fd(), &mut buffer, later()).unwrap();
        assert_eq!((copied.bytes, copied.changed), (300_000, false));
        assert_eq!(copied.sha256[..], Sha256::digest(&content)[..]);
        let mut got = Vec::new();
        target.rewind().unwrap();
        target.read_to_end(&mut got).unwrap();
        assert_eq!(got, content);
        let blocks = fstat(&target).unwrap().st_blocks;
        assert!(blocks * 512 <= 131_072, "{blocks} blocks for one full one");
    }

    #[test]
    fn a_growing_file_is_cut_at_its_first_size() {
        let (mut source, target) = (file(), file());
        source.write_all(b"1234").unwrap();
        source.rewind().unwrap();
        let before = fstat(&source).unwrap();
        source.seek(std::io::SeekFrom::End(0)).unwrap();
        source.write_all(b"56").unwrap();
        source.rewind().unwrap();
        let copied = copy(
            &source.into(),
            &before,
            target.as_fd(),
            &mut [0; 64],
            later(),
        )
        .unwrap();
        assert_eq!((copied.bytes, copied.changed), (4, true));
    }

    #[test]
    fn a_shrunk_file_is_marked() {
        let (mut source, target) = (file(), file());
        source.write_all(b"1234").unwrap();
        let before = fstat(&source).unwrap();
        source.set_len(2).unwrap();
        source.rewind().unwrap();
        let copied = copy(
            &source.into(),
            &before,
            target.as_fd(),
            &mut [0; 64],
            later(),
        )
        .unwrap();
        assert_eq!((copied.bytes, copied.changed), (2, true));
    }

    #[test]
    fn time_runs_out() {
        let (mut source, target) = (file(), file());
        source.write_all(b"1234").unwrap();
        source.rewind().unwrap();
        let source = OwnedFd::from(source);
        let before = fstat(&source).unwrap();
        let copied = copy(
            &source,
            &before,
            target.as_fd(),
            &mut [0; 64],
            Instant::now(),
        );
        assert_eq!(copied.unwrap_err(), Broken::Late);
    }
}
