//! What each entry of a layer does to the directory it is unpacked into; [`links`] does hard links.

mod links;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::decode::Decoded;
use super::lowers::Lowers;
use super::tree::{self, Attributes, Owners};
use super::{LeftOut, Unpacked};
use crate::limits::Limits;
use crate::path::components;
use crate::stack::{self, Entered, Stack};
use crate::tar::{Entry, Kind, Reader, TarError};

/// Prefix of the mark of a removed name.
const MARK: &[u8] = b".wh.";
/// Prefix of what only other tools about layers read.
const OTHER: &[u8] = b".wh..wh.";
/// The mark of a directory that hides what is below it.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Why a layer is not unpacked.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    /// The archive is wrong.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// An entry is refused.
    #[error("entry {entry:?}: {why}")]
    Entry { entry: String, why: String },
    /// The host failed at an entry.
    #[error("entry {entry:?} cannot be made: {source}")]
    Host { entry: String, source: io::Error },
}

/// What to do with an entry that cannot be made.
enum Wrong {
    Refused(String),
    Host(io::Error),
    Tar(TarError),
}

impl From<Errno> for Wrong {
    fn from(error: Errno) -> Self {
        Self::Host(error.into())
    }
}

impl From<io::Error> for Wrong {
    fn from(error: io::Error) -> Self {
        Self::Host(error)
    }
}

impl From<TarError> for Wrong {
    fn from(error: TarError) -> Self {
        Self::Tar(error)
    }
}

type Done<T = ()> = std::result::Result<T, Wrong>;

fn refuse<T>(why: impl Into<String>) -> Done<T> {
    Err(Wrong::Refused(why.into()))
}

/// A layer in the making.
pub(super) struct Layer<'a> {
    root: &'a OwnedFd,
    lowers: Lowers<'a>,
    owners: Owners,
    limits: &'a Limits,
    /// Entries of the layers below.
    entries_below: u64,
    /// Directories and what they get at the end, when nothing is made in them any more.
    directories: BTreeMap<Vec<u8>, Attributes>,
    names_bytes: usize,
    /// The directory that was used last: most entries are in the same as the one before.
    last: Option<(Vec<u8>, OwnedFd)>,
    /// Files of lower layers that are copied, by their names there, and the names of the copies.
    copies: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The same by the names of the copies.
    copied: BTreeMap<Vec<u8>, Vec<u8>>,
    /// It has a mark of a removed name.
    marks: bool,
    /// It has a directory that hides those below.
    hides: bool,
    done: Unpacked,
}

impl<'a> Layer<'a> {
    pub(super) fn new(
        root: &'a OwnedFd,
        lowers: &'a Stack,
        owners: Owners,
        limits: &'a Limits,
        entries_below: u64,
    ) -> Self {
        Self {
            root,
            lowers: Lowers::new(lowers),
            owners,
            limits,
            entries_below,
            directories: BTreeMap::new(),
            names_bytes: 0,
            last: None,
            copies: BTreeMap::new(),
            copied: BTreeMap::new(),
            marks: false,
            hides: false,
            done: Unpacked {
                owners: owners == Owners::Given,
                ..Unpacked::default()
            },
        }
    }

    /// Unpacks a whole archive.
    pub(super) fn unpack<R: Read>(
        mut self,
        tar: &mut Reader<Decoded<R>>,
    ) -> Result<Unpacked, ApplyError> {
        // The root has an owner and a mode although many layers do not describe it.
        let plain = Attributes {
            mode: 0o755,
            ..Attributes::default()
        };
        self.directories.insert(Vec::new(), plain);
        while let Some(entry) = tar.next_entry()? {
            self.done.entries += 1;
            let shown = || crate::error::shown(&entry.path);
            let made = self.count().and_then(|()| self.entry(&entry, tar));
            made.map_err(|wrong| match wrong {
                Wrong::Refused(why) => ApplyError::Entry {
                    entry: shown(),
                    why,
                },
                Wrong::Host(source) => ApplyError::Host {
                    entry: shown(),
                    source,
                },
                Wrong::Tar(error) => ApplyError::Tar(error),
            })?;
        }
        self.finish()
    }

