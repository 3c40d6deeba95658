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

/// One directory as a stack has it: that of each layer which is merged into it, the topmost first.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    layers: Vec<OwnedFd>,
}

/// What a stack has at a way.
#[derive(Debug)]
pub(crate) enum Entered {
    /// Nothing, or a file.
    Nothing,
    /// A symbolic link, there or on the way.
    Link,
    /// A directory, with what its topmost layer says of it.
    Directory(Stat, Merged),
}

impl Merged {
    /// What is at a name, and the directory of the layer that has it.
    pub(crate) fn look(&self, name: &[u8]) -> Result<Option<(BorrowedFd<'_>, Stat)>> {
        for layer in &self.layers {
            match statat(layer, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if is_mark(&stat) => return Ok(None),
                Ok(stat) => return Ok(Some((layer.as_fd(), stat))),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Goes one component down. A directory is merged with those below it up to one that hides them, to a mark,
    /// or to what is no directory.
    pub(crate) fn enter(&self, name: &[u8]) -> Result<Entered> {
        let mut top = None;
        let mut merged = Self::default();
        for layer in &self.layers {
            let stat = match statat(layer, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error),
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {}
                FileType::Symlink if top.is_none() => return Ok(Entered::Link),
                _ => break,
            }
            top.get_or_insert(stat);
            if !merged.add(directory(layer.as_fd(), name)?) {
                break;
            }
        }
        Ok(match top {
            Some(stat) => Entered::Directory(stat, merged),
            None => Entered::Nothing,
        })
    }

    /// Adds the directory of the next layer; whether those below it count too.
    fn add(&mut self, directory: OwnedFd) -> bool {
        let hides = is_opaque(directory.as_fd());
        self.layers.push(directory);
        !hides
    }
}

/// Layers, the topmost first.
#[derive(Debug, Default)]
pub struct Stack {
    root: Merged,
}

impl Stack {
    /// Of opened layers, the topmost first. It ends with one whose root hides those below.
    #[must_use]
    pub fn new(layers: Vec<OwnedFd>) -> Self {
        let mut root = Merged::default();
        let _ = layers.into_iter().all(|layer| root.add(layer));
        Self { root }
    }

    /// The directory that all others are in.
    pub(crate) fn root(&self) -> &Merged {
        &self.root
    }

    /// Looks a name up.
    ///
    /// # Errors
    /// When a layer cannot be read.
    pub fn find(&self, parts: &[&[u8]]) -> Result<Found> {
        let Some((name, way)) = parts.split_last() else {
            return Ok(Found::Nothing);
        };
        let mut inner = None;
        for part in way {
            match inner.as_ref().unwrap_or(&self.root).enter(part)? {
                Entered::Nothing => return Ok(Found::Nothing),
                Entered::Link => return Ok(Found::ThroughLink),
                Entered::Directory(_, merged) => inner = Some(merged),
            }
        }
        let here = inner.as_ref().unwrap_or(&self.root);
        let Some((directory, stat)) = here.look(name)? else {
            return Ok(Found::Nothing);
        };
        let directory = directory
            .try_clone_to_owned()
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Found::Here(Place { directory, stat }))
    }
}
