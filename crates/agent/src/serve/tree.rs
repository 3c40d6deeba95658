//! Work on the file tree: list, make, move, remove, open. Runs in a child that acts as the user and
//! may change its own working directory.

use std::os::fd::OwnedFd;

use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::envd::filesystem::{EntryInfo, ListDirResponse};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, openat2,
};
use rustix::io::Errno;

use super::acting::refused;
use super::users::{Names, User};
use super::{bounds, entry};

/// Nothing here goes through `/proc/*/fd`, `exe` and their like: those are ways around names.
const RESOLVE: ResolveFlags = ResolveFlags::NO_MAGICLINKS;

/// Opens a path for the user. Never waits, never takes a terminal.
fn open(path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    loop {
        match openat2(CWD, path, flags, mode, RESOLVE) {
            Err(Errno::INTR) => {}
            // A concurrent rename; the kernel asks to try again.
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
}

/// Lists a directory, depth first in the order of names. The paths told begin as asked, even where
/// that is a link.
///
/// # Errors
/// When it is no readable directory, or has more than [`bounds::LISTED`] entries.
pub(super) fn list(path: &str, depth: u32) -> Result<ListDirResponse, CallError> {
    let names = Names::load();
    let mut entries = Vec::new();
    let root = open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    let root = root.map_err(|errno| match errno {
        Errno::NOTDIR if rustix::fs::stat(path).is_ok() => CallError::new(
            Code::InvalidArgument,
            format!("path is not a directory: {path}"),
        ),
        errno => refused(&format!("cannot list {path}"), errno),
    })?;
    list_below(root, path, depth, &names, &mut entries)?;
    Ok(ListDirResponse { entries })
}

fn list_below(
    directory: OwnedFd,
    path: &str,
    depth: u32,
    names: &Names,
    entries: &mut Vec<EntryInfo>,
) -> Result<(), CallError> {
    for name in sorted_names(directory, path, bounds::LISTED - entries.len())? {
        // A name that is no text cannot be asked for either; it is shown as near as possible.
        let child = format!("{}/{}", path.trim_end_matches('/'), name.to_string_lossy());
        let info = match entry::read(&child, names) {
            Ok(info) => info,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(refused(&format!("cannot read {child}"), errno)),
        };
        if entries.len() == bounds::LISTED {
            return Err(too_many(path));
        }
        let nested = !info.is_symlink && info.permissions.starts_with('d') && depth > 1;
        entries.push(info);
        if nested {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            match open(&child, flags, Mode::empty()) {
                Ok(directory) => list_below(directory, &child, depth - 1, names, entries)?,
                // Gone, replaced or closed to the user: shown, not entered.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => {}
                Err(errno) => return Err(refused(&format!("cannot list {child}"), errno)),
            }
        }
    }
    Ok(())
}

fn too_many(path: &str) -> CallError {
    let most = bounds::LISTED;
    CallError::new(
        Code::ResourceExhausted,
        format!("{path} has more than {most} entries"),
    )
}

fn sorted_names(
    directory: OwnedFd,
    path: &str,
    most: usize,
) -> Result<Vec<std::ffi::CString>, CallError> {
    let failed = |errno| refused(&format!("cannot list {path}"), errno);
    let mut names = Vec::new();
    for entry in Dir::new(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        if names.len() == most {
            return Err(too_many(path));
        }
        names.push(entry.file_name().to_owned());
    }
    names.sort_unstable();
    Ok(names)
}

/// Makes a directory and its parents, mode 0755.
///
/// # Errors
/// `already_exists` when it is there, `invalid_argument` when something else is.
pub(super) fn make(path: &str, user: &User) -> Result<EntryInfo, CallError> {
    match rustix::fs::stat(path) {
        Ok(stat) if is_directory(&stat) => {
            return Err(CallError::new(
                Code::AlreadyExists,
                format!("directory already exists: {path}"),
            ));
        }
        Ok(_) => {
            return Err(CallError::new(
                Code::InvalidArgument,
                format!("path already exists but it is not a directory: {path}"),
            ));
        }
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR) => {
            return Err(CallError::new(
                Code::InvalidArgument,
                format!("a part of the path is not a directory: {path}"),
            ));
        }
        Err(errno) => return Err(refused(&format!("cannot make {path}"), errno)),
    }
    make_all(path, user)?;
    told(path)
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn told(path: &str) -> Result<EntryInfo, CallError> {
    entry::read(path, &Names::load())
        .map_err(|errno| refused(&format!("cannot read {path}"), errno))
}

/// Makes what is missing of an absolute path.
fn make_all(path: &str, user: &User) -> Result<(), CallError> {
    let parts = path.split('/').filter(|part| !part.is_empty());
    let mut so_far = String::with_capacity(path.len());
    for part in parts {
        so_far.push('/');
        so_far.push_str(part);
        match rustix::fs::stat(so_far.as_str()) {
            Ok(stat) if is_directory(&stat) => continue,
            Ok(_) => {
                return Err(CallError::new(
                    Code::InvalidArgument,
                    format!("path is a file: {so_far}"),
                ));
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(refused(&format!("cannot make {so_far}"), errno)),
        }
        let mode = Mode::from_raw_mode(0o755);
        match rustix::fs::mkdir(so_far.as_str(), mode) {
            Ok(()) => own(&so_far, user),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(refused(&format!("cannot make {so_far}"), errno)),
        }
    }
    Ok(())
}

/// Says once more whose a new entry is. It is the user's already; watchers expect the change of
/// owner between creation and first write, as the official agent makes it.
fn own(path: &str, user: &User) {
    let (uid, gid) = owner(user);
    let _ = rustix::fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
}

fn owner(user: &User) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))
}

