//! Layers as overlayfs wants them, each unpacked once.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold_core::digest::Digest;
use serde::{Deserialize, Serialize};

use super::files::{self, read_record};
use super::locks::Waiting;
use super::{Progress, Store, Watch};
use crate::error::{ImageError, Result, at};
use crate::unpack::{Answer, Request, Spent, Unpacked};

/// What a layer may take beyond its unpacking, until it is on the disk.
const SLACK: Duration = Duration::from_secs(600);

/// What is kept beside an unpacked layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// The bytes it was unpacked from.
    pub blob: Digest,
    /// Their digest without compression.
    pub diff_id: Digest,
    /// What was found in them.
    pub unpacked: Unpacked,
}

/// A layer to be had unpacked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) blob: &'a Digest,
    pub(super) diff_id: &'a Digest,
    /// Of it and all below it.
    pub(super) chain_id: &'a Digest,
    /// Names of the layers below, the lowest first.
    pub(super) below: &'a [String],
}

impl Store {
    /// The directory of an unpacked layer.
    pub(super) fn layer(&self, key: &str) -> PathBuf {
        self.at("layers").join(key)
    }

    /// Whether an unpacked layer is there as this store made it: directories, and no link to somewhere else.
    pub(super) fn layer_stands(&self, key: &str) -> bool {
        let layer = self.layer(key);
        [layer.join("fs"), layer].iter().all(|path| {
            std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_dir())
        })
    }

    /// What is known of an unpacked layer.
    ///
    /// # Errors
    /// When its record cannot be read.
    pub fn layer_record(&self, key: &str) -> Result<Option<LayerRecord>> {
        read_record(&self.layer(key).join("layer.json"))
    }

    /// The name under which a layer is unpacked, if these very bytes were: by its diff id, or where it leans by its
    /// chain id. To name the diff id of somebody's layer proves nothing.
    fn unpacked(&self, wanted: Wanted<'_>) -> Result<Option<String>> {
        for key in [wanted.diff_id.hex(), chain_key(wanted.chain_id)] {
            if let Some(record) = self.layer_record(&key)?
                && record.diff_id == *wanted.diff_id
                && (record.blob == *wanted.blob || self.proof(&key, wanted.blob).exists())
            {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// The file that says that other bytes were unpacked too, and are the same layer.
    fn proof(&self, key: &str, blob: &Digest) -> PathBuf {
        self.layer(key).join("of").join(blob.hex())
    }

    /// Has a layer unpacked unless it is, within what the layers below left of the bounds of an image. Gives its name.
    pub(super) fn unpack(
        &self,
        wanted: Wanted<'_>,
        spent: &mut Spent,
        watch: &dyn Watch,
    ) -> Result<String> {
        let key = self.unpack_once(wanted, spent, watch)?;
        let absent = || ImageError::Absent(format!("layer {}", wanted.diff_id));
        let record = self.layer_record(&key)?.ok_or_else(absent)?;
        spent.bytes = spent.bytes.saturating_add(record.unpacked.bytes);
        spent.entries = spent.entries.saturating_add(record.unpacked.entries);
        for (limit, now, most) in [
            ("unpacked", spent.bytes, self.limits.unpacked_bytes),
            ("image-entries", spent.entries, self.limits.image_entries),
        ] {
            if now > most {
                let what = format!("the image with its layer {}", wanted.blob);
                return Err(ImageError::Limit { what, limit, most });
            }
        }
        Ok(key)
    }

    /// Whoever comes meanwhile waits for it.
    fn unpack_once(
        &self,
        wanted: Wanted<'_>,
        spent: &mut Spent,
        watch: &dyn Watch,
    ) -> Result<String> {
        if let Some(key) = self.unpacked(wanted)? {
            return Ok(key);
        }
        // Of these bytes on this stack: nobody waits for bytes that only claim to be the same.
        let name = format!("layer-{}-{}", wanted.chain_id.hex(), wanted.blob.hex());
        let wall = Duration::from_secs(u64::from(self.limits.wall_seconds));
        let waiting = Waiting {
            what: &format!("layer {}", wanted.blob),
            most: wall + SLACK,
            grows: None,
        };
        let told = || watch.tell(Progress::Waiting(*wanted.blob));
        let _one = self.once(&name, &waiting, told)?;
        if let Some(key) = self.unpacked(wanted)? {
            return Ok(key);
        }
        watch.tell(Progress::Unpacking(*wanted.blob));
        let work = self.work()?;
        let made = work.path().join("layer");
        let begun = Instant::now();
        let unpacked = self.unpack_within(&made, wanted, *spent, None)?;
        spent.time += begun.elapsed();
        let key = match unpacked.leans {
            true => chain_key(wanted.chain_id),
            false => wanted.diff_id.hex(),
        };
        self.keep_layer(&key, &made, wanted, unpacked)?;
        watch.tell(Progress::Unpacked(*wanted.blob));
        Ok(key)
    }

    /// Gives an unpacked layer its name, unless the same is there.
    fn keep_layer(
        &self,
        key: &str,
        made: &Path,
        wanted: Wanted<'_>,
        unpacked: Unpacked,
    ) -> Result<()> {
        let _one = self.layer_names()?;
        let kept = self.layer_record(key)?;
        if kept.is_some_and(|kept| kept.diff_id == *wanted.diff_id) {
            // The same without compression: it is kept once.
            let proof = self.proof(key, wanted.blob);
            files::make_directory(&self.layer(key).join("of"))?;
            return self.write_whole(&proof, b"", 0o400);
        }
        let record = LayerRecord {
            blob: *wanted.blob,
            diff_id: *wanted.diff_id,
            unpacked,
        };
        self.write_record(&made.join("layer.json"), &record)?;
        // One call for all files, and the record with them.
        let folder = File::open(made).map_err(at("open", made))?;
        rustix::fs::syncfs(&folder).map_err(at("sync", made))?;
        let path = self.layer(key);
        std::fs::rename(made, &path).map_err(at("rename to", &path))?;
        files::sync_directory(&self.at("layers"))
    }

    /// Has a layer unpacked into a directory that is not there yet, and compared where that is asked for.
    pub(super) fn unpack_into(
        &self,
        made: &Path,
        wanted: Wanted<'_>,
        against: Option<&Path>,
    ) -> Result<Unpacked> {
        self.unpack_within(made, wanted, Spent::default(), against)
    }

    fn unpack_within(
        &self,
        made: &Path,
        wanted: Wanted<'_>,
        spent: Spent,
        against: Option<&Path>,
    ) -> Result<Unpacked> {
        files::make_directory(made)?;
        let target = made.join("fs");
        // Readable by everybody: it becomes the root of a sandbox, and nobody else gets as far as here.
        std::fs::DirBuilder::new()
            .mode(0o755)
            .create(&target)
            .map_err(at("make", &target))?;
        let below = wanted.below.iter().rev();
        let request = Request {
            blob: self.blob(wanted.blob),
            target,
            lowers: below.map(|key| self.layer(key).join("fs")).collect(),
            diff_id: *wanted.diff_id,
            limits: self.limits,
            spent,
            against: against.map(Path::to_owned),
        };
        let layer = *wanted.blob;
        match self.worker.run(&request) {
            Ok(Answer::Done(unpacked)) => Ok(*unpacked),
            Ok(Answer::Refused(why)) => Err(ImageError::Layer { layer, why }),
            Ok(Answer::Failed(why)) | Err(why) => Err(ImageError::Unpacker { layer, why }),
        }
    }
}

/// The name of a layer that leans on those below.
fn chain_key(chain_id: &Digest) -> String {
    format!("chain-{}", chain_id.hex())
}
