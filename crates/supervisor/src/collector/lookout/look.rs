//! The lookout's own part, in the confined process: two looks at a tree and what differs.
//!
//! Directories are opened name by name below their parent's descriptor; a file is opened only to
//! read a small one, and never one that could block. Most names of a tree are told apart by what the
//! directory says of them and cost no call of their own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use leasehold_core::record::LeftChange;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat, fstat, openat2, readlinkat, statat,
};
use rustix::io::{Errno, read};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use sha2::{Digest, Sha256};

use super::super::names::PATH_MAX;
use super::super::obeyed::{Folder, is_repository};
use super::LookBounds;
use super::leads;
use super::wire::{AGAIN, Message, Short};

/// Below the directory, through no link of any kind.
const PLAIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);
/// Below the workspace, through links that stay below it.
const LED: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
const ATTEMPTS: u32 = 16;
const DIRECTORY_BYTES: usize = 32 << 10;
const READ_BYTES: usize = 64 << 10;
/// Most leads one behind the other.
const HOPS: u32 = 8;

/// The look ends early.
struct Cut(Short);

/// What a file or link is, as far as a change of it can be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    place: (u64, u64),
    size: i64,
    modified: (i64, u64),
    changed: (i64, u64),
    /// Digest of the content or of a link's target, where it was read.
    content: Option<[u8; 32]>,
}

impl Entry {
    #[allow(
        clippy::useless_conversion,
        reason = "the fields have other widths on other processors"
    )]
    fn new(seen: &Stat, content: Option<[u8; 32]>) -> Self {
        Self {
            mode: seen.st_mode,
            owner: (seen.st_uid, seen.st_gid),
            links: u64::from(seen.st_nlink),
            place: (seen.st_dev, seen.st_ino),
            size: seen.st_size,
            modified: (seen.st_mtime, u64::from(seen.st_mtime_nsec)),
            changed: (seen.st_ctime, u64::from(seen.st_ctime_nsec)),
            content,
        }
    }

    fn is_directory(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::Directory
    }

    /// Of a directory that we cannot list: whether the workload, who has our ids, could pass
    /// through it all the same. Its owner is not the workload where the owner may list it.
    fn may_be_entered(&self) -> bool {
        let passes = if self.mode & 0o400 == 0 { 0o111 } else { 0o011 };
        self.mode & passes != 0
    }
}

/// Path, and whether the entry is what a lead at that path leads to.
type Place = (Vec<u8>, bool);

/// A place to look at beside the plain walk.
struct Lead {
    path: Vec<u8>,
    folder: Folder,
    hops: u32,
}

/// One look.
struct Look<'a> {
    bounds: &'a LookBounds,
    root: BorrowedFd<'a>,
    deadline: Instant,
    /// Mounts below the workspace with their paths; the first look finds them. Their descriptors
    /// outlive the sandbox's mount namespace.
    mounts: Vec<(Vec<u8>, OwnedFd)>,
    finds_mounts: bool,
    found: BTreeMap<Place, Entry>,
    /// Nearest first.
    leads: VecDeque<Lead>,
    led: BTreeSet<Vec<u8>>,
    /// Directories that leads have led to, so that links in a circle end.
    reached: BTreeSet<(u64, u64, Folder)>,
    short: Option<Short>,
    entries: u64,
    path_bytes: usize,
    contents: u64,
    path: Vec<u8>,
}

/// Looks, says so, waits for the word, looks again and tells what differs. Gives the status the
/// process ends with.
pub(super) fn run(workspace: BorrowedFd<'_>, socket: BorrowedFd<'_>, bounds: &LookBounds) -> u8 {
    let before = Look::new(workspace, bounds, None).look();
    if !tell(socket, &Message::Ready) || !again(socket) {
        return 1;
    }
    let Look {
        found: was,
        short: was_short,
        mounts,
        ..
    } = before;
    let after = Look::new(workspace, bounds, Some(mounts)).look();
    for (path, change) in differences(&was, was_short.is_some(), &after) {
        let path = path.to_vec();
        if !tell(socket, &Message::Row { change, path }) {
            return 1;
        }
    }
    u8::from(!tell(socket, &Message::Done(after.short.or(was_short))))
}

fn tell(socket: BorrowedFd<'_>, message: &Message) -> bool {
    let bytes = message.encode();
    rustix::io::retry_on_intr(|| send(socket, &bytes, SendFlags::NOSIGNAL)).is_ok()
}

