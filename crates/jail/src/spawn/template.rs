//! The tree every sandbox is cloned from: a small read-only root of our own with the host's system
//! directories, a curated `/etc` and six device nodes. It is made once, by the spawner, which then
//! lives in it and lets go of the host's tree.
//!
//! Nothing here is of one sandbox, but for the *store*: the directory below `/sys`, covered in
//! every sandbox, which holds the empty file and directory that mask things and one set of texts
//! per shape of limits.

use std::collections::{HashSet, VecDeque};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use rustix::thread::UnshareFlags;

use super::clone::unshare;
use super::step::{At, Failed, MakeStep};
use super::{etc, synthetic};
use crate::mount::{self, PLAIN, Reach};

/// Where the store is, in the template and, until it is covered, in a new sandbox.
pub(super) const STORE: &CStr = c"sys";
/// The empty file in the store.
pub(super) const EMPTY_FILE: &CStr = c"empty";
/// The empty directory in the store.
pub(super) const EMPTY_DIRECTORY: &CStr = c"nothing";
/// The boot id in the store.
pub(super) const BOOT_ID: &CStr = c"boot_id";
/// Sets of texts kept; the oldest goes when there is one more.
const SETS_MAX: usize = 64;

/// System directories beside `/usr`: links into it on a merged host, directories on others.
const SYSTEM: [&CStr; 6] = [c"bin", c"sbin", c"lib", c"lib32", c"lib64", c"libx32"];
/// Directories of the root and their modes, parents first.
const DIRECTORIES: [(&CStr, u32); 15] = [
    (c"usr", 0o755),
    (c"etc", 0o755),
    (c"dev", 0o755),
    (c"proc", 0o555),
    (c"sys", 0o555),
    (c"workspace", 0o755),
    (c"tmp", 0o1777),
    (c"home", 0o755),
    (c"home/user", 0o755),
    (c"root", 0o700),
    (c"run", 0o755),
    (c"run/lock", 0o755),
    (c"var", 0o755),
    (c"var/lib", 0o755),
    (c"var/tmp", 0o1777),
];
const LINKS: [(&CStr, &CStr); 1] = [(c"/run", c"var/run")];
/// Links in `/dev`.
const DEVICE_LINKS: [(&CStr, &CStr); 5] = [
    (c"/proc/self/fd", c"fd"),
    (c"/proc/self/fd/0", c"stdin"),
    (c"/proc/self/fd/1", c"stdout"),
    (c"/proc/self/fd/2", c"stderr"),
    (c"pts/ptmx", c"ptmx"),
];
/// Device nodes with their numbers.
const DEVICES: [(&CStr, u32, u32); 6] = [
    (c"null", 1, 3),
    (c"zero", 1, 5),
    (c"full", 1, 7),
    (c"random", 1, 8),
    (c"urandom", 1, 9),
    (c"tty", 5, 0),
];

/// One shape of limits that has a set of texts.
type Shape = (Vec<u32>, u64);

/// The template as the spawner holds it.
#[derive(Debug)]
pub(super) struct Template {
    /// A `/proc` which shows processes under the ids the supervisor uses.
    pub(super) proc: OwnedFd,
    /// Whether the template itself shows that `/proc`, because an ordinary user can mount a new one
    /// only where an old one is in sight. A sandbox detaches it.
    pub(super) shows_proc: bool,
    /// For an ordinary user: a mount namespace of ours that still shows the host's tree, in which
    /// workspaces are found.
    pub(super) host_view: Option<OwnedFd>,
    store: OwnedFd,
    /// The mount the store is written through. Closing it would wait for every processor.
    _writable: OwnedFd,
    sets: VecDeque<(Shape, CString)>,
    sets_made: u64,
    cpuinfo: String,
    stat: String,
}

impl Template {
    /// Makes the template and moves the calling process into it for good.
    ///
    /// # Errors
    /// Names the step; the caller must end then.
    pub(super) fn enter(proc: OwnedFd, rootless: bool) -> Result<Self, Failed> {
        let host_view = if rootless {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let view = rustix::fs::openat(&proc, c"self/ns/mnt", flags, Mode::empty())
                .at(MakeStep::MountNamespace)?;
            Some(view)
        } else {
            None
        };
        // As the host shows them, which may be less than there is.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let shown = rustix::fs::openat(CWD, c"/proc", flags, Mode::empty()).at(MakeStep::Texts)?;
        let cpuinfo = read(&shown, c"cpuinfo").at(MakeStep::Texts)?;
        let stat = read(&shown, c"stat").at(MakeStep::Texts)?;
        unshare(UnshareFlags::NEWNS).at(MakeStep::MountNamespace)?;
        mount::make_private().at(MakeStep::MountNamespace)?;
        let root = build(rootless)?;
        let writable = mount::clone_at(&root, Reach::One).at(MakeStep::TemplateRoot)?;
        let store = directory(&writable, STORE).at(MakeStep::TemplateRoot)?;
        fill_store(store.as_fd()).at(MakeStep::Texts)?;
        let sealed = PLAIN | MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_RDONLY;
        mount::restrict(&root, Reach::One, sealed).at(MakeStep::TemplateRoot)?;
        pivot(&root).at(MakeStep::Pivot)?;
        Ok(Self {
            proc,
            shows_proc: rootless,
            host_view,
            store,
            _writable: writable,
            sets: VecDeque::new(),
            sets_made: 0,
            cpuinfo,
            stat,
        })
    }

