//! Why a directory of the host cannot be lent for writing, in words that name its file system.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use leasehold_jail::spawn::{MakeStep, SpawnError};
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;

/// Most file systems named.
const NAMED_MAX: usize = 8;

/// The reason, where it is that a file system at or below the directory knows no translation of
/// owners; nothing for any other failure.
pub(crate) fn refusal(directory: BorrowedFd<'_>, error: &SpawnError) -> Option<String> {
    let owners = error.step() == Some(MakeStep::WorkspaceOwners);
    if !owners || error.errno() != Some(Errno::INVAL.raw_os_error()) {
        return None;
    }
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let seen = statx(
        directory.as_fd(),
        c"",
        AtFlags::EMPTY_PATH,
        StatxFlags::MNT_ID,
    )
    .ok()?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).ok()?;
    let (own, below) = kinds(&table, seen.stx_mnt_id, path.to_str()?)?;
    let place = match below.as_slice() {
        [] => format!("`{own}`"),
        below => format!("`{own}` with `{}` mounted below it", below.join("`, `")),
    };
    Some(format!(
        "the workspace is on {place}, where this kernel cannot translate owners, which `:rw` needs: \
         use `:clone`, or a directory on ext4, xfs, btrfs or tmpfs"
    ))
}

/// The kinds of the file system of a mount and of those mounted below a path.
fn kinds<'a>(table: &'a str, mount: u64, path: &str) -> Option<(&'a str, Vec<&'a str>)> {
    let path = path.trim_end_matches('/').replace(' ', "\\040") + "/";
    let (mut own, mut below) = (None, Vec::new());
    for line in table.lines() {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ');
        let (id, at) = (front.next()?, front.nth(3)?);
        let kind = back.split(' ').next()?;
        if id.parse() == Ok(mount) {
            own = Some(kind);
        } else if at.starts_with(&path) && !below.contains(&kind) && below.len() < NAMED_MAX {
            below.push(kind);
        }
    }
    Some((own?, below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_at_and_below_a_directory_are_named() {
        let table = "21 1 8:1 / / rw shared:1 - ext4 /dev/root rw\n\
             22 21 0:5 / /srv/a\\040b rw,nosuid - overlay overlay rw,lowerdir=x\n\
             23 22 0:6 / /srv/a\\040b/c rw master:2 - fuse.sshfs host: rw\n\
             24 22 0:6 / /srv/a\\040bc rw - proc proc rw\n";
        assert_eq!(
            kinds(table, 22, "/srv/a b"),
            Some(("overlay", vec!["fuse.sshfs"]))
        );
        assert_eq!(kinds(table, 21, "/srv/a b/d"), Some(("ext4", vec![])));
        assert_eq!(kinds(table, 9, "/"), None);
    }
}
