//! Where the supervisor keeps its things: one state directory that outlives it and one run directory
//! with its socket and lock.
//!
//! Both are refused unless they are real directories of this user that nobody else can write; the
//! run directory must be closed to everybody else (0700), since whoever reaches the socket in it
//! commands the supervisor.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat, renameat};
use rustix::process::geteuid;
use sha2::{Digest, Sha256};

/// Environment variable that names the state directory.
pub const STATE_DIR_VARIABLE: &str = "LEASEHOLD_STATE_DIR";
/// Environment variable that names the run directory.
pub const RUN_DIR_VARIABLE: &str = "LEASEHOLD_RUN_DIR";

/// Why the directories cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PathsError {
    /// A variable does not hold an absolute path.
    #[error("`{variable}` is `{path}`: an absolute path is needed")]
    Relative {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        path: String,
    },
    /// Neither variable nor home directory says where.
    #[error("no place for the state directory: set `{STATE_DIR_VARIABLE}` or `HOME`")]
    Homeless,
    /// A directory exists and must not be trusted.
    #[error("directory `{path}` is refused: {why}")]
    Refused {
        /// Which.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A directory cannot be made or looked at.
    #[error("directory `{path}` cannot be used")]
    Io {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The two directories of one instance and the name derived from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    state: PathBuf,
    run: PathBuf,
    instance: String,
}

impl Paths {
    /// The directories this user and environment mean. Makes nothing.
    ///
    /// # Errors
    /// When a variable is not an absolute path, or nothing says where the state belongs.
    pub fn from_env() -> Result<Self, PathsError> {
        let uid = geteuid();
        let state = match named(STATE_DIR_VARIABLE)? {
            Some(path) => path,
            None if uid.is_root() => PathBuf::from("/var/lib/leasehold"),
            None => match (absolute("XDG_STATE_HOME"), absolute("HOME")) {
                (Some(state), _) => state.join("leasehold"),
                (None, Some(home)) => home.join(".local/state/leasehold"),
                (None, None) => return Err(PathsError::Homeless),
            },
        };
        let run = match named(RUN_DIR_VARIABLE)? {
            Some(path) => path,
            None if uid.is_root() => PathBuf::from("/run/leasehold"),
            None => match absolute("XDG_RUNTIME_DIR") {
                Some(path) => path.join("leasehold"),
                None => PathBuf::from(format!("/tmp/leasehold-{}", uid.as_raw())),
            },
        };
        Ok(Self::new(&state, &run))
    }

    /// Two given directories, absolute. Makes nothing.
    #[must_use]
    pub fn new(state: &Path, run: &Path) -> Self {
        let state = resolve(state);
        let digest = Sha256::digest(state.as_os_str().as_encoded_bytes());
        let instance = digest[..5].iter().map(|b| format!("{b:02x}")).collect();
        Self {
            state,
            run: run.to_owned(),
            instance,
        }
    }

    /// First ten hexadecimal digits of the SHA-256 of the state directory's resolved path. Part of
    /// the name of everything on the host that is not a file below the two directories.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The state directory.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The run directory.
    #[must_use]
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// The socket callers connect to.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.run.join("supervisor.sock")
    }

    /// The file whose lock makes a process the supervisor.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.run.join("supervisor.lock")
    }

    /// The log of a supervisor that runs in the background.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.run.join("supervisor.log")
    }

    /// The second lock, so that two run directories cannot share one state directory.
    #[must_use]
    pub fn owner(&self) -> PathBuf {
        self.state.join("owner.lock")
    }

    /// One directory per run.
    #[must_use]
    pub fn runs(&self) -> PathBuf {
        self.state.join("runs")
    }

    /// One empty file per run whose record is not complete.
    #[must_use]
    pub fn open_runs(&self) -> PathBuf {
        self.state.join("open")
    }

    /// One directory per sandbox that waits, for the run it may have.
    #[must_use]
    pub fn blank_runs(&self) -> PathBuf {
        self.state.join("blank")
    }

    /// One file per sandbox that may hold resources.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.state.join("ledger")
    }

    /// Small files that wait to be used again.
    #[must_use]
    pub fn spare(&self) -> PathBuf {
        self.state.join("spare")
    }

    /// Disk images of sandboxes.
    #[must_use]
    pub fn scratch(&self) -> PathBuf {
        self.state.join("scratch")
    }

    /// Makes what is missing and checks what is there.
    ///
    /// # Errors
    /// When a directory cannot be made, or belongs to or is open to somebody else.
    pub fn create(&self) -> Result<(), PathsError> {
        make(&self.run)?;
        check(&self.run, 0o077)?;
        make(&self.state)?;
        check(&self.state, 0o022)?;
        let inner = [
            self.runs(),
            self.open_runs(),
            self.blank_runs(),
            self.spare(),
            self.ledger(),
            self.scratch(),
        ];
        for path in inner {
            make(&path)?;
            check(&path, 0o022)?;
        }
        Ok(())
    }
}

fn absolute(variable: &str) -> Option<PathBuf> {
    let value: OsString = env::var_os(variable)?;
    let path = PathBuf::from(value);
    path.is_absolute().then_some(path)
}

fn named(variable: &'static str) -> Result<Option<PathBuf>, PathsError> {
    match env::var_os(variable) {
        None => Ok(None),
        Some(value) => {
            let path = PathBuf::from(value);
            if path.is_absolute() {
                Ok(Some(path))
            } else {
                Err(PathsError::Relative {
                    variable,
                    path: path.display().to_string(),
                })
            }
        }
    }
}

