//! The workspace of a module: what is in it is there, and nothing else can be reached or changed.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use leasehold_backend::seam::Backend as _;
use leasehold_core::end::EndReason;
use leasehold_core::error::ErrorKind;
use leasehold_core::spec::WorkspaceMode;

use super::{Done, Rig, guests, module, order};

/// Rights to read, and to write.
const READ: u64 = 2;
const WRITE: u64 = 64;

/// A module that tries a list of things and writes the errno of each: 0 is that it was done.
#[derive(Default)]
struct Tries {
    data: String,
    body: String,
    at: usize,
    count: usize,
}

impl Tries {
    fn name(&mut self, name: &str) -> String {
        let at = 2_000 + self.at;
        self.at += name.len();
        writeln!(self.data, "(data (i32.const {at}) {name:?})").unwrap();
        format!("(i32.const {at}) (i32.const {})", name.len())
    }

    fn act(&mut self, call: &str) -> &mut Self {
        self.count += 1;
        writeln!(self.body, "(call $tell {call})").unwrap();
        self
    }

    /// Opens below the workspace, following links.
    fn open(&mut self, name: &str, make: bool, rights: u64) -> &mut Self {
        let name = self.name(name);
        let make = u32::from(make);
        self.act(&format!(
            "(call $path_open (i32.const 3) (i32.const 1) {name} (i32.const {make})
               (i64.const {rights}) (i64.const 0) (i32.const 0) (i32.const 64))"
        ))
    }

    fn pair(&mut self, what: &str, from: &str, to: &str) -> &mut Self {
        let (from, to) = (self.name(from), self.name(to));
        let flags = if what == "path_link" {
            "(i32.const 0)"
        } else {
            ""
        };
        self.act(&format!(
            "(call ${what} (i32.const 3) {flags} {from} (i32.const 3) {to})"
        ))
    }

    fn link(&mut self, target: &str, name: &str) -> &mut Self {
        let (target, name) = (self.name(target), self.name(name));
        self.act(&format!(
            "(call $path_symlink {target} (i32.const 3) {name})"
        ))
    }

    fn text(&self) -> String {
        guests::with(&self.data, &self.body)
    }
}

/// A workspace and a secret beside it.
struct Tree(PathBuf);

impl Tree {
    fn new(rig: &Rig) -> Self {
        let root = rig.own.directory.path().join("tree");
        fs::create_dir_all(root.join("work")).unwrap();
        fs::write(root.join("secret"), "secret").unwrap();
        fs::write(root.join("work/file"), "mine").unwrap();
        symlink("../secret", root.join("work/out")).unwrap();
        symlink("/etc/passwd", root.join("work/absolute")).unwrap();
        symlink("..", root.join("work/up")).unwrap();
        symlink("file", root.join("work/inside")).unwrap();
        Self(root)
    }

    fn work(&self) -> File {
        File::open(self.0.join("work")).unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }
}

/// What each try came to.
async fn tried(rig: &Rig, tree: &Tree, mode: WorkspaceMode, tries: &Tries) -> Vec<String> {
    let order = order(&module(&tries.text())).workspace(mode, tree.work());
    let done: Done = rig.run(order).await;
    assert_eq!(*done.end(), EndReason::Completed, "{:?}", done.record);
    assert!(!done.shared());
    let said = String::from_utf8(done.stdout).unwrap();
    let answers: Vec<String> = said.split_whitespace().map(str::to_owned).collect();
    assert_eq!(answers.len(), tries.count, "{said}");
    answers
}

/// Ways out of the workspace, none of which is one.
fn ways_out() -> Tries {
    let mut tries = Tries::default();
    for name in [
        "../secret",
        "/etc/passwd",
        "/workspace/file",
        "out",
        "absolute",
        "up/secret",
        "up",
    ] {
        tries.open(name, false, READ);
    }
    tries
        .open("../made", true, WRITE)
        .pair("path_rename", "file", "../moved")
        .pair("path_link", "out", "../linked")
        .link("/etc", "deep")
        .act("(call $sock_accept (i32.const 3) (i32.const 0) (i32.const 64))");
    tries
}