/// Makes the parents of an absolute path.
///
/// # Errors
/// When one cannot be made or is something else.
pub(super) fn make_parents(path: &str, user: &User) -> Result<(), CallError> {
    match path.trim_end_matches('/').rsplit_once('/') {
        None | Some(("", _)) => Ok(()),
        Some((parent, _)) => make_all(parent, user),
    }
}

/// Moves an entry, making the parents of where it goes.
///
/// # Errors
/// `not_found` when there is no such entry.
pub(super) fn rename(source: &str, destination: &str, user: &User) -> Result<EntryInfo, CallError> {
    let failed = |errno| refused(&format!("cannot move {source} to {destination}"), errno);
    rustix::fs::lstat(source).map_err(failed)?;
    make_parents(destination, user)?;
    match rustix::fs::rename(source, destination) {
        // Scratch directories are one file system behind several mounts.
        Err(Errno::XDEV) => carry(source, destination, user)?,
        other => other.map_err(failed)?,
    }
    told(destination)
}

/// Moves across mounts: a copy, then a removal.
fn carry(source: &str, destination: &str, user: &User) -> Result<(), CallError> {
    copy(source, destination, user, bounds::LIST_DEPTH)?;
    remove(source)
}

fn copy(source: &str, destination: &str, user: &User, depth: u32) -> Result<(), CallError> {
    let failed = |errno| refused(&format!("cannot copy {source} to {destination}"), errno);
    let stat = rustix::fs::lstat(source).map_err(failed)?;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => {
            let target = rustix::fs::readlink(source, Vec::new()).map_err(failed)?;
            let _ = rustix::fs::unlink(destination);
            rustix::fs::symlink(target, destination).map_err(failed)
        }
        FileType::RegularFile => {
            let from = open(source, OFlags::RDONLY | OFlags::NOFOLLOW, Mode::empty());
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
            let to = open(destination, flags, mode).map_err(failed)?;
            pour(&from.map_err(failed)?, &to).map(drop).map_err(failed)
        }
        FileType::Directory if depth > 0 => {
            match rustix::fs::mkdir(destination, mode) {
                Err(Errno::EXIST) | Ok(()) => {}
                Err(errno) => return Err(failed(errno)),
            }
            own(destination, user);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let directory = open(source, flags, Mode::empty()).map_err(failed)?;
            for name in sorted_names(directory, source, bounds::LISTED)? {
                let name = name.to_str().map_err(|_| failed(Errno::ILSEQ))?;
                let (from, to) = (format!("{source}/{name}"), format!("{destination}/{name}"));
                copy(&from, &to, user, depth - 1)?;
            }
            Ok(())
        }
        _ => Err(failed(Errno::XDEV)),
    }
}

/// Copies the rest of one file to another.
///
/// # Errors
/// As `read(2)` and `write(2)`.
pub(super) fn pour(from: &OwnedFd, to: &OwnedFd) -> Result<u64, Errno> {
    let mut piece = vec![0; 256 << 10];
    let mut total = 0;
    loop {
        let got = match rustix::io::read(from, &mut piece[..]) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        if got == 0 {
            return Ok(total);
        }
        let mut rest = &piece[..got];
        while !rest.is_empty() {
            let written = rustix::io::write(to, rest)?;
            rest = &rest[written..];
        }
        total += got as u64;
    }
}

