//! A folder of this host as the tree of an archive: plain files and folders, bounded while they are read.
//! Anything else is refused by name, since it cannot be sent.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use leasehold_control::archive::{ARCHIVE_MAX, DEPTH_MAX, ENTRIES_MAX, Entry, Tree};
use rustix::fs::OFlags;

use crate::fault::Fault;

/// What is gathered.
pub(crate) struct Gathering<'a> {
    /// How it is called: `the workspace`.
    pub(crate) what: &'a str,
    /// Whether folders go along although nothing is in them.
    pub(crate) folders: bool,
    /// What is left out, by its path and name.
    pub(crate) leave_out: &'a dyn Fn(&Path, &str) -> bool,
}

impl Gathering<'_> {
    /// Reads everything below a folder; names begin with `prefix`, which is empty or a folder's own.
    ///
    /// # Errors
    /// What cannot be read or sent, by its path; more entries, bytes or levels than an archive may have.
    pub(crate) fn gather(&self, folder: &Path, prefix: &str) -> Result<Tree, Fault> {
        let mut tree = Tree::new();
        self.below(folder, prefix, 0, &mut 0, &mut tree)?;
        Ok(tree)
    }

    fn below(
        &self,
        folder: &Path,
        prefix: &str,
        depth: usize,
        bytes: &mut usize,
        tree: &mut Tree,
    ) -> Result<(), Fault> {
        if depth > DEPTH_MAX {
            return Err(Fault::usage(format!(
                "{} is deeper than {DEPTH_MAX} folders",
                folder.display()
            )));
        }
        for (name, path) in names(folder)? {
            if (self.leave_out)(&path, &name) {
                continue;
            }
            let inside = match prefix {
                "" => name,
                prefix => format!("{prefix}/{name}"),
            };
            if tree.len() >= ENTRIES_MAX {
                return Err(self.too_much(ENTRIES_MAX, "entries"));
            }
            let kind = fs::symlink_metadata(&path).map_err(|error| failed(&path, &error))?;
            if kind.is_dir() {
                if self.folders {
                    tree.insert(inside.clone(), Entry::Folder);
                }
                self.below(&path, &inside, depth + 1, bytes, tree)?;
            } else {
                let room = ARCHIVE_MAX - *bytes;
                let (executable, content) = self.file(&path, room)?;
                *bytes += content.len();
                let file = Entry::File {
                    executable,
                    content,
                };
                tree.insert(inside, file);
            }
        }
        Ok(())
    }

    /// A file with at most so many bytes; one that grows meanwhile is not read on for ever.
    fn file(&self, path: &Path, room: usize) -> Result<(bool, Vec<u8>), Fault> {
        let no_file = || {
            Fault::usage(format!(
                "{} is no regular file: links and devices cannot be part of {}",
                path.display(),
                self.what
            ))
        };
        // What was put in its place meanwhile is neither followed nor waited for.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)
            .map_err(|error| match error.raw_os_error() {
                Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => no_file(),
                Some(code) if code == rustix::io::Errno::NXIO.raw_os_error() => no_file(),
                _ => failed(path, &error),
            })?;
        let meta = file.metadata().map_err(|error| failed(path, &error))?;
        if !meta.is_file() {
            return Err(no_file());
        }
        let mut content = Vec::new();
        file.take(room as u64 + 1)
            .read_to_end(&mut content)
            .map_err(|error| failed(path, &error))?;
        if content.len() > room {
            return Err(self.too_much(ARCHIVE_MAX, "bytes"));
        }
        Ok((meta.permissions().mode() & 0o100 != 0, content))
    }

    fn too_much(&self, most: usize, of: &str) -> Fault {
        Fault::usage(format!(
            "{} has more than {most} {of}, which is the most that is sent",
            self.what
        ))
    }
}

/// What is in a folder, by name.
fn names(folder: &Path) -> Result<BTreeMap<String, PathBuf>, Fault> {
    let mut names = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(|error| failed(folder, &error))? {
        let entry = entry.map_err(|error| failed(folder, &error))?;
        let name = entry.file_name().into_string().map_err(|_| {
            Fault::usage(format!(
                "{} has a name that is not UTF-8",
                entry.path().display()
            ))
        })?;
        names.insert(name, entry.path());
    }
    Ok(names)
}

fn failed(path: &Path, error: &io::Error) -> Fault {
    Fault::usage(format!("cannot read {}", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Gathering<'static> {
        Gathering {
            what: "the workspace",
            folders: true,
            leave_out: &|_, _| false,
        }
    }

    #[test]
    fn a_tree_is_gathered_and_what_is_no_file_is_refused() {
        let root = std::env::temp_dir().join(format!("leasehold-gather-{}", std::process::id()));
        fs::create_dir_all(root.join("a/empty")).unwrap();
        fs::write(root.join("a/x"), "1").unwrap();
        let names = |gathering: &Gathering<'_>| {
            let tree = gathering.gather(&root, "").unwrap();
            tree.keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(names(&all()), ["a", "a/empty", "a/x"]);
        let files = Gathering {
            folders: false,
            ..all()
        };
        assert_eq!(names(&files), ["a/x"]);
        let none = Gathering {
            leave_out: &|_, name| name == "x",
            ..all()
        };
        assert_eq!(names(&none), ["a", "a/empty"]);
        let place = root.join("a/y");
        std::os::unix::fs::symlink("/etc/shadow", &place).unwrap();
        let refused = || all().gather(&root, "").unwrap_err().chain();
        assert!(
            refused().contains("a/y is no regular file"),
            "{}",
            refused()
        );
        fs::remove_file(&place).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(&place).unwrap();
        assert!(
            refused().contains("a/y is no regular file"),
            "{}",
            refused()
        );
        drop(socket);
        fs::remove_file(&place).unwrap();
        let long = fs::File::create(&place).unwrap();
        long.set_len(ARCHIVE_MAX as u64).unwrap();
        assert!(
            refused().contains("more than 67108864 bytes"),
            "{}",
            refused()
        );
        fs::remove_dir_all(root).unwrap();
    }
}
