//! What retention looks at and removes: sizes and ages of what runs left, their output, and in the end
//! the record itself.

use std::io;
use std::os::fd::OwnedFd;

use leasehold_core::id::RunId;
use leasehold_core::record::RunRecord;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, futimens, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::{
    ARTIFACTS, NEXT, RECORD, RecordError, Records, RunFolder, SPOOLS, failed, open_inside, to_bytes,
};
use crate::paths::write_whole;
use crate::retention::Seen;

/// Deepest directory of collected files that is walked.
const TREE_DEPTH: u32 = 256;

impl Records {
    /// Looks at what a run left. One that is not over, or is gone meanwhile, is `None`.
    pub(crate) fn look(&self, run: &RunId) -> Result<Option<Seen>, RecordError> {
        let missing = |result: rustix::io::Result<rustix::fs::Stat>| match result {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("looking at", run, errno)),
        };
        let at = |directory: &OwnedFd, name: &str| {
            missing(statat(directory, name, AtFlags::SYMLINK_NOFOLLOW))
        };
        // The mark goes after the last word of the record, and comes before the run does.
        if at(&self.open, run.as_str())?.is_some() {
            return Ok(None);
        }
        let Ok(folder) = self.folder(run) else {
            return Ok(None);
        };
        let directory = &folder.directory;
        let record = at(directory, RECORD)?;
        let files = [at(directory, SPOOLS[0])?, at(directory, SPOOLS[1])?];
        let size = |stat: &rustix::fs::Stat| u64::try_from(stat.st_size).unwrap_or(0);
        let mut output_bytes = files.iter().flatten().map(size).sum::<u64>();
        let artifacts = open_inside(directory, ARTIFACTS);
        if let Ok(artifacts) = &artifacts {
            let mut add = |bytes| output_bytes = output_bytes.saturating_add(bytes);
            sizes(artifacts, TREE_DEPTH, &mut add)
                .map_err(|errno| failed("looking at", run, errno))?;
        }
        let ended = record.as_ref().map_or(0, |found| {
            let seconds = u64::try_from(found.st_mtime).unwrap_or(0);
            seconds.saturating_mul(1_000) + found.st_mtime_nsec / 1_000_000
        });
        Ok(Some(Seen {
            run: run.clone(),
            ended_unix_ms: ended,
            output_bytes,
            output: artifacts.is_ok() || files.iter().any(Option::is_some),
            recorded: record.is_some(),
        }))
    }

    /// Removes the output of a run that is over, after its record says so. Idempotent: what an end in
    /// the middle leaves is removed by the next call.
    pub(crate) fn remove_output(&self, run: &RunId, now_unix_ms: u64) -> Result<(), RecordError> {
        let folder = self.folder(run)?;
        let Some(mut record) = folder.read(run)? else {
            return Ok(());
        };
        if record.pruned_unix_ms.is_none() {
            record.pruned_unix_ms = Some(now_unix_ms);
            folder
                .write_aged(&record)
                .map_err(|source| failed("marking", run, source))?;
        }
        folder
            .remove_output()
            .map_err(|errno| failed("pruning", run, errno))
    }

    /// Removes a run that is over, its record last. Idempotent.
    pub(crate) fn remove(&self, run: &RunId) -> Result<(), RecordError> {
        let folder = match self.folder(run) {
            Ok(folder) => folder,
            Err(RecordError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let remove = || {
            folder.remove_output()?;
            for name in [NEXT, "record.json.new", RECORD] {
                absent(unlinkat(&folder.directory, name, AtFlags::empty()))?;
            }
            absent(unlinkat(&self.runs, run.as_str(), AtFlags::REMOVEDIR))
        };
        remove().map_err(|errno| failed("removing", run, errno))
    }
}

impl RunFolder {
    /// Writes a record that is complete and keeps the time of its end, by which it is told how old it
    /// is.
    fn write_aged(&self, record: &RunRecord) -> io::Result<()> {
        let found = statat(&self.directory, RECORD, AtFlags::SYMLINK_NOFOLLOW)?;
        let time = Timespec {
            tv_sec: found.st_mtime,
            tv_nsec: found.st_mtime_nsec.cast_signed(),
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = openat(&self.directory, NEXT, flags, mode)?;
        write_whole(&file, &to_bytes(record).map_err(io::Error::other)?)?;
        futimens(&file, &times)?;
        Ok(renameat(&self.directory, NEXT, &self.directory, RECORD)?)
    }

    fn remove_output(&self) -> rustix::io::Result<()> {
        for name in SPOOLS {
            absent(unlinkat(&self.directory, name, AtFlags::empty()))?;
        }
        remove_tree(&self.directory, ARTIFACTS, TREE_DEPTH)
    }
}

fn absent(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Names in a directory, but for itself and its parent.
fn names(directory: &OwnedFd) -> rustix::io::Result<Vec<std::ffi::CString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.as_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

/// Tells the size of each file of a tree, which no link leads out of.
fn sizes(tree: &OwnedFd, depth: u32, add: &mut impl FnMut(u64)) -> rustix::io::Result<()> {
    for name in names(tree)? {
        let found = statat(tree, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            add(u64::try_from(found.st_size).unwrap_or(0));
        } else if depth > 0 {
            sizes(&open_inside(tree, &name)?, depth - 1, add)?;
        }
    }
    Ok(())
}

/// Removes a tree by descriptor, so that no link leads out of it. Idempotent.
fn remove_tree(
    parent: &OwnedFd,
    name: impl rustix::path::Arg + Copy,
    depth: u32,
) -> rustix::io::Result<()> {
    let tree = match open_inside(parent, name) {
        Ok(tree) => tree,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return absent(unlinkat(parent, name, AtFlags::empty()));
        }
        Err(errno) => return Err(errno),
    };
    for inner in names(&tree)? {
        match unlinkat(&tree, &inner, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) if depth > 0 => {
                remove_tree(&tree, inner.as_c_str(), depth - 1)?;
            }
            other => absent(other)?,
        }
    }
    absent(unlinkat(parent, name, AtFlags::REMOVEDIR))
}