/// Waits for the supervisor's word; `false` when it is gone.
fn again(socket: BorrowedFd<'_>) -> bool {
    let mut word = [0; 1];
    let got = rustix::io::retry_on_intr(|| recv(socket, &mut word, RecvFlags::empty()));
    matches!(got, Ok((_, 1))) && word[0] == AGAIN
}

/// Each path whose file is not as it was, once.
fn differences<'a>(
    was: &'a BTreeMap<Place, Entry>,
    partial: bool,
    after: &'a Look<'_>,
) -> BTreeMap<&'a [u8], LeftChange> {
    let mut rows = BTreeMap::new();
    for (place, entry) in &after.found {
        let change = match was.get(place) {
            // To come in, it had to change the mode or move the directory, unless it could already.
            before if entry.is_directory() => {
                if before == Some(entry) && !entry.may_be_entered() {
                    continue;
                }
                LeftChange::Unreadable
            }
            Some(before) if before == entry => continue,
            Some(_) => LeftChange::Changed,
            None if partial => LeftChange::Uncompared,
            None => LeftChange::Created,
        };
        rows.entry(place.0.as_slice()).or_insert(change);
    }
    // What a look that was cut did not come to is not gone.
    if after.short.is_none() {
        for (place, entry) in was {
            if !entry.is_directory() && !after.found.contains_key(place) {
                rows.entry(&place.0).or_insert(LeftChange::Removed);
            }
        }
    }
    rows
}

fn open(
    directory: BorrowedFd<'_>,
    path: &CStr,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut flags = flags | OFlags::CLOEXEC;
    if !flags.contains(OFlags::PATH) {
        flags |= OFlags::NONBLOCK | OFlags::NOCTTY;
    }
    let mut attempts = 0;
    loop {
        match openat2(directory, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) if attempts < ATTEMPTS => attempts += 1,
            other => return other,
        }
    }
}

const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

impl<'a> Look<'a> {
    fn new(
        root: BorrowedFd<'a>,
        bounds: &'a LookBounds,
        mounts: Option<Vec<(Vec<u8>, OwnedFd)>>,
    ) -> Self {
        Self {
            bounds,
            root,
            deadline: Instant::now() + bounds.time,
            finds_mounts: mounts.is_none(),
            mounts: mounts.unwrap_or_default(),
            found: BTreeMap::new(),
            leads: VecDeque::new(),
            led: BTreeSet::new(),
            reached: BTreeSet::new(),
            short: None,
            entries: 0,
            path_bytes: 0,
            contents: 0,
            path: Vec::new(),
        }
    }

    fn look(mut self) -> Self {
        if let Err(Cut(short)) = self.all() {
            self.miss(short);
        }
        self
    }

    fn miss(&mut self, short: Short) {
        self.short.get_or_insert(short);
    }

    fn all(&mut self) -> Result<(), Cut> {
        let Ok(root) = open(self.root, c".", LIST, PLAIN) else {
            return Err(Cut(Short::Workspace));
        };
        self.directory(&root, Folder::default(), 0, 0)?;
        // Since the namespace is gone, what was mounted is no longer below the root.
        if !self.finds_mounts {
            for (path, mount) in std::mem::take(&mut self.mounts) {
                let folder = folder_of(&path);
                self.path = path;
                self.directory(&mount, folder, 1, 0)?;
                self.path.clear();
            }
        }
        while let Some(lead) = self.leads.pop_front() {
            self.follow(lead)?;
        }
        Ok(())
    }

    /// Everything below an open directory, whose path is [`Look::path`].
    fn directory(
        &mut self,
        directory: &OwnedFd,
        folder: Folder,
        depth: u32,
        hops: u32,
    ) -> Result<(), Cut> {
        let names = match self.list(directory)? {
            Some(names) => names,
            None if self.path.is_empty() => return Err(Cut(Short::Workspace)),
            None => return self.unreadable(directory),
        };
        let git = is_repository(names.iter().map(|(name, _)| name.to_bytes()));
        let folder = if git { folder.repository() } else { folder };
        let length = self.path.len();
        for (name, kind) in names {
            let bytes = name.to_bytes();
            let slash = usize::from(length > 0);
            if length + slash + bytes.len() > PATH_MAX {
                self.miss(Short::Depth);
                continue;
            }
            self.path.extend(&b"/"[..slash]);
            self.path.extend(bytes);
            let done = self.name(directory, &name, kind, folder, depth, hops);
            self.path.truncate(length);
            done?;
        }
        Ok(())
    }

