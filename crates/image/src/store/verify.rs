//! Reads an image again, all of it: bytes against their digests, and unpacked layers against their bytes.

use std::fs::File;
use std::io::Read;

use leasehold_core::digest::Digest;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::Store;
use super::layers::Wanted;
use super::records::Image;
use crate::document::{Document, chain_ids};
use crate::error::{Result, at};
use crate::limits::MANIFEST_BYTES;

/// Something that is not as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Alteration {
    /// Which part of the image.
    pub part: String,
    /// What is otherwise.
    pub what: String,
}

impl Store {
    /// What is altered of an image; nothing when all is as it came.
    ///
    /// # Errors
    /// When the store cannot be read, or a layer cannot be unpacked for another reason than its bytes.
    pub fn verify(&self, image: &Image) -> Result<Vec<Alteration>> {
        let _keep = self.keep()?;
        let mut found = Vec::new();
        for blob in image.blobs() {
            if let Some(what) = self.altered(&blob)? {
                found.push(Alteration {
                    part: format!("blob {blob}"),
                    what,
                });
            }
        }
        if !found.is_empty() {
            return Ok(found);
        }
        let manifest = self.read_blob(&image.digest, MANIFEST_BYTES)?;
        let config = self.config(&image.config, image.layers.len())?;
        let recorded = match Document::parse(&manifest, None)? {
            Document::Manifest(manifest) => {
                manifest.config.digest == image.config
                    && manifest
                        .layers
                        .iter()
                        .map(|layer| layer.digest)
                        .eq(image.layers.iter().map(|layer| layer.blob))
                    && config
                        .diff_ids
                        .iter()
                        .eq(image.layers.iter().map(|layer| &layer.diff_id))
            }
            Document::Index(_) => false,
        };
        if !recorded {
            found.push(Alteration {
                part: format!("record of {}", image.digest),
                what: "it does not say what the manifest says".to_owned(),
            });
            return Ok(found);
        }
        self.layers_again(image, &config.diff_ids, &mut found)?;
        Ok(found)
    }

    fn layers_again(
        &self,
        image: &Image,
        diff_ids: &[Digest],
        found: &mut Vec<Alteration>,
    ) -> Result<()> {
        let chain = chain_ids(diff_ids);
        let keys: Vec<String> = image.layers.iter().map(|layer| layer.key.clone()).collect();
        for (at, (layer, chain_id)) in image.layers.iter().zip(&chain).enumerate() {
            let kept = self.layer(&layer.key).join("fs");
            let broken = match self.layer_record(&layer.key) {
                _ if !self.layer_stands(&layer.key) => {
                    Some("it is missing, or a link is in its place")
                }
                Err(error) if error.is_broken() => Some("its layer.json is broken"),
                Err(error) => return Err(error),
                Ok(_) => None,
            };
            if let Some(what) = broken {
                found.push(Alteration {
                    part: format!("layer {}", layer.diff_id),
                    what: what.to_owned(),
                });
                continue;
            }
            let work = self.work()?;
            let wanted = Wanted {
                blob: &layer.blob,
                diff_id: &layer.diff_id,
                chain_id,
                below: &keys[..at],
            };
            let fresh = self.unpack_into(&work.path().join("layer"), wanted, Some(&kept))?;
            let altered = fresh.altered.into_iter().map(|what| Alteration {
                part: format!("layer {}", layer.diff_id),
                what,
            });
            found.extend(altered);
        }
        Ok(())
    }

    /// What is wrong with a blob, if something is.
    fn altered(&self, digest: &Digest) -> Result<Option<String>> {
        let path = self.blob(digest);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Some("it is missing".to_owned()));
            }
            Err(error) => return Err(at("open", path)(error)),
        };
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 128 << 10];
        loop {
            let got = file.read(&mut buffer).map_err(at("read", &path))?;
            if got == 0 {
                break;
            }
            hash.update(&buffer[..got]);
        }
        let now = Digest::from_bytes(hash.finalize().into());
        Ok((now != *digest).then(|| format!("its bytes are altered: they have the digest {now}")))
    }
}
