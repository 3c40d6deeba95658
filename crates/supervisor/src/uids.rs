//! Leases of host user id blocks, so that no two sandboxes of this host share one (H02).
//!
//! The registry is one directory for all instances of root, with an entry per leased block. An
//! entry is a further name of a file that says whose ledger the sandbox is in, so that a lease costs
//! no new file and taking one is atomic. A block is given back only after a clean removal; one whose
//! ledger is gone with its whole state directory is freed by a sweep once no process has an id of
//! it. An ordinary user has no registry: its one sub-uid range is shared by all its sandboxes.

use std::collections::HashSet;
use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use leasehold_jail::failpoint;

/// Ids of one block.
pub const BLOCK: u32 = 65_536;
/// First id of the first block.
pub const FIRST: u32 = 0x6000_0000;
/// Number of blocks: up to, not including, 0x7fff_0000.
pub const BLOCKS: u32 = 0x1fff;

/// Where root's registry is.
pub const REGISTRY: &str = "/run/leasehold-uids";
/// Where the files are that its entries are names of. On the same file system.
pub const HOLDERS: &str = "/run/leasehold-holders";

/// A registry of blocks, as one holder sees it.
#[derive(Debug)]
pub struct Uids {
    registry: PathBuf,
    holders: PathBuf,
    /// The ledger of the holder.
    ledger: PathBuf,
    /// The file that says so, once there was a lease.
    holder: Option<PathBuf>,
    next: u32,
}

impl Uids {
    /// Opens the registry for the sandboxes of a ledger, making it when it is not there.
    ///
    /// # Errors
    /// When it cannot be made or belongs to somebody else.
    pub fn open(registry: &Path, holders: &Path, ledger: &Path) -> io::Result<Self> {
        for directory in [registry, holders] {
            match DirBuilder::new().mode(0o700).create(directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            let found = fs::symlink_metadata(directory)?;
            let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
            if !ours || found.mode() & 0o022 != 0 {
                return Err(io::Error::from(io::ErrorKind::PermissionDenied));
            }
        }
        Ok(Self {
            registry: registry.to_owned(),
            holders: holders.to_owned(),
            ledger: ledger.to_owned(),
            holder: None,
            next: std::process::id() % BLOCKS,
        })
    }

    /// The block that is tried next. The ledger entry must name it before [`Uids::lease`] is called.
    #[must_use]
    pub fn candidate(&self) -> u32 {
        FIRST + self.next * BLOCK
    }

    /// Leases the candidate. `false` when it is taken. Either way another block is the candidate
    /// afterwards, so that a block rests after its use.
    ///
    /// # Errors
    /// When the registry cannot be written.
    pub fn lease(&mut self) -> io::Result<bool> {
        let entry = self.entry(self.candidate());
        self.next = (self.next + 1) % BLOCKS;
        let holder = match &self.holder {
            Some(holder) => holder,
            None => {
                // Two processes may have one number where containers share the registry, and a file
                // that is written twice would change what its other names say.
                let path = self.holders.join(crate::calls::new_sandbox_id().as_str());
                failpoint::around("holder", || {
                    let mut file = fs::File::create_new(&path)?;
                    file.write_all(self.ledger.as_os_str().as_encoded_bytes())
                })?;
                self.holder.insert(path)
            }
        };
        match failpoint::around("uids", || fs::hard_link(holder, entry)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives back a block that was leased here. Idempotent. Returns whether it is free.
    pub fn give_back(&self, base: u32) -> bool {
        match fs::remove_file(self.entry(base)) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Gives back a block if this ledger holds it, whoever leased it. Idempotent. Returns whether it
    /// is not held by this ledger any more.
    pub fn release(&self, base: u32) -> bool {
        match fs::read(self.entry(base)) {
            Ok(holder) if holder == self.ledger.as_os_str().as_encoded_bytes() => {
                self.give_back(base)
            }
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Leases whose ledger does not exist, and those of this ledger.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn suspects(&self) -> io::Result<Vec<Suspect>> {
        let mut suspects = Vec::new();
        for entry in fs::read_dir(&self.registry)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(base) = name.to_str().and_then(parse_name) else {
                continue;
            };
            let Ok(holder) = fs::read(entry.path()) else {
                continue;
            };
            let holder = PathBuf::from(String::from_utf8_lossy(&holder).into_owned());
            let own = holder == self.ledger;
            if own || holder.is_absolute() && !holder.exists() {
                suspects.push(Suspect { base, own });
            }
        }
        Ok(suspects)
    }

    /// Removes holder files of this ledger, and of ledgers that are gone. Leases stay: they are names
    /// of their own.
    pub fn tidy(&self) {
        for entry in fs::read_dir(&self.holders).into_iter().flatten().flatten() {
            let Ok(holder) = fs::read(entry.path()) else {
                continue;
            };
            let holder = PathBuf::from(String::from_utf8_lossy(&holder).into_owned());
            if holder == self.ledger || !holder.exists() {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Leases nothing any more.
    pub fn close(&mut self) {
        if let Some(holder) = self.holder.take() {
            let _ = fs::remove_file(holder);
        }
    }

    fn entry(&self, base: u32) -> PathBuf {
        self.registry.join(file_name(base))
    }
}

/// A lease that a sweep may have to free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspect {
    /// First id of the block.
    pub base: u32,
    /// Whether it is of this ledger; else its ledger does not exist.
    pub own: bool,
}

fn file_name(base: u32) -> String {
    format!("{base:08x}")
}

fn parse_name(name: &str) -> Option<u32> {
    let base = u32::from_str_radix(name, 16).ok()?;
    let in_range =
        base >= FIRST && (base - FIRST).is_multiple_of(BLOCK) && (base - FIRST) / BLOCK < BLOCKS;
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
        let open = |name: &str| {
            let ledger = place.path().join(name);
            fs::create_dir_all(&ledger).unwrap();
            let holders = place.path().join("holders").join(name);
            fs::create_dir_all(&holders).unwrap();
            Uids::open(&place.path().join("uids"), &holders, &ledger).unwrap()
        };
        let (mut one, mut two) = (open("one"), open("two"));
        let base = one.candidate();
        assert_eq!(base, two.candidate());
        assert!(base >= FIRST && base.is_multiple_of(BLOCK));
        assert!(one.lease().unwrap());
        assert!(!two.lease().unwrap(), "leased twice");
        assert_ne!(two.candidate(), base);
        assert!(two.release(base), "it does not hold it");
        assert!(place.path().join("uids").join(file_name(base)).exists());
        assert_eq!(two.suspects().unwrap(), [], "its holder lives");
        assert_eq!(one.suspects().unwrap(), [Suspect { base, own: true }]);
        fs::remove_dir_all(place.path().join("one")).unwrap();
        assert_eq!(two.suspects().unwrap(), [Suspect { base, own: false }]);
        one.close();
        one.tidy();
        assert!(one.release(base) && one.release(base));
        assert_eq!(two.suspects().unwrap(), []);
        assert_ne!(one.candidate(), base, "the block is reused at once");
        assert!(one.lease().unwrap(), "a closed holder can lease again");
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
