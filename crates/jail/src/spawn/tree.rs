//! The mounts of one sandbox, made by its own first process in its own mount namespace, while that
//! process still is the maker. The template has done most; what is here is of this sandbox alone.
//!
//! Everything attaches below the template's root, which nobody inside can write, through places
//! that hold no link. `/proc` is complete and read-only as a whole; what is not on the short list
//! of [`SHOWN`] is masked, so that a kernel's new file is hidden until somebody decides otherwise.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::spec::Disk;
use super::step::{At, Failed, MakeStep};
use super::synthetic::PROC_FILES;
use super::template::{BOOT_ID, EMPTY_DIRECTORY, EMPTY_FILE, STORE};
use super::userns::{Owner, Owners};
use super::wire::Order;
use crate::mount::{self, PLAIN, Reach};

/// What of `/proc` is shown as the kernel has it, beside the processes. All of it is of the
/// sandbox's own namespaces or the same on every host of this kernel.
const SHOWN: [&[u8]; 9] = [
    b"filesystems",
    b"mounts",
    b"net",
    b"self",
    b"sys",
    b"sysvipc",
    b"thread-self",
    b"uptime",
    b"version",
];
/// [`EMPTY_FILE`] and [`EMPTY_DIRECTORY`] by their whole paths, before the store is covered.
const MASKING_FILE: &CStr = c"/sys/empty";
const MASKING_DIRECTORY: &CStr = c"/sys/nothing";
/// Directories of ours on scratch; they do not count against the limit of files.
const OWN_INODES: u64 = 8;
/// Room for what we put on the layer of a sandbox over its image, until it is known what that came to.
const IMAGE_INODES: u64 = 64;
const IMAGE_BYTES: u64 = 1 << 20;
/// Terminals a sandbox may have at one time.
const TERMINALS_MAX: &CStr = c"16";
/// Most files in `/dev/shm` for each megabyte, and at least.
const SHM_INODES: (u64, u64) = (256, 64);

/// The tree while it is being made.
pub(super) struct Tree {
    /// The sandbox's root.
    pub(super) root: OwnedFd,
    /// The store, before it is covered.
    store: OwnedFd,
    /// The sandbox's `/proc`.
    pub(super) proc: OwnedFd,
    /// Root of the writable file system, covered by its own `tmp` inside.
    pub(super) scratch: OwnedFd,
}

fn c_string(text: String) -> Result<CString, Errno> {
    CString::new(text).map_err(|_| Errno::INVAL)
}

fn scratch_options(bytes: u64, inodes: u64) -> Result<(CString, CString), Errno> {
    Ok((c_string(bytes.to_string())?, c_string(inodes.to_string())?))
}

