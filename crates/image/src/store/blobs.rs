//! Bytes by their digest. What is here was checked before it came here.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use leasehold_core::digest::Digest;
use sha2::{Digest as _, Sha256};

use super::files::{self, publish};
use super::{Scope, Store};
use crate::error::{ImageError, Result, at};

/// Bytes that are read at once.
const PIECE: usize = 128 << 10;
/// Most downloads of a scope that are not over; together they have at most the bytes of one image.
const PARTIALS: usize = 64;

impl Store {
    /// Where bytes of a digest are, or would be.
    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.at("blobs/sha256").join(digest.hex())
    }

    /// Where a scope's download that is not over is.
    pub(crate) fn partial(&self, scope: &Scope, digest: &Digest) -> PathBuf {
        self.at("partial")
            .join(format!("{}_{}", scope.name(), digest.hex()))
    }

    /// Whether these bytes are here and this scope has had them itself.
    pub(crate) fn has(&self, scope: &Scope, digest: &Digest) -> bool {
        self.blob(digest).exists() && self.of_scope(scope, "blobs").join(digest.hex()).exists()
    }

    /// The same, and they are as many as a document says. Else they come again: that is how a wrong document and a
    /// file that was altered are told apart.
    pub(crate) fn has_all(&self, scope: &Scope, digest: &Digest, bytes: u64) -> bool {
        self.has(scope, digest) && self.is_long(digest, bytes)
    }

    fn is_long(&self, digest: &Digest, bytes: u64) -> bool {
        std::fs::metadata(self.blob(digest)).is_ok_and(|found| found.len() == bytes)
    }

    /// Makes room among the downloads of a scope that broke off: the oldest go, but those that somebody is at.
    pub(crate) fn bound_partials(&self, scope: &Scope) -> Result<()> {
        let folder = self.at("partial");
        let prefix = format!("{}_", scope.name());
        let mut all = Vec::new();
        for name in files::names(&folder)? {
            if !name.starts_with(&prefix) {
                continue;
            }
            // One that is over meanwhile has no file any more.
            if let Ok(found) = std::fs::metadata(folder.join(&name)) {
                all.push((found.modified().ok(), found.len(), name));
            }
        }
        all.sort();
        let (mut count, mut bytes) = (all.len(), all.iter().map(|one| one.1).sum::<u64>());
        for (_, length, name) in all {
            if count < PARTIALS && bytes <= self.limits().image_bytes {
                break;
            }
            if let Some(_alone) = self.try_lock(&format!("blob-{name}"))? {
                files::remove(&folder.join(&name))?;
                count -= 1;
                bytes -= length;
            }
        }
        Ok(())
    }

    /// Reads a blob of at most so many bytes, and checks it again.
    ///
    /// # Errors
    /// When it is not there, too long, or was altered.
    pub(crate) fn read_blob(&self, digest: &Digest, most: u64) -> Result<Vec<u8>> {
        let path = self.blob(digest);
        let file = File::open(&path).map_err(at("read", &path))?;
        let mut bytes = Vec::new();
        file.take(most + 1)
            .read_to_end(&mut bytes)
            .map_err(at("read", &path))?;
        let found = Digest::of(&bytes);
        if found == *digest {
            return Ok(bytes);
        }
        Err(ImageError::Digest {
            what: format!("blob {digest} of the store"),
            found,
            wanted: *digest,
        })
    }

    /// Keeps bytes that are in memory.
    pub(crate) fn put(&self, scope: &Scope, bytes: &[u8]) -> Result<Digest> {
        let digest = Digest::of(bytes);
        let path = self.blob(&digest);
        if !path.exists() {
            self.write_whole(&path, bytes, 0o400)?;
        }
        self.grant(scope, &digest)?;
        Ok(digest)
    }

    /// Keeps all bytes of a reader: those of a digest where one is given, at most so many else.
    ///
    /// # Errors
    /// When they are others, or more or fewer, than they should be. Nothing is kept then.
    pub(crate) fn put_from(
        &self,
        scope: &Scope,
        from: &mut dyn Read,
        wanted: Option<&Digest>,
        most: u64,
        mut told: impl FnMut(u64),
    ) -> Result<(Digest, u64)> {
        let work = self.work()?;
        let made = work.path().join("blob");
        let mut incoming = Incoming::create(made)?;
        let mut buffer = vec![0; PIECE];
        loop {
            let got = from.read(&mut buffer).map_err(at("read", "the source"))?;
            if got == 0 {
                break;
            }
            if incoming.bytes() + got as u64 > most {
                return Err(ImageError::Size {
                    what: "a blob".to_owned(),
                    found: incoming.bytes() + got as u64,
                    wanted: most,
                });
            }
            incoming.write(&buffer[..got])?;
            told(incoming.bytes());
        }
        let (bytes, digest) = (incoming.bytes(), incoming.digest());
        if let Some(wanted) = wanted
            && digest != *wanted
        {
            return Err(ImageError::Digest {
                what: "a blob".to_owned(),
                found: digest,
                wanted: *wanted,
            });
        }
        self.take(scope, incoming, &digest)?;
        Ok((digest, bytes))
    }

    /// Gives checked bytes their name, unless they are here, and says that the scope has had them.
    pub(crate) fn take(&self, scope: &Scope, incoming: Incoming, digest: &Digest) -> Result<()> {
        let path = self.blob(digest);
        if self.is_long(digest, incoming.bytes()) {
            incoming.discard()?;
        } else {
            let read_only = Permissions::from_mode(0o400);
            incoming
                .file
                .set_permissions(read_only)
                .map_err(at("close", &incoming.path))?;
            publish(&incoming.file, &incoming.path, &path)?;
        }
        self.grant(scope, digest)
    }

    fn grant(&self, scope: &Scope, digest: &Digest) -> Result<()> {
        let folder = self.of_scope(scope, "blobs");
        files::make_directory(&folder)?;
        let path = folder.join(digest.hex());
        match path.exists() {
            true => Ok(()),
            false => self.write_whole(&path, b"", 0o400),
        }
    }
}

