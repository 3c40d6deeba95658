//! Compiled code on disk. It is machine code that will be run as it stands, so it is believed only where its
//! digest is the one that was written when it was compiled, and it is run from a copy in memory that was checked.
//!
//! An entry is a row, named after what was compiled and by what, and a code file, named after its own content.
//! A code file is whole on disk before a row names it. So two processes that compile the same are both right,
//! whoever writes last; and whatever is found to be otherwise is removed and compiled again.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use leasehold_core::digest::Digest;
use leasehold_protocol::wasm::{Flavour, Kind};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, fstat, openat, renameat, unlinkat,
};
use serde::{Deserialize, Serialize};

use super::sealed::{self, FromStart, Sealed};

/// Format of a row.
const FORMAT: u32 = 1;
/// Longest row.
const ROW_BYTES_MAX: u64 = 4 << 10;
/// Longest code.
pub(super) const CODE_BYTES_MAX: u64 = 1 << 30;
/// Bytes of all code that is kept, unless its owner says otherwise.
pub(super) const KEPT_BYTES: u64 = 4 << 30;
/// Most entries.
const ENTRIES_MAX: usize = 4_096;
/// What nobody has named or finished for so long never will be.
const ABANDONED: Duration = Duration::from_secs(3_600);
/// A row that was used within this time is not noted as used again.
const USED_EVERY: Duration = Duration::from_secs(60);

const ROW: &str = "json";
const CODE: &str = "code";
const UNFINISHED: &str = "tmp";

/// What was compiled, and by what.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Digest of the module's bytes.
    pub(super) module: Digest,
    /// How.
    pub(super) flavour: Flavour,
    /// Compiler and processor.
    pub(super) fingerprint: Digest,
}

impl Key {
    fn row_name(&self) -> String {
        let by = &self.fingerprint.hex()[..32];
        format!("{}-{}-{by}.{ROW}", self.module.hex(), self.flavour.word())
    }
}

/// What is known of one piece of code.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    format: u32,
    module: Digest,
    flavour: Flavour,
    fingerprint: Digest,
    pub(super) kind: Kind,
    pub(super) code: Digest,
    pub(super) bytes: u64,
}

/// Compiled code in memory, as it was checked.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) kind: Kind,
    pub(super) flavour: Flavour,
    pub(super) sealed: Sealed,
}

/// What a look-up came to.
#[derive(Debug)]
pub(super) enum Found {
    There(Code),
    Absent,
    /// An entry was there, was not to be believed, and is removed.
    Refused(String),
}

/// The directory.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    folder: OwnedFd,
    bytes_max: u64,
}

impl Store {
    /// Opens the directory, making it where there is none.
    ///
    /// # Errors
    /// When it cannot be made, or others than this user could have written to it.
    pub(super) fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let folder = openat(CWD, path, flags, Mode::empty())?;
        let seen = fstat(&folder)?;
        if seen.st_uid != rustix::process::geteuid().as_raw() || seen.st_mode & 0o022 != 0 {
            let why = format!(
                "{} is refused: others than this user may write to it",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(Self {
            path: path.to_owned(),
            folder,
            bytes_max,
        })
    }

    /// Looks code up and copies it into memory, checking it on the way.
    pub(super) fn load(&self, key: &Key) -> Found {
        match self.look(key) {
            Ok(Some(code)) => Found::There(code),
            Ok(None) => Found::Absent,
            Err(why) => {
                self.forget(&key.row_name());
                Found::Refused(why)
            }
        }
    }

    /// Whether there is an entry, believed or not.
    pub(super) fn has(&self, key: &Key) -> bool {
        matches!(self.ours(&key.row_name()), Ok(Some(_)))
    }

    /// What is said of code, where there is any; the code itself is not looked at.
    pub(super) fn row(&self, key: &Key) -> Option<Row> {
        let (row, file) = self.read_row(key).ok()??;
        note_use(&file);
        Some(row)
    }

    fn look(&self, key: &Key) -> Result<Option<Code>, String> {
        let Some((row, file)) = self.read_row(key)? else {
            return Ok(None);
        };
        let Some((code, length)) = self.ours(&code_name(&row.code))? else {
            return Err("its code is gone".to_owned());
        };
        if length != row.bytes || length > CODE_BYTES_MAX {
            return Err(format!("its code has {length} bytes, not {}", row.bytes));
        }
        let sealed = sealed::copy("leasehold-code", &mut FromStart::of(&code), row.bytes);
        let sealed = sealed.map_err(|error| error.to_string())?;
        if sealed.digest != row.code || sealed.bytes != row.bytes {
            self.forget(&code_name(&row.code));
            return Err("its code is not what was compiled".to_owned());
        }
        note_use(&file);
        Ok(Some(Code {
            kind: row.kind,
            flavour: row.flavour,
            sealed,
        }))
    }

    fn read_row(&self, key: &Key) -> Result<Option<(Row, File)>, String> {
        let Some((file, _)) = self.ours(&key.row_name())? else {
            return Ok(None);
        };
        let mut text = Vec::new();
        let got = (&file).take(ROW_BYTES_MAX + 1).read_to_end(&mut text);
        got.map_err(|error| error.to_string())?;
        let row: Row = serde_json::from_slice(&text).map_err(|error| format!("row: {error}"))?;
        let asked = (FORMAT, key.module, key.flavour, key.fingerprint);
        if (row.format, row.module, row.flavour, row.fingerprint) != asked {
            return Err("its row is of something else".to_owned());
        }
        Ok(Some((row, file)))
    }

    /// Opens a regular file of this user that nobody else can write, and says its length. `None` where
    /// there is none.
    fn ours(&self, name: &str) -> Result<Option<(File, u64)>, String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match openat(&self.folder, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(format!("it cannot be opened: {errno}")),
        };
        let seen = fstat(&file).map_err(|errno| errno.to_string())?;
        if FileType::from_raw_mode(seen.st_mode) != FileType::RegularFile {
            return Err("it is no regular file".to_owned());
        }
        if seen.st_uid != rustix::process::geteuid().as_raw() || seen.st_mode & 0o022 != 0 {
            return Err("others than this user could have written it".to_owned());
        }
        Ok(Some((file.into(), seen.st_size.unsigned_abs())))
    }

