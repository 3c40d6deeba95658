//! The ledger: one entry per sandbox, written before its first resource (invariant I3) and removed
//! after the last was seen gone.
//!
//! Every host resource has a name that follows from the entry: cgroups are called after the sandbox,
//! the disk image `scratch/<sandbox>.img`, the uid lease after the block. So an entry without a
//! living owner is all that a sweep needs.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use leasehold_core::id::{RunId, SandboxId};
use leasehold_jail::failpoint;
use rustix::fs::{AtFlags, unlinkat};
use serde::{Deserialize, Serialize};

use crate::paths::{Paths, open_directory, read_file, replace, write_whole};
use crate::spare::Spares;

const ENTRY_MAX: usize = 64 << 10;

/// What one sandbox may hold on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Format version, 1.
    pub version: u32,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The run it was made for; a claimed sandbox is found through the run's record instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// First host user id of its block; 0 when it leases none.
    pub uid_base: u32,
    /// Whether it has a disk image.
    pub image: bool,
    /// Process id of the supervisor that wrote it.
    pub supervisor: u32,
    /// When, milliseconds since 1970.
    pub written_unix_ms: u64,
    /// Removal did not converge; its resources are quarantined.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stuck: bool,
    /// What tells whether its namespaces are there, where its removal did not converge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Marks>,
}

/// Handles of namespaces and the boot in which they mean something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// Id of the boot.
    pub boot: String,
    /// As `leasehold_jail::namespaces::Handles` writes them.
    pub handles: String,
}

/// The ledger, by descriptor.
#[derive(Debug)]
pub struct Ledger {
    directory: OwnedFd,
    path: PathBuf,
}

fn file_name(sandbox: &SandboxId) -> String {
    format!("{sandbox}.json")
}

impl Ledger {
    /// Opens the ledger; its directory must exist.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(paths: &Paths) -> io::Result<Self> {
        let path = paths.ledger();
        Ok(Self {
            directory: open_directory(&path)?,
            path,
        })
    }

    /// The directory, which is what a uid lease of one of its sandboxes names.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the first entry of a sandbox.
    ///
    /// # Errors
    /// When there is one, or the file system refuses.
    pub(crate) fn enter(&self, entry: &Entry, spares: &mut Spares) -> io::Result<()> {
        let bytes = serde_json::to_vec(entry).map_err(io::Error::other)?;
        let name = file_name(&entry.sandbox);
        failpoint::around("ledger", || {
            spares.put(&self.directory, &name, |file| write_whole(file, &bytes))
        })
        .map(drop)
    }

    /// Removes an entry and keeps its file for another. Idempotent.
    pub(crate) fn retire(&self, sandbox: &SandboxId, spares: &mut Spares) -> io::Result<()> {
        failpoint::around("ledger_gone", || {
            spares.take(&self.directory, &file_name(sandbox))
        })
    }

    /// Writes an entry in place of the one before.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn write(&self, entry: &Entry) -> io::Result<()> {
        let bytes = serde_json::to_vec(entry).map_err(io::Error::other)?;
        replace(&self.directory, &file_name(&entry.sandbox), &bytes)
    }

    /// Removes an entry. Idempotent.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn remove(&self, sandbox: &SandboxId) -> io::Result<()> {
        match unlinkat(&self.directory, file_name(sandbox), AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Every entry. One that cannot be read is told by the sandbox in its name alone, which is
    /// enough to find what it holds, save its uid block.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for found in rustix::fs::Dir::read_from(&self.directory)? {
            let found = found?;
            let Some(sandbox) = found
                .file_name()
                .to_str()
                .ok()
                .and_then(|name| name.strip_suffix(".json"))
                .and_then(|name| SandboxId::parse(name).ok())
            else {
                continue;
            };
            let read = read_file(&self.directory, &file_name(&sandbox), ENTRY_MAX)
                .ok()
                .flatten();
            let entry = read.and_then(|bytes| serde_json::from_slice::<Entry>(&bytes).ok());
            entries.push(
                entry
                    .filter(|entry| entry.sandbox == sandbox)
                    .unwrap_or(Entry {
                        version: 1,
                        sandbox,
                        run: None,
                        uid_base: 0,
                        image: true,
                        supervisor: 0,
                        written_unix_ms: 0,
                        stuck: false,
                        namespaces: None,
                    }),
            );
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch_directory::ScratchDirectory;

    #[test]
    fn entries_read_back_and_a_damaged_one_still_names_its_sandbox() {
        let place = ScratchDirectory::new("ledger");
        let paths = Paths::new(&place.path().join("state"), &place.path().join("run"));
        paths.create().unwrap();
        let ledger = Ledger::open(&paths).unwrap();
        let entry = Entry {
            version: 1,
            sandbox: SandboxId::from_entropy(&[1; 13]),
            run: Some(RunId::from_entropy(&[2; 13])),
            uid_base: 0x6000_0000,
            image: false,
            supervisor: 7,
            written_unix_ms: 8,
            stuck: false,
            namespaces: None,
        };
        let mut spares = Spares::open(&paths).unwrap();
        ledger.enter(&entry, &mut spares).unwrap();
        assert!(ledger.enter(&entry, &mut spares).is_err());
        ledger.write(&entry).unwrap();
        assert_eq!(ledger.entries().unwrap(), std::slice::from_ref(&entry));
        let name = format!("{}.json", entry.sandbox);
        std::fs::write(paths.ledger().join(name), b"{half").unwrap();
        let damaged = ledger.entries().unwrap();
        assert_eq!(damaged.len(), 1);
        assert_eq!(damaged[0].sandbox, entry.sandbox);
        assert!(damaged[0].image, "a damaged entry may hold anything");
        ledger.retire(&entry.sandbox, &mut spares).unwrap();
        ledger.retire(&entry.sandbox, &mut spares).unwrap();
        ledger.remove(&entry.sandbox).unwrap();
        assert_eq!(ledger.entries().unwrap(), []);
    }
}