    /// The name in the store of the set of texts for these limits, made if it is not there.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn texts(&mut self, cores: &[u32], memory_bytes: u64) -> Result<CString, Errno> {
        let known = self
            .sets
            .iter()
            .find(|((set_cores, set_memory), _)| set_cores == cores && *set_memory == memory_bytes);
        if let Some((_, name)) = known {
            return Ok(name.clone());
        }
        while self.sets.len() >= SETS_MAX {
            if let Some((_, oldest)) = self.sets.pop_front() {
                remove(self.store.as_fd(), &oldest)?;
            }
        }
        self.sets_made += 1;
        let name = CString::new(format!("limits-{}", self.sets_made)).map_err(|_| Errno::INVAL)?;
        let written = self.write_set(&name, cores, memory_bytes);
        if written.is_err() {
            let _ = remove(self.store.as_fd(), &name);
        }
        written?;
        self.sets
            .push_back(((cores.to_vec(), memory_bytes), name.clone()));
        Ok(name)
    }

    fn write_set(&self, name: &CStr, cores: &[u32], memory_bytes: u64) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(0o755);
        rustix::fs::mkdirat(&self.store, name, mode)?;
        let set = directory(&self.store, name)?;
        let readable = Mode::from_raw_mode(0o444);
        let mut made = HashSet::new();
        // Nobody else writes here, so that no part of a path is a link.
        for text in synthetic::texts(cores, memory_bytes, &self.cpuinfo, &self.stat) {
            let slashes = text.path.match_indices('/').map(|(at, _)| at);
            for directory in slashes.map(|at| &text.path[..at]) {
                if !made.contains(directory) {
                    rustix::fs::mkdirat(&set, directory, mode)?;
                    made.insert(directory.to_owned());
                }
            }
            let path = CString::new(text.path).map_err(|_| Errno::INVAL)?;
            etc::write(set.as_fd(), &path, text.text.as_bytes(), readable)?;
        }
        Ok(())
    }
}

/// Opens a directory of our own tree as a place.
fn directory(parent: impl AsFd, path: &CStr) -> Result<OwnedFd, Errno> {
    let place = mount::place(parent, path)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode) {
        FileType::Directory => Ok(place),
        _ => Err(Errno::NOTDIR),
    }
}