#[tokio::test]
async fn p18_a_module_reaches_its_workspace_and_nothing_else() {
    let Some(rig) = Rig::new("p18_a_module_reaches_its_workspace_and_nothing_else") else {
        return;
    };
    let tree = Tree::new(&rig);
    // What is inside can be reached, through a link too: looking means something.
    let mut inside = Tries::default();
    inside.open("file", false, READ).open("inside", false, READ);
    inside.open("new", true, WRITE);
    let modes = [
        WorkspaceMode::ReadWrite,
        WorkspaceMode::Clone,
        WorkspaceMode::ReadOnly,
    ];
    for mode in modes {
        let writable = mode != WorkspaceMode::ReadOnly;
        let done = tried(&rig, &tree, mode, &inside).await;
        assert_eq!(done[..2], ["00", "00"], "{mode:?}");
        assert_eq!(done[2] == "00", writable, "{mode:?}: {done:?}");
        for (at, answer) in tried(&rig, &tree, mode, &ways_out())
            .await
            .iter()
            .enumerate()
        {
            assert_ne!(answer, "00", "{mode:?}: way {at}");
        }
        assert_eq!(tree.read("secret"), "secret");
        assert_eq!(tree.read("work/file"), "mine");
        let beside: Vec<_> = fs::read_dir(&tree.0).unwrap().collect();
        assert_eq!(beside.len(), 2, "{beside:?}");
        // A clone goes with its sandbox, what is read-only was never written.
        let made = tree.0.join("work/new");
        assert_eq!(made.exists(), mode == WorkspaceMode::ReadWrite);
        let _ = fs::remove_file(made);
    }
}

#[tokio::test]
async fn p18_nothing_is_changed_in_a_read_only_workspace() {
    let Some(rig) = Rig::new("p18_nothing_is_changed_in_a_read_only_workspace") else {
        return;
    };
    let tree = Tree::new(&rig);
    let mut changes = Tries::default();
    changes
        .open("file", false, WRITE)
        .open("inside", false, WRITE)
        .open("other", true, WRITE)
        .pair("path_rename", "file", "moved")
        .pair("path_link", "file", "linked")
        .link("file", "another");
    let file = changes.name("file");
    changes.act(&format!("(call $path_unlink_file (i32.const 3) {file})"));
    let folder = changes.name("folder");
    changes.act(&format!(
        "(call $path_create_directory (i32.const 3) {folder})"
    ));
    let answers = tried(&rig, &tree, WorkspaceMode::ReadOnly, &changes).await;
    assert!(answers.iter().all(|answer| answer != "00"), "{answers:?}");
    assert_eq!(tree.read("work/file"), "mine");
    assert_eq!(fs::read_dir(tree.0.join("work")).unwrap().count(), 5);
    // Where it may be changed the same is done.
    let answers = tried(&rig, &tree, WorkspaceMode::Clone, &changes).await;
    assert_eq!(answers[0], "00", "{answers:?}");
    assert_eq!(tree.read("work/file"), "mine");
}

#[tokio::test]
async fn what_a_module_cannot_have_is_refused_by_name() {
    let Some(rig) = Rig::new("what_a_module_cannot_have_is_refused_by_name") else {
        return;
    };
    let hello = module(&guests::hello());
    type Change = fn(&mut leasehold_backend::seam::Launch);
    let cases: [(&str, Change); 4] = [
        ("terminal", |launch| {
            let size = leasehold_core::spec::TtySize { rows: 24, cols: 80 };
            launch.exec.tty = Some(size);
        }),
        ("`cwd`", |launch| launch.exec.cwd = Some("/tmp".to_owned())),
        ("did not come", |launch| launch.module = None),
        ("script that came", |launch| {
            let spec = launch.exec.module.as_mut().unwrap();
            spec.script = Some(spec.digest);
        }),
    ];
    for (words, change) in cases {
        let mut order = order(&hello);
        change(&mut order.launch);
        let refused = rig.backend.launch(order.launch).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains(words), "{refused}");
    }
}
