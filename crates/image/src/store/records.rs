//! Which images a scope may use, and by which names.

use std::path::PathBuf;

use leasehold_core::digest::Digest;
use serde::{Deserialize, Serialize};

use super::files::{self, read_record};
use super::{Scope, Store};
use crate::document::Platform;
use crate::error::{ImageError, Result, shown};

/// Fewest digits that a digest is found by.
const DIGITS_MIN: usize = 6;

/// An image that a scope may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Digest of its manifest, which is its identity.
    pub digest: Digest,
    /// Digest of its configuration.
    pub config: Digest,
    /// Its layers, the lowest first.
    pub layers: Vec<Layer>,
    /// What it runs on.
    pub platform: Platform,
    /// Bytes of manifest, configuration and layers as they came.
    pub bytes: u64,
    /// Where it came from, in words.
    pub source: String,
    /// When it was brought in, in seconds since 1970.
    pub added: u64,
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Its bytes.
    pub blob: Digest,
    /// How many there are.
    pub bytes: u64,
    /// Digest without compression.
    pub diff_id: Digest,
    /// Under which name it is unpacked.
    pub key: String,
}

/// A name of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    /// In full.
    pub name: String,
    /// What it stands for.
    pub digest: Digest,
}

impl Store {
    fn image_path(&self, scope: &Scope, digest: &Digest) -> PathBuf {
        self.of_scope(scope, "images").join(digest.hex())
    }

    fn name_path(&self, scope: &Scope, name: &str) -> PathBuf {
        let file = Digest::of(name.as_bytes()).hex();
        self.of_scope(scope, "names").join(file)
    }

    /// Keeps an image whose layers are all here.
    pub(super) fn record(&self, scope: &Scope, image: &Image) -> Result<()> {
        files::make_directory(&self.of_scope(scope, "images"))?;
        self.write_record(&self.image_path(scope, &image.digest), image)
    }

    /// Lets a name stand for an image.
    pub(super) fn name(&self, scope: &Scope, name: &str, digest: &Digest) -> Result<()> {
        files::make_directory(&self.of_scope(scope, "names"))?;
        let record = Name {
            name: name.to_owned(),
            digest: *digest,
        };
        self.write_record(&self.name_path(scope, name), &record)
    }

    /// Whether this scope has an image with all its layers.
    ///
    /// # Errors
    /// When its record cannot be read.
    pub fn whole(&self, scope: &Scope, digest: &Digest) -> Result<bool> {
        let image = self.image(scope, digest)?;
        Ok(image.is_some_and(|image| {
            let mut layers = image.layers.iter();
            layers.all(|layer| self.layer_stands(&layer.key))
        }))
    }

    /// The image of a digest, if this scope has it.
    ///
    /// # Errors
    /// When its record cannot be read.
    pub fn image(&self, scope: &Scope, digest: &Digest) -> Result<Option<Image>> {
        read_record(&self.image_path(scope, digest))
    }

    /// All images of a scope.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn images(&self, scope: &Scope) -> Result<Vec<Image>> {
        self.all(self.of_scope(scope, "images"))
    }

    /// All names of a scope, in order.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn names(&self, scope: &Scope) -> Result<Vec<Name>> {
        let mut names: Vec<Name> = self.all(self.of_scope(scope, "names"))?;
        names.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(names)
    }

    fn all<T: serde::de::DeserializeOwned>(&self, folder: PathBuf) -> Result<Vec<T>> {
        let mut all = Vec::new();
        for name in files::names(&folder)? {
            all.extend(read_record(&folder.join(name))?);
        }
        Ok(all)
    }

    /// The image that is meant: by a name, a digest, or the first digits of one.
    ///
    /// # Errors
    /// When there is none, or more than one begins so.
    pub fn find(&self, scope: &Scope, text: &str) -> Result<Image> {
        let absent = || ImageError::Absent(shown(text.as_bytes()));
        if let Ok(digest) = Digest::parse(text) {
            return self.image(scope, &digest)?.ok_or_else(absent);
        }
        let reference = crate::reference::Reference::parse(text);
        let full = reference.as_ref().ok().map(ToString::to_string);
        for name in [Some(text.to_owned()), full].into_iter().flatten() {
            if let Some(name) = read_record::<Name>(&self.name_path(scope, &name))? {
                return self.image(scope, &name.digest)?.ok_or_else(absent);
            }
        }
        if text.contains('@') {
            // The digest says which; what is wrong with the name before it is told all the same.
            let digest = reference?.digest();
            let image = digest
                .map(|digest| self.image(scope, &digest))
                .transpose()?;
            return image.flatten().ok_or_else(absent);
        }
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        let hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !hex || digits.is_empty() {
            return Err(absent());
        }
        let images = self.images(scope)?;
        if digits.len() < DIGITS_MIN {
            let begins = images
                .iter()
                .any(|image| image.digest.hex().starts_with(digits));
            return Err(match begins {
                // Too few to stand for an image for long, even where there is one alone.
                true => ImageError::Ambiguous(shown(text.as_bytes())),
                false => absent(),
            });
        }
        let mut found = images
            .into_iter()
            .filter(|image| image.digest.hex().starts_with(digits));
        match (found.next(), found.next()) {
            (Some(image), None) => Ok(image),
            (Some(_), Some(_)) => Err(ImageError::Ambiguous(shown(text.as_bytes()))),
            (None, _) => Err(absent()),
        }
    }

    /// Removes a name, or with a digest an image with all its names. Bytes stay until they are collected, and
    /// what has a lease goes on.
    ///
    /// # Errors
    /// When there is none.
    pub fn remove(&self, scope: &Scope, text: &str) -> Result<Vec<String>> {
        let _keep = self.keep()?;
        let _records = self.records(scope)?;
        let image = match self.find(scope, text) {
            Err(absent @ ImageError::Absent(_)) => {
                return self
                    .remove_dangling(scope, text)
                    .and_then(|gone| gone.ok_or(absent));
            }
            found => found?,
        };
        let names = self.names(scope)?;
        let of_image = names.iter().filter(|name| name.digest == image.digest);
        let full = crate::reference::Reference::parse(text).map(|name| name.to_string());
        let named = of_image
            .clone()
            .find(|name| name.name == text || Some(&name.name) == full.as_ref().ok());
        let mut gone = Vec::new();
        match named {
            Some(name) => {
                files::remove(&self.name_path(scope, &name.name))?;
                gone.push(name.name.clone());
            }
            None => {
                for name in of_image.clone() {
                    files::remove(&self.name_path(scope, &name.name))?;
                    gone.push(name.name.clone());
                }
            }
        }
        if named.is_none() || of_image.count() == 1 {
            files::remove(&self.image_path(scope, &image.digest))?;
            gone.push(image.digest.to_string());
        }
        Ok(gone)
    }

    /// Removes a name whose image has no record any more, if there is one.
    fn remove_dangling(&self, scope: &Scope, text: &str) -> Result<Option<Vec<String>>> {
        let full = crate::reference::Reference::parse(text).map(|name| name.to_string());
        for name in [Some(text.to_owned()), full.ok()].into_iter().flatten() {
            let path = self.name_path(scope, &name);
            if read_record::<Name>(&path)?.is_some() {
                files::remove(&path)?;
                return Ok(Some(vec![name]));
            }
        }
        Ok(None)
    }
}
