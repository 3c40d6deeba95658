//! Packages of the user's that are baked into a template: pure Python, nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{file, read};
use crate::{BuildError, Input, digest};

/// Most files, and most bytes of all of them.
const FILES_MAX: u64 = 20_000;
const BYTES_MAX: u64 = 128 << 20;

/// Endings of machine code.
const NATIVE: [&str; 6] = ["so", "pyd", "dylib", "dll", "a", "o"];

/// Where packages come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packages {
    /// There are none.
    None,
    /// A folder of importable modules, as `pip install --target` makes it.
    Folder(PathBuf),
    /// A list of requirements that pip reads. Only wheels of pure Python are taken.
    Requirements(PathBuf),
}

impl Packages {
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::None => None,
            Self::Folder(path) | Self::Requirements(path) => Some(path),
        }
    }

    pub(crate) fn inputs(&self) -> Result<Vec<Input>, BuildError> {
        let (name, sha256) = match self {
            Self::None => return Ok(Vec::new()),
            Self::Folder(path) => ("packages", tree(path)?),
            Self::Requirements(path) => ("requirements", digest::of(&read(path, 1 << 20)?)),
        };
        Ok(vec![Input {
            name: name.to_owned(),
            sha256,
        }])
    }
}

/// Copies a tree of packages, without what an interpreter left in it.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), BuildError> {
    for (relative, path) in files(from)? {
        let target = to.join(relative);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(file("create", parent))?;
        }
        fs::copy(&path, &target).map_err(file("copy", &path))?;
    }
    Ok(())
}

/// Refuses a tree with machine code in it, and one that is too large.
pub(crate) fn check(folder: &Path) -> Result<(), BuildError> {
    files(folder).map(drop)
}

/// Name and version of each package in a folder, as the names of their metadata say, sorted.
pub(crate) fn listed(folder: &Path) -> Result<Vec<String>, BuildError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(file("list", folder))? {
        let name = entry.map_err(file("list", folder))?.file_name();
        let name = name.to_string_lossy();
        let Some((package, version)) = name
            .strip_suffix(".dist-info")
            .and_then(|name| name.split_once('-'))
        else {
            continue;
        };
        found.push(format!("{package} {version}"));
    }
    found.sort();
    Ok(found)
}

fn tree(folder: &Path) -> Result<String, BuildError> {
    let mut parts = Vec::new();
    for (relative, path) in files(folder)? {
        parts.push(relative.to_string_lossy().into_owned().into_bytes());
        parts.push(read(&path, BYTES_MAX)?);
    }
    Ok(digest::list(parts.iter().map(Vec::as_slice)))
}

/// All files below `folder`, sorted: relative path and path.
fn files(folder: &Path) -> Result<Vec<(PathBuf, PathBuf)>, BuildError> {
    let mut found = Vec::new();
    let mut bytes = 0;
    let mut waiting = vec![folder.to_owned()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(&at).map_err(file("list", &at))? {
            let entry = entry.map_err(file("list", &at))?;
            let path = entry.path();
            // Symbolic links are followed nowhere: what they lead to is not of the tree.
            let kind = entry.metadata().map_err(file("look at", &path))?;
            if kind.is_dir() {
                if entry.file_name() != "__pycache__" {
                    waiting.push(path);
                }
                continue;
            }
            if !kind.is_file() {
                continue;
            }
            let native = |ending: &std::ffi::OsStr| NATIVE.iter().any(|native| ending == *native);
            if path.extension().is_some_and(native) {
                return Err(BuildError::Native(path));
            }
            bytes += kind.len();
            let relative = path.strip_prefix(folder).unwrap_or(&path).to_owned();
            found.push((relative, path));
            for (much, max, what) in [
                (found.len() as u64, FILES_MAX, "files"),
                (bytes, BYTES_MAX, "bytes"),
            ] {
                if much > max {
                    let path = folder.to_owned();
                    return Err(BuildError::TooMuch { path, max, what });
                }
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn write(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_digest_of_a_tree_is_of_names_and_contents() {
        let folder = Scratch::new();
        let packages = Packages::Folder(folder.path().to_owned());
        let mut seen = Vec::new();
        for (name, text) in [("a/__init__.py", ""), ("a/b.py", "1"), ("a/b.py", "2")] {
            write(folder.path(), name, text);
            let inputs = packages.inputs().unwrap();
            assert!(!seen.contains(&inputs));
            seen.push(inputs);
        }
        write(
            folder.path(),
            "a/__pycache__/b.pyc",
            "left by an interpreter",
        );
        assert_eq!(packages.inputs().unwrap(), seen[2]);
    }

    #[test]
    fn packages_are_told_by_their_metadata() {
        let folder = Scratch::new();
        for name in [
            "tzdata-2026.6.dist-info/METADATA",
            "tzdata/__init__.py",
            "b_c-1.0.dist-info/RECORD",
        ] {
            write(folder.path(), name, "");
        }
        assert_eq!(listed(folder.path()).unwrap(), ["b_c 1.0", "tzdata 2026.6"]);
    }

    #[test]
    fn machine_code_is_refused_by_name() {
        let folder = Scratch::new();
        write(
            folder.path(),
            "fast/_core.cpython-314-x86_64-linux-gnu.so",
            "",
        );
        let error = check(folder.path()).unwrap_err();
        assert!(error.to_string().contains("_core.cpython"), "{error}");
    }

    #[test]
    fn a_copy_is_the_tree_without_links() {
        let folder = Scratch::new();
        let target = Scratch::new();
        write(folder.path(), "a/b.py", "text");
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("link")).unwrap();
        copy(folder.path(), target.path()).unwrap();
        assert_eq!(
            fs::read_to_string(target.path().join("a/b.py")).unwrap(),
            "text"
        );
        assert!(!target.path().join("link").exists());
    }
}
