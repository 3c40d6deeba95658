//! An image for a backend: its layers in the order of a mount, how it is started, what is odd about it, and a
//! lease that keeps all of it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use leasehold_core::digest::Digest;
use leasehold_core::image::LayerName;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, flock, openat, readlinkat};
use serde::{Deserialize, Serialize};

use super::files::{self, names, open_lock};
use super::records::Image;
use super::{Scope, Store};
use crate::document::Config;
use crate::error::{ImageError, Result, at, shown};
use crate::stack::{Found, Stack};

/// Places that a backend mounts on or writes to. A link there leads it elsewhere.
const PLACES: [&str; 16] = [
    "dev",
    "dev/shm",
    "dev/pts",
    "proc",
    "sys",
    "etc",
    "etc/hostname",
    "etc/hosts",
    "etc/passwd",
    "etc/group",
    "etc/resolv.conf",
    "run",
    "tmp",
    "var/tmp",
    "home",
    "workspace",
];

/// What a lease refers to, so that it holds without the record of its image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeaseRecord {
    pub(super) image: Digest,
    pub(super) blobs: Vec<Digest>,
    pub(super) layers: Vec<String>,
}

/// Keeps an image from collection until the last process that has its descriptor ends or closes it.
#[derive(Debug)]
pub struct Lease {
    file: File,
}

impl AsFd for Lease {
    /// To be passed to whoever outlives this process and still uses the image. The lock is of the open file, so a
    /// descriptor that is passed or inherited keeps it too.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What is at a place of the image's root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum At {
    /// Nothing.
    Nothing,
    /// A directory.
    Directory,
    /// A file.
    File,
    /// A symbolic link, and where it says it leads, cut. It must never be followed outside of the root.
    Link(String),
    /// Something behind a symbolic link.
    BehindLink,
}

/// One of the places that a backend mounts on or writes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// Below the root, without a leading `/`.
    pub path: String,
    /// What is there.
    pub at: At,
}

/// What the root of an image is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// Permissions.
    pub mode: u32,
    /// Owner, of the image.
    pub uid: u32,
    /// Group, of the image.
    pub gid: u32,
}

/// An image as a backend needs it.
#[derive(Debug)]
pub struct MountPlan {
    /// Digest of the manifest.
    pub image: Digest,
    /// Directories for `lowerdir`, the topmost first, without those that a root hides; to be mounted with `userxattr`, read-only, and after a
    /// translation of owners where [`MountPlan::owners`] is set.
    pub lower: Vec<PathBuf>,
    /// The same by their names below [`Store::layers`].
    pub layers: Vec<LayerName>,
    /// Owners are those of the image, 0 to 65535: map them onto the leased range. Else all is the caller's.
    pub owners: bool,
    /// Mode, owner and group of the root, which the directory above all of these gives: that of the backend.
    pub root: Root,
    /// How it is started; data, which the backend judges.
    pub config: Config,
    /// What is at the places it will mount on.
    pub facts: Vec<Fact>,
    /// Keeps all of it. Must live as long as the mount.
    pub lease: Lease,
}

impl Store {
    /// An image of a scope for a backend.
    ///
    /// # Errors
    /// When the scope has no such image, or one of its layers is not here any more.
    pub fn mount_plan(&self, scope: &Scope, digest: &Digest) -> Result<MountPlan> {
        let _keep = self.keep()?;
        let image = self.image(scope, digest)?;
        let image = image.ok_or_else(|| ImageError::Absent(digest.to_string()))?;
        let lease = self.lease(&image)?;
        let mut owners = true;
        let mut described = None;
        let mut lower = Vec::with_capacity(image.layers.len());
        let mut layers = Vec::with_capacity(image.layers.len());
        let mut hidden = false;
        for layer in image.layers.iter().rev() {
            let record = self.layer_record(&layer.key)?;
            let record = record.filter(|record| record.diff_id == layer.diff_id);
            let record = record.ok_or_else(|| {
                ImageError::Absent(format!("layer {} of image {digest}", layer.diff_id))
            })?;
            if !self.layer_stands(&layer.key) {
                return Err(ImageError::Altered(format!("layer {}", layer.diff_id)));
            }
            let path = self.layer(&layer.key).join("fs");
            if record.unpacked.root && described.is_none() {
                let found = std::fs::metadata(&path).map_err(at("look at", &path))?;
                described = Some(Root {
                    mode: found.mode() & 0o7777,
                    uid: found.uid(),
                    gid: found.gid(),
                });
            }
            if !hidden {
                owners &= record.unpacked.owners;
                lower.push(path);
                layers.push(LayerName::parse(&layer.key).map_err(|error| {
                    ImageError::Document {
                        what: format!("record of {digest}"),
                        why: error.message,
                    }
                })?);
            }
            // A mount would go on below a root that hides; what it hides would be back.
            hidden |= record.unpacked.opaque;
        }
        Ok(MountPlan {
            image: image.digest,
            facts: facts(&lower)?,
            lower,
            layers,
            owners,
            root: described.unwrap_or(Root {
                mode: 0o755,
                uid: 0,
                gid: 0,
            }),
            config: self.config(&image.config, image.layers.len())?,
            lease,
        })
    }

