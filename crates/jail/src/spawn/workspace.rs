//! What `/workspace` is: a directory of scratch, or a directory of the host in one of three modes.
//!
//! A host directory is known by descriptor alone, and what is mounted is compared with it. Its
//! owner's files are the workload's inside; those of everybody else have owners that nobody inside can
//! be, so what the owner may not read or write cannot be read or written inside either.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::copy;
use super::spec::WorkspaceMode;
use super::step::{At, Failed, MakeStep};
use super::tree::Tree;
use super::userns::Owners;
use super::wire::Order;
use crate::mount::{self, PLAIN, Reach};

/// What the spawner has prepared for a host directory.
pub(super) struct Source<'a> {
    /// The owner of the directory's files, as the maker's user namespace counts.
    pub(super) caller: u32,
    /// As root: the namespace that translates owners.
    pub(super) translation: Option<BorrowedFd<'a>>,
    /// As an ordinary user: the namespace that shows the host's tree, and the host's `/proc`.
    pub(super) host_view: Option<(BorrowedFd<'a>, BorrowedFd<'a>)>,
}

/// Mounts the workspace. `true` when a plain copy stands in for a copy on write.
pub(super) fn mount(
    order: &Order,
    tree: &Tree,
    owners: Owners,
    source: &Source<'_>,
) -> Result<bool, Failed> {
    match (order.spec.workspace, &order.workspace) {
        (WorkspaceMode::Ephemeral, _) => own_directory(tree, owners).map(|()| false),
        (_, None) => Err(Errno::BADF).at(MakeStep::Workspace),
        (WorkspaceMode::ReadOnly, Some(directory)) => {
            let layered = host_tree(directory, source, Reach::One)
                .and_then(|lower| overlay(tree, source, &lower, None).at(MakeStep::Workspace));
            match layered {
                Ok(()) => Ok(false),
                Err(_) => copied(tree, owners, source, directory, true).map(|()| true),
            }
        }
        (WorkspaceMode::ReadWrite, Some(directory)) => {
            let bind = host_tree(directory, source, Reach::Tree)?;
            mount::restrict(&bind, Reach::Tree, PLAIN).at(MakeStep::Workspace)?;
            mount::attach(&bind, &tree.root, c"workspace")
                .at(MakeStep::Workspace)
                .map(|()| false)
        }
        (WorkspaceMode::Clone, Some(directory)) => clone_or_copy(tree, owners, source, directory),
    }
}

/// A directory of scratch as the workspace.
fn own_directory(tree: &Tree, owners: Owners) -> Result<(), Failed> {
    let made = (|| {
        tree.directory(c"workspace", 0o755, owners.workload)?;
        let bind = mount::clone_child(&tree.scratch, c"workspace")?;
        mount::attach(&bind, &tree.root, c"workspace")
    })();
    made.at(MakeStep::Workspace)
}

fn clone_or_copy(
    tree: &Tree,
    owners: Owners,
    source: &Source<'_>,
    directory: &OwnedFd,
) -> Result<bool, Failed> {
    let layered = host_tree(directory, source, Reach::One).and_then(|lower| {
        let upper: Result<(), Errno> = (|| {
            let mode = rustix::fs::fstat(directory)?.st_mode & 0o777 | 0o700;
            tree.directory(c"upper", mode, owners.workload)?;
            tree.directory(c"work", 0o700, owners.init)?;
            Ok(())
        })();
        upper.at(MakeStep::Workspace)?;
        overlay(tree, source, &lower, Some((c"upper", c"work"))).at(MakeStep::Workspace)
    });
    if layered.is_ok() {
        return Ok(false);
    }
    copied(tree, owners, source, directory, false).map(|()| true)
}

/// A plain copy on scratch as the workspace, where the host's file systems allow no layers over them.
fn copied(
    tree: &Tree,
    owners: Owners,
    source: &Source<'_>,
    directory: &OwnedFd,
    read_only: bool,
) -> Result<(), Failed> {
    own_directory(tree, owners)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let copied = (|| {
        let from = rustix::fs::openat(directory, c".", flags, Mode::empty())?;
        let to = rustix::fs::openat(&tree.scratch, c"workspace", flags, Mode::empty())?;
        copy::copy(&from, &to, source.caller, owners.workload)
    })();
    copied.at(MakeStep::WorkspaceCopy)?;
    if read_only {
        let place = mount::place(&tree.root, c"workspace").at(MakeStep::Workspace)?;
        let sealed = PLAIN | MountAttrFlags::MOUNT_ATTR_RDONLY;
        mount::restrict(place, Reach::One, sealed).at(MakeStep::Workspace)?;
    }
    Ok(())
}