    /// All names of a directory; `None` when it cannot be read.
    fn list(&mut self, directory: &OwnedFd) -> Result<Option<Vec<(CString, FileType)>>, Cut> {
        let mut buffer = vec![MaybeUninit::uninit(); DIRECTORY_BYTES];
        let mut entries = RawDir::new(directory, &mut buffer);
        let mut names = Vec::new();
        if Instant::now() >= self.deadline {
            return Err(Cut(Short::Time));
        }
        while let Some(entry) = entries.next() {
            let Ok(entry) = entry else {
                return Ok(None);
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            self.entries += 1;
            if self.entries > self.bounds.entries {
                return Err(Cut(Short::Entries));
            }
            if self.entries.is_multiple_of(1_024) && Instant::now() >= self.deadline {
                return Err(Cut(Short::Time));
            }
            names.push((name.to_owned(), entry.file_type()));
        }
        names.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        Ok(Some(names))
    }

    fn name(
        &mut self,
        directory: &OwnedFd,
        name: &CStr,
        kind: FileType,
        folder: Folder,
        depth: u32,
        hops: u32,
    ) -> Result<(), Cut> {
        let kind = match kind {
            FileType::Unknown => match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(seen) => FileType::from_raw_mode(seen.st_mode),
                Err(_) => return Ok(()),
            },
            kind => kind,
        };
        match kind {
            FileType::Directory => {
                let folder = folder.enter(name.to_bytes());
                self.descend(directory, name, folder, depth + 1, hops)
            }
            FileType::Symlink if folder.obeys_link(&self.path) => {
                let folder = folder.enter(name.to_bytes());
                self.lead(self.path.clone(), folder, hops);
                self.note(directory, name, folder, hops)
            }
            FileType::Symlink => Ok(()),
            _ if folder.obeys(&self.path) => self.note(directory, name, folder, hops),
            _ => Ok(()),
        }
    }

    fn descend(
        &mut self,
        parent: &OwnedFd,
        name: &CStr,
        folder: Folder,
        depth: u32,
        hops: u32,
    ) -> Result<(), Cut> {
        if depth > self.bounds.depth {
            self.miss(Short::Depth);
            return Ok(());
        }
        if !self.finds_mounts && self.mounts.iter().any(|(path, _)| *path == self.path) {
            return Ok(());
        }
        let opened = match open(parent.as_fd(), name, LIST, PLAIN | ResolveFlags::NO_XDEV) {
            Err(Errno::XDEV) => return self.mount(parent, name, folder, depth, hops),
            opened => opened,
        };
        match opened {
            Ok(directory) => self.directory(&directory, folder, depth, hops),
            Err(Errno::ACCESS | Errno::PERM) => {
                match open(parent.as_fd(), name, OFlags::PATH, PLAIN) {
                    Ok(place) => self.unreadable(&place),
                    Err(_) => Ok(()),
                }
            }
            // Gone or another kind of thing since it was listed: somebody else shares the directory.
            Err(_) => Ok(()),
        }
    }

    /// Another file system below the workspace, which the sandbox has as well.
    fn mount(
        &mut self,
        parent: &OwnedFd,
        name: &CStr,
        folder: Folder,
        depth: u32,
        hops: u32,
    ) -> Result<(), Cut> {
        if !self.finds_mounts || self.mounts.len() >= self.bounds.mounts {
            self.miss(Short::Mounts);
            return Ok(());
        }
        let Ok(mount) = open(parent.as_fd(), name, LIST, PLAIN) else {
            self.miss(Short::Mounts);
            return Ok(());
        };
        let Ok(copy) = rustix::io::fcntl_dupfd_cloexec(&mount, 3) else {
            self.miss(Short::Mounts);
            return Ok(());
        };
        self.mounts.push((self.path.clone(), copy));
        self.directory(&mount, folder, depth, hops)
    }

    /// A directory that cannot be read may hold anything.
    fn unreadable(&mut self, directory: &OwnedFd) -> Result<(), Cut> {
        match fstat(directory) {
            Ok(seen) => self.keep(false, Entry::new(&seen, None)),
            Err(_) => Ok(()),
        }
    }