    /// That there may be one entry more.
    fn count(&self) -> Done {
        let all = self.done.entries.saturating_add(self.entries_below);
        for (limit, now, most) in [
            ("entries", self.done.entries, self.limits.entries),
            ("image-entries", all, self.limits.image_entries),
        ] {
            if now > most {
                return refuse(format!("it is beyond the limit `{limit}` of {most}"));
            }
        }
        Ok(())
    }

    fn entry<R: Read>(&mut self, entry: &Entry, tar: &mut Reader<Decoded<R>>) -> Done {
        let parts = components(&entry.path, self.limits.depth).map_err(Wrong::Refused)?;
        let attributes = self.attributes(entry)?;
        let Some((name, way)) = parts.split_last() else {
            return match entry.kind {
                Kind::Directory => {
                    self.done.root = true;
                    self.remember(Vec::new(), attributes)
                }
                _ => refuse("it takes the place of the root"),
            };
        };
        if way.iter().any(|part| part.starts_with(MARK)) {
            return refuse("it is below the mark of a removed name");
        }
        if name.starts_with(MARK) {
            return self.mark(entry, way, name);
        }
        let parent = self.parent(way)?;
        let path = parts.join(&b'/');
        match entry.kind {
            Kind::Directory => self.directory(&parent, name, path, attributes),
            Kind::File => {
                self.vacate(&parent, name, &path)?;
                self.file(&parent, name, &attributes, tar)
            }
            Kind::SymbolicLink => {
                if entry.link.len() > Limits::PATH_BYTES || entry.link.contains(&0) {
                    return refuse("where it leads is too long or has a NUL in it");
                }
                self.vacate(&parent, name, &path)?;
                let owners = self.owners;
                Ok(tree::make_link(
                    parent.as_fd(),
                    name,
                    &entry.link,
                    owners,
                    &attributes,
                )?)
            }
            Kind::HardLink => self.hard_link(entry, &parent, name, path, tar),
            Kind::Special => {
                self.done.left_out.specials += 1;
                self.done.leans = true;
                self.vacate(&parent, name, &path)?;
                // What a lower layer has there is gone all the same.
                self.hide(&parent, &parts).map(drop)
            }
        }
    }

    /// What an entry's file gets.
    fn attributes(&mut self, entry: &Entry) -> Done<Attributes> {
        let left: &mut LeftOut = &mut self.done.left_out;
        for (what, value) in [("owner", entry.uid), ("group", entry.gid)] {
            if value > Limits::OWNER_MAX {
                return refuse(format!(
                    "its {what} {value} is beyond the limit `{what}` of {}",
                    Limits::OWNER_MAX
                ));
            }
        }
        let bytes: usize = entry
            .attributes
            .iter()
            .map(|(k, v)| k.len() + v.len())
            .sum();
        if bytes > self.limits.attribute_bytes {
            return refuse(format!(
                "its attributes are beyond the limit `attributes` of {} bytes",
                self.limits.attribute_bytes
            ));
        }
        let mut extended = Vec::new();
        for (name, value) in &entry.attributes {
            let takes = matches!(entry.kind, Kind::File | Kind::Directory);
            let users = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
            match takes && users && name.len() <= 255 {
                true => extended.push((name.clone(), value.clone())),
                false => left.attributes += 1,
            }
        }
        let mode = match entry.kind {
            // Set-group-id of a directory is about owners, and no privilege.
            Kind::Directory => entry.mode & 0o3777,
            _ => {
                left.set_ids += u64::from(entry.kind == Kind::File && entry.mode & 0o6000 != 0);
                entry.mode & 0o777
            }
        };
        Ok(Attributes {
            mode,
            uid: entry.uid as u32,
            gid: entry.gid as u32,
            mtime: entry.mtime,
            extended,
        })
    }

