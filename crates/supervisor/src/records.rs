//! The record store: one directory per run, kept after its sandbox is gone.
//!
//! `runs/<run>/` holds `record.json`, the spools `stdout` and `stderr`, and `artifacts/`. A run whose
//! record is not complete also has an entry `open/<run>`, so that a sweep need not read every record
//! there ever was. Records name environment variables, never their values (invariant I8).
//!
//! Making files and names is what costs time here, so the directory of a run can be made ahead, for a
//! sandbox that waits, as `blank/<sandbox>/`; a run begins with its first record written there, in one call.
//! From then on it is recorded: that name lasts as long as the record does. Its name as a run and its mark
//! come when nobody waits, and whoever comes after a dead supervisor gives them to what has none yet.
//! Two record files change places at each write, so that readers see an old or a new record, never
//! half of one, and no file system flushes anything on the way. There is no fsync: a power cut ends
//! every sandbox anyway, and then the record may be an older one.

mod prune;

use std::io;
use std::os::fd::OwnedFd;

use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::record::{Observed, RunRecord};
use leasehold_jail::failpoint;
use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, linkat, mkdirat, openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use crate::paths::{Paths, open_directory, read_file, replace, write_from_start, write_whole};
use crate::spare::Spares;

/// Most bytes of a record that is read back.
const RECORD_MAX: usize = 16 << 20;
const RECORD: &str = "record.json";
/// The record file that is written next.
const NEXT: &str = "record.next";
const SPOOLS: [&str; 2] = ["stdout", "stderr"];
const ARTIFACTS: &str = "artifacts";

