//! Collection. Garbage is a blob or unpacked layer that no image record of any scope and no live lease refers to, a
//! download that nobody went on with for a day, and a lease whose holders are all gone.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::Store;
use super::files::{names, read_record, remove, remove_all};
use super::plan::{LeaseRecord, dead};
use super::records::Image;
use super::verify::Alteration;
use crate::error::{ImageError, Result, at};

/// How long a download that broke off may be gone on with.
const PARTIAL_AGE: Duration = Duration::from_secs(86_400);

/// What a collection freed, or would free.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// Blobs.
    pub blobs: u64,
    /// Unpacked layers.
    pub layers: u64,
    /// Downloads that broke off.
    pub partial: u64,
    /// Bytes on the disk of all of these.
    pub bytes: u64,
    /// Leases that are live.
    pub leases: u64,
}

/// What is referred to.
#[derive(Debug, Default)]
struct Roots {
    blobs: BTreeSet<String>,
    layers: BTreeSet<String>,
}

impl Store {
    /// Frees what nobody refers to; with `dry_run` only says what that would be.
    ///
    /// # Errors
    /// When somebody brings an image in, a record cannot be read (nothing is removed then), or something cannot be
    /// removed.
    pub fn collect(&self, dry_run: bool) -> Result<Collected> {
        let _alone = self.alone()?;
        let mut done = Collected::default();
        let mut roots = Roots::default();
        let scopes = names(&self.at("scopes"))?;
        for scope in &scopes {
            let folder = self.at("scopes").join(scope).join("images");
            for name in names(&folder)? {
                if let Some(image) = read_record::<Image>(&folder.join(name))? {
                    roots.blobs.extend(image.blobs().map(|blob| blob.hex()));
                    roots
                        .layers
                        .extend(image.layers.into_iter().map(|layer| layer.key));
                }
            }
        }
        self.leases(&mut roots, &mut done, dry_run)?;
        self.layers_without(&roots, &mut done, dry_run)?;
        for name in names(&self.at("blobs/sha256"))? {
            if !roots.blobs.contains(&name) {
                let path = self.at("blobs/sha256").join(&name);
                done.blobs += 1;
                done.bytes += size(&path)?;
                if !dry_run {
                    remove(&path)?;
                }
            }
        }
        for scope in &scopes {
            let folder = self.at("scopes").join(scope).join("blobs");
            for name in names(&folder)? {
                if !dry_run && !roots.blobs.contains(&name) {
                    remove(&folder.join(name))?;
                }
            }
        }
        self.partials(&mut done, dry_run)?;
        if !dry_run {
            // Whoever would use one holds `collect`, and is not there.
            for name in names(&self.at("locks"))? {
                if name != "collect" {
                    remove(&self.at("locks").join(name))?;
                }
            }
        }
        Ok(done)
    }

    /// Removes the blobs and layers of an image that verification found altered, so that the next pull or load of it
    /// brings them again. The image is whole only then. Gives how many went.
    ///
    /// # Errors
    /// When somebody brings an image in, or a lease holds one of these layers; nothing is removed then.
    pub fn drop_altered(&self, image: &Image, found: &[Alteration]) -> Result<u64> {
        let _alone = self.alone()?;
        let mut roots = Roots::default();
        self.leases(&mut roots, &mut Collected::default(), true)?;
        let altered = |part: String| found.iter().any(|one| one.part == part);
        let layers = image.layers.iter();
        let layers: BTreeSet<&str> = layers
            .filter(|layer| altered(format!("layer {}", layer.diff_id)))
            .map(|layer| layer.key.as_str())
            .collect();
        if let Some(key) = layers.iter().find(|key| roots.layers.contains(**key)) {
            return Err(ImageError::Busy(format!(
                "the layer {key} is altered, and a sandbox uses it"
            )));
        }
        let mut gone = 0;
        for blob in image.blobs().collect::<BTreeSet<_>>() {
            if altered(format!("blob {blob}")) {
                remove(&self.blob(&blob))?;
                gone += 1;
            }
        }
        for key in layers {
            // A link counts, wherever it leads.
            if fs::symlink_metadata(self.layer(key)).is_ok() {
                self.remove_layer(key)?;
                gone += 1;
            }
        }
        Ok(gone)
    }

    fn leases(&self, roots: &mut Roots, done: &mut Collected, dry_run: bool) -> Result<()> {
        for name in names(&self.at("leases"))? {
            let path = self.at("leases").join(name);
            if let Some(_held) = dead(&path)? {
                if !dry_run {
                    remove(&path)?;
                }
                continue;
            }
            done.leases += 1;
            if let Some(lease) = read_record::<LeaseRecord>(&path)? {
                roots
                    .blobs
                    .extend(lease.blobs.iter().map(|blob| blob.hex()));
                roots.layers.extend(lease.layers);
            }
        }
        Ok(())
    }

    fn layers_without(&self, roots: &Roots, done: &mut Collected, dry_run: bool) -> Result<()> {
        for name in names(&self.at("layers"))? {
            if roots.layers.contains(&name) {
                continue;
            }
            done.layers += 1;
            done.bytes += self
                .layer_record(&name)
                .ok()
                .flatten()
                .map_or(0, |record| record.unpacked.bytes);
            if !dry_run {
                self.remove_layer(&name)?;
            }
        }
        Ok(())
    }

    /// Removes an unpacked layer. Half of one must never have its name.
    fn remove_layer(&self, key: &str) -> Result<()> {
        let path = self.layer(key);
        let work = self.work()?;
        let gone = work.path().join("layer");
        fs::rename(&path, &gone).map_err(at("rename", &path))?;
        if fs::symlink_metadata(&gone).is_ok_and(|found| found.is_symlink()) {
            return remove(&gone);
        }
        remove_all(&gone)
    }

    fn partials(&self, done: &mut Collected, dry_run: bool) -> Result<()> {
        for name in names(&self.at("partial"))? {
            let path: PathBuf = self.at("partial").join(name);
            let found = fs::metadata(&path).map_err(at("look at", &path))?;
            let changed = found.modified().map_err(at("look at", &path))?;
            let age = SystemTime::now()
                .duration_since(changed)
                .unwrap_or_default();
            if age >= PARTIAL_AGE {
                done.partial += 1;
                done.bytes += found.len();
                if !dry_run {
                    remove(&path)?;
                }
            }
        }
        Ok(())
    }
}

fn size(path: &Path) -> Result<u64> {
    fs::metadata(path)
        .map(|found| found.len())
        .map_err(at("look at", path))
}
