//! Bytes beside the rows: outputs and artifacts, each under the digest of its content.
//!
//! An object is written to a place of its own while its digest is computed, synced, and renamed to
//! `sha256/ab/…`, directory synced too: whoever sees it sees all of it. Before bytes of an object are given
//! out, all of it has been read once and compared with its digest; one that does not match is moved to
//! `quarantine/` and told, never given. Putting what is there already writes it anew, so that a collector
//! that spares young objects cannot take it away under a row that is about to name it.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, Internal, PublicError};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};
use sha2::{Digest as _, Sha256};

/// Most bytes of one object.
pub const OBJECT_MAX: u64 = 1 << 40;
/// Most bytes of one read.
pub const READ_MAX: u64 = 8 << 20;
/// Bytes that are gathered before they are written.
const PART: usize = 1 << 20;
/// Objects that are remembered as compared with their digest.
const REMEMBERED_MAX: usize = 4_096;

/// Why an object was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// No such object.
    #[error("no such object {0}")]
    NotFound(Digest),
    /// More bytes came than allowed; nothing is kept.
    #[error("the object is larger than {max} bytes")]
    TooLarge {
        /// The bound.
        max: u64,
    },
    /// More was asked for in one read than [`READ_MAX`].
    #[error("a read of {asked} bytes is more than {READ_MAX}")]
    LongRead {
        /// What was asked.
        asked: u64,
    },
    /// Its bytes are not those of its name; it is in quarantine now.
    #[error("the bytes of {0} are not what was stored; they were put aside")]
    Damaged(Digest),
    /// The disk or service failed. Nothing half-written is seen.
    #[error("the object store failed")]
    Engine(Internal),
}

impl ObjectError {
    /// What kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::TooLarge { .. } | Self::LongRead { .. } => ErrorKind::Invalid,
            Self::Damaged(_) => ErrorKind::Internal,
            Self::Engine(_) => ErrorKind::Unavailable,
        }
    }

    /// As a caller may see it.
    #[must_use]
    pub fn public(&self) -> PublicError {
        PublicError::new(self.kind(), self.to_string())
    }
}

impl From<object_store::Error> for ObjectError {
    fn from(error: object_store::Error) -> Self {
        Self::Engine(Internal::new(error.to_string()))
    }
}

/// An object that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Of its bytes; its name.
    pub digest: Digest,
    /// How many.
    pub bytes: u64,
}

/// An object as a collector of unnamed ones sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// What is kept.
    pub stored: Stored,
    /// How long ago it was last put.
    pub age: Duration,
}

/// What tells an object that was compared from one that was changed since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    bytes: u64,
    modified: SystemTime,
}

/// The store of objects. Cheap to clone.
#[derive(Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    compared: Arc<Mutex<HashMap<Digest, Seen>>>,
    drawn: Arc<std::sync::atomic::AtomicU64>,
    /// Who makes an object visible holds it with others, who removes one holds it alone.
    door: Arc<tokio::sync::RwLock<()>>,
}

impl Objects {
    /// In a directory of this host, made if it is not there and readable by its owner alone. What an
    /// earlier process left half-written is removed, so only one process may have it open. Blocks.
    ///
    /// # Errors
    /// When the directory cannot be made or read.
    pub fn local(dir: impl Into<PathBuf>) -> Result<Self, ObjectError> {
        use std::os::unix::fs::DirBuilderExt;
        let dir = dir.into();
        let failed = |error: std::io::Error| {
            ObjectError::Engine(Internal::new(format!("{}: {error}", dir.display())))
        };
        let incoming = dir.join("incoming");
        match std::fs::remove_dir_all(&incoming) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(failed)?;
        remove_staging(&dir.join("sha256")).map_err(failed)?;
        let store = LocalFileSystem::new_with_prefix(&dir)?.with_fsync(true);
        Ok(Self {
            store: Arc::new(store),
            compared: Arc::default(),
            drawn: Arc::default(),
            door: Arc::default(),
        })
    }