/// Why a record cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A run of this id was recorded before.
    #[error("run `{0}` exists already")]
    Exists(RunId),
    /// The file system refused.
    #[error("record store: {attempt} of `{name}` failed")]
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// On which entry.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A record is not of the format.
    #[error("record of run `{run}` is not readable")]
    Format {
        /// Which.
        run: RunId,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

fn failed(attempt: &'static str, name: impl ToString, source: impl Into<io::Error>) -> RecordError {
    RecordError::Io {
        attempt,
        name: name.to_string(),
        source: source.into(),
    }
}

/// The store, by descriptor.
#[derive(Debug)]
pub struct Records {
    runs: OwnedFd,
    open: OwnedFd,
    /// Absent in a state directory that no supervisor has used yet.
    blank: Option<OwnedFd>,
}

/// A directory made ahead, empty in all but its files' names.
#[derive(Debug)]
pub(crate) struct Blank {
    name: String,
    directory: OwnedFd,
    record: OwnedFd,
    next: OwnedFd,
    pub(crate) spools: [OwnedFd; 2],
}

/// The directory of one run.
#[derive(Debug)]
pub struct RunFolder {
    directory: OwnedFd,
    /// The record file that is written next and the one that was written last, where this process
    /// made them.
    files: Option<[OwnedFd; 2]>,
    /// Its name among those made ahead, until it has its run's.
    unnamed: Option<String>,
}

impl Records {
    /// Opens the store; its directories must exist (see [`Paths::create`]).
    ///
    /// # Errors
    /// When a directory cannot be opened.
    pub fn open(paths: &Paths) -> Result<Self, RecordError> {
        let open = |path: &std::path::Path| {
            open_directory(path).map_err(|source| failed("opening", path.display(), source))
        };
        Ok(Self {
            runs: open(&paths.runs())?,
            open: open(&paths.open_runs())?,
            blank: open(&paths.blank_runs()).ok(),
        })
    }

    /// Makes a directory for the run a sandbox may have one day.
    pub(crate) fn blank(
        &self,
        sandbox: &SandboxId,
        spares: &mut Spares,
    ) -> Result<Blank, RecordError> {
        let name = sandbox.as_str();
        let mut make = || -> io::Result<Blank> {
            let blank = self.blank.as_ref().ok_or(io::ErrorKind::NotFound)?;
            failpoint::around("folder", || {
                mkdirat(blank, name, Mode::from_raw_mode(0o700))
            })?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = openat(blank, name, flags, Mode::empty())?;
            let file = |name| {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                openat(&directory, name, flags, Mode::from_raw_mode(0o600))
            };
            let record = file(RECORD)?;
            let next = spares.put(&directory, NEXT, |_| Ok(()))?;
            let spools = || Ok::<_, Errno>([file(SPOOLS[0])?, file(SPOOLS[1])?]);
            Ok(Blank {
                name: name.to_owned(),
                record,
                next,
                spools: failpoint::around("spools", spools)?,
                directory,
            })
        };
        make().map_err(|source| {
            self.remove_blank(name);
            failed("preparing", name, source)
        })
    }

    /// Removes what was made ahead. Idempotent.
    pub(crate) fn remove_blank(&self, sandbox: &str) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Some(blank) = &self.blank else { return };
        let Ok(directory) = openat(blank, sandbox, flags, Mode::empty()) else {
            return;
        };
        for name in [RECORD, NEXT, SPOOLS[0], SPOOLS[1]] {
            let _ = unlinkat(&directory, name, AtFlags::empty());
        }
        let _ = unlinkat(blank, sandbox, AtFlags::REMOVEDIR);
    }

    /// Settles what a dead predecessor made ahead: what holds the record of a run is given the run's name,
    /// the rest is removed.
    pub(crate) fn settle_blanks(&self) {
        let Some(Ok(entries)) = self.blank.as_ref().map(rustix::fs::Dir::read_from) else {
            return;
        };
        for entry in entries.flatten() {
            if let Ok(name) = entry.file_name().to_str()
                && SandboxId::parse(name).is_ok()
            {
                self.settle_blank(name);
            }
        }
    }

    fn settle_blank(&self, name: &str) {
        let Some((mut folder, record)) = self.recorded(name) else {
            return self.remove_blank(name);
        };
        match self.name(&mut folder, &record.run) {
            Ok(()) => {}
            Err(error) => crate::log::failure("a run cannot be given its name", &error),
        }
    }

    /// A directory made ahead in which a run was recorded.
    fn recorded(&self, name: &str) -> Option<(RunFolder, RunRecord)> {
        let folder = RunFolder {
            directory: open_inside(self.blank.as_ref()?, name).ok()?,
            files: None,
            unnamed: Some(name.to_owned()),
        };
        let bytes = read_file(&folder.directory, RECORD, RECORD_MAX).ok()??;
        // One that was not written to its end was begun for nothing yet.
        let record: RunRecord = serde_json::from_slice(&bytes).ok()?;
        (record.sandbox.as_str() == name).then_some((folder, record))
    }

    /// Writes the first record of a run, before anything else exists for it (invariant I1): one look
    /// whether there is such a run, and one write. Returns its directory, which is to be given its name
    /// ([`Records::name`]), and the spools in it.
    ///
    /// # Errors
    /// When there is such a run, or the file system refuses; then nothing is left.
    pub(crate) fn begin(
        &self,
        blank: Blank,
        record: &RunRecord,
    ) -> Result<(RunFolder, [OwnedFd; 2]), RecordError> {
        let run = &record.run;
        if let Err(source) = self.write_first(&blank, record) {
            self.remove_blank(&blank.name);
            return Err(if source.kind() == io::ErrorKind::AlreadyExists {
                RecordError::Exists(run.clone())
            } else {
                failed("beginning", run, source)
            });
        }
        let folder = RunFolder {
            directory: blank.directory,
            files: Some([blank.next, blank.record]),
            unnamed: Some(blank.name),
        };
        Ok((folder, blank.spools))
    }

    fn write_first(&self, blank: &Blank, record: &RunRecord) -> io::Result<()> {
        let bytes = to_bytes(record).map_err(io::Error::other)?;
        match statat(&self.runs, record.run.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {
                failpoint::around("record", || write_from_start(&blank.record, &bytes))
            }
            Err(errno) => Err(errno.into()),
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    /// Gives a run that is recorded its name and its mark. Idempotent.
    ///
    /// # Errors
    /// When another run has the name, or the file system refuses: then it is recorded as before.
    pub(crate) fn name(&self, folder: &mut RunFolder, run: &RunId) -> Result<(), RecordError> {
        let Some(blank) = &folder.unnamed else {
            return Ok(());
        };
        let name = || -> io::Result<()> {
            let from = self.blank.as_ref().ok_or(io::ErrorKind::NotFound)?;
            // The mark is another name of the record, which costs less than a file of its own.
            let mark = linkat(
                &folder.directory,
                RECORD,
                &self.open,
                run.as_str(),
                AtFlags::empty(),
            );
            let marked = match mark {
                // Of an attempt that got no further.
                Err(Errno::EXIST) => false,
                other => other.map(|()| true)?,
            };
            let flags = RenameFlags::NOREPLACE;
            let named = failpoint::around("publish", || {
                renameat_with(from, blank.as_str(), &self.runs, run.as_str(), flags)
            });
            if named.is_err() && marked {
                let _ = unlinkat(&self.open, run.as_str(), AtFlags::empty());
            }
            Ok(named?)
        };
        name().map_err(|source| failed("naming", run, source))?;
        folder.unnamed = None;
        Ok(())
    }

    /// Opens the directory of a run.
    ///
    /// # Errors
    /// When there is none.
    pub fn folder(&self, run: &RunId) -> Result<RunFolder, RecordError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.runs, run.as_str(), flags, Mode::empty())
            .map(|directory| RunFolder {
                directory,
                files: None,
                unnamed: None,
            })
            .map_err(|errno| failed("opening", run, errno))
    }

    /// Says that the record of a run is complete. Idempotent.
    pub fn close(&self, run: &RunId) {
        let _ = unlinkat(&self.open, run.as_str(), AtFlags::empty());
    }

    /// Removes a complete record, with all its run left, that is nobody's to read: of work of our own that was
    /// removed as a whole. What cannot be removed is left to retention.
    pub(crate) fn let_go(&self, record: &RunRecord) {
        let clean = record.cleanup.as_ref().is_some_and(Observed::clean);
        if record.bound
            && clean
            && let Err(error) = self.remove(&record.run)
        {
            crate::log::failure("the record of a bound run could not be removed", &error);
        }
    }

    /// Runs whose records are not complete.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn unfinished(&self) -> Result<Vec<RunId>, RecordError> {
        ids(&self.open)
    }

    /// Every run, newest first, at most `most`; unreadable records are left out, and those of work of our own.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn list(&self, most: usize) -> Result<Vec<RunRecord>, RecordError> {
        let mut records: Vec<RunRecord> = ids(&self.runs)?
            .iter()
            .filter_map(|run| self.read(run).ok().flatten())
            .filter(|record| !record.bound)
            .collect();
        records.sort_by_key(|record| std::cmp::Reverse(record.accepted_unix_ms));
        records.truncate(most);
        Ok(records)
    }

    /// Every run.
    pub(crate) fn all(&self) -> Result<Vec<RunId>, RecordError> {
        ids(&self.runs)
    }

    /// Ids that start with `prefix`, at most two: none, the one meant, or proof that it is not unique.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn matching(&self, prefix: &str) -> Result<Vec<RunId>, RecordError> {
        let mut found = ids(&self.runs)?;
        found.retain(|run| run.as_str().starts_with(prefix));
        found.truncate(2);
        Ok(found)
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When it cannot be read or is no record; a missing one is `None`.
    pub fn read(&self, run: &RunId) -> Result<Option<RunRecord>, RecordError> {
        match self.folder(run) {
            Ok(folder) => folder.read(run),
            Err(RecordError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn ids(directory: &OwnedFd) -> Result<Vec<RunId>, RecordError> {
    let entries =
        rustix::fs::Dir::read_from(directory).map_err(|errno| failed("listing", "runs", errno))?;
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|errno| failed("listing", "runs", errno))?;
        if let Some(run) = entry
            .file_name()
            .to_str()
            .ok()
            .and_then(|n| RunId::parse(n).ok())
        {
            found.push(run);
        }
    }
    Ok(found)
}

fn open_inside(directory: &OwnedFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::empty())
}

