//! Looking for directories of ours that a predecessor made in another place, and reading directories.
//!
//! A supervisor makes its groups below the group it was started in. Its successor may have been
//! started from another one. The walk is bounded and happens only when a sweep misses something.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, OFlags};

use super::Tree;
use super::base;
use super::file;
use super::locate::{Hierarchy, Located};

/// How deep the walk goes below a mount point.
const DEPTH_MAX: u32 = 12;
/// How many directories one walk opens at most.
const DIRECTORIES_MAX: u32 = 20_000;

/// Calls `each` with the name of every directory in a group.
pub(super) fn each_directory(dir: BorrowedFd<'_>, each: &mut dyn FnMut(&CStr)) -> io::Result<()> {
    let readable = file::open(dir, c".", OFlags::RDONLY | OFlags::DIRECTORY)?;
    for entry in Dir::new(readable)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() == FileType::Directory && name != c"." && name != c".." {
            each(name);
        }
    }
    Ok(())
}

struct Walk<'a> {
    name: &'a CStr,
    budget: u32,
    found: Vec<(OwnedFd, PathBuf)>,
}

impl Walk<'_> {
    /// What cannot be opened is passed over: it went away, or is not for us.
    fn below(&mut self, dir: BorrowedFd<'_>, path: &Path, depth: u32) {
        let mut names: Vec<CString> = Vec::new();
        let _ = each_directory(dir, &mut |name| names.push(name.to_owned()));
        for name in names {
            if self.budget == 0 {
                return;
            }
            self.budget -= 1;
            let Ok(child) = file::open_dir(dir, &name) else {
                continue;
            };
            let child_path = path.join(name.to_string_lossy().as_ref());
            if name.as_c_str() == self.name {
                self.found.push((child, child_path));
            } else if depth > 1 {
                self.below(child.as_fd(), &child_path, depth - 1);
            }
        }
    }
}

/// Every directory called `name` in any hierarchy, but those at the paths of `ours`.
pub(super) fn find(located: &Located, name: &CStr, ours: &[&Path]) -> Vec<Tree> {
    let mut trees = Vec::new();
    let mut seen = Vec::new();
    let all = located.v1.iter().map(|one| (one, false));
    for (hierarchy, v2) in all.chain(located.v2.iter().map(|one| (one, true))) {
        let Hierarchy {
            mount, controllers, ..
        } = hierarchy;
        let Ok((top, device)) = base::open_mount(mount, v2) else {
            continue;
        };
        if seen.contains(&device) {
            continue;
        }
        seen.push(device);
        let mut walk = Walk {
            name,
            budget: DIRECTORIES_MAX,
            found: Vec::new(),
        };
        walk.below(top.as_fd(), mount, DEPTH_MAX);
        for (base, path) in walk.found {
            if !ours.contains(&path.as_path()) {
                trees.push(Tree {
                    v2,
                    set: *controllers,
                    swap: false,
                    base,
                    path,
                    stray: true,
                });
            }
        }
    }
    trees
}