/// Resolves the part of a path that exists, so that one directory has one instance name whichever
/// way it is spelled and whether or not its last parts exist yet.
fn resolve(path: &Path) -> PathBuf {
    let mut missing = Vec::new();
    let mut at = path;
    loop {
        if let Ok(real) = fs::canonicalize(at) {
            return missing
                .iter()
                .rev()
                .fold(real, |path, part| path.join(part));
        }
        match (at.parent(), at.file_name()) {
            (Some(parent), Some(name)) => {
                missing.push(name.to_owned());
                at = parent;
            }
            _ => return path.to_owned(),
        }
    }
}

fn failed(path: &Path, source: io::Error) -> PathsError {
    PathsError::Io {
        path: path.display().to_string(),
        source,
    }
}

fn make(path: &Path) -> Result<(), PathsError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = path.parent() {
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(parent)
                    .map_err(|source| failed(parent, source))?;
            }
            match DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    Err(failed(path, error))
                }
                _ => Ok(()),
            }
        }
        Err(error) => Err(failed(path, error)),
    }
}

fn check(path: &Path, forbidden: u32) -> Result<(), PathsError> {
    let found = fs::symlink_metadata(path).map_err(|source| failed(path, source))?;
    let why = if found.file_type().is_symlink() {
        "it is a symbolic link"
    } else if !found.is_dir() {
        "it is not a directory"
    } else if found.uid() != geteuid().as_raw() {
        "it belongs to another user"
    } else if found.mode() & forbidden != 0 {
        "its mode lets other users in; `chmod 700` it"
    } else {
        return Ok(());
    };
    Err(PathsError::Refused {
        path: path.display().to_string(),
        why,
    })
}

/// Opens a directory to work below it by descriptor.
pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Puts `bytes` at `name` below a directory: readers see the old or the new content, never half.
/// No fsync: a power cut ends every sandbox anyway, and then the record may be the older one.
pub(crate) fn replace(directory: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = format!("{name}.new");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = openat(directory, &temporary, flags, Mode::from_raw_mode(0o600))?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?;
        rest = &rest[written..];
    }
    drop(file);
    renameat(directory, &temporary, directory, name)?;
    Ok(())
}

/// Writes from the start of a file and cuts it there.
pub(crate) fn write_whole(file: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    write_from_start(file, bytes)?;
    // Not opened with truncation: a file system may flush such a file when it is closed. And a cut
    // that cuts nothing costs as much as the writing.
    let whole = bytes.len() as u64;
    if rustix::fs::fstat(file)?.st_size.cast_unsigned() != whole {
        rustix::fs::ftruncate(file, whole)?;
    }
    Ok(())
}

/// Writes from the start of a file, which holds no more than that.
pub(crate) fn write_from_start(file: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        at += rustix::io::retry_on_intr(|| rustix::io::pwrite(file, &bytes[at..], at as u64))?;
    }
    Ok(())
}

/// Reads a whole file below a directory, at most `most` bytes; `None` when it is not there.
pub(crate) fn read_file(
    directory: &OwnedFd,
    name: &str,
    most: usize,
) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(directory, name, flags, Mode::empty()) {
        Ok(file) => fs::File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut bytes = Vec::new();
    let read = io::Read::read_to_end(&mut io::Read::take(file, most as u64 + 1), &mut bytes)?;
    if read > most {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch_directory::ScratchDirectory;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_instance_name_does_not_depend_on_the_spelling() {
        let place = ScratchDirectory::new("paths-name");
        let real = place.path().join("real");
        let before = Paths::new(&real.join("state"), place.path());
        fs::create_dir_all(real.join("state")).unwrap();
        std::os::unix::fs::symlink(&real, place.path().join("link")).unwrap();
        let after = Paths::new(&place.path().join("link/state"), place.path());
        assert_eq!(before.instance(), after.instance());
        assert_eq!(before.instance().len(), 10);
        let other = Paths::new(&real.join("other"), place.path());
        assert_ne!(before.instance(), other.instance());
    }

    #[test]
    fn a_run_directory_that_others_could_enter_is_refused() {
        let place = ScratchDirectory::new("paths-mode");
        let run = place.path().join("run");
        let paths = Paths::new(&place.path().join("state"), &run);
        paths.create().unwrap();
        paths.create().unwrap();
        fs::set_permissions(&run, fs::Permissions::from_mode(0o750)).unwrap();
        let error = paths.create().unwrap_err().to_string();
        assert!(error.contains("mode"), "{error}");
        fs::remove_dir(&run).unwrap();
        std::os::unix::fs::symlink(place.path(), &run).unwrap();
        let error = paths.create().unwrap_err().to_string();
        assert!(error.contains("symbolic link"), "{error}");
    }

    #[test]
    fn replacing_leaves_no_second_file_and_reading_is_bounded() {
        let place = ScratchDirectory::new("paths-replace");
        let directory = open_directory(place.path()).unwrap();
        replace(&directory, "a", b"one").unwrap();
        replace(&directory, "a", b"two!").unwrap();
        assert_eq!(read_file(&directory, "a", 4).unwrap().unwrap(), b"two!");
        assert!(read_file(&directory, "a", 3).is_err());
        assert!(read_file(&directory, "b", 3).unwrap().is_none());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
