//! Images from files: OCI layouts, as directories or archives, and archives of `docker save`.
//!
//! [`source`] finds files by name in either; here is what they mean. An archive sets no name: it says what it calls
//! itself, and whoever loads it decides.

mod source;

use std::io::Read;
use std::path::Path;

use leasehold_core::digest::Digest;
use serde::{Deserialize, Serialize};

use crate::document::{Config, Descriptor, Document, IndexEntry, Manifest, Platform, choose};
use crate::error::{ImageError, Result, shown};
use crate::limits::{CONFIG_BYTES, INDEX_ENTRIES, MANIFEST_BYTES};
use crate::store::fill::Complete;
use crate::store::records::Image;
use crate::store::{Progress, Scope, Store, Watch};
use source::Source;

/// How an image is loaded.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Which image, by what the archive calls it, where it has several.
    pub which: Option<String>,
    /// What it has to run on; this machine without.
    pub platform: Option<Platform>,
    /// The name that is to stand for it, in full.
    pub name: Option<String>,
}

/// One image of an archive of `docker save`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

/// A manifest as it is written for what has none.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    schema_version: u8,
    media_type: &'a str,
    config: &'a Descriptor,
    layers: &'a [Descriptor],
}

/// An image as it was found, with its manifest.
struct Found {
    bytes: Vec<u8>,
    digest: Digest,
    manifest: Manifest,
}

impl Store {
    /// Loads an image from a file or directory.
    ///
    /// # Errors
    /// When there is none, it is refused, or its bytes are not those of its digests.
    pub fn load(
        &self,
        scope: &Scope,
        path: &Path,
        options: &LoadOptions,
        watch: &dyn Watch,
    ) -> Result<Image> {
        let _keep = self.keep()?;
        let work = self.work()?;
        let mut source = Source::open(path, work.path(), self.limits())?;
        let platform = options.platform.clone().unwrap_or_else(Platform::host);
        let which = options.which.as_deref();
        let found = match source.read("index.json", MANIFEST_BYTES)? {
            Some(index) => self.layout(scope, &mut source, &index, which, &platform, watch)?,
            None => self.saved(scope, &mut source, which, watch)?,
        };
        watch.tell(Progress::Resolved(found.digest));
        self.put(scope, &found.bytes)?;
        let complete = Complete {
            digest: found.digest,
            manifest_bytes: found.bytes.len() as u64,
            manifest: &found.manifest,
            platform: &platform,
            source: &format!("file {}", shown(path.as_os_str().as_encoded_bytes())),
            name: options.name.as_deref(),
        };
        self.admit(scope, &complete, watch)
    }

    fn layout(
        &self,
        scope: &Scope,
        source: &mut Source,
        index: &[u8],
        which: Option<&str>,
        platform: &Platform,
        watch: &dyn Watch,
    ) -> Result<Found> {
        let Document::Index(entries) = Document::parse(index, None)? else {
            return Err(source.none("`index.json` is no index"));
        };
        let entry = chosen(source, &entries, which, platform)?;
        let mut bytes = document(source, &entry.manifest)?;
        let mut digest = entry.manifest.digest;
        let mut parsed = Document::parse(&bytes, None)?;
        // One image for several machines is an index below the one of the layout.
        if let Document::Index(entries) = &parsed {
            let entry = choose(entries, platform)?;
            bytes = document(source, &entry.manifest)?;
            digest = entry.manifest.digest;
            parsed = Document::parse(&bytes, None)?;
        }
        let Document::Manifest(manifest) = parsed else {
            return Err(source.none("an index leads to another index"));
        };
        manifest.compressed(self.limits())?;
        for blob in std::iter::once(&manifest.config).chain(&manifest.layers) {
            self.keep_blob(scope, source, blob, watch)?;
        }
        Ok(Found {
            bytes,
            digest,
            manifest,
        })
    }

    /// Keeps a blob of a layout under the digest and size that its manifest says.
    fn keep_blob(
        &self,
        scope: &Scope,
        source: &mut Source,
        blob: &Descriptor,
        watch: &dyn Watch,
    ) -> Result<()> {
        if self.has(scope, &blob.digest) {
            watch.tell(Progress::Here(blob.digest));
            return Ok(());
        }
        watch.tell(Progress::Layer(blob.digest, blob.size));
        let name = format!("blobs/sha256/{}", blob.digest.hex());
        let Some((mut bytes, size)) = source.open_file(&name)? else {
            return Err(source.none(format!("`{name}` is missing")));
        };
        if size != blob.size {
            return Err(ImageError::Size {
                what: format!("blob {}", blob.digest),
                found: size,
                wanted: blob.size,
            });
        }
        let told = |now| watch.tell(Progress::Bytes(blob.digest, now));
        self.put_from(scope, &mut bytes, Some(&blob.digest), blob.size, told)?;
        Ok(())
    }

