//! The last step of every way in: all bytes are here and checked; the layers are unpacked, then there is an image.

use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_core::digest::Digest;

use super::layers::Wanted;
use super::records::{Image, Layer};
use super::{Scope, Store, Watch};
use crate::document::{Config, Manifest, Platform, chain_ids};
use crate::error::{ImageError, Result};
use crate::limits::CONFIG_BYTES;
use crate::unpack::Spent;

/// An image whose bytes are all here.
#[derive(Debug)]
pub(crate) struct Complete<'a> {
    pub(crate) digest: Digest,
    /// Bytes of its manifest.
    pub(crate) manifest_bytes: u64,
    pub(crate) manifest: &'a Manifest,
    /// What it has to run on.
    pub(crate) platform: &'a Platform,
    /// Where it came from, in words.
    pub(crate) source: &'a str,
    /// The name that is to stand for it.
    pub(crate) name: Option<&'a str>,
}

impl Store {
    /// Makes an image of it. The caller keeps collection away.
    ///
    /// # Errors
    /// When the configuration is of something else, or a layer is refused. Nothing is recorded then.
    pub(crate) fn admit(
        &self,
        scope: &Scope,
        complete: &Complete<'_>,
        watch: &dyn Watch,
    ) -> Result<Image> {
        let manifest = complete.manifest;
        let config = self.config(&manifest.config.digest, manifest.layers.len())?;
        if !complete.platform.takes(&config.platform) {
            return Err(ImageError::Platform {
                wanted: complete.platform.to_string(),
                there: crate::error::shown(config.platform.to_string().as_bytes()),
            });
        }
        let chain = chain_ids(&config.diff_ids);
        let mut spent = Spent::default();
        let mut keys: Vec<String> = Vec::with_capacity(chain.len());
        for ((layer, diff_id), chain_id) in manifest.layers.iter().zip(&config.diff_ids).zip(&chain)
        {
            let wanted = Wanted {
                blob: &layer.digest,
                diff_id,
                chain_id,
                below: &keys,
            };
            let key = self.unpack(wanted, &mut spent, watch)?;
            keys.push(key);
        }
        let layers = manifest.layers.iter().zip(&config.diff_ids).zip(keys);
        let image = Image {
            digest: complete.digest,
            config: manifest.config.digest,
            bytes: complete.manifest_bytes
                + manifest.config.size
                + manifest.compressed(&self.limits)?,
            layers: layers
                .map(|((layer, diff_id), key)| Layer {
                    blob: layer.digest,
                    bytes: layer.size,
                    diff_id: *diff_id,
                    key,
                })
                .collect(),
            platform: config.platform,
            source: complete.source.to_owned(),
            added: now(),
        };
        // Whoever removes the last name of it meanwhile would take the record from under the new one.
        let _records = self.records(scope)?;
        self.record(scope, &image)?;
        if let Some(name) = complete.name {
            self.name(scope, name, &image.digest)?;
        }
        Ok(image)
    }

    /// The configuration of an image of so many layers, which is here.
    pub(crate) fn config(&self, digest: &Digest, layers: usize) -> Result<Config> {
        Config::parse(&self.read_blob(digest, CONFIG_BYTES)?, layers)
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