fn to_bytes(record: &RunRecord) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = serde_json::to_vec(record)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// A record as it is written and told. There is none that cannot be encoded; were there, it is logged.
pub(crate) fn encode(record: &RunRecord) -> Option<Vec<u8>> {
    match to_bytes(record) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            crate::log::failure("a record could not be encoded", &error);
            None
        }
    }
}

impl RunFolder {
    /// Whether it has its run's name.
    pub(crate) fn named(&self) -> bool {
        self.unnamed.is_none()
    }

    /// Writes the record in place of the one before.
    ///
    /// # Errors
    /// When the file system refuses; the record before is kept then.
    pub fn write(&mut self, record: &RunRecord) -> Result<(), RecordError> {
        let bytes = to_bytes(record).map_err(|source| RecordError::Format {
            run: record.run.clone(),
            source,
        })?;
        self.write_encoded(&record.run, &bytes)
    }

    /// The same with a record that is encoded ([`encode`]).
    ///
    /// # Errors
    /// As [`RunFolder::write`].
    pub(crate) fn write_encoded(&mut self, run: &RunId, bytes: &[u8]) -> Result<(), RecordError> {
        self.write_bytes(bytes)
            .map_err(|source| failed("writing", run, source))
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some([next, last]) = &mut self.files else {
            return replace(&self.directory, RECORD, bytes);
        };
        write_whole(next, bytes)?;
        let directory = &self.directory;
        match renameat_with(directory, NEXT, directory, RECORD, RenameFlags::EXCHANGE) {
            Ok(()) => {
                std::mem::swap(next, last);
                Ok(())
            }
            // A file system that cannot exchange: from now on in the way that works everywhere.
            Err(Errno::INVAL | Errno::NOSYS) => {
                self.files = None;
                let _ = unlinkat(&self.directory, NEXT, AtFlags::empty());
                replace(&self.directory, RECORD, bytes)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes the last record, which is encoded.
    ///
    /// # Errors
    /// As [`RunFolder::write`].
    pub(crate) fn write_last(
        &mut self,
        run: &RunId,
        bytes: &[u8],
        spares: &mut Spares,
    ) -> Result<(), RecordError> {
        self.write_encoded(run, bytes)?;
        match self.files.take() {
            Some(_) => spares
                .take(&self.directory, NEXT)
                .map_err(|source| failed("tidying", run, source)),
            None => Ok(()),
        }
    }

    fn read(&self, run: &RunId) -> Result<Option<RunRecord>, RecordError> {
        let bytes = read_file(&self.directory, RECORD, RECORD_MAX)
            .map_err(|source| failed("reading", run, source))?;
        bytes
            .map(|bytes| {
                serde_json::from_slice(&bytes).map_err(|source| RecordError::Format {
                    run: run.clone(),
                    source,
                })
            })
            .transpose()
    }

    /// Opens a spool for reading.
    ///
    /// # Errors
    /// When it is not there.
    pub fn read_spool(&self, name: &'static str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.directory, name, flags, Mode::empty())?)
    }

    /// Makes the directory for collected files.
    ///
    /// # Errors
    /// When it is there already or the file system refuses.
    pub fn make_artifacts(&self) -> io::Result<OwnedFd> {
        mkdirat(&self.directory, ARTIFACTS, Mode::from_raw_mode(0o700))?;
        Ok(open_inside(&self.directory, ARTIFACTS)?)
    }
}

#[cfg(test)]
mod tests;
