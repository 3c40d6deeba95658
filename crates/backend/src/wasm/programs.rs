//! The two programs that are not part of this one: the compiler and the host.
//!
//! They are files beside the binary. A file is taken only if nobody but root and this user can have written it,
//! is opened once, and what runs is a copy in memory that cannot change: replacing the file changes nothing for
//! a process that has begun.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use serde::{Deserialize, Serialize};

use super::sealed::{self, CopyError, FromStart, Sealed};

/// Environment variable that names the directory of the programs.
pub const DIR_VARIABLE: &str = "LEASEHOLD_WASM_DIR";
/// File name of the host.
pub const HOST_NAME: &str = "leasehold-wasm-host";
/// File name of the compiler.
pub const COMPILER_NAME: &str = "leasehold-wasm-compiler";

/// Longest program.
const PROGRAM_BYTES_MAX: u64 = 512 << 20;
/// Bits of a mode by which others than the owner may write.
const OTHERS_WRITE: u32 = 0o022;

/// Why the programs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    /// They are nowhere.
    #[error(
        "`{HOST_NAME}` and `{COMPILER_NAME}` are not there; looked in {}",
        shown(looked)
    )]
    Missing {
        /// Where they were looked for.
        looked: Vec<PathBuf>,
    },
    /// One is there, and somebody else could have written it.
    #[error("{} is refused: {why}", path.display())]
    Refused {
        /// Which file or directory.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// One cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

fn shown(looked: &[PathBuf]) -> String {
    let names: Vec<String> = looked
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    names.join(", ")
}

impl ProgramsError {
    /// The mend.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Missing { .. } => format!(
                "`cargo xtask wasm` builds them; `{DIR_VARIABLE}` names another directory that has them"
            ),
            Self::Refused { .. } => {
                "give file and directory to root or to this user, and take the right to write from \
                 everybody else: `chmod go-w`"
                    .to_owned()
            }
            Self::Read { .. } => {
                format!("give this user the right to read `{HOST_NAME}` and `{COMPILER_NAME}`")
            }
        }
    }

    /// For a caller who is not told of paths of this machine.
    #[must_use]
    pub fn public(&self) -> PublicError {
        let message = match self {
            Self::Missing { .. } => "this leasehold has no programs for WebAssembly",
            Self::Refused { .. } => {
                "the programs for WebAssembly are refused, since others than this user can change them"
            }
            Self::Read { .. } => "the programs for WebAssembly cannot be read",
        };
        PublicError::new(ErrorKind::Unsupported, message).hint(self.hint())
    }
}

/// Where the programs of a `leasehold` at `binary` may be: the directory that `named` holds, and no other
/// where it holds one.
#[must_use]
pub fn places(binary: &Path, named: Option<OsString>) -> Vec<PathBuf> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        return vec![named.into()];
    }
    let Some(folder) = binary.parent() else {
        return Vec::new();
    };
    vec![folder.join("wasm"), folder.join("../lib/leasehold")]
}

/// Both programs.
#[derive(Debug)]
pub struct Programs {
    pub(super) host: Program,
    pub(super) compiler: Program,
}

impl Programs {
    /// Finds them in the first of these directories that has both.
    ///
    /// # Errors
    /// When none has, or when a file that is there must not be trusted.
    pub fn find(places: &[PathBuf]) -> Result<Self, ProgramsError> {
        for place in places {
            let Some(folder) = opened(CWD, place, OFlags::DIRECTORY)? else {
                continue;
            };
            let of = |name: &str| Program::open(&folder, &place.join(name), name);
            if let (Some(host), Some(compiler)) = (of(HOST_NAME)?, of(COMPILER_NAME)?) {
                check(place, &stat(place, &folder)?)?;
                return Ok(Self { host, compiler });
            }
        }
        Err(ProgramsError::Missing {
            looked: places.to_vec(),
        })
    }

    /// Finds those of this program.
    ///
    /// # Errors
    /// As [`Programs::find`].
    pub fn of_this_program() -> Result<Self, ProgramsError> {
        let binary = std::env::current_exe().unwrap_or_default();
        Self::find(&places(&binary, std::env::var_os(DIR_VARIABLE)))
    }

    /// Digest of the host's file, as it is said in contracts.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn host_digest(&self) -> Result<Digest, ProgramsError> {
        Ok(self.host.sealed()?.digest)
    }

    /// The directory they are in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.host.path.parent().unwrap_or(Path::new("/"))
    }
}

/// What tells one state of a file from another, without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) bytes: u64,
    /// When content or attributes last changed, in nanoseconds since 1970. The kernel alone sets it.
    pub(super) changed_nanos: u64,
}

