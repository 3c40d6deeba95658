//! Directories of a run: what was given is there, and nothing else can be reached or changed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use leasehold_protocol::wasm::{Flavour, Preopen};
use leasehold_wasm::run::Task;

use crate::guests;
use crate::rig::{Rig, limits};

/// Directories are opened by stepping into them, which the whole process does: one test at a time.
static STEPS: Mutex<()> = Mutex::new(());

/// A module that does a list of things to files and writes the errno of each.
#[derive(Default)]
struct Acts {
    data: String,
    body: String,
    at: usize,
}

/// Rights to read, and to write.
const READ: u64 = 2;
const WRITE: u64 = 64;

impl Acts {
    fn name(&mut self, name: &str) -> (usize, usize) {
        let at = 2_000 + self.at;
        self.at += name.len();
        writeln!(self.data, "(data (i32.const {at}) {name:?})").unwrap();
        (at, name.len())
    }

    fn act(&mut self, call: &str) -> &mut Self {
        writeln!(self.body, "(call $tell {call})").unwrap();
        self
    }

    /// Opens, following links.
    fn open(&mut self, dir: u32, name: &str, make: bool, rights: u64) -> &mut Self {
        let (at, len) = self.name(name);
        self.act(&format!(
            "(call $path_open (i32.const {dir}) (i32.const 1) (i32.const {at}) (i32.const {len})
               (i32.const {}) (i64.const {rights}) (i64.const 0) (i32.const 0) (i32.const 64))",
            u32::from(make)
        ))
    }

    /// Writes four bytes to what was opened last.
    fn overwrite(&mut self) -> &mut Self {
        let (at, len) = self.name("evil");
        self.act(&format!(
            "(call $put (i32.load (i32.const 64)) (i32.const {at}) (i32.const {len}))"
        ))
    }

    fn pair(&mut self, what: &str, from: (u32, &str), to: (u32, &str)) -> &mut Self {
        let ((a, b), (c, d)) = (self.name(from.1), self.name(to.1));
        let flags = if what == "path_link" {
            "(i32.const 0)"
        } else {
            ""
        };
        self.act(&format!(
            "(call ${what} (i32.const {}) {flags} (i32.const {a}) (i32.const {b}) (i32.const {}) (i32.const {c}) (i32.const {d}))",
            from.0, to.0
        ))
    }

    fn link_to(&mut self, target: &str, dir: u32, name: &str) -> &mut Self {
        let ((a, b), (c, d)) = (self.name(target), self.name(name));
        self.act(&format!(
            "(call $path_symlink (i32.const {a}) (i32.const {b}) (i32.const {dir}) (i32.const {c}) (i32.const {d}))"
        ))
    }

    fn unlink(&mut self, dir: u32, name: &str) -> &mut Self {
        let (at, len) = self.name(name);
        self.act(&format!(
            "(call $path_unlink_file (i32.const {dir}) (i32.const {at}) (i32.const {len}))"
        ))
    }

    fn text(&self) -> String {
        guests::with(&self.data, &self.body)
    }
}