/// Removes whatever is at a path, with everything below. Nothing there is a success.
///
/// # Errors
/// At the first entry that cannot be removed; what came before it is gone.
pub(super) fn remove(path: &str) -> Result<(), CallError> {
    let failed = |errno| refused(&format!("cannot remove {path}"), errno);
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(failed(errno)),
    }
    match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed(errno)),
        Ok(stat) if !is_directory(&stat) => return Err(failed(Errno::PERM)),
        Ok(_) => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    empty(open(path, flags, Mode::empty()).map_err(failed)?).map_err(failed)?;
    match rustix::fs::rmdir(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

/// Removes everything below a directory, without recursion and with two open directories, however
/// deep it is. Moves the working directory of this process. A directory that is moved elsewhere
/// meanwhile ends it: the way back is checked at each step.
pub(super) fn empty(directory: OwnedFd) -> Result<(), Errno> {
    let mut way: Vec<((u64, u64), std::ffi::CString)> = Vec::new();
    rustix::process::fchdir(&directory)?;
    loop {
        match first_full_directory()? {
            Some(name) if way.len() < bounds::REMOVE_DEPTH => {
                let here = identity()?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let next = rustix::fs::openat(CWD, &name, flags, Mode::empty())?;
                rustix::process::fchdir(&next)?;
                way.push((here, name));
            }
            Some(_) => return Err(Errno::NAMETOOLONG),
            None => match way.pop() {
                None => return Ok(()),
                Some((parent, name)) => {
                    rustix::process::chdir("..")?;
                    if identity()? != parent {
                        return Err(Errno::STALE);
                    }
                    match rustix::fs::unlinkat(CWD, &name, AtFlags::REMOVEDIR) {
                        // Filled again meanwhile: the next round enters it again.
                        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => {}
                        Err(errno) => return Err(errno),
                    }
                }
            },
        }
    }
}

fn identity() -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::stat(".")?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Unlinks what is not a directory, and empty directories; stops at the first full one.
fn first_full_directory() -> Result<Option<std::ffi::CString>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let here = rustix::fs::openat(CWD, ".", flags, Mode::empty())?;
    for entry in Dir::new(here)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if entry.file_type() != FileType::Directory {
            match rustix::fs::unlinkat(CWD, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(Errno::ISDIR) => {}
                Err(errno) => return Err(errno),
            }
        }
        match rustix::fs::unlinkat(CWD, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Some(name.to_owned())),
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}

/// Opens a file to be read, with what `fstat(2)` says.
///
/// # Errors
/// `invalid_argument` when it is a directory or no regular file.
pub(super) fn open_to_read(path: &str) -> Result<(OwnedFd, Stat), CallError> {
    let failed = |errno| match errno {
        Errno::NOENT | Errno::NOTDIR => {
            CallError::new(Code::NotFound, format!("path '{path}' does not exist"))
        }
        errno => refused(&format!("cannot read '{path}'"), errno),
    };
    let file = open(path, OFlags::RDONLY, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    regular(path, &stat)?;
    Ok((file, stat))
}

fn regular(path: &str, stat: &Stat) -> Result<(), CallError> {
    let what = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "a directory",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "a device",
    };
    let message = format!("path '{path}' is {what}");
    Err(CallError::new(Code::InvalidArgument, message))
}