/// One program.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    file: File,
    identity: Identity,
    sealed: Mutex<Option<Arc<Sealed>>>,
}

impl Program {
    fn open(folder: &OwnedFd, path: &Path, name: &str) -> Result<Option<Self>, ProgramsError> {
        // A pipe of that name must not hold us up.
        let Some(file) = opened(folder, Path::new(name), OFlags::NONBLOCK).map_err(at(path))?
        else {
            return Ok(None);
        };
        let seen = stat(path, &file)?;
        if FileType::from_raw_mode(seen.st_mode) != FileType::RegularFile {
            return Err(refused(path, "it is no regular file"));
        }
        check(path, &seen)?;
        if seen.st_size.unsigned_abs() > PROGRAM_BYTES_MAX {
            return Err(refused(path, "it is too long for a program"));
        }
        Ok(Some(Self {
            path: path.to_owned(),
            file: file.into(),
            identity: Identity {
                device: seen.st_dev,
                inode: seen.st_ino,
                bytes: seen.st_size.unsigned_abs(),
                changed_nanos: seen.st_ctime.unsigned_abs() * 1_000_000_000 + seen.st_ctime_nsec,
            },
            sealed: Mutex::new(None),
        }))
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// A copy that cannot change, made once.
    pub(super) fn sealed(&self) -> Result<Arc<Sealed>, ProgramsError> {
        // Nothing panics while it holds this lock.
        let mut held = self.sealed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sealed) = held.as_ref() {
            return Ok(Arc::clone(sealed));
        }
        let label = self.path.file_name().unwrap_or_default().to_string_lossy();
        let copied = sealed::copy(&label, &mut FromStart::of(&self.file), PROGRAM_BYTES_MAX);
        let sealed = Arc::new(copied.map_err(|error| self.unread(error))?);
        *held = Some(Arc::clone(&sealed));
        Ok(sealed)
    }

    /// Takes a copy that was made before, by another process of this user.
    pub(super) fn lent(&self, sealed: Sealed) {
        // Nothing panics while it holds this lock.
        let mut held = self.sealed.lock().unwrap_or_else(PoisonError::into_inner);
        held.get_or_insert_with(|| Arc::new(sealed));
    }

    /// Its digest, without keeping a copy.
    pub(super) fn digest(&self) -> Result<Digest, ProgramsError> {
        let digest = sealed::digest(&mut FromStart::of(&self.file));
        digest.map_err(|error| self.unread(error.into()))
    }

    fn unread(&self, error: CopyError) -> ProgramsError {
        let source = match error {
            CopyError::Io(error) => error,
            error @ CopyError::TooLong(_) => io::Error::other(error.to_string()),
        };
        ProgramsError::Read {
            path: self.path.clone(),
            source,
        }
    }
}

/// Opens what is there without following a last link.
fn opened(folder: impl AsFd, path: &Path, more: OFlags) -> Result<Option<OwnedFd>, ProgramsError> {
    // A directory may be reached through a link; what is in it may not be one.
    let links = if more.contains(OFlags::DIRECTORY) {
        OFlags::empty()
    } else {
        OFlags::NOFOLLOW
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | links | more;
    match openat(folder, path, flags, Mode::empty()) {
        Ok(file) => Ok(Some(file)),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
        Err(rustix::io::Errno::LOOP) => Err(refused(path, "it is a symbolic link")),
        Err(errno) => Err(ProgramsError::Read {
            path: path.to_owned(),
            source: errno.into(),
        }),
    }
}

/// Names the whole path in an error that knows the last part of it.
fn at(path: &Path) -> impl Fn(ProgramsError) -> ProgramsError {
    move |error| match error {
        ProgramsError::Refused { why, .. } => refused(path, why),
        ProgramsError::Read { source, .. } => ProgramsError::Read {
            path: path.to_owned(),
            source,
        },
        other => other,
    }
}

fn stat(path: &Path, file: impl AsFd) -> Result<Stat, ProgramsError> {
    fstat(file).map_err(|errno| ProgramsError::Read {
        path: path.to_owned(),
        source: errno.into(),
    })
}

fn refused(path: &Path, why: &'static str) -> ProgramsError {
    ProgramsError::Refused {
        path: path.to_owned(),
        why,
    }
}

/// Nobody but root and this user can have written it.
fn check(path: &Path, seen: &Stat) -> Result<(), ProgramsError> {
    let own = rustix::process::geteuid().as_raw();
    if seen.st_uid != 0 && seen.st_uid != own {
        return Err(refused(path, "it belongs to another user"));
    }
    if seen.st_mode & OTHERS_WRITE != 0 {
        return Err(refused(path, "others than its owner may write to it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
