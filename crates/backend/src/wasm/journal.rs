//! Which runs were begun in shared hosts, for the process that comes after this one.
//!
//! Such a run dies with its owner, and its record with it. It is not begun a second time all the same: a file
//! of a fixed length has the ids of the newest, written before their hosts are told, and whoever asks for one of
//! an earlier process hears that it was lost. It outlives the process and not a power cut, which no host does.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use leasehold_core::id::RunId;
use rustix::fs::{FlockOperation, OFlags, flock};

/// Bytes of one place: an id, a space, its number and a line end, so that people can read the file.
const PLACE: usize = 32;
/// Bytes of an id.
const ID: usize = 21;
/// What a number has room for.
const NUMBER_MAX: u64 = (1 << 36) - 1;
/// Ids that are remembered.
const PLACES: usize = 16_384;

/// The file, held by one process.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    /// Where each id is.
    known: HashMap<RunId, usize>,
    places: Vec<Option<RunId>>,
    next: usize,
    /// Grows by one with each run, so that the newest is known again.
    number: u64,
}

impl Journal {
    /// Opens it, making it where there is none.
    ///
    /// # Errors
    /// When it cannot be opened, or another process has it.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let mut bytes = vec![0; PLACE * PLACES];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], filled as u64)? {
                0 => break,
                got => filled += got,
            }
        }
        file.set_len((PLACE * PLACES) as u64)?;
        let written: Vec<_> = bytes.chunks_exact(PLACE).map(entry).collect();
        let newest = written.iter().enumerate();
        let newest = newest
            .filter_map(|(at, entry)| Some((entry.as_ref()?.1, at)))
            .max();
        let places: Vec<Option<RunId>> = written
            .into_iter()
            .map(|entry| entry.map(|(id, _)| id))
            .collect();
        let known = places.iter().enumerate();
        let known = known.filter_map(|(at, id)| Some((id.clone()?, at)));
        Ok(Self {
            file,
            known: known.collect(),
            next: newest.map_or(0, |(_, at)| (at + 1) % PLACES),
            number: newest.map_or(0, |(number, _)| number + 1),
            places,
        })
    }

    /// Whether this run was begun, lately.
    pub(super) fn has(&self, run: &RunId) -> bool {
        self.known.contains_key(run)
    }

    /// Notes that a run is about to begin. The place of one that `lives` is not taken for it.
    ///
    /// # Errors
    /// When it cannot be written, or every place is of one that lives.
    pub(super) fn begin(&mut self, run: &RunId, lives: impl Fn(&RunId) -> bool) -> io::Result<()> {
        for _ in 0..PLACES {
            let at = self.next;
            self.next = (at + 1) % PLACES;
            if self.places[at].as_ref().is_some_and(&lives) {
                continue;
            }
            let line = format!("{run} {:09x}\n", self.number & NUMBER_MAX);
            self.file
                .write_all_at(line.as_bytes(), (at * PLACE) as u64)?;
            self.number += 1;
            if let Some(before) = self.places[at].replace(run.clone()) {
                self.known.remove(&before);
            }
            self.known.insert(run.clone(), at);
            return Ok(());
        }
        Err(io::Error::other(
            "every place has a run that is in progress",
        ))
    }
}

/// The id in a place, and its number. What is none was cut off while it was written, and its host was not told.
fn entry(place: &[u8]) -> Option<(RunId, u64)> {
    let (id, number) = std::str::from_utf8(place).ok()?.split_at_checked(ID)?;
    let number = u64::from_str_radix(number.trim(), 16).ok()?;
    Some((RunId::parse(id).ok()?, number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wasm::testing::Folder;

    fn run(number: u32) -> RunId {
        let mut entropy = [0; 13];
        entropy[..4].copy_from_slice(&number.to_le_bytes());
        RunId::from_entropy(&entropy)
    }

    #[test]
    fn the_next_process_knows_what_was_begun() {
        let folder = Folder::new("journal");
        let path = folder.path().join("below/runs");
        let mut journal = Journal::open(&path).unwrap();
        journal.begin(&run(1), |_| false).unwrap();
        assert!(journal.has(&run(1)) && !journal.has(&run(2)));
        assert!(Journal::open(&path).is_err(), "one process has it");
        drop(journal);
        let mut journal = Journal::open(&path).unwrap();
        assert!(journal.has(&run(1)));
        journal.begin(&run(2), |_| false).unwrap();
        drop(journal);
        // Half of an id is none.
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .write_all_at(b"rabc", (2 * PLACE) as u64)
            .unwrap();
        let journal = Journal::open(&path).unwrap();
        assert!(journal.has(&run(1)) && journal.has(&run(2)));
        assert_eq!(journal.known.len(), 2);
    }

    #[test]
    fn the_oldest_place_is_taken_but_not_of_one_that_lives() {
        let folder = Folder::new("journal-full");
        let path = folder.path().join("runs");
        let mut journal = Journal::open(&path).unwrap();
        let most = u32::try_from(PLACES).unwrap();
        for number in 0..most + 3 {
            journal.begin(&run(number), |id| *id == run(1)).unwrap();
        }
        let kept = |number| journal.has(&run(number));
        assert!(!kept(0) && kept(1) && !kept(2) && !kept(3) && kept(4));
        assert!(kept(most + 2));
        assert_eq!(journal.known.len(), PLACES);
        let length = fs::metadata(&path).unwrap().len();
        assert_eq!(length, (PLACE * PLACES) as u64);
        assert!(journal.begin(&run(9_999_999), |_| true).is_err());
        drop(journal);
        // The next process goes on where this one was: the newest are the last to go.
        let mut journal = Journal::open(&path).unwrap();
        for number in 0..100 {
            journal.begin(&run(20_000_000 + number), |_| false).unwrap();
        }
        assert!(journal.has(&run(most + 2)) && !journal.has(&run(4)));
    }
}