    /// Looks at a file or link of an obeyed name.
    fn note(
        &mut self,
        directory: &OwnedFd,
        name: &CStr,
        folder: Folder,
        hops: u32,
    ) -> Result<(), Cut> {
        let Ok(seen) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return Ok(());
        };
        let content = match FileType::from_raw_mode(seen.st_mode) {
            FileType::RegularFile => {
                let file = open(directory.as_fd(), name, OFlags::RDONLY, PLAIN);
                file.ok().and_then(|file| self.content(&file, folder, hops))
            }
            FileType::Symlink => readlinkat(directory, name, Vec::new())
                .ok()
                .map(|target| Sha256::digest(target.to_bytes()).into()),
            _ => None,
        };
        self.keep(false, Entry::new(&seen, content))
    }

    /// Digest of a small file; what a git configuration names is looked at later.
    fn content(&mut self, file: &OwnedFd, folder: Folder, hops: u32) -> Option<[u8; 32]> {
        let seen = fstat(file).ok()?;
        let size = u64::try_from(seen.st_size).ok()?;
        let left = self.bounds.contents_bytes - self.contents;
        if FileType::from_raw_mode(seen.st_mode) != FileType::RegularFile
            || size > self.bounds.content_bytes
            || size > left
        {
            return None;
        }
        self.contents += size;
        let mut text = Vec::new();
        let mut part = vec![0; READ_BYTES];
        // One byte more than it was long, so that one that grows is seen.
        while (text.len() as u64) <= size {
            match rustix::io::retry_on_intr(|| read(file, &mut part[..])) {
                Ok(0) => break,
                Ok(got) => text.extend(&part[..got]),
                Err(_) => return None,
            }
        }
        let last = self.path.rsplit(|byte| *byte == b'/').next();
        let config = [&b"config"[..], b"config.worktree", b".gitconfig"];
        if (folder.in_repository() || last == Some(b".gitconfig"))
            && last.is_some_and(|last| config.contains(&last))
        {
            for path in leads::of_git_config(&self.path, &text) {
                self.lead(path, Folder::obeyed(), hops);
            }
        }
        Some(Sha256::digest(&text).into())
    }

    fn keep(&mut self, led: bool, entry: Entry) -> Result<(), Cut> {
        self.path_bytes += self.path.len();
        if self.found.len() >= self.bounds.files || self.path_bytes > self.bounds.path_bytes {
            return Err(Cut(Short::Files));
        }
        self.found.insert((self.path.clone(), led), entry);
        Ok(())
    }

    fn lead(&mut self, path: Vec<u8>, folder: Folder, hops: u32) {
        if self.led.contains(&path) {
            return;
        }
        if hops >= HOPS || self.led.len() >= self.bounds.leads {
            return self.miss(Short::Files);
        }
        self.led.insert(path.clone());
        self.leads.push_back(Lead {
            path,
            folder,
            hops: hops + 1,
        });
    }

    /// Looks at what a link or a setting leads to, if that is below the workspace.
    fn follow(&mut self, lead: Lead) -> Result<(), Cut> {
        let at = if lead.path.is_empty() {
            b".".to_vec()
        } else {
            lead.path.clone()
        };
        let Ok(path) = CString::new(at) else {
            return Ok(());
        };
        let Ok(place) = open(self.root, &path, OFlags::PATH, LED) else {
            return Ok(());
        };
        let Ok(seen) = fstat(&place) else {
            return Ok(());
        };
        let directory = FileType::from_raw_mode(seen.st_mode) == FileType::Directory;
        if directory && !self.reached.insert((seen.st_dev, seen.st_ino, lead.folder)) {
            return Ok(());
        }
        self.path = lead.path;
        match FileType::from_raw_mode(seen.st_mode) {
            FileType::Directory => match open(self.root, &path, LIST, LED) {
                Ok(directory) => self.directory(&directory, lead.folder, 1, lead.hops)?,
                Err(_) => self.unreadable(&place)?,
            },
            FileType::RegularFile => {
                let file = open(self.root, &path, OFlags::RDONLY, LED).ok();
                let content = file.and_then(|file| self.content(&file, lead.folder, lead.hops));
                self.keep(true, Entry::new(&seen, content))?;
            }
            _ => self.keep(true, Entry::new(&seen, None))?,
        }
        self.path.clear();
        Ok(())
    }
}

/// What the names of a path say of the directory it leads to.
fn folder_of(path: &[u8]) -> Folder {
    path.split(|byte| *byte == b'/')
        .fold(Folder::default(), Folder::enter)
}