/// Opens a file to be written from its beginning, making it and its parents where they are missing.
///
/// # Errors
/// `invalid_argument` when something else is there.
pub(super) fn open_to_write(path: &str, user: &User, mode: u32) -> Result<OwnedFd, CallError> {
    make_parents(path, user)?;
    let failed = |errno| match errno {
        Errno::ISDIR => CallError::new(
            Code::InvalidArgument,
            format!("path '{path}' is a directory"),
        ),
        // A pipe nobody reads.
        Errno::NXIO => CallError::new(Code::InvalidArgument, format!("path '{path}' is a pipe")),
        errno => refused(&format!("cannot write '{path}'"), errno),
    };
    let mode = Mode::from_raw_mode(mode);
    let fresh = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = match open(path, fresh, mode) {
        Ok(file) => {
            let (uid, gid) = owner(user);
            // As for directories: the user's already, said for the watchers.
            let _ = rustix::fs::fchown(&file, uid, gid);
            file
        }
        // Not to be made again: in a sticky directory that is refused even to root.
        Err(Errno::EXIST) => match open(path, OFlags::WRONLY | OFlags::TRUNC, Mode::empty()) {
            // A link to where nothing is yet.
            Err(Errno::NOENT) => open(path, OFlags::WRONLY | OFlags::CREATE, mode),
            opened => opened,
        }
        .map_err(failed)?,
        Err(errno) => return Err(failed(errno)),
    };
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    regular(path, &stat)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A directory that is removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tree-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn path(&self, name: &str) -> String {
            self.0.join(name).to_str().unwrap().to_owned()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn me() -> User {
        User {
            name: "root".into(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            home: "/".into(),
        }
    }

    #[test]
    fn listings_are_depth_first_in_the_order_of_names() {
        let scratch = Scratch::new("list");
        for path in ["b/y/deep", "a/x"] {
            std::fs::create_dir_all(scratch.path(path)).unwrap();
        }
        std::fs::write(scratch.path("b.txt"), "").unwrap();
        std::os::unix::fs::symlink("a", scratch.path("link")).unwrap();
        let names = |depth| -> Vec<String> {
            let listed = list(&scratch.path(""), depth).unwrap();
            listed.entries.into_iter().map(|entry| entry.name).collect()
        };
        assert_eq!(names(1), ["a", "b", "b.txt", "link"]);
        assert_eq!(names(2), ["a", "x", "b", "y", "b.txt", "link"]);
        assert_eq!(names(9), ["a", "x", "b", "y", "deep", "b.txt", "link"]);
        let through = list(&scratch.path("link"), 1).unwrap();
        assert_eq!(through.entries[0].path, scratch.path("link/x"));
        let code = |path: &str| list(&scratch.path(path), 1).unwrap_err().code;
        assert_eq!(code("b.txt"), Code::InvalidArgument);
        assert_eq!(code("absent"), Code::NotFound);
    }

    #[test]
    fn directories_and_moves_keep_their_rules() {
        let scratch = Scratch::new("move");
        assert_eq!(make(&scratch.path("d/e"), &me()).unwrap().mode, 0o755);
        assert_eq!(
            make(&scratch.path("d"), &me()).unwrap_err().code,
            Code::AlreadyExists
        );
        std::fs::write(scratch.path("f"), "1").unwrap();
        for path in ["f", "f/below"] {
            assert_eq!(
                make(&scratch.path(path), &me()).unwrap_err().code,
                Code::InvalidArgument
            );
        }
        let moved = rename(&scratch.path("f"), &scratch.path("n/m/g"), &me()).unwrap();
        assert_eq!(moved.name, "g");
        let absent = rename(&scratch.path("f"), &scratch.path("x/y"), &me()).unwrap_err();
        assert_eq!(absent.code, Code::NotFound);
        assert!(!std::path::Path::new(&scratch.path("x")).exists());
    }

    #[test]
    fn copies_across_mounts_are_whole() {
        let scratch = Scratch::new("carry");
        std::fs::create_dir_all(scratch.path("s/t")).unwrap();
        std::fs::write(scratch.path("s/t/f"), vec![7; 300_000]).unwrap();
        std::os::unix::fs::symlink("t/f", scratch.path("s/l")).unwrap();
        carry(&scratch.path("s"), &scratch.path("d"), &me()).unwrap();
        assert_eq!(std::fs::read(scratch.path("d/l")).unwrap().len(), 300_000);
        assert!(!std::path::Path::new(&scratch.path("s")).exists());
    }

    /// In a child, since it moves the working directory.
    fn removed(path: &str) -> bool {
        let path = path.to_owned();
        let none: [OwnedFd; 0] = [];
        let status = leasehold_jail::sys::spawn_child(&none, || u8::from(remove(&path).is_err()));
        let options = rustix::process::WaitOptions::empty();
        let waited = rustix::process::waitpid(Some(status.unwrap()), options).unwrap();
        waited.unwrap().1.exit_status() == Some(0)
    }

    #[test]
    fn removal_takes_deep_trees_and_follows_no_link() {
        let scratch = Scratch::new("remove");
        std::fs::write(scratch.path("canary"), "").unwrap();
        std::fs::create_dir(scratch.path("tree")).unwrap();
        std::os::unix::fs::symlink("../canary", scratch.path("tree/link")).unwrap();
        std::os::unix::fs::symlink("..", scratch.path("tree/up")).unwrap();
        let mut directory = open(&scratch.path("tree"), OFlags::RDONLY, Mode::empty()).unwrap();
        for _ in 0..3_000 {
            rustix::fs::mkdirat(&directory, "deep", Mode::from_raw_mode(0o755)).unwrap();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            directory = rustix::fs::openat(&directory, "deep", flags, Mode::empty()).unwrap();
        }
        assert!(removed(&scratch.path("tree")));
        assert!(!std::path::Path::new(&scratch.path("tree")).exists());
        assert!(std::path::Path::new(&scratch.path("canary")).exists());
        assert!(removed(&scratch.path("tree")));
        assert!(removed(&scratch.path("canary/x")));
    }

    #[test]
    fn what_is_not_a_regular_file_is_refused_at_once() {
        let scratch = Scratch::new("special");
        let fifo = scratch.path("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
        for path in [fifo.as_str(), "/dev/zero", &scratch.path("")] {
            assert_eq!(open_to_read(path).unwrap_err().code, Code::InvalidArgument);
            assert_eq!(
                open_to_write(path, &me(), 0o644).unwrap_err().code,
                Code::InvalidArgument
            );
        }
        // A magic link is no way to the agent's own files; without the guard it would be one.
        assert!(std::fs::File::open("/proc/self/exe").is_ok());
        assert!(open_to_read("/proc/self/exe").is_err());
        assert_eq!(open_to_read("/absent").unwrap_err().code, Code::NotFound);
        drop(open_to_write(&scratch.path("a/b"), &me(), 0o644).unwrap());
    }
}