fn remove(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let inner = directory(parent, name)?;
    for entry in etc::names(inner.as_fd())? {
        match rustix::fs::unlinkat(&inner, &entry, AtFlags::empty()) {
            Ok(()) => {}
            Err(Errno::ISDIR) => remove(inner.as_fd(), &entry)?,
            Err(errno) => return Err(errno),
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn read(proc: &OwnedFd, name: &CStr) -> Result<String, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(proc, name, flags, Mode::empty())?;
    let mut bytes = Vec::new();
    let mut part = [0; 16_384];
    while bytes.len() < (8 << 20) {
        match rustix::io::read(&file, &mut part)? {
            0 => break,
            got => bytes.extend_from_slice(&part[..got]),
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn fill_store(store: BorrowedFd<'_>) -> Result<(), Errno> {
    let readable = Mode::from_raw_mode(0o444);
    etc::write(store, EMPTY_FILE, b"", readable)?;
    etc::write(store, BOOT_ID, synthetic::BOOT_ID.as_bytes(), readable)?;
    rustix::fs::mkdirat(store, EMPTY_DIRECTORY, Mode::from_raw_mode(0o555))
}

/// Builds the tree, attached somewhere in the private copy of the host's; returns its root.
fn build(rootless: bool) -> Result<OwnedFd, Failed> {
    let host = |path: &CStr| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, path, flags, Mode::empty())
    };
    let system = host(c"/usr").at(MakeStep::TemplateSystem)?;
    let system = mount::clone_at(system, Reach::Tree).at(MakeStep::TemplateSystem)?;
    let host_root = host(c"/").at(MakeStep::TemplateRoot)?;
    let host_etc = host(c"/etc").at(MakeStep::TemplateEtc)?;
    let host_dev = host(c"/dev").at(MakeStep::TemplateDevices)?;
    let host_proc = host(c"/proc").at(MakeStep::TemplateRoot)?;

    let options: [(&CStr, Option<&CStr>); 4] = [
        (c"source", Some(c"root")),
        (c"size", Some(c"256m")),
        (c"nr_inodes", Some(c"262144")),
        (c"mode", Some(c"0755")),
    ];
    let attributes = PLAIN | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = mount::create(c"tmpfs", &options, attributes).at(MakeStep::TemplateRoot)?;
    // Any directory will do; the pivot makes it the root.
    mount::attach_child(&root, &host_root, c"usr").at(MakeStep::TemplateRoot)?;
    for (path, mode) in DIRECTORIES {
        rustix::fs::mkdirat(&root, path, Mode::from_raw_mode(mode)).at(MakeStep::TemplateRoot)?;
    }
    for (target, path) in LINKS {
        rustix::fs::symlinkat(target, &root, path).at(MakeStep::TemplateRoot)?;
    }
    let system_flags = PLAIN | MountAttrFlags::MOUNT_ATTR_RDONLY;
    mount::restrict(&system, Reach::Tree, system_flags).at(MakeStep::TemplateSystem)?;
    mount::attach(&system, &root, c"usr").at(MakeStep::TemplateSystem)?;
    for name in SYSTEM {
        system_directory(&host_root, &root, name).at(MakeStep::TemplateSystem)?;
    }
    let new_etc = directory(&root, c"etc").at(MakeStep::TemplateEtc)?;
    let bash = rustix::fs::accessat(
        &host_root,
        c"usr/bin/bash",
        rustix::fs::Access::EXEC_OK,
        AtFlags::empty(),
    );
    etc::fill(host_etc.as_fd(), new_etc.as_fd(), bash.is_ok()).at(MakeStep::TemplateEtc)?;
    devices(&host_dev, &root).at(MakeStep::TemplateDevices)?;
    if rootless {
        let shown = mount::clone_at(&host_proc, Reach::Tree).at(MakeStep::TemplateRoot)?;
        mount::attach(&shown, &root, c"proc").at(MakeStep::TemplateRoot)?;
    }
    Ok(root)
}

/// A link stays a link, a directory is bound, what the host lacks is lacking.
fn system_directory(host_root: &OwnedFd, root: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    let Ok(stat) = rustix::fs::statat(host_root, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return Ok(());
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(host_root, name, Vec::new())?;
            rustix::fs::symlinkat(target.as_c_str(), root, name)
        }
        FileType::Directory => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let source = rustix::fs::openat(host_root, name, flags, Mode::empty())?;
            let tree = mount::clone_at(source, Reach::Tree)?;
            let flags = PLAIN | MountAttrFlags::MOUNT_ATTR_RDONLY;
            mount::restrict(&tree, Reach::Tree, flags)?;
            rustix::fs::mkdirat(root, name, Mode::from_raw_mode(0o755))?;
            mount::attach(&tree, root, name)
        }
        _ => Err(Errno::NOTDIR),
    }
}

/// `/dev`: a small file system of its own, so that the root needs no device nodes.
fn devices(host_dev: &OwnedFd, root: &OwnedFd) -> Result<(), Errno> {
    let options: [(&CStr, Option<&CStr>); 4] = [
        (c"source", Some(c"dev")),
        (c"size", Some(c"64k")),
        (c"nr_inodes", Some(c"64")),
        (c"mode", Some(c"0755")),
    ];
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let dev = mount::create(c"tmpfs", &options, quiet)?;
    mount::attach(&dev, root, c"dev")?;
    for name in [c"pts", c"shm"] {
        rustix::fs::mkdirat(&dev, name, Mode::from_raw_mode(0o755))?;
    }
    for (target, name) in DEVICE_LINKS {
        rustix::fs::symlinkat(target, &dev, name)?;
    }
    for (name, major, minor) in DEVICES {
        let number = rustix::fs::makedev(major, minor);
        let mode = Mode::from_raw_mode(0o666);
        match rustix::fs::mknodat(&dev, name, FileType::CharacterDevice, mode, number) {
            Ok(()) => {}
            // An ordinary user, or a host that forbids it: the host's node then.
            Err(Errno::PERM) => bind_device(host_dev, &dev, name, number)?,
            Err(errno) => return Err(errno),
        }
    }
    // Read-only keeps owner, mode and times; writing to a device goes on.
    mount::restrict(&dev, Reach::One, quiet | MountAttrFlags::MOUNT_ATTR_RDONLY)
}

/// Binds a node of the host after a look at what it is.
fn bind_device(
    host_dev: &OwnedFd,
    dev: &OwnedFd,
    name: &CStr,
    number: rustix::fs::Dev,
) -> Result<(), Errno> {
    let node = mount::place(host_dev, name)?;
    let stat = rustix::fs::fstat(&node)?;
    let character = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    if !character || stat.st_rdev != number {
        return Err(Errno::NODEV);
    }
    let tree = mount::clone_at(&node, Reach::One)?;
    let flags = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mount::restrict(&tree, Reach::One, flags)?;
    etc::write(dev.as_fd(), name, b"", Mode::from_raw_mode(0o644))?;
    mount::attach(&tree, dev, name)
}

/// Makes `root` the root of the process and its mount namespace, and detaches what was there.
pub(super) fn pivot(root: &OwnedFd) -> Result<(), Errno> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(c".", c".")?;
    // The old root is stacked over the new one now, and `.` is the old one.
    mount::detach(c".")?;
    rustix::process::chdir(c"/")
}
