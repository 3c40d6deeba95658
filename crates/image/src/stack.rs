//! Unpacked layers as overlayfs stacks them: which of them a name is of, without a mount.
//!
//! Names are looked up one component at a time from descriptors; no symbolic link is followed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, statat};
use rustix::io::{Errno, Result};

/// Attribute that hides what lower layers have in a directory.
pub(crate) const OPAQUE: &str = "user.overlay.opaque";

/// How everything below a descriptor is opened.
pub(crate) const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Whether a file is the mark of a removed name.
pub(crate) fn is_mark(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// A directory below another one.
pub(crate) fn directory(from: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(from, name, flags, Mode::empty(), BENEATH)
}

/// Whether a directory hides what is below it.
pub(crate) fn is_opaque(directory: BorrowedFd<'_>) -> bool {
    let mut value = [0u8; 1];
    rustix::fs::fgetxattr(directory, OPAQUE, &mut value[..])
        .is_ok_and(|length| length == 1 && value[0] == b'y')
}

/// Where a name is.
#[derive(Debug)]
pub enum Found {
    /// In no layer, or removed.
    Nothing,
    /// The way to it leads through a symbolic link.
    ThroughLink,
    /// In a layer.
    Here(Place),
}

/// A name in the topmost layer that has it.
#[derive(Debug)]
pub struct Place {
    /// The directory it is in.
    pub directory: OwnedFd,
    /// What it is.
    pub stat: Stat,
}

/// Layers, the topmost first.
#[derive(Debug, Default)]
pub struct Stack {
    layers: Vec<OwnedFd>,
}

impl Stack {
    /// Of opened layers, the topmost first.
    #[must_use]
    pub fn new(layers: Vec<OwnedFd>) -> Self {
        Self { layers }
    }

    /// The layers, the topmost first.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.layers.iter().map(AsFd::as_fd)
    }

    /// Looks a name up.
    ///
    /// # Errors
    /// When a layer cannot be read.
    pub fn find(&self, parts: &[&[u8]]) -> Result<Found> {
        let Some((name, way)) = parts.split_last() else {
            return Ok(Found::Nothing);
        };
        for layer in &self.layers {
            match in_layer(layer, way, name)? {
                Step::Below => {}
                Step::Over(found) => return Ok(found),
            }
        }
        Ok(Found::Nothing)
    }
}

/// What one layer says about a name.
enum Step {
    /// The layers below decide.
    Below,
    /// It is decided.
    Over(Found),
}

fn in_layer(layer: &OwnedFd, way: &[&[u8]], name: &[u8]) -> Result<Step> {
    let mut here = layer
        .try_clone()
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mut hides = is_opaque(here.as_fd());
    let absent = |hides: bool| match hides {
        true => Step::Over(Found::Nothing),
        false => Step::Below,
    };
    for part in way {
        match statat(&here, *part, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {}
                FileType::Symlink => return Ok(Step::Over(Found::ThroughLink)),
                _ => return Ok(Step::Over(Found::Nothing)),
            },
            Err(Errno::NOENT) => return Ok(absent(hides)),
            Err(error) => return Err(error),
        }
        here = directory(here.as_fd(), part)?;
        hides |= is_opaque(here.as_fd());
    }
    match statat(&here, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if is_mark(&stat) => Ok(Step::Over(Found::Nothing)),
        Ok(stat) => Ok(Step::Over(Found::Here(Place {
            directory: here,
            stat,
        }))),
        Err(Errno::NOENT) => Ok(absent(hides)),
        Err(error) => Err(error),
    }
}