    /// Begins an object of at most `max` bytes, itself at most [`OBJECT_MAX`].
    pub fn upload(&self, max: u64) -> Upload {
        Upload {
            objects: self.clone(),
            max: max.min(OBJECT_MAX),
            hash: Sha256::new(),
            bytes: 0,
            gathered: Vec::new(),
            parts: None,
        }
    }

    /// Keeps bytes that are at hand.
    ///
    /// # Errors
    /// When the disk or service fails.
    pub async fn put(&self, bytes: &[u8]) -> Result<Stored, ObjectError> {
        let mut upload = self.upload(OBJECT_MAX);
        upload.write(bytes).await?;
        upload.finish().await
    }

    /// How many bytes an object has.
    ///
    /// # Errors
    /// `NotFound`, or when the disk or service fails.
    pub async fn size(&self, digest: &Digest) -> Result<u64, ObjectError> {
        Ok(self.head(digest).await?.size)
    }

    /// Bytes of an object, cut at its end; at most [`READ_MAX`].
    ///
    /// # Errors
    /// `NotFound`, `Damaged`, `LongRead`, or when the disk or service fails.
    pub async fn read(&self, digest: &Digest, range: Range<u64>) -> Result<Vec<u8>, ObjectError> {
        let asked = range.end.saturating_sub(range.start);
        if asked > READ_MAX {
            return Err(ObjectError::LongRead { asked });
        }
        let head = self.head(digest).await?;
        self.compare(digest, &head).await?;
        let end = range.end.min(head.size);
        if range.start >= end {
            return Ok(Vec::new());
        }
        let bytes = self.store.get_range(&place(digest), range.start..end).await;
        Ok(bytes.map_err(|error| told(error, digest))?.to_vec())
    }

