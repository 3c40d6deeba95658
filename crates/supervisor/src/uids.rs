//! Leases of host user id blocks, so that no two sandboxes of this host share one (H02).
//!
//! The registry is one directory for all instances of root: a file per leased block, made with
//! `O_EXCL`, whose content is the path of the ledger entry that holds it. A block is given back only
//! after a clean removal; a block whose ledger entry is gone with its whole state directory is freed
//! by a sweep once no process has an id of it. An ordinary user has no registry: its one sub-uid
//! range is shared by all its sandboxes.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Ids of one block.
pub const BLOCK: u32 = 65_536;
/// First id of the first block.
pub const FIRST: u32 = 0x6000_0000;
/// Number of blocks: up to, not including, 0x7fff_0000.
pub const BLOCKS: u32 = 0x1fff;

/// Where root's registry is.
pub const REGISTRY: &str = "/run/leasehold-uids";

/// A registry of blocks.
#[derive(Debug)]
pub struct Uids {
    directory: PathBuf,
    next: u32,
}

impl Uids {
    /// Opens the registry of the host, making it when it is not there.
    ///
    /// # Errors
    /// When it cannot be made or belongs to somebody else.
    pub fn open(directory: &Path) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let found = fs::symlink_metadata(directory)?;
        let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        if !ours || found.mode() & 0o022 != 0 {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        Ok(Self {
            directory: directory.to_owned(),
            next: std::process::id() % BLOCKS,
        })
    }

    /// The block that is tried next. The ledger entry must name it before [`Uids::lease`] is called.
    #[must_use]
    pub fn candidate(&self) -> u32 {
        FIRST + self.next * BLOCK
    }

    /// Leases the candidate for a ledger entry. `false` when it is taken: another is the candidate
    /// then. The next call in either case tries another block, so that a block rests after its use.
    ///
    /// # Errors
    /// When the registry cannot be written.
    pub fn lease(&mut self, ledger_entry: &Path) -> io::Result<bool> {
        let path = self.directory.join(file_name(self.candidate()));
        self.next = (self.next + 1) % BLOCKS;
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
        {
            Ok(mut file) => {
                file.write_all(ledger_entry.as_os_str().as_encoded_bytes())?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives a block back, if `ledger_entry` holds it. Idempotent. Returns whether it is free of
    /// that entry now.
    pub fn release(&self, base: u32, ledger_entry: &Path) -> bool {
        let path = self.directory.join(file_name(base));
        match fs::read(&path) {
            Ok(holder) if holder == ledger_entry.as_os_str().as_encoded_bytes() => {
                fs::remove_file(&path).is_ok()
            }
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Leases whose ledger entry does not exist.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn orphans(&self) -> io::Result<Vec<Orphan>> {
        let mut orphans = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(base) = name.to_str().and_then(parse_name) else {
                continue;
            };
            let Ok(holder) = fs::read(entry.path()) else {
                continue;
            };
            let holder = PathBuf::from(String::from_utf8_lossy(&holder).into_owned());
            // An empty file is a lease being written this moment, by a supervisor that lives.
            let gone = holder.is_absolute() && !holder.exists();
            if gone {
                orphans.push(Orphan { base, holder });
            }
        }
        Ok(orphans)
    }
}

/// A lease without a ledger entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// First id of the block.
    pub base: u32,
    /// The ledger entry that held it.
    pub holder: PathBuf,
}

fn file_name(base: u32) -> String {
    format!("{base:08x}")
}

fn parse_name(name: &str) -> Option<u32> {
    let base = u32::from_str_radix(name, 16).ok()?;
    let in_range = base >= FIRST && (base - FIRST).is_multiple_of(BLOCK) && (base - FIRST) / BLOCK < BLOCKS;
    (in_range && file_name(base) == name).then_some(base)
}

/// Bases of the blocks that some process of this host has an id of.
///
/// # Errors
/// When the process list cannot be read.
pub fn blocks_in_use() -> io::Result<HashSet<u32>> {
    let mut used = HashSet::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        let numeric = entry
            .file_name()
            .to_str()
            .is_some_and(|n| n.parse::<u32>().is_ok());
        if !numeric {
            continue;
        }
        // A process that is not dumpable shows root as its owner, so its status is what counts.
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else {
            continue;
        };
        let ids = status.lines().filter(|line| line.starts_with("Uid:"));
        for id in ids
            .flat_map(str::split_whitespace)
            .filter_map(|word| word.parse().ok())
        {
            let id: u32 = id;
            if id >= FIRST {
                used.insert(FIRST + (id - FIRST) / BLOCK * BLOCK);
            }
        }
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch_directory::ScratchDirectory;

    #[test]
    fn a_block_has_one_holder_and_rests_after_use() {
        let place = ScratchDirectory::new("uids");
        let registry = place.path().join("uids");
        let (mut one, mut two) = (
            Uids::open(&registry).unwrap(),
            Uids::open(&registry).unwrap(),
        );
        let holder = place.path().join("one.json");
        fs::write(&holder, "").unwrap();
        let base = one.candidate();
        assert_eq!(base, two.candidate());
        assert!(base >= FIRST && base % BLOCK == 0);
        assert!(one.lease(&holder).unwrap());
        assert!(
            !two.lease(&place.path().join("two.json")).unwrap(),
            "leased twice"
        );
        assert_ne!(two.candidate(), base);
        assert!(two.release(base, Path::new("/other")), "not held by it");
        assert!(
            registry.join(file_name(base)).exists(),
            "only the holder gives back"
        );
        assert_eq!(one.orphans().unwrap(), []);
        fs::remove_file(&holder).unwrap();
        let orphan = Orphan {
            base,
            holder: holder.clone(),
        };
        assert_eq!(one.orphans().unwrap(), [orphan]);
        assert!(one.release(base, &holder));
        assert!(one.release(base, &holder));
        assert_ne!(one.candidate(), base, "the block is reused at once");
    }

    #[test]
    fn only_names_of_blocks_are_read() {
        assert_eq!(parse_name("60000000"), Some(FIRST));
        assert_eq!(parse_name("60010000"), Some(FIRST + BLOCK));
        for name in [
            "60000001", "00000000", "7fff0000", "+6000000", "6000000", "x",
        ] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }
}
