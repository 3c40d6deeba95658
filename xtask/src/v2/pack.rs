//! Filling the guest's tree: programs with the libraries they need, busybox, accounts.
//!
//! Takes files of this machine; must not run in the guest or decide what is tested there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::cpio::{Entry, Tree};
use crate::step;

/// The base of every guest: a merged `/usr`, accounts and a home for one ordinary user.
pub(super) fn base(busybox: &Path) -> Result<Tree> {
    let mut tree = Tree::default();
    for folder in [
        "dev",
        "proc",
        "sys",
        "tmp",
        "run",
        "home/user",
        "usr/sbin",
        "usr/lib",
        "usr/lib64",
    ] {
        tree.add(folder, Entry::Directory(0o755));
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        tree.add(name, Entry::Link(format!("usr/{name}")));
    }
    file(&mut tree, busybox, "usr/bin/busybox")?;
    tree.add("usr/bin/sh", Entry::Link("busybox".into()));
    for (path, text) in [
        (
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n",
        ),
        ("etc/group", "root:x:0:\nuser:x:1000:\n"),
        ("etc/subuid", "user:100000:65536\n"),
        ("etc/subgid", "user:100000:65536\n"),
        ("etc/nsswitch.conf", "passwd: files\ngroup: files\n"),
        ("etc/hosts", "127.0.0.1 localhost\n"),
        ("etc/hostname", "guest\n"),
    ] {
        tree.add(path, Entry::File(0o644, text.as_bytes().to_vec()));
    }
    Ok(tree)
}

/// Adds a link to busybox for each of its applets whose name is still free.
pub(super) fn applets(tree: &mut Tree, busybox: &Path) -> Result<()> {
    for name in step::output(Command::new(busybox).arg("--list"))?.lines() {
        let path = format!("usr/bin/{name}");
        if !tree.has(&path) {
            tree.add(&path, Entry::Link("busybox".into()));
        }
    }
    Ok(())
}

/// Adds one file with its permission bits.
pub(super) fn file(tree: &mut Tree, from: &Path, to: &str) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("read {}", from.display()))?;
    let mode = fs::metadata(from)
        .with_context(|| format!("look at {}", from.display()))?
        .permissions()
        .mode();
    tree.add(to, Entry::File(mode & 0o7777, bytes));
    Ok(())
}

/// Adds a program and the shared libraries that `ldd` lists for it.
pub(super) fn program(tree: &mut Tree, from: &Path, to: &str) -> Result<()> {
    file(tree, from, to)?;
    // `ldd` fails for a static program, which needs nothing.
    let listed = step::output(Command::new("ldd").arg(from)).unwrap_or_default();
    for library in libraries(&listed) {
        let inside = merged(library);
        if !tree.has(&inside) {
            file(tree, Path::new(library), &inside)?;
        }
    }
    Ok(())
}

/// Adds every regular file below a folder, as it is.
pub(super) fn folder(tree: &mut Tree, from: &Path, to: &str) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry.with_context(|| format!("list {}", from.display()))?;
        let inside = format!("{to}/{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type().context("type of an entry")?;
        if kind.is_dir() {
            folder(tree, &entry.path(), &inside)?;
        } else if kind.is_file() {
            file(tree, &entry.path(), &inside)?;
        }
    }
    Ok(())
}

/// The paths in the output of `ldd`: behind `=>`, or alone for the loader.
fn libraries(listed: &str) -> Vec<&str> {
    listed
        .lines()
        .filter_map(|line| {
            let line = line.split(" (").next()?.trim();
            let path = line.rsplit("=> ").next()?.trim();
            path.starts_with('/').then_some(path)
        })
        .collect()
}

/// The place of a library in a merged `/usr`.
fn merged(path: &str) -> String {
    if path.starts_with("/usr/") {
        path.trim_start_matches('/').to_owned()
    } else {
        format!("usr{path}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_a_dynamic_program_are_found() {
        let listed = "\tlinux-vdso.so.1 (0x7ffe)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        assert_eq!(
            libraries(listed),
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
        assert!(libraries("\tstatically linked\n").is_empty());
    }

    #[test]
    fn libraries_land_in_the_merged_tree() {
        assert_eq!(merged("/lib64/ld.so"), "usr/lib64/ld.so");
        assert_eq!(merged("/usr/lib/x.so"), "usr/lib/x.so");
    }
}