    /// Keeps code, and makes room for it. It can be looked up when this is done.
    ///
    /// # Errors
    /// When it cannot be written; nothing of it is left then but what the next trim removes.
    pub(super) fn keep(&self, key: &Key, code: &Code) -> io::Result<()> {
        let source = File::from(code.sealed.file.try_clone()?);
        let mut bytes = FromStart::of(&source);
        let named = code_name(&code.sealed.digest);
        self.publish(&named, |file| io::copy(&mut bytes, file).map(drop))?;
        let row = Row {
            format: FORMAT,
            module: key.module,
            flavour: key.flavour,
            fingerprint: key.fingerprint,
            kind: code.kind,
            code: code.sealed.digest,
            bytes: code.sealed.bytes,
        };
        let text = serde_json::to_vec(&row).map_err(io::Error::other)?;
        self.publish(&key.row_name(), |file| file.write_all(&text))?;
        rustix::fs::fsync(&self.folder)?;
        self.trim(&key.row_name())
    }

    /// Writes a file apart, syncs it, and only then gives it its name.
    fn publish(
        &self,
        name: &str,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let apart = format!("{}.{UNFINISHED}", super::random_word()?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let mut file = File::from(openat(&self.folder, &apart, flags, mode)?);
        let written = write(&mut file)
            .and_then(|()| file.sync_all())
            .and_then(|()| Ok(renameat(&self.folder, &apart, &self.folder, name)?));
        if written.is_err() {
            self.forget(&apart);
        }
        written
    }

    /// Removes a file. One that cannot be removed is in nobody's way.
    fn forget(&self, name: &str) {
        let _ = unlinkat(&self.folder, name, AtFlags::empty());
    }

    /// Removes what was used least until the rest fits, but for one row; and what nobody ever finished.
    fn trim(&self, spared: &str) -> io::Result<()> {
        let listed = self.listed()?;
        let mut rows = Vec::new();
        for (name, used) in &listed {
            let row = Path::new(name).extension().is_some_and(|end| end == ROW);
            if let (true, Some((code, bytes))) = (row, self.named(name)) {
                rows.push((*used, name, code_name(&code), bytes));
            }
        }
        rows.sort();
        let mut bytes_kept: u64 = rows.iter().map(|(.., bytes)| bytes).sum();
        let mut kept = rows.len();
        let mut gone = Vec::new();
        rows.retain(|(_, name, code, bytes)| {
            let over = bytes_kept > self.bytes_max || kept > ENTRIES_MAX;
            let goes = over && *name != spared;
            if goes {
                bytes_kept -= bytes;
                kept -= 1;
                self.forget(name);
                gone.push(code.clone());
            }
            !goes
        });
        let named = |file: &str| rows.iter().any(|(_, _, code, _)| code == file);
        for code in gone.iter().filter(|code| !named(code)) {
            self.forget(code);
        }
        let now = SystemTime::now();
        for (name, used) in &listed {
            let row = Path::new(name).extension().is_some_and(|end| end == ROW);
            let old = now.duration_since(*used).is_ok_and(|age| age > ABANDONED);
            // Code that another process has just finished has no row yet.
            if old && !row && !named(name) {
                self.forget(name);
            }
        }
        Ok(())
    }

    /// What is in the directory, and when each was last used.
    fn listed(&self) -> io::Result<Vec<(String, SystemTime)>> {
        let mut listed = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            // Another process may have removed it.
            let (Ok(name), Ok(seen)) = (entry.file_name().into_string(), entry.metadata()) else {
                continue;
            };
            listed.push((name, seen.modified()?));
        }
        Ok(listed)
    }

    /// Which code a row names, and how long it is.
    fn named(&self, row: &str) -> Option<(Digest, u64)> {
        let (file, _) = self.ours(row).ok()??;
        let mut text = Vec::new();
        (&file).take(ROW_BYTES_MAX).read_to_end(&mut text).ok()?;
        let row: Row = serde_json::from_slice(&text).ok()?;
        Some((row.code, row.bytes))
    }
}

fn code_name(code: &Digest) -> String {
    format!("{}.{CODE}", code.hex())
}

/// Notes in a row's own time that it was used. Where that fails it is the sooner removed.
fn note_use(row: &File) {
    let used = row.metadata().and_then(|seen| seen.modified());
    let late = |used: SystemTime| used.elapsed().map_or(true, |since| since > USED_EVERY);
    if used.is_ok_and(late) {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_NOW,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: now,
        };
        let _ = rustix::fs::futimens(row, &times);
    }
}

#[cfg(test)]
mod tests;