/// Bytes on their way in, hashed as they come.
#[derive(Debug)]
pub(crate) struct Incoming {
    path: PathBuf,
    file: File,
    hash: Sha256,
    bytes: u64,
}

impl Incoming {
    /// Into a new file.
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        let file = OpenOptions::new()
            .create_new(true)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(at("make", &path))?;
        Ok(Self::of(path, file))
    }

    /// Into a file that may have the first bytes already, which are hashed now. One that has more than `most` begins again.
    pub(crate) fn resume(path: &Path, most: u64) -> Result<Self> {
        let file = files::open_lock(path)?;
        let mut incoming = Self::of(path.to_owned(), file);
        let mut buffer = vec![0; PIECE];
        loop {
            let got = incoming.file.read(&mut buffer).map_err(at("read", path))?;
            if got == 0 {
                break;
            }
            incoming.hash.update(&buffer[..got]);
            incoming.bytes += got as u64;
            if incoming.bytes > most {
                incoming.again()?;
                break;
            }
        }
        Ok(incoming)
    }

    fn of(path: PathBuf, file: File) -> Self {
        Self {
            path,
            file,
            hash: Sha256::new(),
            bytes: 0,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .map_err(at("write", &self.path))?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Forgets what came so far.
    pub(crate) fn again(&mut self) -> Result<()> {
        self.file.set_len(0).map_err(at("empty", &self.path))?;
        std::io::Seek::rewind(&mut self.file).map_err(at("rewind", &self.path))?;
        self.hash = Sha256::new();
        self.bytes = 0;
        Ok(())
    }

    /// Digest of what came so far.
    pub(crate) fn digest(&self) -> Digest {
        Digest::from_bytes(self.hash.clone().finalize().into())
    }

    /// Removes it.
    pub(crate) fn discard(self) -> Result<()> {
        files::remove(&self.path)
    }
}
