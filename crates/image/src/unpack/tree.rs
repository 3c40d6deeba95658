//! The files of a layer, made by descriptor below one root. Whatever the archive says, nothing outside of it is
//! opened, made, changed or removed: every way is taken without following a link.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RawDir, Stat, Timespec, Timestamps, Uid, XattrFlags,
    chownat, fchmod, fchown, fsetxattr, futimens, linkat, mkdirat, mknodat, openat2, statat,
    symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, Result};

use crate::stack::{self, BENEATH};

/// Owner, mode, time and attributes of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: (u64, u32),
    /// Extended ones.
    pub(crate) extended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// Of a file that is there. Its extended ones are not read.
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: (
                u64::try_from(stat.st_mtime).unwrap_or(0),
                u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
            ),
            extended: Vec::new(),
        }
    }

    fn times(&self) -> Timestamps {
        let time = Timespec {
            tv_sec: i64::try_from(self.mtime.0).unwrap_or(0),
            tv_nsec: self.mtime.1.into(),
        };
        Timestamps {
            last_access: time,
            last_modification: time,
        }
    }
}

/// Whether owners are given; else what the caller must be able to do is added to modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owners {
    Given,
    Caller,
}

impl Owners {
    /// Puts attributes on an open file or directory; how many extended ones it did not take.
    pub(crate) fn put(self, file: BorrowedFd<'_>, to: &Attributes, directory: bool) -> Result<u64> {
        let mut refused = 0;
        for (name, value) in &to.extended {
            match fsetxattr(file, &name[..], value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(
                    Errno::NOTSUP
                    | Errno::NOSPC
                    | Errno::TOOBIG
                    | Errno::RANGE
                    | Errno::INVAL
                    | Errno::PERM,
                ) => {
                    refused += 1;
                }
                Err(error) => return Err(error),
            }
        }
        let mode = match (self, directory) {
            (Self::Given, _) => to.mode,
            (Self::Caller, true) => to.mode | 0o700,
            (Self::Caller, false) => to.mode | 0o400,
        };
        if self == Self::Given {
            fchown(
                file,
                Some(Uid::from_raw(to.uid)),
                Some(Gid::from_raw(to.gid)),
            )?;
        }
        fchmod(file, Mode::from_raw_mode(mode))?;
        futimens(file, &to.times())?;
        Ok(refused)
    }

    /// Puts owner and time on a symbolic link.
    fn put_on_link(self, parent: BorrowedFd<'_>, name: &[u8], to: &Attributes) -> Result<()> {
        if self == Self::Given {
            let (user, group) = (Uid::from_raw(to.uid), Gid::from_raw(to.gid));
            chownat(
                parent,
                name,
                Some(user),
                Some(group),
                AtFlags::SYMLINK_NOFOLLOW,
            )?;
        }
        utimensat(parent, name, &to.times(), AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// What is at a name, if anything is.
pub(crate) fn look(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A new file, open for writing.
pub(crate) fn create(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(parent, name, flags, Mode::RUSR | Mode::WUSR, BENEATH)
}

/// A file that is there, open for reading.
pub(crate) fn open(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    openat2(parent, name, flags, Mode::empty(), BENEATH)
}

/// A new directory, for its maker alone until all is in it.
pub(crate) fn make_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    mkdirat(parent, name, Mode::RWXU)?;
    stack::directory(parent, name)
}

/// A symbolic link. Where it leads is never looked at.
pub(crate) fn make_link(
    parent: BorrowedFd<'_>,
    name: &[u8],
    to: &[u8],
    owners: Owners,
    attributes: &Attributes,
) -> Result<()> {
    symlinkat(to, parent, name)?;
    owners.put_on_link(parent, name, attributes)
}

/// Another name of a file, which is not followed if it is a link itself.
pub(crate) fn make_name(
    from: BorrowedFd<'_>,
    old: &[u8],
    parent: BorrowedFd<'_>,
    name: &[u8],
) -> Result<()> {
    linkat(from, old, parent, name, AtFlags::empty())
}

/// The mark that a name of a lower layer is removed.
pub(crate) fn make_mark(parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0)
}

/// Makes a directory hide what lower layers have in it.
pub(crate) fn make_opaque(directory: BorrowedFd<'_>) -> Result<()> {
    fsetxattr(directory, stack::OPAQUE, b"y", XattrFlags::empty())
}

/// Removes a name, and all that is below it.
pub(crate) fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        done => return done,
    }
    let directory = stack::directory(parent, name)?;
    // A directory may have been closed to its owner, who is not root.
    for child in names(directory.as_fd())? {
        remove(directory.as_fd(), &child)?;
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Removes the marks below directories that hide the layers below: they hide nothing there, and a mount would list
/// them. How many.
pub(crate) fn remove_marks(directory: BorrowedFd<'_>, hidden: bool) -> Result<u64> {
    let hidden = hidden || stack::is_opaque(directory);
    let mut removed = 0;
    for name in names(directory)? {
        let stat = statat(directory, &name[..], AtFlags::SYMLINK_NOFOLLOW)?;
        if hidden && stack::is_mark(&stat) {
            unlinkat(directory, &name[..], AtFlags::empty())?;
            removed += 1;
        } else if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            removed += remove_marks(stack::directory(directory, &name)?.as_fd(), hidden)?;
        }
    }
    Ok(removed)
}

/// The names in a directory, which is read from its start.
pub(crate) fn names(directory: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>> {
    rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(0))?;
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Copies all that a file has.
pub(crate) fn copy(from: OwnedFd, to: OwnedFd) -> io::Result<OwnedFd> {
    let (mut from, mut to) = (std::fs::File::from(from), std::fs::File::from(to));
    let mut buffer = vec![0; 128 << 10];
    loop {
        let got = io::Read::read(&mut from, &mut buffer)?;
        if got == 0 {
            return Ok(to.into());
        }
        io::Write::write_all(&mut to, &buffer[..got])?;
    }
}

/// A second descriptor of a directory, of its own offset.
pub(crate) fn again(directory: BorrowedFd<'_>) -> Result<OwnedFd> {
    stack::directory(directory.as_fd(), b".")
}
