//! Small files that are used again instead of deleted.
//!
//! Some file systems make a deleted file dear: ext4 without a journal looks past every inode deleted
//! in the last seconds when it makes a new one, which at hundreds of sandboxes a second is most of
//! what the supervisor would do. So the files that come and go with each sandbox wait in `spare/`.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, openat, renameat_with, unlinkat};

use crate::paths::{Paths, open_directory};

/// Most files that wait.
const MOST: usize = 1_024;

/// The files that wait.
#[derive(Debug)]
pub(crate) struct Spares {
    directory: OwnedFd,
    free: Vec<u64>,
    next: u64,
}

impl Spares {
    /// Opens the directory and removes what a predecessor that was killed left in it.
    pub(crate) fn open(paths: &Paths) -> io::Result<Self> {
        let directory = open_directory(&paths.spare())?;
        for entry in rustix::fs::Dir::read_from(&directory)? {
            let entry = entry?;
            if entry.file_type() != FileType::Directory {
                let _ = unlinkat(&directory, entry.file_name(), AtFlags::empty());
            }
        }
        Ok(Self {
            directory,
            free: Vec::new(),
            next: 0,
        })
    }

    /// Removes every file that waits. At an end nobody waits for that, as somebody does at a start.
    pub(crate) fn clear(&mut self) {
        for spare in self.free.drain(..) {
            let _ = unlinkat(&self.directory, spare.to_string(), AtFlags::empty());
        }
    }

    /// Has `fill` write a file, which may hold old bytes, and puts it at `name` below a directory,
    /// where nothing may be. Readers there see it whole or not at all.
    pub(crate) fn put(
        &mut self,
        directory: &OwnedFd,
        name: &str,
        fill: impl FnOnce(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<OwnedFd> {
        let (number, made) = match self.free.pop() {
            Some(number) => (number, OFlags::empty()),
            None => {
                self.next += 1;
                (self.next, OFlags::CREATE | OFlags::EXCL)
            }
        };
        let spare = number.to_string();
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | made;
        let file = openat(&self.directory, &spare, flags, Mode::from_raw_mode(0o600))?;
        let put = fill(&file).and_then(|()| {
            let flags = RenameFlags::NOREPLACE;
            Ok(renameat_with(
                &self.directory,
                &spare,
                directory,
                name,
                flags,
            )?)
        });
        match put {
            Ok(()) => Ok(file),
            Err(error) => {
                self.free.push(number);
                Err(error)
            }
        }
    }

    /// Takes a file away from `name` below a directory. Idempotent.
    pub(crate) fn take(&mut self, directory: &OwnedFd, name: &str) -> io::Result<()> {
        let gone = |result: rustix::io::Result<()>| match result {
            Err(rustix::io::Errno::NOENT) => Ok(false),
            other => other.map(|()| true),
        };
        if self.free.len() < MOST {
            self.next += 1;
            let spare = self.next.to_string();
            let flags = RenameFlags::NOREPLACE;
            let taken = renameat_with(directory, name, &self.directory, &spare, flags);
            if gone(taken)? {
                self.free.push(self.next);
            }
        } else {
            gone(unlinkat(directory, name, AtFlags::empty()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::{read_file, write_whole};
    use crate::scratch_directory::ScratchDirectory;

    #[test]
    fn a_file_taken_away_is_the_next_one_put() {
        let place = ScratchDirectory::new("spare");
        let paths = Paths::new(&place.path().join("state"), &place.path().join("run"));
        paths.create().unwrap();
        std::fs::write(paths.spare().join("7"), "left").unwrap();
        let mut spares = Spares::open(&paths).unwrap();
        assert_eq!(std::fs::read_dir(paths.spare()).unwrap().count(), 0);
        let there = open_directory(place.path()).unwrap();
        let inode = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_ino;
        let first = spares
            .put(&there, "a", |file| write_whole(file, b"long text"))
            .unwrap();
        assert!(
            spares.put(&there, "a", |_| Ok(())).is_err(),
            "it is there already"
        );
        spares.take(&there, "a").unwrap();
        spares.take(&there, "a").unwrap();
        assert_eq!(read_file(&there, "a", 99).unwrap(), None);
        let second = spares
            .put(&there, "b", |file| write_whole(file, b"short"))
            .unwrap();
        assert_eq!(inode(&first), inode(&second));
        assert_eq!(read_file(&there, "b", 99).unwrap().unwrap(), b"short");
    }
}
