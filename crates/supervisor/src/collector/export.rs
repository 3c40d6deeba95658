//! Collected files under their own names, in a directory of the caller's, with the caller's rights.
//!
//! The names are a guest's. They are only used below the destination's descriptor, one name at a
//! time, never through a link; what stands in the way is replaced by rename and never written
//! through. To be used by a program that runs as who asked for the files.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use leasehold_core::record::Artifact;
use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, openat, openat2, renameat,
    unlinkat,
};
use rustix::io::{Errno, read, write};
use sha2::{Digest, Sha256};

use super::names::{NameError, unescape};
use super::{hex, staged_name};

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);
const COPY_BYTES: usize = 128 << 10;
const ATTEMPTS: u32 = 16;

/// What is done with files that a program of the host may run or obey by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MayExecute {
    /// They stay in the record's directory.
    Withhold,
    /// They are written like all others: somebody said so.
    Write,
}

/// What became of one artifact, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exported {
    /// It is there.
    Written,
    /// The collector did not take it, for the reason in its row.
    NotCollected,
    /// A program of the host may run or obey it.
    Withheld,
    /// A link or a file stands where a directory of its path would be, or a directory where it
    /// would be.
    InTheWay,
}

/// Why the export ended early.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A path in the list must not be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A call failed.
    #[error("cannot {attempt} `{path}`")]
    Host {
        /// What was tried.
        attempt: &'static str,
        /// Which artifact.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The copy is not what was collected.
    #[error("the copy of `{path}` is not what was collected: its digest differs")]
    Digest {
        /// Which artifact.
        path: String,
    },
}

/// Writes every collected file of a list below `out`. `staging` is the directory with the copies.
/// Files are made with mode 0666 and directories with 0777, less the caller's mask.
///
/// # Errors
/// At the first artifact that cannot be written for a reason other than what stands in its way.
pub fn export(
    staging: BorrowedFd<'_>,
    artifacts: &[Artifact],
    out: BorrowedFd<'_>,
    may_execute: MayExecute,
) -> Result<Vec<Exported>, ExportError> {
    let mut done = Vec::with_capacity(artifacts.len());
    let mut buffer = vec![0; COPY_BYTES];
    for (place, artifact) in artifacts.iter().enumerate() {
        let Some(digest) = &artifact.sha256 else {
            done.push(Exported::NotCollected);
            continue;
        };
        if artifact.may_execute_on_host && may_execute == MayExecute::Withhold {
            done.push(Exported::Withheld);
            continue;
        }
        let path = unescape(&artifact.path)?;
        let failed = |attempt, errno: Errno| ExportError::Host {
            attempt,
            path: artifact.path.clone(),
            source: errno.into(),
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let copy = openat(staging, staged_name(place), flags, Mode::empty())
            .map_err(|errno| failed("open the copy of", errno))?;
        let Some((directory, name)) =
            parent(out, &path).map_err(|errno| failed("make the directories of", errno))?
        else {
            done.push(Exported::InTheWay);
            continue;
        };
        let temporary = Temporary::make(&directory).map_err(|errno| failed("write", errno))?;
        let got = temporary
            .fill(&copy, &mut buffer)
            .map_err(|errno| failed("write", errno))?;
        if got != *digest {
            return Err(ExportError::Digest {
                path: artifact.path.clone(),
            });
        }
        done.push(match temporary.become_file(name) {
            Ok(()) => Exported::Written,
            Err(Errno::ISDIR) => Exported::InTheWay,
            Err(errno) => return Err(failed("write", errno)),
        });
    }
    Ok(done)
}

/// The directory of a path below `out`, made as far as it is missing, and the last name. `None` when
/// something else than a directory is in the way.
fn parent<'a>(out: BorrowedFd<'_>, path: &'a [u8]) -> Result<Option<(OwnedFd, &'a [u8])>, Errno> {
    let mut names = path.split(|byte| *byte == b'/');
    let Some(last) = names.next_back() else {
        return Err(Errno::INVAL);
    };
    let mut directory = enter(out, b".")?;
    for name in names {
        let next = match enter(directory.as_fd(), name) {
            Err(Errno::NOENT) => {
                match mkdirat(&directory, name, Mode::RWXU | Mode::RWXG | Mode::RWXO) {
                    Ok(()) | Err(Errno::EXIST) => enter(directory.as_fd(), name),
                    Err(errno) => Err(errno),
                }
            }
            other => other,
        };
        directory = match next {
            Ok(next) => next,
            Err(Errno::LOOP | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(errno),
        };
    }
    Ok(Some((directory, last)))
}

fn enter(directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut attempts = 0;
    loop {
        match openat2(directory, name, flags, Mode::empty(), RESOLVE) {
            Err(Errno::AGAIN | Errno::INTR) if attempts < ATTEMPTS => attempts += 1,
            other => return other,
        }
    }
}

/// A file that has no name of its own yet, removed unless it gets one.
struct Temporary<'a> {
    directory: &'a OwnedFd,
    name: String,
    file: OwnedFd,
    kept: bool,
}

impl<'a> Temporary<'a> {
    fn make(directory: &'a OwnedFd) -> Result<Self, Errno> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
        let mut attempt = 0;
        loop {
            let name = format!(".leasehold-{}-{attempt}.part", std::process::id());
            match openat(directory, name.as_str(), flags, mode) {
                Ok(file) => {
                    return Ok(Self {
                        directory,
                        name,
                        file,
                        kept: false,
                    });
                }
                Err(Errno::EXIST) if attempt < ATTEMPTS => attempt += 1,
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Copies and gives the digest of what was copied.
    fn fill(&self, copy: &OwnedFd, buffer: &mut [u8]) -> Result<String, Errno> {
        let mut hash = Sha256::new();
        loop {
            let got = rustix::io::retry_on_intr(|| read(copy, &mut *buffer))?;
            if got == 0 {
                break;
            }
            hash.update(&buffer[..got]);
            let mut rest = &buffer[..got];
            while !rest.is_empty() {
                let put = rustix::io::retry_on_intr(|| write(&self.file, rest))?;
                rest = &rest[put..];
            }
        }
        // A name that an attacker could make first must never leave a set-id file behind.
        let mode = Mode::from_raw_mode(fstat(&self.file)?.st_mode & 0o666);
        fchmod(&self.file, mode)?;
        let digest: [u8; 32] = hash.finalize().into();
        Ok(hex(&digest))
    }

    fn become_file(mut self, name: &[u8]) -> Result<(), Errno> {
        renameat(self.directory, self.name.as_str(), self.directory, name)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.kept {
            let _ = unlinkat(self.directory, self.name.as_str(), AtFlags::empty());
        }
    }
}