    /// The directory of the unpacked layers: `NAME/fs` is what a mount takes.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn layers(&self) -> Result<OwnedFd> {
        open_layer(&self.at("layers"))
    }

    /// Takes a lease. The caller keeps collection away. Removes some that nobody holds any more, so that there are
    /// never many of them.
    fn lease(&self, image: &Image) -> Result<Lease> {
        let directory = self.at("leases");
        for name in names(&directory)?.into_iter().take(LEASES_LOOKED_AT) {
            // One that cannot be looked at stays for the collection.
            let path = directory.join(name);
            if let Ok(Some(_held)) = dead(&path) {
                let _ = std::fs::remove_file(path);
            }
        }
        let record = LeaseRecord {
            image: image.digest,
            blobs: image.blobs().collect(),
            layers: image.layers.iter().map(|layer| layer.key.clone()).collect(),
        };
        loop {
            let path = directory.join(files::random_name()?);
            let file = open_lock(&path)?;
            flock(&file, FlockOperation::LockShared).map_err(at("lock", &path))?;
            let found = rustix::fs::fstat(&file).map_err(at("look at", &path))?;
            // Somebody took it for a dead one before it was locked.
            if found.st_nlink == 0 {
                continue;
            }
            let written = serde_json::to_writer(&file, &record);
            written.map_err(|error| at("write", &path)(std::io::Error::other(error)))?;
            return Ok(Lease { file });
        }
    }
}

/// Leases that are looked at when one is taken. Their names are random, so that the dead stay a small part of the live.
const LEASES_LOOKED_AT: usize = 16;

impl Image {
    /// All bytes it is made of.
    pub(super) fn blobs(&self) -> impl Iterator<Item = Digest> {
        let layers = self.layers.iter().map(|layer| layer.blob);
        [self.digest, self.config].into_iter().chain(layers)
    }
}

/// A lease that nobody holds any more, held so that nobody can: whoever takes it for his own then sees that it is gone.
pub(super) fn dead(path: &Path) -> Result<Option<File>> {
    let file = File::open(path).map_err(at("open", path))?;
    let alone = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    Ok(alone.then_some(file))
}

/// Opens a directory of the store.
pub(super) fn open_layer(path: &PathBuf) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(at("open", path))
}

/// What is at the places that a backend mounts on, the topmost layer first.
fn facts(lower: &[PathBuf]) -> Result<Vec<Fact>> {
    let stack = Stack::new(lower.iter().map(open_layer).collect::<Result<_>>()?);
    let mut facts = Vec::with_capacity(PLACES.len());
    for path in PLACES {
        let parts: Vec<&[u8]> = path.as_bytes().split(|byte| *byte == b'/').collect();
        let found = stack.find(&parts).map_err(at("look up", path))?;
        let found = match found {
            Found::Nothing => At::Nothing,
            Found::ThroughLink => At::BehindLink,
            Found::Here(place) => match FileType::from_raw_mode(place.stat.st_mode) {
                FileType::Directory => At::Directory,
                FileType::Symlink => {
                    let name = parts.last().copied().unwrap_or_default();
                    let target = readlinkat(&place.directory, name, Vec::new());
                    let target = target.map_err(at("read the link", path))?;
                    At::Link(shown(target.as_bytes()))
                }
                _ => At::File,
            },
        };
        facts.push(Fact {
            path: path.to_owned(),
            at: found,
        });
    }
    Ok(facts)
}

/// `lowerdir` takes `:` and `\` as its own; a path of ours that has one is escaped.
#[must_use]
pub fn lowerdir(lower: &[PathBuf]) -> std::ffi::OsString {
    let mut text = Vec::new();
    for path in lower {
        if !text.is_empty() {
            text.push(b':');
        }
        for byte in path.as_os_str().as_encoded_bytes() {
            if matches!(byte, b':' | b'\\' | b',') {
                text.push(b'\\');
            }
            text.push(*byte);
        }
    }
    std::ffi::OsString::from_vec(text)
}