/// The host's directory as a detached mount of our own, its owners translated.
fn host_tree(directory: &OwnedFd, source: &Source<'_>, reach: Reach) -> Result<OwnedFd, Failed> {
    let tree = own_mount(directory, source.host_view).at(MakeStep::Workspace)?;
    if let Some(namespace) = source.translation {
        mount::map_owners(&tree, reach, namespace).at(MakeStep::WorkspaceOwners)?;
    }
    Ok(tree)
}

/// A directory of the host as a mount of our own, attached nowhere.
pub(super) fn own_mount(
    directory: &OwnedFd,
    host_view: Option<(BorrowedFd<'_>, BorrowedFd<'_>)>,
) -> Result<OwnedFd, Errno> {
    match host_view {
        // As root the supervisor, who sees the host's tree, has made it already.
        None => rustix::io::fcntl_dupfd_cloexec(directory, 3),
        Some((view, proc)) => seen(directory, view, proc),
    }
}

/// Finds a directory in the mount namespace that shows the host's tree, and copies its mounts. The
/// path is a hint; device and inode decide.
fn seen(directory: &OwnedFd, view: BorrowedFd<'_>, proc: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let home = rustix::fs::openat(proc, c"self/ns/mnt", flags, Mode::empty())?;
    let link = format!("self/fd/{}", directory.as_raw_fd());
    let link = CString::new(link).map_err(|_| Errno::INVAL)?;
    let path = rustix::fs::readlinkat(proc, link, Vec::new())?;
    move_into_link_name_space(view, Some(LinkNameSpaceType::Mount))?;
    let found = (|| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let place = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        let (wanted, got) = (rustix::fs::fstat(directory)?, rustix::fs::fstat(&place)?);
        if (wanted.st_dev, wanted.st_ino) != (got.st_dev, got.st_ino) {
            return Err(Errno::XDEV);
        }
        mount::clone_at(&place, Reach::Tree)
    })();
    move_into_link_name_space(home.as_fd(), Some(LinkNameSpaceType::Mount))?;
    found
}

/// Lays scratch, or nothing, over a directory and attaches the result. The layers have names of
/// descriptors, so no name of the host shows inside; the layer itself is not left attached.
fn overlay(
    tree: &Tree,
    source: &Source<'_>,
    lower: &OwnedFd,
    upper: Option<(&CStr, &CStr)>,
) -> Result<(), Errno> {
    let place = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let text = |text: String| CString::new(text).map_err(|_| Errno::INVAL);
    // Older kernels take layers only from the mount namespace they are mounted in.
    mount::attach(lower, &tree.root, c"workspace")?;
    let nothing = tree.empty_directory()?;
    let mut attributes = PLAIN;
    let mut held = Vec::new();
    let mut options: Vec<(&CStr, CString)> = vec![(c"source", text("workspace".into())?)];
    match upper {
        None => {
            attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
            let both = format!("{}:{}", place(lower), place(&nothing));
            options.push((c"lowerdir", text(both)?));
        }
        Some((upper, work)) => {
            options.push((c"lowerdir", text(place(lower))?));
            for (option, name) in [(c"upperdir", upper), (c"workdir", work)] {
                let directory = mount::place(&tree.scratch, name)?;
                options.push((option, text(place(&directory))?));
                held.push(directory);
            }
        }
    }
    if source.host_view.is_some() {
        options.push((c"userxattr", CString::default()));
    }
    let options: Vec<(&CStr, Option<&CStr>)> = options
        .iter()
        .map(|(key, value)| (*key, (!value.is_empty()).then_some(value.as_c_str())))
        .collect();
    let made = mount::create(c"overlay", &options, attributes);
    mount::detach(c"/workspace")?;
    mount::attach(made?, &tree.root, c"workspace")
}

/// The workspace as it is now, for the collector.
pub(super) fn open(tree: &Tree) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&tree.root, c"workspace", flags, Mode::empty())
}

/// Root of the writable tree, for the disk limit.
pub(super) fn open_scratch(tree: &Tree) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(&tree.scratch, c".", flags, Mode::empty())
}