/// A folder of the test's own with `w`, `r` and a secret beside them.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let root =
            std::env::temp_dir().join(format!("leasehold-wasm-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for folder in ["w", "r/deep"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in ["secret", "w/mine", "r/file"] {
            fs::write(root.join(file), file).unwrap();
        }
        symlink("../secret", root.join("w/out")).unwrap();
        symlink("/etc/passwd", root.join("w/absolute")).unwrap();
        symlink("..", root.join("w/up")).unwrap();
        Self(root)
    }

    /// Directory `name` as a run is given it.
    fn given(&self, name: &str, guest: &str, writable: bool) -> (Preopen, std::os::fd::OwnedFd) {
        let preopen = Preopen {
            guest: guest.to_owned(),
            writable,
        };
        (preopen, File::open(self.0.join(name)).unwrap().into())
    }

    /// What is in a file or below a folder.
    fn contents(&self, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        fn walk(at: &Path, all: &mut BTreeMap<PathBuf, Vec<u8>>) {
            let kind = fs::symlink_metadata(at).unwrap().file_type();
            if kind.is_dir() {
                for entry in fs::read_dir(at).unwrap() {
                    walk(&entry.unwrap().path(), all);
                }
            } else if kind.is_file() {
                all.insert(at.to_owned(), fs::read(at).unwrap());
            }
        }
        let mut all = BTreeMap::new();
        walk(&self.0.join(name), &mut all);
        all
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The errno of each act, with `/w` writable as descriptor 3 and `/r` as 4.
fn errnos(acts: &Acts, tree: &Tree, r_writable: bool) -> Vec<u32> {
    let given = vec![
        tree.given("w", "/w", true),
        tree.given("r", "/r", r_writable),
    ];
    errnos_of(acts, given)
}

fn errnos_of(acts: &Acts, given: Vec<(Preopen, std::os::fd::OwnedFd)>) -> Vec<u32> {
    let _one = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = Rig::new(Flavour::Plain);
    let mut task = Task::new("guest", limits());
    task.preopens = given;
    let ran = rig.run(&rig.program(&acts.text()), task);
    assert!(ran.report.exit.is_some_and(|exit| exit.success()));
    let text = String::from_utf8(ran.stdout).unwrap();
    text.split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect()
}

#[test]
fn p18_what_was_given_works() {
    let tree = Tree::new("given");
    let mut acts = Acts::default();
    acts.open(3, "mine", false, READ)
        .open(3, "new", true, WRITE)
        .overwrite();
    acts.open(4, "file", false, READ)
        .open(4, "deep", false, READ);
    assert_eq!(errnos(&acts, &tree, false), [0; 5]);
    assert_eq!(fs::read(tree.0.join("w/new")).unwrap(), b"evil");
}

#[test]
fn p18_nothing_outside_is_reached() {
    let tree = Tree::new("outside");
    let mut acts = Acts::default();
    acts.open(3, "../secret", false, READ)
        .open(3, "/etc/passwd", false, READ)
        .open(3, "out", false, READ)
        .open(3, "absolute", false, READ)
        .open(3, "up/secret", false, READ)
        .open(3, "../r/file", false, WRITE)
        .open(3, "w/../../secret", false, READ)
        .link_to("/etc/passwd", 3, "made-absolute")
        .act("(call $sock_accept (i32.const 3) (i32.const 0) (i32.const 64))")
        .act("(call $fd_prestat_get (i32.const 6) (i32.const 64))");
    let got = errnos(&acts, &tree, false);
    assert!(
        got.len() == 10 && got.iter().all(|errno| *errno != 0),
        "{got:?}"
    );
    // A link it makes itself may point outside; it leads nowhere.
    let mut acts = Acts::default();
    acts.link_to("../secret", 3, "made")
        .open(3, "made", false, READ);
    assert_ne!(errnos(&acts, &tree, false).last(), Some(&0));
    // On the host the links do lead there.
    assert_eq!(fs::read(tree.0.join("w/out")).unwrap(), b"secret");
}

#[test]
fn p18_the_working_directory_is_the_first_one_with_its_rights() {
    let tree = Tree::new("here");
    // Behind the two that are given, and of the first.
    let mut acts = Acts::default();
    acts.open(5, "mine", false, READ)
        .open(5, "made", true, WRITE)
        .open(5, "file", false, READ);
    let got = errnos(&acts, &tree, false);
    assert!(got[0] == 0 && got[1] == 0 && got[2] != 0, "{got:?}");
    assert!(tree.contents("w").keys().any(|path| path.ends_with("made")));
    // One that is read only stays so by that name.
    let mut acts = Acts::default();
    acts.open(4, "file", false, READ)
        .open(4, "made", true, WRITE)
        .open(4, "file", false, WRITE);
    let before = tree.contents("r");
    let got = errnos_of(&acts, vec![tree.given("r", "/r", false)]);
    assert!(got[0] == 0 && got[1] != 0 && got[2] != 0, "{got:?}");
    assert_eq!(tree.contents("r"), before);
}

/// Every way to change something below `/r`.
fn changes() -> Acts {
    let mut acts = Acts::default();
    acts.open(4, "file", false, WRITE)
        .open(4, "made", true, WRITE)
        .pair("path_link", (4, "file"), (3, "hard"))
        .pair("path_rename", (3, "mine"), (4, "moved"))
        .pair("path_rename", (4, "made"), (3, "taken"))
        .link_to("x", 4, "link")
        .unlink(4, "file");
    acts
}

#[test]
fn p18_a_read_only_directory_stays_as_it_is() {
    let tree = Tree::new("read-only");
    let before = tree.contents("r");
    let got = errnos(&changes(), &tree, false);
    assert!(
        got.len() == 7 && got.iter().all(|errno| *errno != 0),
        "{got:?}"
    );
    assert_eq!(tree.contents("r"), before);
    assert!(!tree.0.join("w/hard").exists());
}

/// With the guard off the same module does it all.
#[test]
fn p18_control_the_same_module_changes_a_writable_directory() {
    let tree = Tree::new("control");
    let before = tree.contents("r");
    let got = errnos(&changes(), &tree, true);
    assert_eq!(got, [0; 7]);
    assert_ne!(tree.contents("r"), before);
}

#[test]
fn p18_a_descriptor_put_over_another_gives_no_new_right() {
    let tree = Tree::new("renumber");
    let before = tree.contents("r");
    let mut acts = Acts::default();
    acts.act("(call $fd_renumber (i32.const 3) (i32.const 4))");
    acts.open(4, "file", false, WRITE).overwrite();
    errnos(&acts, &tree, false);
    assert_eq!(tree.contents("r"), before);
}

#[test]
fn p18_directories_that_overlap_are_refused() {
    let tree = Tree::new("overlap");
    fs::create_dir_all(tree.0.join("r/deep/er")).unwrap();
    let rig = Rig::new(Flavour::Plain);
    let program = rig.program(&guests::hello());
    let refused = |first: (&str, &str), second: (&str, &str)| {
        let mut task = Task::new("guest", limits());
        task.preopens = vec![
            tree.given(first.0, first.1, true),
            tree.given(second.0, second.1, false),
        ];
        task.check(&program).err()
    };
    assert_eq!(refused(("w", "/w"), ("r", "/r")), None);
    for (first, second) in [
        (("r", "/w"), ("r", "/r")),
        (("r/deep", "/w"), ("r", "/r")),
        (("r", "/w"), ("r/deep/er", "/r")),
        (("w", "/a"), ("r", "/a")),
        (("w", "/a"), ("r", "/a/b/")),
        (("w", "/"), ("r", "/r")),
    ] {
        let why = refused(first, second).unwrap();
        assert!(why.contains("overlap"), "{first:?} {second:?}: {why}");
    }
    for name in ["w", "", "/w/../r", "/./w", &"/x".repeat(200)] {
        assert!(
            refused(("w", name), ("r", "/r"))
                .unwrap()
                .contains("absolute"),
            "{name}"
        );
    }
}

#[test]
fn open_files_are_bounded() {
    let _one = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
    let tree = Tree::new("handles");
    let rig = Rig::new(Flavour::Plain);
    let mut acts = Acts::default();
    acts.open(3, "mine", false, READ);
    let text = guests::with(
        &acts.data,
        &format!("(loop $again {} (br $again))", acts.body),
    );
    let mut task = Task::new(
        "guest",
        leasehold_protocol::wasm::RunLimits {
            handles: 100,
            ..limits()
        },
    );
    task.preopens = vec![tree.given("w", "/w", true)];
    let report = rig.run(&rig.program(&text), task).report;
    let hit = report.killed_by.unwrap();
    assert_eq!(
        (hit.which, hit.limit),
        (leasehold_core::limits::Resource::Handles, 100)
    );
}

/// Closes the folder `deep` that it opened, or does not, and then opens a file below it.
fn uses_after(close: bool) -> Acts {
    let mut acts = Acts::default();
    let (at, len) = acts.name("deep");
    acts.act(&format!(
        "(call $path_open (i32.const 3) (i32.const 1) (i32.const {at}) (i32.const {len})
           (i32.const 2) (i64.const 0x2002) (i64.const 0x2042) (i32.const 0) (i32.const 72))"
    ));
    if close {
        acts.act("(call $fd_close (i32.load (i32.const 72)))");
    }
    let (at, len) = acts.name("file");
    acts.act(&format!(
        "(call $path_open (i32.load (i32.const 72)) (i32.const 1) (i32.const {at}) (i32.const {len})
           (i32.const 0) (i64.const {READ}) (i64.const 0) (i32.const 0) (i32.const 64))"
    ));
    acts
}