    /// Keeps what a directory gets at the end.
    fn remember(&mut self, path: Vec<u8>, attributes: Attributes) -> Done {
        let bytes: usize = attributes
            .extended
            .iter()
            .map(|(k, v)| k.len() + v.len())
            .sum();
        self.keep_name(path.len() + bytes)?;
        self.directories.insert(path, attributes);
        Ok(())
    }

    /// Counts what is kept of names until the end.
    fn keep_name(&mut self, bytes: usize) -> Done {
        self.names_bytes = self.names_bytes.saturating_add(bytes);
        if self.names_bytes > self.limits.directory_names_bytes {
            return refuse(format!(
                "the names of directories are beyond the limit `directories` of {} bytes",
                self.limits.directory_names_bytes
            ));
        }
        Ok(())
    }

    /// Makes a directory hide what lower layers have in it.
    fn make_opaque(&mut self, directory: &OwnedFd) -> Done {
        self.hides = true;
        Ok(tree::make_opaque(directory.as_fd())?)
    }

    /// Marks a name as removed, if a lower layer has it; else the mark would be seen as a name. Whether it is marked.
    fn hide(&mut self, parent: &OwnedFd, parts: &[&[u8]]) -> Done<bool> {
        let Some((name, way)) = parts.split_last() else {
            return Ok(false);
        };
        self.done.leans = true;
        let there = match self.lowers.at(way)? {
            Some(below) => below.look(name)?.is_some(),
            None => false,
        };
        if there {
            self.marks = true;
            tree::make_mark(parent.as_fd(), name)?;
        }
        Ok(there)
    }

