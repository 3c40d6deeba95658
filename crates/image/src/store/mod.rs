//! The store: what is where, and what may be opened. See `docs/IMAGES.md` for its layout and what is atomic.
//!
//! [`files`] makes things whole or not at all, [`locks`] lets one do what all need, [`blobs`] keeps bytes,
//! [`records`] says which image is what, [`layers`] has layers unpacked, [`fill`] brings an image in,
//! [`plan`] gives one to a backend, [`account`] says who its command is, [`collect`] frees what nobody refers to, [`verify`] reads all again.

pub mod account;
pub mod blobs;
pub mod collect;
pub mod files;
pub mod fill;
pub mod layers;
pub mod locks;
pub mod plan;
pub mod records;
pub mod verify;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold_core::digest::Digest;

use crate::error::{ImageError, Result, shown};
use crate::limits::Limits;
use crate::unpack::worker::Worker;

/// The directories of a store, below its own.
const DIRECTORIES: [&str; 7] = [
    "blobs/sha256",
    "layers",
    "leases",
    "locks",
    "partial",
    "scopes",
    "work",
];

/// Whose images are meant: a tenant, or the command line of the host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scope(String);

impl Scope {
    /// The scope of the command line.
    #[must_use]
    pub fn host() -> Self {
        Self("host".to_owned())
    }

    /// A scope by its name: 1 to 64 of small letters, digits and `-`.
    ///
    /// # Errors
    /// When the name is none.
    pub fn new(name: &str) -> Result<Self> {
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        match (1..=64).contains(&name.len()) && name.bytes().all(good) {
            true => Ok(Self(name.to_owned())),
            false => Err(ImageError::Reference {
                name: shown(name.as_bytes()),
                what: "is no scope: 1 to 64 of a-z, 0-9 and `-`".to_owned(),
            }),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// What is told while an image comes in. Everything is in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A tag was resolved.
    Resolved(Digest),
    /// A layer is needed, of so many bytes.
    Layer(Digest, u64),
    /// It is here already, or somebody else brought it meanwhile.
    Here(Digest),
    /// Somebody else is at it; it is waited for.
    Waiting(Digest),
    /// So many bytes of it are here.
    Bytes(Digest, u64),
    /// A connection broke, or stood still; it goes on from so many bytes.
    Again(Digest, u64),
    /// It is being unpacked.
    Unpacking(Digest),
    /// It is unpacked.
    Unpacked(Digest),
}

/// Who is told.
pub trait Watch: Send + Sync {
    /// Is told one step. Must not block.
    fn tell(&self, progress: Progress);

    /// Whether nobody wants the image any more; what was downloaded so far stays for the next one.
    fn given_up(&self) -> bool {
        false
    }
}

/// Nobody.
impl Watch for () {
    fn tell(&self, _: Progress) {}
}

/// A store of images. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    root: Arc<PathBuf>,
    worker: Arc<Worker>,
    limits: Limits,
}

impl Store {
    /// Opens the store below a directory, makes it where there is none, and removes what dead makers left.
    ///
    /// # Errors
    /// When a directory cannot be made or read, or belongs to somebody else.
    pub fn open(root: PathBuf, worker: Worker, limits: Limits) -> Result<Self> {
        files::make_directory(&root)?;
        for name in DIRECTORIES {
            files::make_directory(&root.join(name))?;
        }
        let store = Self {
            root: Arc::new(root),
            worker: Arc::new(worker),
            limits,
        };
        store.sweep()?;
        Ok(store)
    }

    /// Its directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The bounds it keeps to.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn of_scope(&self, scope: &Scope, name: &str) -> PathBuf {
        self.root.join("scopes").join(&scope.0).join(name)
    }
}
