//! Hostile trees against the real collector process, and a hostile collector against us.
//!
//! As root the trees belong to an id like those of sandboxes, else to whoever runs the tests.

mod bounds;
mod export;
mod links;
mod objects;
mod protocol;
mod race;

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};

use leasehold_core::record::Artifact;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::*;
use crate::scratch_directory::ScratchDirectory;

/// Bytes that must never be collected.
const CANARY: &str = "canary: bytes of the host";

/// A workspace, a canary outside it, and a place for copies.
struct Tree {
    root: ScratchDirectory,
}

impl Tree {
    fn new(test: &str) -> Self {
        let root = ScratchDirectory::new(test);
        for name in ["ws", "staging", "outside", "out"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        fs::write(root.path().join("outside/canary"), CANARY).unwrap();
        Self { root }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.path().join(below)
    }

    fn ws(&self, below: &str) -> PathBuf {
        self.path("ws").join(below)
    }

    /// Writes a file of the workspace and the directories above it.
    fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.ws(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn link(&self, target: impl AsRef<Path>, name: &str) {
        std::os::unix::fs::symlink(target, self.ws(name)).unwrap();
    }

    fn job(&self, globs: &[&str]) -> CollectJob {
        let (uid, gid) = workload();
        give(&self.path("ws"), uid, gid);
        CollectJob {
            workspace: directory(&self.path("ws")),
            staging: directory(&self.path("staging")),
            globs: globs.iter().map(|glob| (*glob).to_owned()).collect(),
            host_uid: uid,
            host_gid: gid,
            bounds: CollectBounds::default(),
        }
    }

    fn collect(&self, globs: &[&str]) -> Vec<Artifact> {
        let collected = self.collect_within(globs, CollectBounds::default());
        assert_eq!(collected.cut, None);
        collected.artifacts
    }

    fn collect_within(&self, globs: &[&str], bounds: CollectBounds) -> Collected {
        let job = CollectJob {
            bounds,
            ..self.job(globs)
        };
        start(job).unwrap().finish().unwrap()
    }

    fn staged(&self, place: usize) -> Vec<u8> {
        fs::read(self.path("staging").join(staged_name(place))).unwrap()
    }

    fn staged_names(&self) -> Vec<String> {
        let names = fs::read_dir(self.path("staging")).unwrap();
        let mut names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn empty_staging(&self) {
        for name in self.staged_names() {
            fs::remove_file(self.path("staging").join(name)).unwrap();
        }
    }

    /// Whether bytes of the canary were staged.
    fn leaked(&self) -> bool {
        (0..self.staged_names().len().max(64))
            .filter_map(|place| fs::read(self.path("staging").join(staged_name(place))).ok())
            .any(|content| content.windows(6).any(|bytes| bytes == b"canary"))
    }
}

/// The ids of the workload in these tests.
pub(super) fn workload() -> (u32, u32) {
    let own = rustix::process::geteuid();
    if own.is_root() {
        (0x6000_03e8, 0x6000_03e8)
    } else {
        (own.as_raw(), rustix::process::getegid().as_raw())
    }
}

fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIP {test}: needs root");
    }
    root
}

/// Gives a tree to an id, links themselves and not where they point.
pub(super) fn give(path: &Path, uid: u32, gid: u32) {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return;
    };
    if meta.uid() != uid {
        let _ = lchown(path, Some(uid), Some(gid));
    }
    if meta.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path(), uid, gid);
        }
    }
}

pub(super) fn directory(path: &Path) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).unwrap()
}

/// Path and reason of each row.
fn rows(artifacts: &[Artifact]) -> Vec<(&str, &str)> {
    artifacts
        .iter()
        .map(|row| {
            let reason = row.skipped.as_deref().unwrap_or("taken");
            (row.path.as_str(), reason)
        })
        .collect()
}

