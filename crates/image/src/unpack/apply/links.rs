//! Hard links: other names of files of the layer, and copies of files of lower layers.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::{Done, Layer, Wrong, refuse};
use crate::path::components;
use crate::stack;
use crate::tar::{Entry, Reader};
use crate::unpack::decode::Decoded;
use crate::unpack::tree::{self, Attributes};

/// Another name of a file of this layer.
fn another_name(from: &OwnedFd, old: &[u8], parent: &OwnedFd, name: &[u8]) -> Done {
    match tree::make_name(from.as_fd(), old, parent.as_fd(), name) {
        Err(Errno::MLINK) => refuse("the file has as many names as the file system takes"),
        done => Ok(done?),
    }
}

impl Layer<'_> {
    /// Another name of a file of this layer, or a copy of one of a lower layer.
    pub(super) fn hard_link<R: Read>(
        &mut self,
        entry: &Entry,
        parent: &OwnedFd,
        name: &[u8],
        path: Vec<u8>,
        tar: &mut Reader<Decoded<R>>,
    ) -> Done {
        let target = components(&entry.link, self.limits.depth)
            .map_err(|why| Wrong::Refused(format!("where it leads: {why}")))?;
        let Some((old, way)) = target.split_last() else {
            return refuse("it leads to the root");
        };
        let to = target.join(&b'/');
        match to.strip_prefix(&path[..]) {
            Some(b"") => return refuse("it leads to itself"),
            Some([b'/', ..]) => return refuse("it leads to what is below itself"),
            _ => {}
        }
        if let Some((from, stat)) = self.own(way, old)? {
            return match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile | FileType::Symlink => {
                    self.vacate(parent, name, &path)?;
                    another_name(&from, old, parent, name)
                }
                _ => refuse("it leads to what is no file"),
            };
        }
        self.done.leans = true;
        let copy = self.copies.get(&to).filter(|copy| **copy != path);
        if let Some(copy) = copy.cloned() {
            let parts: Vec<&[u8]> = copy.split(|byte| *byte == b'/').collect();
            if let Some((old, way)) = parts.split_last()
                && let Some((from, _)) = self.own(way, old)?
            {
                self.vacate(parent, name, &path)?;
                return another_name(&from, old, parent, name);
            }
        }
        self.copy(way, old, to, parent, name, path, tar)
    }

    /// A copy of a file of a lower layer, of the name `to` there, at `path`.
    #[allow(
        clippy::too_many_arguments,
        reason = "two files by directory, name and way"
    )]
    fn copy<R: Read>(
        &mut self,
        way: &[&[u8]],
        old: &[u8],
        to: Vec<u8>,
        parent: &OwnedFd,
        name: &[u8],
        path: Vec<u8>,
        tar: &mut Reader<Decoded<R>>,
    ) -> Done {
        if self.lowers.behind_link(way)? {
            return refuse("where it leads is behind a symbolic link of a lower layer");
        }
        let found = match self.lowers.at(way)? {
            Some(below) => below.look(old)?,
            None => None,
        };
        let Some((directory, stat)) = found else {
            return refuse("it leads to nothing");
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return refuse("it leads to what is no file");
        }
        let from = tree::open(directory, old)?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        tar.source_mut()
            .take(bytes)
            .map_err(|beyond| Wrong::Refused(format!("with what it copies {beyond}")))?;
        self.vacate(parent, name, &path)?;
        let made = tree::copy(from, tree::create(parent.as_fd(), name)?)?;
        self.owners
            .put(made.as_fd(), &Attributes::of(&stat), false)?;
        self.keep_name(to.len() + path.len())?;
        self.copies.insert(to.clone(), path.clone());
        self.copied.insert(path, to);
        Ok(())
    }

    /// A file of this layer by its name; `None` when the layer has nothing of that name.
    fn own(&self, way: &[&[u8]], name: &[u8]) -> Done<Option<(OwnedFd, rustix::fs::Stat)>> {
        let mut here = self.root.try_clone()?;
        for part in way {
            match tree::look(here.as_fd(), part)? {
                None => return Ok(None),
                Some(stat) => match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => here = stack::directory(here.as_fd(), part)?,
                    FileType::Symlink => {
                        return refuse("where it leads is behind a symbolic link of the layer");
                    }
                    _ => return refuse("where it leads is behind what is no directory"),
                },
            }
        }
        Ok(tree::look(here.as_fd(), name)?.map(|stat| (here, stat)))
    }

    /// No link is made to a copy that is gone.
    pub(super) fn forget_copy(&mut self, path: &[u8]) {
        if let Some(target) = self.copied.remove(path) {
            self.copies.remove(&target);
        }
    }
}