    /// Removes an object unless it was put within `spared`; one that is gone already is no error. Says
    /// whether it is gone. A put that goes on at the same time is either seen here or puts it anew.
    ///
    /// # Errors
    /// When the disk or service fails.
    pub async fn delete(&self, digest: &Digest, spared: Duration) -> Result<bool, ObjectError> {
        let _alone = self.door.write().await;
        let head = match self.head(digest).await {
            Ok(head) => head,
            Err(ObjectError::NotFound(_)) => return Ok(true),
            Err(error) => return Err(error),
        };
        let put = SystemTime::from(head.last_modified);
        let age = SystemTime::now().duration_since(put).unwrap_or_default();
        if age < spared {
            return Ok(false);
        }
        self.remembered().remove(digest);
        match self.store.delete(&place(digest)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Objects whose digest begins with this byte, for a collector that goes through all 256.
    ///
    /// # Errors
    /// When the disk or service fails.
    pub async fn list(&self, first: u8) -> Result<Vec<Listed>, ObjectError> {
        let shard = Path::from(format!("sha256/{first:02x}"));
        let found = self.store.list_with_delimiter(Some(&shard)).await?;
        let now = SystemTime::now();
        let listed = found.objects.iter().filter_map(|meta| {
            // Other names are staging of a put that goes on.
            let digest = Digest::parse(&format!("sha256:{}", meta.location.filename()?)).ok()?;
            let modified = SystemTime::from(meta.last_modified);
            Some(Listed {
                stored: Stored {
                    digest,
                    bytes: meta.size,
                },
                age: now.duration_since(modified).unwrap_or_default(),
            })
        });
        Ok(listed.collect())
    }

    async fn head(&self, digest: &Digest) -> Result<ObjectMeta, ObjectError> {
        let head = self.store.head(&place(digest)).await;
        head.map_err(|error| told(error, digest))
    }

    /// Reads all of an object once and compares it with its name.
    async fn compare(&self, digest: &Digest, head: &ObjectMeta) -> Result<(), ObjectError> {
        let seen = Seen {
            bytes: head.size,
            modified: SystemTime::from(head.last_modified),
        };
        if self.remembered().get(digest) == Some(&seen) {
            return Ok(());
        }
        let place = place(digest);
        let mut hash = Sha256::new();
        let mut from = 0;
        while from < head.size {
            let to = head.size.min(from + PART as u64);
            let bytes = self.store.get_range(&place, from..to).await;
            hash.update(&bytes.map_err(|error| told(error, digest))?);
            from = to;
        }
        if <[u8; 32]>::from(hash.finalize()) != *digest.bytes() {
            let aside = Path::from(format!("quarantine/{}", digest.hex()));
            self.store.rename(&place, &aside).await?;
            return Err(ObjectError::Damaged(*digest));
        }
        let mut remembered = self.remembered();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(*digest, seen);
        Ok(())
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, HashMap<Digest, Seen>> {
        self.compared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes what a put that was broken off left beside the objects: a file of one part is staged there, under
/// its name with `#` and a number.
fn remove_staging(shards: &std::path::Path) -> std::io::Result<()> {
    let entries = |dir: &std::path::Path| match std::fs::read_dir(dir) {
        Ok(entries) => entries.collect::<std::io::Result<Vec<_>>>(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    for shard in entries(shards)? {
        if !shard.file_type()?.is_dir() {
            continue;
        }
        for entry in entries(&shard.path())? {
            if entry.file_name().as_encoded_bytes().contains(&b'#') {
                std::fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

fn told(error: object_store::Error, digest: &Digest) -> ObjectError {
    match error {
        object_store::Error::NotFound { .. } => ObjectError::NotFound(*digest),
        other => other.into(),
    }
}

fn place(digest: &Digest) -> Path {
    let hex = digest.hex();
    Path::from(format!("sha256/{}/{hex}", &hex[..2]))
}

/// An object that is being written. Dropped before [`Upload::finish`], nothing of it is kept.
pub struct Upload {
    objects: Objects,
    max: u64,
    hash: Sha256,
    bytes: u64,
    gathered: Vec<u8>,
    /// Where it goes when it is more than one part.
    parts: Option<(Path, Box<dyn MultipartUpload>)>,
}

impl Upload {
    /// Adds bytes.
    ///
    /// # Errors
    /// `TooLarge`, or when the disk or service fails. The upload is of no use after that.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), ObjectError> {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if self.bytes > self.max {
            return Err(ObjectError::TooLarge { max: self.max });
        }
        self.hash.update(bytes);
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PART - self.gathered.len()));
            self.gathered.extend_from_slice(now);
            bytes = later;
            if self.gathered.len() == PART {
                self.part().await?;
            }
        }
        Ok(())
    }

    /// Bytes so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes it durable and visible under its digest.
    ///
    /// # Errors
    /// When the disk or service fails; nothing is kept then.
    pub async fn finish(mut self) -> Result<Stored, ObjectError> {
        let stored = Stored {
            digest: Digest::from_bytes(std::mem::take(&mut self.hash).finalize().into()),
            bytes: self.bytes,
        };
        let target = place(&stored.digest);
        let store = Arc::clone(&self.objects.store);
        if self.parts.is_none() {
            let bytes = std::mem::take(&mut self.gathered);
            let _door = self.objects.door.read().await;
            store.put(&target, PutPayload::from(bytes)).await?;
            return Ok(stored);
        }
        if !self.gathered.is_empty() {
            self.part().await?;
        }
        if let Some((incoming, mut parts)) = self.parts.take() {
            parts.complete().await?;
            let _door = self.objects.door.read().await;
            store.rename(&incoming, &target).await?;
        }
        Ok(stored)
    }

    async fn part(&mut self) -> Result<(), ObjectError> {
        let payload = PutPayload::from(std::mem::take(&mut self.gathered));
        if self.parts.is_none() {
            let drawn = &self.objects.drawn;
            let number = drawn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let incoming = Path::from(format!("incoming/{number}"));
            let parts = self.objects.store.put_multipart(&incoming).await?;
            self.parts = Some((incoming, parts));
        }
        match &mut self.parts {
            Some((_, parts)) => Ok(parts.put_part(payload).await?),
            None => Ok(()),
        }
    }
}
