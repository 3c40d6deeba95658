//! Files that are there as a whole or not at all, and a place for what is in the making.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Store;
use crate::error::{ImageError, Result, at};

/// Largest record of ours.
const RECORD_MAX: u64 = 8 << 20;

/// Makes a directory for its owner alone, where it is not there.
pub(super) fn make_directory(path: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(at("make", path))?;
    let owner = fs::symlink_metadata(path).map_err(at("look at", path))?;
    match owner.is_dir() && owner.uid() == rustix::process::geteuid().as_raw() {
        true => Ok(()),
        false => Err(at("use", path)(std::io::Error::other(
            "it is no directory of this user",
        ))),
    }
}

/// Makes what was done in a directory last.
pub(crate) fn sync_directory(path: &Path) -> Result<()> {
    let opened = File::open(path).and_then(|directory| directory.sync_all());
    opened.map_err(at("sync", path))
}

/// A place for what is in the making, removed with all that is in it when it is dropped or its maker dies.
#[derive(Debug)]
pub(crate) struct Work {
    path: PathBuf,
    lock: PathBuf,
    /// Held for as long as the maker lives.
    _held: File,
}

impl Work {
    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // What stays is removed by the next one who opens the store.
        let _ = fs::remove_dir_all(&self.path);
        let _ = fs::remove_file(&self.lock);
    }
}

/// A name that nobody has: 32 random digits.
pub(super) fn random_name() -> Result<String> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(at("read", "random bytes"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A file of this user alone, made if it is not there.
pub(super) fn open_lock(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(at("open", path))
}

impl Store {
    /// A place for what is in the making.
    pub(crate) fn work(&self) -> Result<Work> {
        loop {
            let name = random_name()?;
            let lock = self.at("work").join(format!("{name}.lock"));
            let held = open_lock(&lock)?;
            flock(&held, FlockOperation::LockExclusive).map_err(at("lock", &lock))?;
            // Somebody who swept may have found it before it was held.
            let links = held.metadata().map_err(at("look at", &lock))?.nlink();
            if links == 0 {
                continue;
            }
            let path = self.at("work").join(name);
            make_directory(&path)?;
            return Ok(Work {
                path,
                lock,
                _held: held,
            });
        }
    }

    /// Removes what dead makers left.
    pub(super) fn sweep(&self) -> Result<()> {
        let folder = self.at("work");
        for name in names(&folder)? {
            if let Some(name) = name.strip_suffix(".lock") {
                self.sweep_one(name)?;
            } else if !folder.join(format!("{name}.lock")).exists() {
                remove_all(&folder.join(name))?;
            }
        }
        Ok(())
    }

    fn sweep_one(&self, name: &str) -> Result<()> {
        let lock = self.at("work").join(format!("{name}.lock"));
        let held = match File::open(&lock) {
            Ok(held) => held,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(at("open", lock)(error)),
        };
        if flock(&held, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(());
        }
        // Its process that unpacks may be dying still; the next one who opens the store removes the rest.
        match remove_all(&self.at("work").join(name)) {
            Ok(()) => remove(&lock),
            Err(_) => Ok(()),
        }
    }

    /// Writes a record whole or not at all.
    pub(super) fn write_record<T: Serialize>(&self, path: &Path, record: &T) -> Result<()> {
        let bytes = serde_json::to_vec(record).map_err(|error| ImageError::Document {
            what: "a record of the store".to_owned(),
            why: error.to_string(),
        })?;
        self.write_whole(path, &bytes, 0o600)
    }

    /// Writes a file whole or not at all.
    pub(super) fn write_whole(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
        let work = self.work()?;
        let made = work.path().join("file");
        let mut file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(mode)
            .open(&made)
            .map_err(at("make", &made))?;
        file.write_all(bytes).map_err(at("write", &made))?;
        publish(&file, &made, path)
    }
}

/// Gives a file that is complete the name where it counts.
pub(super) fn publish(file: &File, made: &Path, path: &Path) -> Result<()> {
    file.sync_all().map_err(at("sync", made))?;
    fs::rename(made, path).map_err(at("rename to", path))?;
    match path.parent() {
        Some(folder) => sync_directory(folder),
        None => Ok(()),
    }
}

/// Reads a record; `None` where there is none.
pub(super) fn read_record<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(RECORD_MAX).read_to_end(&mut bytes),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error),
    }
    .map_err(at("read", path))?;
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| at("read", path)(std::io::Error::new(ErrorKind::InvalidData, error)))
}

/// The names in a directory; none where there is no directory. Names that are no text are not ours.
pub(super) fn names(path: &Path) -> Result<Vec<String>> {
    let listed = match fs::read_dir(path) {
        Ok(listed) => listed,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at("list", path)(error)),
    };
    let mut names = Vec::new();
    for entry in listed {
        let entry = entry.map_err(at("list", path))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// Removes a file, which need not be there.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Removes a file or directory with all that is in it, which need not be there. No link is followed.
pub(super) fn remove_all(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at("remove", path)(error)),
        _ => Ok(()),
    }
}
