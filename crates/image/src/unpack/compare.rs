//! Finds what differs between two unpackings of one layer.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Stat, readlinkat, statat};

use super::tree;
use crate::error::shown;
use crate::stack;

/// Differences that are named one by one.
const NAMED_MAX: usize = 32;

/// Names that are otherwise in `kept` than in `fresh`, each with what is otherwise.
pub(super) fn compare(fresh: &OwnedFd, kept: &OwnedFd) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    directory(fresh.as_fd(), kept.as_fd(), b"", &mut found)?;
    Ok(found)
}

fn say(found: &mut Vec<String>, path: &[u8], what: &str) {
    found.push(format!("{}: {what}", shown(path)));
}

fn directory(
    fresh: BorrowedFd<'_>,
    kept: BorrowedFd<'_>,
    path: &[u8],
    found: &mut Vec<String>,
) -> io::Result<()> {
    let [mut left, mut right] = [tree::names(fresh)?, tree::names(kept)?];
    left.sort_unstable();
    right.sort_unstable();
    if attributes(fresh)? != attributes(kept)? {
        say(found, path, "its attributes are altered");
    }
    let below = |name: &[u8]| match path {
        b"" => name.to_vec(),
        _ => [path, b"/", name].concat(),
    };
    for name in right
        .iter()
        .filter(|name| left.binary_search(name).is_err())
    {
        say(found, &below(name), "it is not of the layer");
    }
    for name in &left {
        if found.len() >= NAMED_MAX {
            return Ok(());
        }
        let path = below(name);
        if right.binary_search(name).is_err() {
            say(found, &path, "it is missing");
            continue;
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let one = statat(fresh, &name[..], flags)?;
        let other = statat(kept, &name[..], flags)?;
        if let Some(what) = otherwise(&one, &other) {
            say(found, &path, what);
            continue;
        }
        match FileType::from_raw_mode(one.st_mode) {
            FileType::Directory => {
                let one = stack::directory(fresh, name)?;
                let other = stack::directory(kept, name)?;
                directory(one.as_fd(), other.as_fd(), &path, found)?;
            }
            FileType::RegularFile => {
                let [one, other] = [tree::open(fresh, name)?, tree::open(kept, name)?];
                if attributes(one.as_fd())? != attributes(other.as_fd())? {
                    say(found, &path, "its attributes are altered");
                }
                if !same(one, other)? {
                    say(found, &path, "its content is altered");
                }
            }
            FileType::Symlink => {
                let [one, other] =
                    [fresh, kept].map(|from| readlinkat(from, &name[..], Vec::new()));
                if one? != other? {
                    say(found, &path, "it leads elsewhere");
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn otherwise(one: &Stat, other: &Stat) -> Option<&'static str> {
    let kind = |stat: &Stat| FileType::from_raw_mode(stat.st_mode);
    let is_directory = kind(one) == FileType::Directory;
    if kind(one) != kind(other) {
        return Some("it is of another kind");
    }
    if one.st_mode != other.st_mode {
        return Some("its mode is altered");
    }
    if (one.st_uid, one.st_gid) != (other.st_uid, other.st_gid) {
        return Some("its owner is altered");
    }
    if !is_directory && one.st_size != other.st_size {
        return Some("its size is altered");
    }
    if !is_directory && one.st_nlink != other.st_nlink {
        return Some("it has another number of names");
    }
    None
}

/// Names and values of the attributes that a layer can have.
fn attributes(file: BorrowedFd<'_>) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; 64 << 10];
    let length = match rustix::fs::flistxattr(file, &mut names[..]) {
        Ok(length) => length,
        Err(rustix::io::Errno::NOTSUP) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut all = Vec::new();
    let listed = names[..length].split(|byte| *byte == 0);
    for name in listed.filter(|name| name.starts_with(b"user.")) {
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::fgetxattr(file, name, &mut value[..])?;
        value.truncate(length);
        all.push((name.to_vec(), value));
    }
    all.sort_unstable();
    Ok(all)
}

fn same(one: OwnedFd, other: OwnedFd) -> io::Result<bool> {
    let (mut one, mut other) = (std::fs::File::from(one), std::fs::File::from(other));
    let [mut left, mut right] = [vec![0; 64 << 10], vec![0; 64 << 10]];
    loop {
        let got = one.read(&mut left)?;
        if got == 0 {
            return Ok(other.read(&mut right)? == 0);
        }
        match other.read_exact(&mut right[..got]) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            done => done?,
        }
        if left[..got] != right[..got] {
            return Ok(false);
        }
    }
}
