//! The mount system calls the way sandboxes need them: by descriptor, detached, ahead of time.
//!
//! Sources and targets are directory descriptors with a path below them that must hold no symbolic
//! link, so that nobody's tree can bend a mount elsewhere. Nothing here knows what a sandbox is.

#![allow(
    unsafe_code,
    reason = "mount_setattr has no safe wrapper in the libraries used"
)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MountFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};

/// Whether a whole tree of mounts is meant or just the one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The one mount.
    One,
    /// The mount and everything mounted below it.
    Tree,
}

/// `ro,nosuid,nodev,noexec`: what holds data nobody inside changes or runs.
pub const SEALED: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// `nosuid,nodev`: what the workload writes to.
pub const PLAIN: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// Makes a filesystem instance that is attached nowhere yet. Options without a value are flags.
///
/// # Errors
/// As `fsopen(2)`, `fsconfig(2)` and `fsmount(2)`.
pub fn create(
    kind: &CStr,
    options: &[(&CStr, Option<&CStr>)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        match value {
            Some(value) => {
                rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?;
            }
            None => rustix::mount::fsconfig_set_flag(context.as_fd(), *key)?,
        }
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Sets options of a filesystem anew, by a descriptor of the root of a mount of it.
///
/// # Errors
/// As `fspick(2)` and `fsconfig(2)`.
pub fn reconfigure(root: impl AsFd, options: &[(&CStr, &CStr)]) -> Result<(), Errno> {
    let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
    let context = rustix::mount::fspick(root.as_fd(), c"", flags)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?;
    }
    rustix::mount::fsconfig_reconfigure(context.as_fd())
}

/// Opens what is at `path` below `root` as a place (`O_PATH`), following no link on the way.
///
/// # Errors
/// `ELOOP` when a component is a link, else as `openat2(2)`.
pub fn place(root: impl AsFd, path: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(
        root,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS,
    )
}

/// Copies the mount (or bind of the directory or file) a descriptor refers to, detached. The source
/// must be in the mount namespace of the caller.
///
/// # Errors
/// As `open_tree(2)`.
pub fn clone_at(source: impl AsFd, reach: Reach) -> Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if reach == Reach::Tree {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(source, c"", flags)
}

/// [`clone_at`] of a single name directly below a descriptor, which must not be a link.
///
/// # Errors
/// As `open_tree(2)`.
pub fn clone_child(parent: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    rustix::mount::open_tree(parent, name, flags)
}

/// Attaches a detached mount over what `path` below `root` is; no link on the way.
///
/// # Errors
/// `ELOOP` when a component is a link, else as `openat2(2)` and `move_mount(2)`.
pub fn attach(tree: impl AsFd, root: impl AsFd, path: &CStr) -> Result<(), Errno> {
    let target = place(root, path)?;
    attach_over(tree, target)
}

/// Attaches a detached mount over what a descriptor refers to.
///
/// # Errors
/// As `move_mount(2)`.
pub fn attach_over(tree: impl AsFd, target: impl AsFd) -> Result<(), Errno> {
    rustix::mount::move_mount(
        tree,
        c"",
        target,
        c"",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
    )
}

/// Attaches a detached mount over a single name directly below a descriptor. For trees that only
/// the kernel or ourselves have written: a link there would not be followed at its end.
///
/// # Errors
/// As `move_mount(2)`.
pub fn attach_child(tree: impl AsFd, parent: impl AsFd, name: &CStr) -> Result<(), Errno> {
    rustix::mount::move_mount(
        tree,
        c"",
        parent,
        name,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
}

/// Mounts a file or directory over another of the same kind, both by path: a call less than
/// [`clone_at`] and [`attach_child`], for trees that only the kernel or ourselves have written and
/// paths that hold no link.
///
/// # Errors
/// As `mount(2)`.
pub fn bind(source: &CStr, target: &CStr) -> Result<(), Errno> {
    rustix::mount::mount_bind(source, target)
}

/// Mounts layers as one file system at an absolute path of our own making. The one call whose options may have a
/// whole page, which the names of many layers need.
///
/// # Errors
/// As `mount(2)`: `EINVAL` also where the kernel cannot stack these.
pub fn overlay(target: &CStr, options: &CStr) -> Result<(), Errno> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(c"overlay", target, c"overlay", flags, options)
}

/// Detaches what is mounted at an absolute path of our own making, with all below it.
///
/// # Errors
/// As `umount2(2)`.
pub fn detach(path: &CStr) -> Result<(), Errno> {
    rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
}

/// Makes every mount of the caller's namespace private, so that nothing propagates in or out.
///
/// # Errors
/// As `mount_setattr(2)`.
pub fn make_private() -> Result<(), Errno> {
    let attributes = Attributes {
        propagation: libc::MS_PRIVATE,
        ..Attributes::default()
    };
    set_attr(CWD, c"/", libc::AT_RECURSIVE, &attributes)
}

/// Adds attributes to a mount or a tree of mounts and makes it private.
///
/// # Errors
/// As `mount_setattr(2)`.
pub fn restrict(tree: impl AsFd, reach: Reach, flags: MountAttrFlags) -> Result<(), Errno> {
    let attributes = Attributes {
        set: u64::from(flags.bits()),
        propagation: libc::MS_PRIVATE,
        ..Attributes::default()
    };
    set_attr(tree.as_fd(), c"", reach_flags(reach), &attributes)
}

/// Maps the owners of a detached mount or tree through a user namespace.
///
/// # Errors
/// `EINVAL` when a filesystem below does not know mapped mounts, else as `mount_setattr(2)`.
pub fn map_owners(
    tree: impl AsFd,
    reach: Reach,
    user_namespace: BorrowedFd<'_>,
) -> Result<(), Errno> {
    let attributes = Attributes {
        set: u64::from(MountAttrFlags::MOUNT_ATTR_IDMAP.bits()),
        user_namespace: u64::from(user_namespace.as_raw_fd().cast_unsigned()),
        ..Attributes::default()
    };
    set_attr(tree.as_fd(), c"", reach_flags(reach), &attributes)
}

fn reach_flags(reach: Reach) -> i32 {
    match reach {
        Reach::One => libc::AT_EMPTY_PATH,
        Reach::Tree => libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
    }
}

/// `struct mount_attr` of the kernel, first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

fn set_attr(
    directory: BorrowedFd<'_>,
    path: &CStr,
    flags: i32,
    attributes: &Attributes,
) -> Result<(), Errno> {
    // SAFETY: the path is NUL-terminated, the structure is `struct mount_attr` of the size given,
    // and both outlive the call, which only reads them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            directory.as_raw_fd(),
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<Attributes>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// The error number of the last C library call of this thread.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_behind_a_link_is_refused() {
        let directory = std::env::temp_dir().join(format!("mount-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("real")).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let root = rustix::fs::open(&directory, flags, Mode::empty()).unwrap();
        let links = [
            ("absolute", "/"),
            ("upwards", "../.."),
            ("magic", "/proc/self/cwd"),
            ("dangling", "nowhere"),
            ("inside", "real"),
        ];
        for (name, target) in links {
            std::os::unix::fs::symlink(target, directory.join(name)).unwrap();
            let path = std::ffi::CString::new(name).unwrap();
            assert_eq!(place(&root, &path).unwrap_err(), Errno::LOOP, "{name}");
            let below = std::ffi::CString::new(format!("{name}/x")).unwrap();
            assert_eq!(place(&root, &below).unwrap_err(), Errno::LOOP, "{name}/x");
        }
        // The controls: the directory itself is found, and a plain open does follow the link.
        assert!(place(&root, c"real").is_ok());
        assert!(rustix::fs::openat(&root, c"absolute", flags, Mode::empty()).is_ok());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