    fn saved(
        &self,
        scope: &Scope,
        source: &mut Source,
        which: Option<&str>,
        watch: &dyn Watch,
    ) -> Result<Found> {
        let Some(list) = source.read("manifest.json", MANIFEST_BYTES)? else {
            return Err(source.none("it has neither `index.json` nor `manifest.json`"));
        };
        let list: Vec<Saved> = serde_json::from_slice(&list)
            .map_err(|error| source.none(format!("`manifest.json`: {error}")))?;
        let saved = chosen_saved(source, &list, which)?;
        let Some(config) = source.read(&saved.config, CONFIG_BYTES)? else {
            return Err(source.none("its configuration is missing"));
        };
        let parsed = Config::parse(&config, saved.layers.len())?;
        let mut layers = Vec::with_capacity(saved.layers.len());
        for (name, diff_id) in saved.layers.iter().zip(&parsed.diff_ids) {
            let (_, size) = saved_layer(source, name)?;
            // Layers are not compressed in such an archive, so that they are their own diff ids.
            layers.push(Descriptor {
                media_type: "application/vnd.oci.image.layer.v1.tar".to_owned(),
                digest: *diff_id,
                size,
            });
        }
        let descriptor = Descriptor {
            media_type: "application/vnd.oci.image.config.v1+json".to_owned(),
            digest: Digest::of(&config),
            size: config.len() as u64,
        };
        let written = Written {
            schema_version: 2,
            media_type: "application/vnd.oci.image.manifest.v1+json",
            config: &descriptor,
            layers: &layers,
        };
        let bytes = serde_json::to_vec(&written)
            .map_err(|error| source.none(format!("no manifest can be written: {error}")))?;
        let Document::Manifest(manifest) = Document::parse(&bytes, None)? else {
            return Err(source.none("no manifest can be written"));
        };
        // Nothing is written before the bounds on the whole are kept.
        manifest.compressed(self.limits())?;
        self.put(scope, &config)?;
        for (name, layer) in saved.layers.iter().zip(&layers) {
            let (mut bytes, size) = saved_layer(source, name)?;
            watch.tell(Progress::Layer(layer.digest, size));
            let told = |now| watch.tell(Progress::Bytes(layer.digest, now));
            self.put_from(scope, &mut bytes, Some(&layer.digest), layer.size, told)?;
        }
        Ok(Found {
            digest: Digest::of(&bytes),
            bytes,
            manifest,
        })
    }
}

/// A layer of an archive of `docker save`, and its size.
fn saved_layer<'a>(source: &'a mut Source, name: &str) -> Result<(Box<dyn Read + 'a>, u64)> {
    let missing = source.none(format!("`{}` is missing", shown(name.as_bytes())));
    source.open_file(name)?.ok_or(missing)
}

/// A document of a layout, of the digest and size that were said.
fn document(source: &mut Source, wanted: &Descriptor) -> Result<Vec<u8>> {
    let name = format!("blobs/sha256/{}", wanted.digest.hex());
    let Some(bytes) = source.read(&name, MANIFEST_BYTES)? else {
        return Err(source.none(format!("`{name}` is missing")));
    };
    let what = || format!("the manifest {}", wanted.digest);
    if bytes.len() as u64 != wanted.size {
        return Err(ImageError::Size {
            what: what(),
            found: bytes.len() as u64,
            wanted: wanted.size,
        });
    }
    let found = Digest::of(&bytes);
    match found == wanted.digest {
        true => Ok(bytes),
        false => Err(ImageError::Digest {
            what: what(),
            found,
            wanted: wanted.digest,
        }),
    }
}

fn chosen<'a>(
    source: &Source,
    entries: &'a [IndexEntry],
    which: Option<&str>,
    platform: &Platform,
) -> Result<&'a IndexEntry> {
    let name = |entry: &IndexEntry| entry.name.clone().unwrap_or_default();
    if let Some(which) = which {
        let found = entries.iter().find(|entry| name(entry) == which);
        return found.ok_or_else(|| source.several(entries.iter().map(name)));
    }
    match entries {
        [] => Err(source.none("`index.json` names no image")),
        [entry] => Ok(entry),
        _ if entries.iter().all(|entry| entry.name.is_none()) => choose(entries, platform),
        _ => Err(source.several(entries.iter().map(name))),
    }
}

fn chosen_saved<'a>(source: &Source, list: &'a [Saved], which: Option<&str>) -> Result<&'a Saved> {
    let names = |saved: &Saved| saved.repo_tags.clone().unwrap_or_default();
    if list.len() > INDEX_ENTRIES {
        return Err(source.none(format!("it has more than {INDEX_ENTRIES} images")));
    }
    match (list, which) {
        ([one], None) => Ok(one),
        ([], _) => Err(source.none("`manifest.json` names no image")),
        (_, which) => list
            .iter()
            .find(|saved| names(saved).iter().any(|name| Some(&name[..]) == which))
            .ok_or_else(|| source.several(list.iter().flat_map(names))),
    }
}