    /// Opens the directory an entry is in, and makes what is missing on the way.
    fn parent(&mut self, way: &[&[u8]]) -> Done<OwnedFd> {
        let path = way.join(&b'/');
        if let Some((last, directory)) = &self.last
            && *last == path
        {
            return Ok(directory.try_clone()?);
        }
        let mut here = self.root.try_clone()?;
        for (at, part) in way.iter().enumerate() {
            here = match tree::look(here.as_fd(), part)? {
                Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                    stack::directory(here.as_fd(), part)?
                }
                Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                    return refuse("its way leads through a symbolic link of the layer");
                }
                Some(stat) if !stack::is_mark(&stat) => {
                    return refuse("its way leads through a file of the layer");
                }
                found => self.missing(&here, &way[..=at], found.is_some())?,
            };
        }
        let kept = here.try_clone()?;
        self.last = Some((path, kept));
        Ok(here)
    }

    /// Makes a directory that the layer does not describe: as the lower layers have it.
    fn missing(&mut self, parent: &OwnedFd, way: &[&[u8]], removed: bool) -> Done<OwnedFd> {
        let Some(name) = way.last() else {
            return refuse("its way is empty");
        };
        let plain = Attributes {
            mode: 0o755,
            ..Attributes::default()
        };
        let mut attributes = plain.clone();
        if removed {
            tree::remove(parent.as_fd(), name)?;
        } else {
            match self.lowers.enter(way)? {
                Entered::Link => {
                    return refuse("its way leads through a symbolic link of a lower layer");
                }
                Entered::Directory(stat, _) => attributes = Attributes::of(stat),
                Entered::Nothing => {}
            }
            self.done.leans = true;
        }
        let made = tree::make_directory(parent.as_fd(), name)?;
        if removed {
            self.make_opaque(&made)?;
        }
        self.remember(way.join(&b'/'), attributes)?;
        Ok(made)
    }

    /// Makes room for what is not a directory.
    fn vacate(&mut self, parent: &OwnedFd, name: &[u8], path: &[u8]) -> Done {
        let Some(stat) = tree::look(parent.as_fd(), name)? else {
            return Ok(());
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            self.forget(path);
        }
        self.forget_copy(path);
        Ok(tree::remove(parent.as_fd(), name)?)
    }

    /// Nothing is put on a directory any more that is gone, nor on one below it.
    fn forget(&mut self, path: &[u8]) {
        self.last = None;
        self.directories.remove(path);
        let below = [path, b"/"].concat();
        let gone: Vec<Vec<u8>> = self
            .directories
            .range(below.clone()..)
            .take_while(|(path, _)| path.starts_with(&below))
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            self.directories.remove(&path);
        }
        let gone: Vec<Vec<u8>> = self
            .copied
            .range(below.clone()..)
            .take_while(|(path, _)| path.starts_with(&below))
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            self.forget_copy(&path);
        }
    }

    fn directory(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        path: Vec<u8>,
        attributes: Attributes,
    ) -> Done {
        match tree::look(parent.as_fd(), name)? {
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {}
            found => {
                // In the place of a mark it hides what was removed, and of a file what is below it.
                let hides = found.is_some();
                if hides {
                    tree::remove(parent.as_fd(), name)?;
                }
                let made = tree::make_directory(parent.as_fd(), name)?;
                if hides {
                    self.make_opaque(&made)?;
                }
            }
        }
        self.remember(path, attributes)
    }

    fn file<R: Read>(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        attributes: &Attributes,
        tar: &mut Reader<Decoded<R>>,
    ) -> Done {
        let mut file = std::fs::File::from(tree::create(parent.as_fd(), name)?);
        let mut buffer = [0; 64 << 10];
        loop {
            let got = tar.read_data(&mut buffer)?;
            if got == 0 {
                break;
            }
            io::Write::write_all(&mut file, &buffer[..got])?;
        }
        self.done.left_out.attributes += self.owners.put(file.as_fd(), attributes, false)?;
        Ok(())
    }

    /// A mark: that a name of a lower layer is removed, or all that is below a directory.
    fn mark(&mut self, entry: &Entry, way: &[&[u8]], name: &[u8]) -> Done {
        if name != OPAQUE && name.starts_with(OTHER) {
            self.done.left_out.marks += 1;
            return Ok(());
        }
        if entry.kind != Kind::File {
            return refuse("it is the mark of a removed name, and no file");
        }
        let parent = self.parent(way)?;
        if name == OPAQUE {
            self.done.opaque |= way.is_empty();
            return self.make_opaque(&parent);
        }
        let removed = &name[MARK.len()..];
        if matches!(removed, b"" | b"." | b"..") {
            return refuse("it is the mark of no name");
        }
        match tree::look(parent.as_fd(), removed)? {
            None => {
                let parts: Vec<&[u8]> = way.iter().copied().chain([removed]).collect();
                let marked = self.hide(&parent, &parts)?;
                self.done.left_out.marks += u64::from(!marked);
                Ok(())
            }
            // The layer has the name itself, which comes in the place of what is removed.
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                let directory = stack::directory(parent.as_fd(), removed)?;
                self.make_opaque(&directory)
            }
            Some(_) => Ok(()),
        }
    }

    /// Gives directories what they are to have, the innermost first.
    fn finish(mut self) -> Result<Unpacked, ApplyError> {
        self.last = None;
        if self.marks && self.hides {
            let swept = tree::remove_marks(self.root.as_fd(), false);
            self.done.left_out.marks += swept.map_err(|error| ApplyError::Host {
                entry: String::new(),
                source: error.into(),
            })?;
        }
        let directories = std::mem::take(&mut self.directories);
        for (path, attributes) in directories.iter().rev() {
            let put = match path.is_empty() {
                true => tree::again(self.root.as_fd()),
                false => stack::directory(self.root.as_fd(), path),
            };
            let put = put.and_then(|open| self.owners.put(open.as_fd(), attributes, true));
            let refused = put.map_err(|error| ApplyError::Host {
                entry: crate::error::shown(path),
                source: error.into(),
            })?;
            self.done.left_out.attributes += refused;
        }
        Ok(self.done)
    }
}
