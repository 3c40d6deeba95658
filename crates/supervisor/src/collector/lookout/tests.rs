//! Real trees under a real lookout, each way to bring in a file that the host obeys, and bounds.
//!
//! As root the trees belong to an id like those of sandboxes, else to whoever runs the tests.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use leasehold_core::record::LeftChange as C;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::collector::tests::{directory, give, workload};
use crate::scratch_directory::ScratchDirectory;

struct Tree(ScratchDirectory);

impl Tree {
    fn new(test: &str) -> Self {
        Self(ScratchDirectory::new(&format!("lookout-{test}")))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn own(&self) {
        let (uid, gid) = workload();
        give(self.0.path(), uid, gid);
    }

    fn post(&self, bounds: LookBounds) -> Lookout {
        self.own();
        let (host_uid, host_gid) = workload();
        let mut lookout = start(LookJob {
            workspace: directory(self.0.path()),
            host_uid,
            host_gid,
            bounds,
        })
        .unwrap();
        await_phase(&mut lookout, Phase::Before);
        lookout
    }

    /// What is told after `change`, within bounds.
    fn within(&self, bounds: LookBounds, change: impl FnOnce(&Self)) -> LeftOnHost {
        let mut lookout = self.post(bounds);
        change(self);
        self.own();
        lookout.look_again();
        await_phase(&mut lookout, Phase::After);
        assert_eq!(lookout.phase(), Phase::Over);
        lookout.found().clone()
    }

    fn after(&self, change: impl FnOnce(&Self)) -> Vec<(String, C)> {
        let left = self.within(LookBounds::default(), change);
        assert_eq!(left.incomplete, None);
        let rows = left.files.into_iter();
        rows.map(|file| (file.path, file.change)).collect()
    }
}

/// Waits until a phase is over.
fn await_phase(lookout: &mut Lookout, phase: Phase) {
    while lookout.advance() == phase {
        let limit = Timespec::try_from(Duration::from_secs(20)).unwrap();
        let mut polled = [PollFd::new(&lookout.socket, PollFlags::IN)];
        assert_eq!(poll(&mut polled, Some(&limit)).unwrap(), 1);
    }
}

fn row(path: &str, change: C) -> (String, C) {
    (path.to_owned(), change)
}

fn repository(tree: &Tree, at: &str) {
    tree.put(&format!("{at}/HEAD"), "ref: refs/heads/main\n");
    for name in ["objects", "refs", "hooks"] {
        fs::create_dir_all(tree.at(&format!("{at}/{name}"))).unwrap();
    }
    tree.put(&format!("{at}/config"), "[core]\n\tbare = false\n");
}

#[test]
fn p40_nothing_is_told_of_what_nobody_touched_or_obeys() {
    let tree = Tree::new("quiet");
    repository(&tree, ".git");
    tree.put(".git/hooks/pre-commit", "#!/bin/sh\n");
    tree.put("src/main.rs", "fn main() {}");
    symlink("src", tree.at("link")).unwrap();
    let rows = tree.after(|tree| {
        tree.put("src/main.rs", "fn main() { }");
        tree.put("src/new", "x");
        tree.put("hooks/readme", "x");
        tree.put(".git/objects/ab/cdef", "x");
        tree.put(".git/HEAD", "ref: refs/heads/other\n");
        symlink("/etc", tree.at("src/etc")).unwrap();
        // Reading changes nothing.
        fs::read(tree.at(".git/hooks/pre-commit")).unwrap();
    });
    assert_eq!(rows, []);
}

#[test]
fn p40_what_is_made_changed_linked_moved_in_or_gone_is_told() {
    let tree = Tree::new("ways");
    repository(&tree, ".git");
    for name in ["changed", "renamed", "linked", "mode", "same", "gone"] {
        tree.put(&format!(".git/hooks/{name}"), "#!/bin/sh\n");
    }
    tree.put("data/file", "#!/bin/sh\nevil\n");
    tree.put(".bashrc", "");
    let rows = tree.after(|tree| {
        let hook = |name: &str| tree.at(&format!(".git/hooks/{name}"));
        tree.put(".envrc", "x");
        // The content is another, all times are put back, the length stays.
        let before = fs::metadata(hook("changed")).unwrap().modified().unwrap();
        fs::write(hook("changed"), "#!/bin/cp\n").unwrap();
        let file = fs::File::options()
            .write(true)
            .open(hook("changed"))
            .unwrap();
        file.set_modified(before).unwrap();
        fs::write(tree.at("new"), "#!/bin/sh\n").unwrap();
        fs::rename(tree.at("new"), hook("renamed")).unwrap();
        fs::remove_file(hook("linked")).unwrap();
        fs::hard_link(tree.at("data/file"), hook("linked")).unwrap();
        fs::set_permissions(hook("mode"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::remove_file(hook("gone")).unwrap();
        fs::remove_file(tree.at(".bashrc")).unwrap();
        symlink("data/file", tree.at(".bashrc")).unwrap();
    });
    assert_eq!(
        rows,
        [
            row(".bashrc", C::Changed),
            row(".envrc", C::Created),
            row(".git/hooks/changed", C::Changed),
            row(".git/hooks/gone", C::Removed),
            row(".git/hooks/linked", C::Changed),
            row(".git/hooks/mode", C::Changed),
            row(".git/hooks/renamed", C::Changed),
        ]
    );
}

#[test]
fn p40_a_replaced_parent_brings_its_files_along() {
    let tree = Tree::new("parent");
    repository(&tree, "a/.git");
    tree.put("a/.git/hooks/pre-commit", "#!/bin/sh\n");
    tree.put("b/x/pre-push.txt", "");
    tree.put("b/x/anything", "#!/bin/sh\nevil\n");
    tree.put("old/.envrc", "old");
    let rows = tree.after(|tree| {
        fs::remove_dir_all(tree.at("a/.git/hooks")).unwrap();
        fs::rename(tree.at("b/x"), tree.at("a/.git/hooks")).unwrap();
        fs::rename(tree.at("old"), tree.at("moved")).unwrap();
    });
    assert_eq!(
        rows,
        [
            row("a/.git/hooks/anything", C::Created),
            row("a/.git/hooks/pre-commit", C::Removed),
            row("a/.git/hooks/pre-push.txt", C::Created),
            row("moved/.envrc", C::Created),
            row("old/.envrc", C::Removed),
        ]
    );
}

#[test]
fn p40_repositories_are_known_wherever_they_are() {
    let tree = Tree::new("nested");
    repository(&tree, ".git/modules/lib");
    tree.put("lib/.git", "gitdir: ../.git/modules/lib\n");
    repository(&tree, "data/plain");
    let rows = tree.after(|tree| {
        tree.put(".git/modules/lib/hooks/post-checkout", "x");
        tree.put("lib/.git", "gitdir: ../data/plain\n");
        tree.put("data/plain/hooks/any", "x");
        tree.put("data/plain/config", "[core]\n\tfsmonitor = evil\n");
        repository(tree, "deep/er/new");
    });
    assert_eq!(
        rows,
        [
            row(".git/modules/lib/hooks/post-checkout", C::Created),
            row("data/plain/config", C::Changed),
            row("data/plain/hooks/any", C::Created),
            row("deep/er/new/config", C::Created),
            row("lib/.git", C::Changed),
        ]
    );
}

#[test]
fn p40_where_links_and_settings_lead_is_looked_at_too() {
    let tree = Tree::new("leads");
    repository(&tree, "real");
    symlink("real", tree.at(".git")).unwrap();
    tree.put("real/config", "[core]\n\thooksPath = tools/git\n");
    tree.put("real/hooks/pre-commit", "x");
    tree.put("tools/git/any", "x");
    tree.put("scripts/check", "x");
    fs::create_dir_all(tree.at("two/.git/hooks")).unwrap();
    symlink("../../../scripts/check", tree.at("two/.git/hooks/pre-push")).unwrap();
    symlink("..", tree.at("tools/.vscode")).unwrap();
    symlink("/etc", tree.at(".idea")).unwrap();
    symlink("../outside", tree.at(".husky")).unwrap();
    let rows = tree.after(|tree| {
        tree.put("tools/git/any", "y");
        tree.put("real/hooks/pre-commit", "y");
        tree.put("scripts/check", "y");
        tree.put("src/plain", "y");
    });
    let told: Vec<&str> = rows.iter().map(|(path, _)| path.as_str()).collect();
    for path in [
        "tools/git/any",
        ".git/hooks/pre-commit",
        "two/.git/hooks/pre-push",
    ] {
        assert!(told.contains(&path), "{path}: {told:?}");
    }
    assert!(!told.contains(&"src/plain"), "{told:?}");
}

#[test]
fn p40_a_directory_that_is_shut_is_told() {
    let tree = Tree::new("shut");
    tree.put("shut/.envrc", "x");
    tree.put("was/x", "x");
    tree.own();
    let shut = |tree: &Tree, name: &str, mode| {
        fs::set_permissions(tree.at(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    shut(&tree, "was", 0);
    let mut lookout = tree.post(LookBounds::default());
    fs::create_dir(tree.at("new")).unwrap();
    tree.own();
    shut(&tree, "new", 0);
    shut(&tree, "shut", 0o300);
    lookout.look_again();
    await_phase(&mut lookout, Phase::After);
    let left = lookout.found().clone();
    for name in ["was", "new", "shut"] {
        shut(&tree, name, 0o700);
    }
    assert_eq!(left.incomplete, None);
    let rows: Vec<_> = left
        .files
        .iter()
        .map(|file| (&*file.path, file.change))
        .collect();
    assert_eq!(
        rows,
        [
            ("new", C::Unreadable),
            ("shut", C::Unreadable),
            ("shut/.envrc", C::Removed),
        ]
    );
}

/// A pipe of such a name would hold whoever opens it.
#[test]
fn p40_what_is_no_file_is_told_and_not_opened() {
    let tree = Tree::new("pipe");
    let mode = rustix::fs::Mode::RWXU;
    let pipe = |path: &Path| {
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
    };
    pipe(&tree.at(".profile"));
    fs::create_dir(tree.at("sub")).unwrap();
    let rows = tree.after(|tree| {
        pipe(&tree.at(".envrc"));
        symlink("../.profile", tree.at("sub/.envrc")).unwrap();
    });
    assert_eq!(
        rows,
        [row(".envrc", C::Created), row("sub/.envrc", C::Created)]
    );
}

#[test]
fn p40_every_bound_is_told() {
    let tree = Tree::new("bounds");
    for at in 0..40 {
        tree.put(&format!("d{at:02}/.envrc"), "x");
    }
    tree.put("a/b/c/d/e/.envrc", "x");
    symlink("d00", tree.at(".vscode")).unwrap();
    let bounds = LookBounds::default();
    let told = |bounds: LookBounds| {
        let left = tree.within(bounds, |tree| tree.put("d39/.envrc", "other"));
        left.incomplete.unwrap_or_default()
    };
    assert_eq!(told(bounds), "");
    assert_eq!(
        told(LookBounds {
            entries: 20,
            ..bounds
        }),
        "entries"
    );
    assert_eq!(told(LookBounds { depth: 3, ..bounds }), "depth");
    assert_eq!(
        told(LookBounds {
            files: 10,
            ..bounds
        }),
        "files"
    );
    assert_eq!(
        told(LookBounds {
            path_bytes: 99,
            ..bounds
        }),
        "files"
    );
    assert_eq!(told(LookBounds { leads: 0, ..bounds }), "files");
    let none = Duration::ZERO;
    assert_eq!(
        told(LookBounds {
            time: none,
            ..bounds
        }),
        "time"
    );
    let many = |tree: &Tree| (0..9).for_each(|at| tree.put(&format!("n{at}/.envrc"), ""));
    let few = LookBounds { rows: 5, ..bounds };
    let left = tree.within(few, many);
    assert_eq!(
        (left.files.len(), left.incomplete.as_deref()),
        (5, Some("record"))
    );
}

/// What the first look did not come to is not called new.
#[test]
fn p40_a_first_look_that_was_cut_is_told() {
    let tree = Tree::new("cut");
    for at in 0..9 {
        tree.put(&format!("d{at}/.envrc"), "x");
    }
    let bounds = LookBounds {
        entries: 8,
        ..LookBounds::default()
    };
    let left = tree.within(bounds, |tree| {
        for at in 0..7 {
            fs::remove_dir_all(tree.at(&format!("d{at}"))).unwrap();
        }
    });
    assert_eq!(left.incomplete.as_deref(), Some("entries"));
    assert!(left.files.iter().all(|file| file.change == C::Uncompared));
    assert!(!left.files.is_empty());
}

#[test]
fn p40_a_lookout_that_dies_or_lies_is_told() {
    let tree = Tree::new("died");
    let mut lookout = tree.post(LookBounds::default());
    assert_eq!(lookout.phase(), Phase::Waiting);
    let killed = rustix::process::Signal::KILL;
    rustix::process::pidfd_send_signal(&lookout.pidfd, killed).unwrap();
    lookout.look_again();
    await_phase(&mut lookout, Phase::After);
    assert_eq!(lookout.found().incomplete.as_deref(), Some("died"));

    let flags = SocketFlags::CLOEXEC;
    let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let lies: [Message; 2] = [
        // Before it is asked, and twice.
        Message::Row {
            change: C::Created,
            path: b"x".to_vec(),
        },
        Message::Ready,
    ];
    for lie in lies {
        let mut lookout = tree.post(LookBounds::default());
        let (ours, theirs) = pair();
        lookout.socket = ours;
        send(&theirs, &lie.encode(), SendFlags::NOSIGNAL).unwrap();
        assert_eq!(lookout.advance(), Phase::Over);
        assert_eq!(lookout.found().incomplete.as_deref(), Some("failed"));
    }
}

/// Fifty thousand files cost a moment and not a call each.
#[test]
fn p40_a_big_tree_is_looked_at_in_a_moment() {
    let tree = Tree::new("big");
    for folder in 0..500 {
        let folder = tree.at(&format!("node_modules/m{folder}/lib"));
        fs::create_dir_all(&folder).unwrap();
        for file in 0..100 {
            fs::write(folder.join(format!("{file}.js")), "").unwrap();
        }
    }
    tree.own();
    let begun = Instant::now();
    let mut lookout = tree.post(LookBounds::default());
    let before = begun.elapsed();
    let begun = Instant::now();
    lookout.look_again();
    await_phase(&mut lookout, Phase::After);
    eprintln!(
        "50000 files: {before:?} before, {:?} after",
        begun.elapsed()
    );
    assert_eq!(*lookout.found(), LeftOnHost::default());
}