#[test]
fn files_are_copied_under_their_place_with_their_digest() {
    let tree = Tree::new("collect-files");
    tree.put("out/b.csv", "bb");
    tree.put("out/a.csv", "a");
    tree.put("out/c.txt", "c");
    tree.put("other", "other");
    let artifacts = tree.collect(&["out/*.csv", "missing", "other"]);
    assert_eq!(
        rows(&artifacts),
        [
            ("other", "taken"),
            ("out/a.csv", "taken"),
            ("out/b.csv", "taken"),
            ("missing", "not_found"),
        ]
    );
    assert_eq!(tree.staged_names(), ["0001", "0002", "0003"]);
    assert_eq!(tree.staged(2), b"bb");
    assert_eq!(artifacts[2].bytes, 2);
    let digest = "3b64db95cb55c763391c707108489ae18b4112d783300de38e033b4c98c3deaf";
    assert_eq!(artifacts[2].sha256.as_deref(), Some(digest));
    let staged = fs::metadata(tree.path("staging/0001")).unwrap();
    assert_eq!(staged.mode() & 0o777, 0o600);
    assert_eq!(staged.uid(), rustix::process::geteuid().as_raw());
}

#[test]
fn a_directory_stands_for_everything_below_it() {
    let tree = Tree::new("collect-directory");
    tree.put("out/deep/er/x", "x");
    tree.put("out/y", "y");
    tree.put("z", "z");
    let want = [("out/deep/er/x", "taken"), ("out/y", "taken")];
    for glob in ["out", "out/", "out/**", "/workspace/out", "o?t"] {
        assert_eq!(rows(&tree.collect(&[glob])), want, "{glob}");
        tree.empty_staging();
    }
    assert_eq!(tree.collect(&["**"]).len(), 3);
}

/// While it waits for us, the kernel says what it is.
#[test]
fn the_collector_has_no_rights() {
    let tree = Tree::new("collect-confined");
    tree.put("x", "x");
    let collector = start(tree.job(&["x"])).unwrap();
    let mut polled = [PollFd::new(&collector.socket, PollFlags::IN)];
    let limit = Timespec::try_from(Duration::from_secs(10)).unwrap();
    assert_eq!(poll(&mut polled, Some(&limit)).unwrap(), 1);
    let info = fs::read_to_string(format!(
        "/proc/self/fdinfo/{}",
        std::os::fd::AsRawFd::as_raw_fd(&collector.pidfd)
    ));
    let info = info.unwrap();
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    let proc = format!("/proc/{}", pid.unwrap().trim());
    let status = fs::read_to_string(format!("{proc}/status")).unwrap();
    let line = |name: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap().trim().to_owned()
    };
    let (uid, gid) = workload();
    assert_eq!(line("Uid:"), ids(uid));
    assert_eq!(line("Gid:"), ids(gid));
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(line(set), "0000000000000000", "{set}");
    }
    assert_eq!(line("NoNewPrivs:"), "1");
    assert_eq!(line("Seccomp:"), "2");
    assert_eq!(line("CapBnd:"), "0000000000000000");
    if is_root("the_collector_has_no_rights (groups, root directory, descriptors)") {
        assert_eq!(line("Groups:"), "");
        let open = fs::read_dir(format!("{proc}/fd")).unwrap().count();
        assert!(open <= 8, "{open} descriptors are open in it");
        let root = fs::read_link(format!("{proc}/root")).unwrap();
        assert_eq!(root, tree.path("ws"));
    }
    let limits = fs::read_to_string(format!("{proc}/limits")).unwrap();
    let processes = limits
        .lines()
        .find(|line| line.starts_with("Max processes"));
    assert!(processes.unwrap().contains(" 0 "), "{limits}");
    assert_eq!(
        rows(&collector.finish().unwrap().artifacts),
        [("x", "taken")]
    );
    assert!(!Path::new(&proc).exists());
}

/// Real, effective, saved and file system id, all the same.
fn ids(id: u32) -> String {
    format!("{id}\t{id}\t{id}\t{id}")
}

#[test]
fn what_cannot_be_confined_looks_at_nothing() {
    let tree = Tree::new("collect-unconfined");
    tree.put("x", "x");
    let job = CollectJob {
        host_uid: u32::MAX,
        ..tree.job(&["x"])
    };
    let error = start(job).unwrap().finish().unwrap_err();
    assert!(matches!(error, CollectError::Confine { .. }), "{error}");
    assert!(tree.staged_names().is_empty());
}
