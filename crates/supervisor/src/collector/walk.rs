//! The collector's own part: a walk through a hostile tree by directory descriptors.
//!
//! Runs in the confined process. No path is ever resolved: each name is opened below its
//! directory's descriptor, never through a link, a magic link or a mount, and looked at again after
//! it is open. Nothing is opened that could block.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use leasehold_protocol::socket::recv_with_fds;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat, fstat, openat2, statat,
};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::CollectBounds;
use super::copy::{Broken, copy};
use super::glob::{Globs, Progress};
use super::names::PATH_MAX;
use super::wire::{Cut, Fate, Message, TAKE};

/// Never out of the tree, over a link or into another mount.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// How often a name is tried again that was renamed while it was looked up.
const ATTEMPTS: u32 = 16;
const DIRECTORY_BYTES: usize = 32 << 10;
const COPY_BYTES: usize = 128 << 10;

/// Why the walk ends early.
enum Stop {
    Cut(Cut),
    /// Nobody listens to what is found.
    Deaf,
}

struct Walk<'a> {
    globs: &'a Globs,
    bounds: &'a CollectBounds,
    socket: BorrowedFd<'a>,
    deadline: Instant,
    entries: u64,
    total: u64,
    matched: u64,
    path: Vec<u8>,
    buffer: Vec<u8>,
}

/// Walks and reports. Gives the status the process ends with.
pub(super) fn run(
    workspace: BorrowedFd<'_>,
    socket: BorrowedFd<'_>,
    globs: &Globs,
    bounds: &CollectBounds,
) -> u8 {
    let mut walk = Walk {
        globs,
        bounds,
        socket,
        deadline: Instant::now() + bounds.time,
        entries: 0,
        total: 0,
        matched: globs.everything(),
        path: Vec::new(),
        buffer: vec![0; COPY_BYTES],
    };
    let whole = globs.everything() != 0;
    let progress = (!whole).then(|| globs.start());
    let ended = match open(workspace, c".", OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(root) => walk.directory(&root, progress.as_ref(), 0),
        Err(_) => Err(Stop::Cut(Cut::Workspace)),
    };
    let cut = match ended {
        Ok(()) => None,
        Err(Stop::Cut(cut)) => Some(cut),
        Err(Stop::Deaf) => return 1,
    };
    let unmatched = !walk.matched;
    u8::from(walk.tell(&Message::Done { cut, unmatched }).is_err())
}

/// Opens one name below a directory.
fn open(directory: BorrowedFd<'_>, name: &std::ffi::CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut attempts = 0;
    loop {
        match openat2(directory, name, flags, Mode::empty(), RESOLVE) {
            Err(Errno::AGAIN | Errno::INTR) if attempts < ATTEMPTS => attempts += 1,
            other => return other,
        }
    }
}

