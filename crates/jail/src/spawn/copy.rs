//! A bounded plain copy of a directory, for hosts where a copy on write is not to be had.
//!
//! Only files, directories and links are copied, and only what their owner, the caller, may read.
//! No link is followed, no other file system entered. The size is bounded by the file system copied
//! to, which answers `ENOSPC`; depth and number of entries are bounded here.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::userns::Owner;

/// Deepest directory.
const DEPTH_MAX: u32 = 128;
/// Most files, directories and links.
const ENTRIES_MAX: u64 = 1 << 20;

/// Copies what is in `from` into `to`, as files of `owner`.
///
/// # Errors
/// `ENOSPC` when it does not fit, `E2BIG` when it is deeper or more than the bounds, else whatever
/// reading or writing said. What the caller may not read is left out.
pub(super) fn copy(from: &OwnedFd, to: &OwnedFd, caller: u32, owner: Owner) -> Result<(), Errno> {
    let device = rustix::fs::fstat(from)?.st_dev;
    let mut copy = Copy {
        device,
        caller,
        owner,
        entries: 0,
    };
    copy.directory(from.as_fd(), to.as_fd(), 0)
}

struct Copy {
    device: u64,
    caller: u32,
    owner: Owner,
    entries: u64,
}

impl Copy {
    fn directory(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        depth: u32,
    ) -> Result<(), Errno> {
        if depth > DEPTH_MAX {
            return Err(Errno::TOOBIG);
        }
        for entry in rustix::fs::Dir::read_from(from)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                return Err(Errno::TOOBIG);
            }
            self.entry(from, to, name, depth)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        depth: u32,
    ) -> Result<(), Errno> {
        let stat = match rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Gone since it was listed.
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(target.as_c_str(), to, name)?;
                let (uid, gid) = self.owner.ids();
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(to, name, uid, gid, flags)
            }
            FileType::RegularFile if self.may(&stat, 0o4) => self.file(from, to, name),
            FileType::Directory if self.may(&stat, 0o5) && stat.st_dev == self.device => {
                let inner = match open(from, name, OFlags::RDONLY | OFlags::DIRECTORY) {
                    Ok(inner) => inner,
                    Err(Errno::ACCESS) => return Ok(()),
                    Err(errno) => return Err(errno),
                };
                rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o700))?;
                let made = open(to, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
                self.directory(inner.as_fd(), made.as_fd(), depth + 1)?;
                self.settle(&made, &stat)
            }
            _ => Ok(()),
        }
    }

    /// Whether the caller has these rights, as owner or as anybody.
    fn may(&self, stat: &Stat, rights: u32) -> bool {
        let granted = if stat.st_uid == self.caller {
            stat.st_mode >> 6
        } else {
            stat.st_mode
        };
        granted & rights == rights
    }

    fn file(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        // Not blocking, should the name have become a pipe meanwhile.
        let source = match open(from, name, OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(source) => source,
            Err(Errno::ACCESS | Errno::NOENT | Errno::LOOP) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let stat = rustix::fs::fstat(&source)?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !regular || !self.may(&stat, 0o4) {
            return Ok(());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let made = rustix::fs::openat(to, name, flags, Mode::from_raw_mode(0o600))?;
        let mut part = vec![0; 128 << 10];
        loop {
            let got = rustix::io::retry_on_intr(|| rustix::io::read(&source, &mut part[..]))?;
            if got == 0 {
                break;
            }
            let mut rest = &part[..got];
            while !rest.is_empty() {
                let written = rustix::io::retry_on_intr(|| rustix::io::write(&made, rest))?;
                rest = &rest[written..];
            }
        }
        self.settle(&made, &stat)
    }

    /// Owner, then mode without set-id bits.
    fn settle(&self, made: &OwnedFd, stat: &Stat) -> Result<(), Errno> {
        let (uid, gid) = self.owner.ids();
        rustix::fs::fchown(made, uid, gid)?;
        rustix::fs::fchmod(made, Mode::from_raw_mode(stat.st_mode & 0o777))
    }
}

fn open(directory: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(
        directory,
        name,
        flags | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV,
    )
}