impl Tree {
    /// `/proc` and the writable file system; nothing is covered or masked yet.
    pub(super) fn begin(
        order: &Order,
        owners: Owners,
        single_uid: bool,
        shows_proc: bool,
        image: Option<BorrowedFd<'_>>,
    ) -> Result<Self, Failed> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, c"/", flags, Mode::empty()).at(MakeStep::Proc)?;
        let store = mount::place(&root, STORE).at(MakeStep::Proc)?;
        let proc = new_proc(owners, single_uid).at(MakeStep::Proc)?;
        if shows_proc {
            mount::detach(c"/proc").at(MakeStep::Proc)?;
        }
        mount::attach(&proc, &root, c"proc").at(MakeStep::Proc)?;
        let scratch = new_scratch(order, image).at(MakeStep::Scratch)?;
        mount::attach(&scratch, &root, c"tmp").at(MakeStep::Scratch)?;
        Ok(Self {
            root,
            store,
            proc,
            scratch,
        })
    }

    /// The empty directory of the store.
    pub(super) fn empty_directory(&self) -> Result<OwnedFd, Errno> {
        mount::place(&self.store, EMPTY_DIRECTORY)
    }

    /// Masks `/proc`, shows the limits in it and in `/sys`, and makes it read-only.
    pub(super) fn dress_proc(&self, texts: &CStr) -> Result<(), Failed> {
        self.mask().at(MakeStep::ProcMasks)?;
        self.show_limits(texts).at(MakeStep::Texts)?;
        let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY;
        mount::restrict(&self.proc, Reach::One, read_only).at(MakeStep::ProcMasks)
    }

    fn mask(&self) -> Result<(), Errno> {
        // There are some fifty of them, so each call counts.
        rustix::process::fchdir(&self.proc)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listing = rustix::fs::openat(&self.proc, c".", flags, Mode::empty())?;
        let mut space = [MaybeUninit::<u8>::uninit(); 8_192];
        let mut entries = RawDir::new(listing, &mut space);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            let bytes = name.to_bytes();
            let keep = bytes
                .iter()
                .all(|byte| byte.is_ascii_digit() || *byte == b'.')
                || SHOWN.contains(&bytes)
                || PROC_FILES.contains(&name);
            if keep {
                continue;
            }
            match entry.file_type() {
                FileType::Directory => mount::bind(MASKING_DIRECTORY, name)?,
                // The link itself, and not what it leads to.
                FileType::Symlink => {
                    let tree = mount::clone_child(&self.store, EMPTY_FILE)?;
                    mount::attach_child(&tree, &self.proc, name)?;
                }
                _ => mount::bind(MASKING_FILE, name)?,
            }
        }
        rustix::process::chdir(c"/")
    }

    fn show_limits(&self, texts: &CStr) -> Result<(), Errno> {
        let set = mount::place(&self.store, texts)?;
        for name in PROC_FILES {
            let tree = mount::clone_child(&set, name)?;
            mount::attach_child(&tree, &self.proc, name)?;
        }
        let boot_id = mount::clone_child(&self.store, BOOT_ID)?;
        mount::attach(&boot_id, &self.proc, c"sys/kernel/random/boot_id")?;
        let sys = mount::clone_child(&set, c"sys")?;
        mount::attach(&sys, &self.root, c"sys")
    }

    /// The writable directories, but for the workspace; those that a sandbox of an image has.
    pub(super) fn writable(&self, owners: Owners, image: bool) -> Result<(), Failed> {
        let all = [
            (c"home", 0o755, owners.workload, c"home/user"),
            (c"vartmp", 0o1777, owners.init, c"var/tmp"),
            // Last, and over scratch itself, whose other directories nobody inside can reach then.
            (c"tmp", 0o1777, owners.init, c"tmp"),
        ];
        // An image has its own directories, on a layer that is on scratch.
        let wanted = if image { &all[2..] } else { &all[..] };
        for (name, mode, owner, _) in wanted {
            self.directory(name, *mode, *owner).at(MakeStep::Scratch)?;
        }
        for (name, _, _, path) in wanted {
            let tree = mount::clone_child(&self.scratch, name).at(MakeStep::Scratch)?;
            mount::attach(&tree, &self.root, path).at(MakeStep::Scratch)?;
        }
        Ok(())
    }

    /// `/dev/shm` and `/dev/pts`. Covers the store.
    pub(super) fn devices(&self, shm_bytes: u64) -> Result<(), Failed> {
        let (per_megabyte, least) = SHM_INODES;
        let inodes = ((shm_bytes >> 20) * per_megabyte).max(least);
        let (size, inodes) = scratch_options(shm_bytes, inodes).at(MakeStep::Devices)?;
        let options: [(&CStr, Option<&CStr>); 4] = [
            (c"source", Some(c"shm")),
            (c"size", Some(&size)),
            (c"nr_inodes", Some(&inodes)),
            (c"mode", Some(c"1777")),
        ];
        let attributes = PLAIN | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let shm = mount::create(c"tmpfs", &options, attributes).at(MakeStep::Devices)?;
        mount::attach(&shm, &self.root, c"dev/shm").at(MakeStep::Devices)?;
        let options: [(&CStr, Option<&CStr>); 5] = [
            (c"source", Some(c"pts")),
            (c"newinstance", None),
            (c"ptmxmode", Some(c"0666")),
            (c"mode", Some(c"0620")),
            (c"max", Some(TERMINALS_MAX)),
        ];
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let pts = mount::create(c"devpts", &options, attributes).at(MakeStep::Devices)?;
        mount::attach(&pts, &self.root, c"dev/pts").at(MakeStep::Devices)
    }

    /// Makes a directory on scratch with exactly this mode and owner. One that is there already, as
    /// on a disk image, is taken.
    pub(super) fn directory(&self, name: &CStr, mode: u32, owner: Owner) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode);
        match rustix::fs::mkdirat(&self.scratch, name, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.scratch, name, flags, Mode::empty())?;
        let (uid, gid) = owner.ids();
        rustix::fs::fchown(&made, uid, gid)?;
        rustix::fs::fchmod(&made, mode)
    }
}

