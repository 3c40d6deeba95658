//! The file system of an image as the root of a sandbox: its unpacked layers, read-only and with owners of the
//! sandbox's own ids, and over them one layer on scratch.
//!
//! An image is somebody's tree: any name in it may be a link that leads anywhere. So it becomes the root last,
//! when everything that is mounted in it stands in the template, and each place in it is reached one name at a
//! time from a descriptor, following no link. What is no directory at a place of ours makes room for one in the
//! sandbox's own layer.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::child::Plan;
use super::spec::ImageSpec;
use super::step::{At, Failed, MakeStep};
use super::tree::{self, Tree};
use super::userns::{Owner, Owners};
use super::{etc, template, workspace};
use crate::mount::{self, PLAIN, Reach};

/// Where the layers are in the template, until the sandbox has left it.
const LAYERS: &CStr = c"var/lib";
/// Where the image's root is until it is that of the sandbox; below the template's.
const ROOT: &CStr = c"run";
/// The same from anywhere.
const ROOT_PATH: &CStr = c"/run";
/// Directories of the layer on scratch.
const UPPER: &CStr = c"root";
const WORK: &CStr = c"rootwork";
/// What is mounted in the template at the same names.
const MOVED: [&CStr; 5] = [c"proc", c"sys", c"dev", c"tmp", c"workspace"];

/// Makes the image of the order, if it has one, the root of this process and its mount namespace, with all that was
/// mounted in the template for the sandbox. The umask must be empty.
pub(super) fn enter(mut tree: Tree, plan: &Plan<'_>, owners: Owners) -> Result<Tree, Failed> {
    let order = plan.order;
    let (Some(image), Some(layers)) = (&order.spec.image, &order.layers) else {
        return Ok(tree);
    };
    let layers = open_layers(&tree, plan, image, layers)?;
    let before = tree::used(&tree.scratch).at(MakeStep::Scratch)?;
    let own = |uid, gid| plan.maker.of_image(order.spec.ids, uid, gid);
    let at_root = own(image.root.uid, image.root.gid);
    let root = stack(&tree, image, &layers, at_root, owners).at(MakeStep::ImageRoot)?;
    let of_root = own(0, 0);
    furnish(&tree, &root, of_root).at(MakeStep::ImagePlaces)?;
    names(&root, of_root).at(MakeStep::ImageEtc)?;
    if image.home {
        home(&root, of_root, owners.workload).at(MakeStep::ImageHome)?;
    }
    tree::bound(&tree.scratch, order.spec.disk, before).at(MakeStep::Scratch)?;
    template::pivot(&root).at(MakeStep::ImagePivot)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    tree.root = rustix::fs::openat(CWD, c"/", flags, Mode::empty()).at(MakeStep::ImagePivot)?;
    Ok(tree)
}

/// The layers as places, the topmost first.
fn open_layers(
    tree: &Tree,
    plan: &Plan<'_>,
    image: &ImageSpec,
    directory: &OwnedFd,
) -> Result<Vec<OwnedFd>, Failed> {
    let all = workspace::own_mount(directory, plan.host_view()).at(MakeStep::Layers)?;
    if let Some(namespace) = plan.image_owners {
        mount::map_owners(&all, Reach::One, namespace).at(MakeStep::LayerOwners)?;
    }
    let sealed = PLAIN | MountAttrFlags::MOUNT_ATTR_RDONLY;
    mount::restrict(&all, Reach::One, sealed).at(MakeStep::Layers)?;
    // Older kernels take layers only from the mount namespace they are mounted in. It goes with the template.
    mount::attach(&all, &tree.root, LAYERS).at(MakeStep::Layers)?;
    let open = |name: String| {
        let name = CString::new(format!("{name}/fs")).map_err(|_| Errno::INVAL)?;
        directory_below(all.as_fd(), &name)
    };
    let layers = image.layers.iter().map(|layer| open(layer.to_string()));
    layers.collect::<Result<_, Errno>>().at(MakeStep::Layers)
}

/// Stacks the layers and one on scratch. Gives the root, attached in the template.
fn stack(
    tree: &Tree,
    image: &ImageSpec,
    layers: &[OwnedFd],
    root: Owner,
    owners: Owners,
) -> Result<OwnedFd, Errno> {
    tree.directory(UPPER, image.root.mode, root)?;
    tree.directory(WORK, 0o700, owners.init)?;
    // By the names of descriptors, so that no name of the host shows inside.
    let place = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let lower: Vec<String> = layers.iter().map(place).collect();
    let (upper, work) = (
        mount::place(&tree.scratch, UPPER)?,
        mount::place(&tree.scratch, WORK)?,
    );
    let options = format!(
        "userxattr,lowerdir={},upperdir={},workdir={}",
        lower.join(":"),
        place(&upper),
        place(&work)
    );
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    mount::overlay(ROOT_PATH, &options)?;
    mount::place(&tree.root, ROOT)
}

/// Moves what is mounted in the template to the same places of the image.
fn furnish(tree: &Tree, root: &OwnedFd, owner: Owner) -> Result<(), Errno> {
    for name in MOVED {
        let target = match directory(root.as_fd(), name, owner) {
            // A link or a file: out of the way of ours, in our own layer.
            Err(Errno::LOOP | Errno::NOTDIR) => {
                rustix::fs::unlinkat(root, name, AtFlags::empty())?;
                directory(root.as_fd(), name, owner)?
            }
            found => found?,
        };
        mount::attach_over(mount::place(&tree.root, name)?, target)?;
    }
    Ok(())
}

/// Writes the files that say who the sandbox is, in place of the image's own.
fn names(root: &OwnedFd, owner: Owner) -> Result<(), Errno> {
    // An `/etc` that is no directory has the settings of the image elsewhere: it cannot be replaced unnoticed.
    let etc = directory(root.as_fd(), c"etc", owner)?;
    let (uid, gid) = owner.ids();
    for (name, text) in etc::OWN {
        match rustix::fs::unlinkat(&etc, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        etc::write(
            etc.as_fd(),
            name,
            text.as_bytes(),
            Mode::from_raw_mode(0o644),
        )?;
        rustix::fs::chownat(&etc, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

/// The home of a command for which the image has none.
fn home(root: &OwnedFd, owner: Owner, workload: Owner) -> Result<(), Errno> {
    let above = directory(root.as_fd(), c"home", owner)?;
    directory(above.as_fd(), c"user", workload).map(drop)
}

/// The directory of one name, made if nothing is there.
///
/// # Errors
/// `ELOOP` or `ENOTDIR` when something else is.
fn directory(parent: BorrowedFd<'_>, name: &CStr, owner: Owner) -> Result<OwnedFd, Errno> {
    match directory_below(parent, name) {
        Err(Errno::NOENT) => {
            rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
            let (uid, gid) = owner.ids();
            rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
            directory_below(parent, name)
        }
        found => found,
    }
}

/// Opens a directory as a place, by a way that leads through no link and no other mount.
fn directory_below(parent: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(
        parent,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV,
    )
}
