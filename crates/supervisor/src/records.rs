//! The record store: one directory per run, kept after its sandbox is gone.
//!
//! `runs/<run>/` holds `record.json`, the spools `stdout` and `stderr`, and `artifacts/`. A run whose
//! record is not complete also has an empty file `open/<run>`, so that a sweep need not read every
//! record there ever was. Records name environment variables, never their values (invariant I8).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use leasehold_core::id::RunId;
use leasehold_core::record::RunRecord;
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};

use crate::paths::{Paths, open_directory, read_file, replace};

/// Most bytes of a record that is read back.
const RECORD_MAX: usize = 16 << 20;
const RECORD: &str = "record.json";

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
}

/// The directory of one run.
#[derive(Debug)]
pub struct RunFolder(OwnedFd);

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
        })
    }

    /// Writes the first record of a run, before anything else exists for it (invariant I1).
    ///
    /// # Errors
    /// When there is such a run, or the file system refuses; then nothing is left.
    pub fn begin(&self, record: &RunRecord) -> Result<RunFolder, RecordError> {
        let run = &record.run;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        openat(&self.open, run.as_str(), flags, Mode::from_raw_mode(0o600)).map_err(|errno| {
            match errno {
                rustix::io::Errno::EXIST => RecordError::Exists(run.clone()),
                errno => failed("marking", run, errno),
            }
        })?;
        let begun = self.make(run).and_then(|folder| {
            folder.write(record).map(|()| folder).inspect_err(|_| {
                let _ = unlinkat(&self.runs, run.as_str(), AtFlags::REMOVEDIR);
            })
        });
        if begun.is_err() {
            let _ = unlinkat(&self.open, run.as_str(), AtFlags::empty());
        }
        begun
    }

    fn make(&self, run: &RunId) -> Result<RunFolder, RecordError> {
        match mkdirat(&self.runs, run.as_str(), Mode::from_raw_mode(0o700)) {
            Ok(()) => self.folder(run),
            Err(rustix::io::Errno::EXIST) => Err(RecordError::Exists(run.clone())),
            Err(errno) => Err(failed("making the directory", run, errno)),
        }
    }

    /// Opens the directory of a run.
    ///
    /// # Errors
    /// When there is none.
    pub fn folder(&self, run: &RunId) -> Result<RunFolder, RecordError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.runs, run.as_str(), flags, Mode::empty())
            .map(RunFolder)
            .map_err(|errno| failed("opening", run, errno))
    }

    /// Says that the record of a run is complete. Idempotent.
    pub fn close(&self, run: &RunId) {
        let _ = unlinkat(&self.open, run.as_str(), AtFlags::empty());
    }

    /// Runs whose records are not complete.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn unfinished(&self) -> Result<Vec<RunId>, RecordError> {
        ids(&self.open)
    }

    /// Every run, newest first, at most `most`; unreadable records are left out.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn list(&self, most: usize) -> Result<Vec<RunRecord>, RecordError> {
        let mut records: Vec<RunRecord> = ids(&self.runs)?
            .iter()
            .filter_map(|run| self.read(run).ok().flatten())
            .collect();
        records.sort_by_key(|record| std::cmp::Reverse(record.accepted_unix_ms));
        records.truncate(most);
        Ok(records)
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

impl RunFolder {
    /// Writes the record in place of the one before.
    ///
    /// # Errors
    /// When the file system refuses; the record before is kept then.
    pub fn write(&self, record: &RunRecord) -> Result<(), RecordError> {
        let mut bytes = serde_json::to_vec(record).map_err(|source| RecordError::Format {
            run: record.run.clone(),
            source,
        })?;
        bytes.push(b'\n');
        replace(&self.0, RECORD, &bytes).map_err(|source| failed("writing", &record.run, source))
    }

    fn read(&self, run: &RunId) -> Result<Option<RunRecord>, RecordError> {
        let bytes = read_file(&self.0, RECORD, RECORD_MAX)
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

    /// Makes a spool that is written here and read by the caller.
    ///
    /// # Errors
    /// When it is there already or the file system refuses.
    pub fn make_spool(&self, name: &'static str) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::from_raw_mode(0o600))?)
    }

    /// Opens a spool for reading.
    ///
    /// # Errors
    /// When it is not there.
    pub fn read_spool(&self, name: &'static str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::empty())?)
    }

    /// Makes the directory for collected files.
    ///
    /// # Errors
    /// When it is there already or the file system refuses.
    pub fn make_artifacts(&self) -> io::Result<OwnedFd> {
        mkdirat(&self.0, "artifacts", Mode::from_raw_mode(0o700))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.0, "artifacts", flags, Mode::empty())?)
    }
}

impl AsFd for RunFolder {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch_directory::ScratchDirectory;
    use leasehold_core::end::EndReason;
    use leasehold_core::id::SandboxId;
    use leasehold_core::record::RECORD_VERSION;

    fn record(letter: u8) -> RunRecord {
        RunRecord {
            version: RECORD_VERSION,
            run: RunId::from_entropy(&[letter; 13]),
            sandbox: SandboxId::from_entropy(&[letter; 13]),
            accepted_unix_ms: letter.into(),
            contract: None,
            end: None,
            exit: None,
            limits_hit: Vec::new(),
            warm: false,
            stages: Vec::new(),
            usage: Default::default(),
            stdout: Default::default(),
            stderr: Default::default(),
            artifacts: Vec::new(),
            cleanup: None,
        }
    }

    #[test]
    fn a_run_is_open_from_its_first_record_to_its_last() {
        let place = ScratchDirectory::new("records");
        let paths = Paths::new(&place.path().join("state"), &place.path().join("run"));
        paths.create().unwrap();
        let records = Records::open(&paths).unwrap();
        let mut first = record(1);
        let folder = records.begin(&first).unwrap();
        assert!(matches!(records.begin(&first), Err(RecordError::Exists(_))));
        assert_eq!(records.unfinished().unwrap(), [first.run.clone()]);
        assert_eq!(records.read(&first.run).unwrap().unwrap(), first);
        first.end = Some(EndReason::Completed);
        folder.write(&first).unwrap();
        records.close(&first.run);
        records.close(&first.run);
        assert_eq!(records.unfinished().unwrap(), []);
        assert!(matches!(records.begin(&first), Err(RecordError::Exists(_))));
        assert_eq!(
            records.unfinished().unwrap(),
            [],
            "a refused run stays open"
        );
        assert_eq!(records.read(&first.run).unwrap().unwrap(), first);
        assert_eq!(records.read(&record(9).run).unwrap(), None);
    }

    #[test]
    fn runs_are_listed_newest_first_and_found_by_prefix() {
        let place = ScratchDirectory::new("records-list");
        let paths = Paths::new(&place.path().join("state"), &place.path().join("run"));
        paths.create().unwrap();
        let records = Records::open(&paths).unwrap();
        for letter in [3, 200, 77] {
            records.begin(&record(letter)).unwrap();
        }
        let newest: Vec<u64> = records
            .list(2)
            .unwrap()
            .iter()
            .map(|record| record.accepted_unix_ms)
            .collect();
        assert_eq!(newest, [200, 77]);
        let wanted = record(77).run;
        assert_eq!(records.matching(&wanted.as_str()[..6]).unwrap(), [wanted]);
        assert_eq!(records.matching("r").unwrap().len(), 2);
    }
}