fn new_proc(owners: Owners, single_uid: bool) -> Result<OwnedFd, Errno> {
    // Init and agent, by their group, see the processes they are to act on.
    let gid = c_string(owners.init.gid.to_string())?;
    let mut options: Vec<(&CStr, Option<&CStr>)> =
        vec![(c"source", Some(c"proc")), (c"hidepid", Some(c"2"))];
    if !single_uid {
        options.push((c"gid", Some(&gid)));
    }
    let attributes = PLAIN | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mount::create(c"proc", &options, attributes)
}

/// What is on the writable file system, in bytes and in files.
pub(super) fn used(scratch: &OwnedFd) -> Result<(u64, u64), Errno> {
    let seen = rustix::fs::fstatvfs(scratch)?;
    let blocks = seen.f_blocks.saturating_sub(seen.f_bfree);
    let files = seen.f_files.saturating_sub(seen.f_ffree);
    Ok((blocks.saturating_mul(seen.f_frsize), files))
}

/// Bounds the writable file system where it is memory: the limits of the order are the workload's, so that what we
/// put there for it since then does not count.
pub(super) fn bound(scratch: &OwnedFd, disk: Disk, before: (u64, u64)) -> Result<(), Errno> {
    let Disk::Tmpfs { bytes, inodes } = disk else {
        return Ok(());
    };
    let now = used(scratch)?;
    let bytes = bytes.saturating_add(now.0.saturating_sub(before.0));
    let files = inodes.saturating_add(OWN_INODES + now.1.saturating_sub(before.1));
    let (size, files) = scratch_options(bytes, files)?;
    mount::reconfigure(scratch, &[(c"size", &size), (c"nr_inodes", &files)])
}

/// The file system on a disk image, from a process whose working directory is a `/proc`.
pub(super) fn image(device: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = c_string(format!("self/fd/{}", device.as_raw_fd()))?;
    let options: [(&CStr, Option<&CStr>); 1] = [(c"source", Some(&path))];
    mount::create(c"ext4", &options, PLAIN)
}

fn new_scratch(order: &Order, image: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Errno> {
    match (order.spec.disk, image) {
        (Disk::Tmpfs { bytes, inodes }, _) => {
            let (more, files) = match &order.spec.image {
                Some(_) => (IMAGE_BYTES, OWN_INODES + IMAGE_INODES),
                None => (0, OWN_INODES),
            };
            let (size, inodes) =
                scratch_options(bytes.saturating_add(more), inodes.saturating_add(files))?;
            let options: [(&CStr, Option<&CStr>); 4] = [
                (c"source", Some(c"scratch")),
                (c"size", Some(&size)),
                (c"nr_inodes", Some(&inodes)),
                (c"mode", Some(c"0700")),
            ];
            mount::create(c"tmpfs", &options, PLAIN)
        }
        (Disk::Image, Some(image)) => rustix::io::fcntl_dupfd_cloexec(image, 0),
        (Disk::Image, None) => Err(Errno::NODEV),
    }
}
