//! The static programs that this one carries, and where they are executed from.
//!
//! The supervisor is executed from a file of its run directory: copying it into memory takes a tenth of a start.
//! Whoever can write there commands the supervisor anyway, since its socket is there. Where that file cannot be, or
//! nothing is executed from there, it is executed from sealed memory. Its name holds a digest of it, so that no
//! version executes another's; there is the file of one version at a time.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use leasehold_protocol::memory;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, StatVfsMountFlags};

use crate::fault::Fault;

/// The static program that every sandbox begins as.
pub(crate) static INIT: &[u8] = include_bytes!(env!("LEASEHOLD_INIT"));
/// The static program of a session inside a sandbox.
pub(crate) static AGENT: &[u8] = include_bytes!(env!("LEASEHOLD_AGENT"));
/// The static program that parents every sandbox.
static SUPERVISOR: &[u8] = include_bytes!(env!("LEASEHOLD_SUPERVISOR"));
/// The name of its file.
const NAME: &str = concat!("supervisor-", env!("LEASEHOLD_SUPERVISOR_DIGEST"));
/// How the name of each version's file begins.
const PREFIX: &[u8] = b"supervisor-";

/// A path that the supervisor's program can be executed from by this process, and by nobody else with other bytes.
///
/// # Errors
/// When there is neither a file nor memory for it, or a hard limit on files leaves no room for it.
pub(crate) fn supervisor(run: &Path) -> Result<PathBuf, Fault> {
    leasehold_supervisor::raise_file_size()
        .map_err(|error| Fault::host("no supervisor can begin").because(&error))?;
    if let Ok(path) = kept(run, NAME, SUPERVISOR) {
        return Ok(path);
    }
    static MEMORY: OnceLock<OwnedFd> = OnceLock::new();
    let file = match MEMORY.get() {
        Some(file) => file,
        None => {
            let file = memory::sealed("leasehold-supervisor", SUPERVISOR).map_err(|error| {
                Fault::host("cannot hold the supervisor's program in memory").because(&error)
            })?;
            MEMORY.get_or_init(|| file)
        }
    };
    Ok(format!("/proc/self/fd/{}", file.as_raw_fd()).into())
}

/// The program in a file of the directory, which is made if it is not there as it should be.
fn kept(run: &Path, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, run, flags, Mode::empty())?;
    let mount = rustix::fs::fstatvfs(&directory)?;
    if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let found = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
    if !found.is_ok_and(|stat| is_ours(&stat, bytes.len())) {
        remove_all(directory.as_fd())?;
        make(directory.as_fd(), name, bytes)?;
    }
    Ok(run.join(name))
}

/// Whether a file is one that [`make`] made.
fn is_ours(stat: &Stat, length: usize) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_mode & 0o7777 == 0o500
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && u64::try_from(stat.st_size) == Ok(length as u64)
}

/// Removes what is not as it should be, and other versions. One that runs goes on.
fn remove_all(directory: BorrowedFd<'_>) -> io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if entry.file_name().to_bytes().starts_with(PREFIX) {
            let _ = rustix::fs::unlinkat(directory, entry.file_name(), AtFlags::empty());
        }
    }
    Ok(())
}

/// Writes a file that has no name before it is whole, so that one that was begun and not finished is nowhere.
fn make(directory: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o500);
    let mut file = File::from(rustix::fs::openat(directory, ".", flags, mode)?);
    // Whatever the mask of modes is.
    rustix::fs::fchmod(&file, mode)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::linkat(CWD, &path, directory, name, AtFlags::SYMLINK_FOLLOW) {
        // Somebody else was first, with the same bytes.
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("carried-{test}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_program_is_kept_once_and_other_versions_go() {
        let scratch = Scratch::new("once");
        fs::write(scratch.0.join("supervisor-old"), b"old").unwrap();
        fs::write(scratch.0.join("supervisor.log"), b"log").unwrap();
        let path = kept(&scratch.0, "supervisor-1", b"program").unwrap();
        let first = fs::metadata(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"program");
        assert_eq!(first.mode() & 0o7777, 0o500);
        assert_eq!(kept(&scratch.0, "supervisor-1", b"program").unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().ino(), first.ino());
        assert!(!scratch.0.join("supervisor-old").exists());
        assert!(scratch.0.join("supervisor.log").exists());
    }

    #[test]
    fn what_is_not_as_it_was_made_is_made_anew() {
        let scratch = Scratch::new("anew");
        let path = scratch.0.join("supervisor-1");
        let bytes = b"program";
        let other = scratch.0.join("other");
        fs::write(&other, bytes).unwrap();
        let spoilers: [&dyn Fn(); 3] = [
            &|| fs::write(&path, b"cut").unwrap(),
            &|| {
                fs::write(&path, bytes).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o522)).unwrap();
            },
            &|| symlink(&other, &path).unwrap(),
        ];
        for spoil in spoilers {
            let _ = fs::remove_file(&path);
            spoil();
            assert_eq!(kept(&scratch.0, "supervisor-1", bytes).unwrap(), path);
            let made = fs::symlink_metadata(&path).unwrap();
            assert!(made.is_file() && made.mode() & 0o7777 == 0o500);
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        assert!(kept(&scratch.0.join("nowhere"), "supervisor-1", bytes).is_err());
    }
}
