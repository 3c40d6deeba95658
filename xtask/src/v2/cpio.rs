//! A tree of files for a guest, and its form as a cpio archive ("newc"), which the kernel unpacks.
//!
//! Knows nothing of what is packed. Paths are relative to the guest's root, without a leading slash.

use std::collections::BTreeMap;

/// One entry of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A directory with its permission bits.
    Directory(u32),
    /// A regular file: permission bits and bytes.
    File(u32, Vec<u8>),
    /// A symbolic link and its target.
    Link(String),
}

/// The tree, ordered so that a directory comes before what is in it.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    entries: BTreeMap<String, Entry>,
}

impl Tree {
    /// Adds or replaces an entry and makes the directories above it.
    pub(crate) fn add(&mut self, path: &str, entry: Entry) {
        let path = path.trim_matches('/');
        for (at, _) in path.match_indices('/') {
            self.entries
                .entry(path[..at].to_owned())
                .or_insert(Entry::Directory(0o755));
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// Whether there is such an entry.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.entries.contains_key(path.trim_matches('/'))
    }

    /// The archive.
    pub(crate) fn archive(&self) -> Vec<u8> {
        let mut archive = Vec::new();
        for (serial, (path, entry)) in (1u32..).zip(&self.entries) {
            let (mode, bytes) = match entry {
                Entry::Directory(bits) => (0o040_000 | bits, &[][..]),
                Entry::File(bits, bytes) => (0o100_000 | bits, bytes.as_slice()),
                Entry::Link(target) => (0o120_777, target.as_bytes()),
            };
            record(&mut archive, serial, path, mode, bytes);
        }
        record(&mut archive, 0, "TRAILER!!!", 0, &[]);
        archive
    }
}

/// Appends one record: a header of fixed-width hexadecimal fields, the name, the bytes; name and
/// bytes are each padded to four bytes.
fn record(archive: &mut Vec<u8>, serial: u32, path: &str, mode: u32, bytes: &[u8]) {
    let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let name = u32::try_from(path.len() + 1).unwrap_or(u32::MAX);
    let header = [serial, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name, 0];
    archive.extend_from_slice(b"070701");
    for field in header {
        archive.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    archive.extend_from_slice(path.as_bytes());
    archive.push(0);
    pad(archive);
    archive.extend_from_slice(bytes);
    pad(archive);
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_above_an_entry_come_before_it() {
        let mut tree = Tree::default();
        tree.add("/a/b/c", Entry::File(0o644, b"x".to_vec()));
        assert!(tree.has("a") && tree.has("a/b"));
        let text = String::from_utf8_lossy(&tree.archive()).into_owned();
        let (dir, file) = (text.find("a/b\0").unwrap(), text.find("a/b/c\0").unwrap());
        assert!(dir < file);
    }

    #[test]
    fn every_record_starts_at_a_multiple_of_four() {
        let mut tree = Tree::default();
        tree.add("one", Entry::File(0o600, b"12345".to_vec()));
        tree.add("two", Entry::Link("one".into()));
        let archive = tree.archive();
        for (at, window) in archive.windows(6).enumerate() {
            if window == b"070701" {
                assert_eq!(at % 4, 0);
            }
        }
        assert_eq!(archive.len() % 4, 0);
    }
}