const BAD_DESCRIPTOR: u32 = 8;

#[test]
fn p18_a_directory_that_was_closed_is_not_there_any_more() {
    let tree = Tree::new("closed");
    fs::create_dir(tree.0.join("w/deep")).unwrap();
    fs::write(tree.0.join("w/deep/file"), "x").unwrap();
    assert_eq!(errnos(&uses_after(false), &tree, false), [0, 0]);
    assert_eq!(
        errnos(&uses_after(true), &tree, false),
        [0, 0, BAD_DESCRIPTOR]
    );
    // One that it was given can be closed like any other; nothing comes back by its name.
    let mut acts = Acts::default();
    acts.open(3, "mine", false, READ)
        .act("(call $fd_close (i32.const 3))")
        .open(3, "mine", false, READ)
        .open(4, "../w/mine", false, READ);
    let got = errnos(&acts, &tree, false);
    assert_eq!(got[..3], [0, 0, BAD_DESCRIPTOR]);
    assert_ne!(got[3], 0);
}

/// A directory that is removed while a run holds it stays that directory: what comes in its place is another.
#[test]
fn p18_a_directory_that_was_removed_leads_nowhere() {
    let tree = Tree::new("removed");
    let mut acts = Acts::default();
    let (at, len) = acts.name("gone");
    let name = format!("(i32.const {at}) (i32.const {len})");
    acts.act(&format!(
        "(call $path_create_directory (i32.const 3) {name})"
    ));
    acts.act(&format!(
        "(call $path_open (i32.const 3) (i32.const 1) {name}
           (i32.const 2) (i64.const 0x2002) (i64.const 0x2042) (i32.const 0) (i32.const 72))"
    ));
    let mut last = acts.name("made");
    let make = |(at, len): (usize, usize)| {
        format!(
            "(call $path_open (i32.load (i32.const 72)) (i32.const 1) (i32.const {at}) (i32.const {len})
               (i32.const 1) (i64.const {WRITE}) (i64.const 0) (i32.const 0) (i32.const 64))"
        )
    };
    acts.act(&make(last));
    acts.act(&format!(
        "(call $path_unlink_file (i32.load (i32.const 72)) (i32.const {}) (i32.const {}))",
        last.0, last.1
    ));
    acts.act(&format!(
        "(call $path_remove_directory (i32.const 3) {name})"
    ));
    acts.link_to("../r", 3, "gone");
    last = acts.name("other");
    acts.act(&make(last));
    let got = errnos(&acts, &tree, true);
    assert_eq!(got[..6], [0; 6], "{got:?}");
    assert_ne!(got[6], 0);
    assert!(!tree.0.join("r/other").exists());
}

/// What runs were given is closed when they are over, and nothing else is held for them.
#[test]
fn p18_a_run_that_is_over_holds_no_directory() {
    let tree = Tree::new("held");
    let held = || {
        let open = fs::read_dir("/proc/self/fd").unwrap();
        let below = open.filter(|entry| {
            let to = fs::read_link(entry.as_ref().unwrap().path());
            to.is_ok_and(|to| to.starts_with(&tree.0))
        });
        below.count()
    };
    let given = tree.given("w", "/w", true);
    assert_eq!(held(), 1, "looking means something");
    drop(given);
    for _ in 0..20 {
        errnos(&uses_after(false), &tree, false);
    }
    assert_eq!(held(), 0);
}
