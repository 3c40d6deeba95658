//! Images as requests, manifests and the engine know them: a name, the digest that it is resolved to once, and the
//! seam to the worker's store of them.

use std::collections::BTreeMap;

use leasehold_backend::seam::ImageFiles;
use leasehold_core::digest::Digest;
use leasehold_core::document::Field;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::image::ImageSpec;
use leasehold_core::name::Name;
use serde::{Deserialize, Serialize};

use crate::engine::parts::Doing;

/// Longest name of an image in bytes, its digest included.
pub const NAME_MAX: usize = 512;

/// When a registry is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pull {
    /// Never: what is not here is refused.
    Never,
    /// Where the name stands for nothing here, or the image is not here.
    #[default]
    Missing,
    /// For what a tag stands for now, each time. What is here already does not come again.
    Always,
}

impl Pull {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Missing => "missing",
            Self::Always => "always",
        }
    }

    pub(crate) fn read(field: &Field<'_>) -> Option<Self> {
        field.word(&[Self::Never, Self::Missing, Self::Always].map(|pull| (pull.word(), pull)))
    }
}

/// The image that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageWish {
    /// Its name as it was written: `NAME[:TAG][@sha256:…]`.
    pub name: String,
    /// When a registry is asked.
    pub pull: Pull,
}

impl ImageWish {
    /// What a manifest asks for: its digest is in it.
    #[must_use]
    pub(crate) fn of_tool(name: Option<&str>, digest: Digest) -> Self {
        Self {
            name: match name {
                Some(name) => format!("{name}@{digest}"),
                None => digest.to_string(),
            },
            pull: Pull::Missing,
        }
    }
}

/// A name as the store reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    /// In full.
    pub full: String,
    /// Registry and repository, as policies name them; the digest of an image that is named by that alone.
    pub repository: String,
}

/// The image of a run that is decided on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageKnown {
    /// Its name.
    pub name: ImageName,
    /// When a registry is asked.
    pub pull: Pull,
    /// What the name stands for; `None` as long as it is not resolved.
    pub digest: Option<Digest>,
}

impl ImageKnown {
    /// For a plan; one that is not resolved yet has the digest of nothing, and is only tried.
    pub(crate) fn start(&self) -> ImageStart {
        ImageStart {
            name: self.name.full.clone(),
            digest: self.digest.unwrap_or(Digest::ZERO),
            pull: self.pull,
        }
    }
}

/// The image of a run that is admitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageStart {
    /// Its name in full.
    pub name: String,
    /// What that was resolved to, once.
    pub digest: Digest,
    /// When a registry is asked.
    pub pull: Pull,
}

/// An image that is in use: the root of a computer, and how the image is started.
#[derive(Debug)]
pub struct Mounted {
    /// For the computer.
    pub spec: ImageSpec,
    /// Variables of its command, below those of the run.
    pub env: BTreeMap<String, String>,
    /// Where its command begins, if it says so.
    pub cwd: Option<String>,
    /// What goes to the backend.
    pub files: ImageFiles,
}

/// The images of this worker. Names, images and the right to them are each tenant's own; bytes are kept once.
pub trait Images: Send + Sync + 'static {
    /// Reads a name.
    ///
    /// # Errors
    /// What is wrong with it.
    fn name(&self, text: &str) -> Result<ImageName, PublicError>;

    /// What a name of a tenant stands for. A registry is asked as `pull` says, for its manifest alone.
    ///
    /// # Errors
    /// `not_found` where it is not here and may not be pulled; what the registry says.
    fn resolve(&self, tenant: Name, name: String, pull: Pull) -> Doing<'_, Digest>;

    /// Whether a tenant has an image here, whole.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn here(&self, tenant: Name, digest: Digest) -> Doing<'_, bool>;

    /// Has an image here for a tenant. Whoever comes while it is pulled waits for the same pull, which ends when
    /// nobody waits any more: this may be dropped at any moment.
    ///
    /// # Errors
    /// Why it cannot be had.
    fn bring(&self, tenant: Name, image: ImageStart) -> Doing<'_, ()>;

    /// Takes an image into use.
    ///
    /// # Errors
    /// When the tenant has it not, or it cannot be a root.
    fn mount(&self, tenant: Name, image: ImageStart) -> Doing<'_, Mounted>;
}

/// There are none.
#[derive(Debug, Clone, Copy)]
pub struct NoImages;

fn none() -> PublicError {
    PublicError::new(ErrorKind::Unsupported, "this daemon has no images")
}

impl Images for NoImages {
    fn name(&self, _: &str) -> Result<ImageName, PublicError> {
        Err(none())
    }

    fn resolve(&self, _: Name, _: String, _: Pull) -> Doing<'_, Digest> {
        Box::pin(std::future::ready(Err(none())))
    }

    fn here(&self, _: Name, _: Digest) -> Doing<'_, bool> {
        Box::pin(std::future::ready(Err(none())))
    }

    fn bring(&self, _: Name, _: ImageStart) -> Doing<'_, ()> {
        Box::pin(std::future::ready(Err(none())))
    }

    fn mount(&self, _: Name, _: ImageStart) -> Doing<'_, Mounted> {
        Box::pin(std::future::ready(Err(none())))
    }
}