impl Walk<'_> {
    fn tell(&self, message: &Message) -> Result<(), Stop> {
        let bytes = message.encode();
        let sent = rustix::io::retry_on_intr(|| send(self.socket, &bytes, SendFlags::NOSIGNAL));
        sent.map(drop).map_err(|_| Stop::Deaf)
    }

    fn row(&self, fate: Fate, bytes: u64, sha256: [u8; 32]) -> Result<(), Stop> {
        self.tell(&Message::Row {
            fate,
            bytes,
            sha256,
            path: self.path.clone(),
        })
    }

    fn skip(&self, fate: Fate) -> Result<(), Stop> {
        self.row(fate, 0, [0; 32])
    }

    /// Everything wanted below a directory; all of it where no progress is given.
    fn directory(
        &mut self,
        directory: &OwnedFd,
        progress: Option<&Progress>,
        depth: u32,
    ) -> Result<(), Stop> {
        let due = progress.and_then(|progress| self.globs.names_due(progress));
        let names = match due {
            Some(names) => names.into_iter().map(<[u8]>::to_vec).collect(),
            None => match self.list(directory)? {
                Some(names) => names,
                None if self.path.is_empty() => return Err(Stop::Cut(Cut::Workspace)),
                None => return self.skip(Fate::Unreadable),
            },
        };
        let length = self.path.len();
        for name in names {
            if Instant::now() >= self.deadline {
                return Err(Stop::Cut(Cut::Time));
            }
            let slash = usize::from(length > 0);
            if length + slash + name.len() > PATH_MAX {
                self.skip(Fate::Limit)?;
                continue;
            }
            self.path.extend(&b"/"[..slash]);
            self.path.extend(&name);
            let done = self.name(directory, &name, progress, depth);
            self.path.truncate(length);
            done?;
        }
        Ok(())
    }

    /// All names of a directory in the order of their bytes; `None` when it cannot be read.
    fn list(&mut self, directory: &OwnedFd) -> Result<Option<Vec<Vec<u8>>>, Stop> {
        let mut buffer = vec![MaybeUninit::uninit(); DIRECTORY_BYTES];
        let mut entries = RawDir::new(directory, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let Ok(entry) = entry else {
                return Ok(None);
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            self.entries += 1;
            if self.entries > self.bounds.entries {
                return Err(Stop::Cut(Cut::Entries));
            }
            if self.entries.is_multiple_of(1_024) && Instant::now() >= self.deadline {
                return Err(Stop::Cut(Cut::Time));
            }
            names.push(name.to_vec());
        }
        names.sort_unstable();
        Ok(Some(names))
    }

    /// One name of a directory; its path is [`Walk::path`].
    fn name(
        &mut self,
        directory: &OwnedFd,
        name: &[u8],
        progress: Option<&Progress>,
        depth: u32,
    ) -> Result<(), Stop> {
        let step = progress.map(|progress| self.globs.step(progress, name));
        let (whole, named, leads_on) = match &step {
            None => (true, false, true),
            Some(step) => (step.whole != 0, step.named != 0, step.leads_on(self.globs)),
        };
        if !whole && !leads_on {
            return Ok(());
        }
        let Ok(name) = std::ffi::CString::new(name) else {
            return Ok(());
        };
        let seen = match statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(seen) => seen,
            Err(Errno::NOENT) => return Ok(()),
            Err(_) if whole || named => return self.skip(Fate::Unreadable),
            Err(_) => return Ok(()),
        };
        let bits = step.as_ref().map_or(0, |step| step.whole);
        self.matched |= bits;
        match FileType::from_raw_mode(seen.st_mode) {
            FileType::Directory => {
                let below = step.filter(|_| !whole).map(|step| step.below);
                self.descend(directory, &name, below.as_ref(), depth + 1)
            }
            FileType::Symlink if whole || named => {
                self.matched |= step.map_or(0, |step| step.named);
                self.skip(Fate::Symlink)
            }
            FileType::RegularFile if whole => self.file(directory, &name),
            _ if whole => self.skip(Fate::NotRegular),
            _ => Ok(()),
        }
    }

    fn descend(
        &mut self,
        parent: &OwnedFd,
        name: &std::ffi::CStr,
        below: Option<&Progress>,
        depth: u32,
    ) -> Result<(), Stop> {
        if depth > self.bounds.depth {
            return self.skip(Fate::Limit);
        }
        match open(parent.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => self.directory(&directory, below, depth),
            Err(errno) => self.skip(lost(errno)),
        }
    }

    fn file(&mut self, directory: &OwnedFd, name: &std::ffi::CStr) -> Result<(), Stop> {
        let source = match open(directory.as_fd(), name, OFlags::RDONLY) {
            Ok(source) => source,
            Err(errno) => return self.skip(lost(errno)),
        };
        let Ok(seen) = fstat(&source) else {
            return self.skip(Fate::Unreadable);
        };
        if FileType::from_raw_mode(seen.st_mode) != FileType::RegularFile {
            return self.skip(Fate::NotRegular);
        }
        let size = u64::try_from(seen.st_size).unwrap_or(u64::MAX);
        if size > self.bounds.file_bytes {
            return self.skip(Fate::TooLarge);
        }
        if size > self.bounds.total_bytes - self.total {
            return self.skip(Fate::Limit);
        }
        self.total += size;
        let Some(target) = self.want()? else {
            self.skip(Fate::Limit)?;
            return Err(Stop::Cut(Cut::Files));
        };
        self.take(&source, &seen, &target)
    }

    fn take(&mut self, source: &OwnedFd, seen: &Stat, target: &OwnedFd) -> Result<(), Stop> {
        match copy(
            source,
            seen,
            target.as_fd(),
            &mut self.buffer,
            self.deadline,
        ) {
            Ok(copied) => {
                let fate = if copied.changed {
                    Fate::Changed
                } else {
                    Fate::Taken
                };
                self.row(fate, copied.bytes, copied.sha256)
            }
            Err(Broken::Source) => self.skip(Fate::Unreadable),
            Err(Broken::Target) => {
                self.skip(Fate::Limit)?;
                Err(Stop::Cut(Cut::Storage))
            }
            Err(Broken::Late) => {
                self.skip(Fate::Limit)?;
                Err(Stop::Cut(Cut::Time))
            }
        }
    }

    /// Asks for a file to copy into; `None` when there may be no more.
    fn want(&self) -> Result<Option<OwnedFd>, Stop> {
        self.tell(&Message::Want)?;
        let mut answer = [0; 1];
        let mut fds = Vec::new();
        let got = recv_with_fds(self.socket, &mut answer, &mut fds).map_err(|_| Stop::Deaf)?;
        match (got, answer[0], fds.pop()) {
            (0, ..) => Err(Stop::Deaf),
            (_, TAKE, Some(file)) => Ok(Some(file)),
            _ => Ok(None),
        }
    }
}

/// What a name that cannot be opened is: a link that took the place of a file, or unreadable.
fn lost(errno: Errno) -> Fate {
    match errno {
        Errno::LOOP => Fate::Symlink,
        Errno::NXIO | Errno::NODEV => Fate::NotRegular,
        _ => Fate::Unreadable,
    }
}
