//! Hostile names and hostile destinations on the way out.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{RenameFlags, renameat_with};

use super::super::export::{ExportError, Exported, MayExecute, export};
use super::*;

/// A list and its copies, as if they had been collected.
fn staged(tree: &Tree, files: &[(&str, &str)]) -> Vec<Artifact> {
    use sha2::Digest as _;
    files
        .iter()
        .enumerate()
        .map(|(place, (path, content))| {
            fs::write(tree.path("staging").join(staged_name(place)), content).unwrap();
            Artifact {
                path: (*path).to_owned(),
                bytes: content.len() as u64,
                sha256: Some(hex(&sha2::Sha256::digest(content))),
                skipped: None,
                may_execute_on_host: obeyed::may_execute_on_host(path.as_bytes()),
            }
        })
        .collect()
}

fn run(tree: &Tree, list: &[Artifact], policy: MayExecute) -> Result<Vec<Exported>, ExportError> {
    let staging = directory(&tree.path("staging"));
    let out = directory(&tree.path("out"));
    export(staging.as_fd(), list, out.as_fd(), policy)
}

#[test]
fn files_get_their_names_back() {
    let tree = Tree::new("export-names");
    let mut list = staged(&tree, &[("a/b/c", "1"), (r"a/\x0a", "2"), ("skipped", "3")]);
    list[2].sha256 = None;
    let done = run(&tree, &list, MayExecute::Withhold).unwrap();
    assert_eq!(
        done,
        [Exported::Written, Exported::Written, Exported::NotCollected]
    );
    assert_eq!(fs::read_to_string(tree.path("out/a/b/c")).unwrap(), "1");
    assert_eq!(fs::read_to_string(tree.path("out/a/\n")).unwrap(), "2");
    assert!(!tree.path("out/skipped").exists());
    // Again, over what is there; nothing half-made stays.
    run(&tree, &list, MayExecute::Withhold).unwrap();
    assert_eq!(fs::read_dir(tree.path("out/a")).unwrap().count(), 2);
}

#[test]
fn names_that_climb_are_refused() {
    let tree = Tree::new("export-climb");
    for path in ["../x", "/etc/x", "a/../../x", r"\x2e\x2e/x", "a//x", ""] {
        let list = staged(&tree, &[(path, "x")]);
        let error = run(&tree, &list, MayExecute::Write).unwrap_err();
        assert!(matches!(error, ExportError::Name(_)), "{path}: {error}");
    }
    assert!(!tree.path("x").exists());
}

#[test]
fn links_in_the_destination_are_not_written_through() {
    let tree = Tree::new("export-links");
    let outside = tree.path("outside");
    std::os::unix::fs::symlink(&outside, tree.path("out/linked")).unwrap();
    std::os::unix::fs::symlink(outside.join("canary"), tree.path("out/file")).unwrap();
    fs::create_dir(tree.path("out/directory")).unwrap();
    let list = staged(
        &tree,
        &[("linked/new", "1"), ("file", "2"), ("directory", "3")],
    );
    let done = run(&tree, &list, MayExecute::Withhold).unwrap();
    assert_eq!(
        done,
        [Exported::InTheWay, Exported::Written, Exported::InTheWay]
    );
    assert!(!outside.join("new").exists());
    assert_eq!(fs::read_to_string(outside.join("canary")).unwrap(), CANARY);
    assert!(
        fs::symlink_metadata(tree.path("out/file"))
            .unwrap()
            .is_file()
    );
    assert_eq!(fs::read_dir(tree.path("out")).unwrap().count(), 3);
}

#[test]
fn a_copy_that_is_not_what_was_collected_is_refused() {
    let tree = Tree::new("export-digest");
    let list = staged(&tree, &[("a", "1")]);
    fs::write(tree.path("staging/0001"), "2").unwrap();
    let error = run(&tree, &list, MayExecute::Write).unwrap_err();
    assert!(matches!(error, ExportError::Digest { .. }), "{error}");
    assert_eq!(fs::read_dir(tree.path("out")).unwrap().count(), 0);
}

#[test]
fn p40_what_a_host_may_execute_is_withheld_unless_said() {
    let tree = Tree::new("export-executable");
    let list = staged(&tree, &[(".git/hooks/pre-commit", "x"), ("data", "y")]);
    let done = run(&tree, &list, MayExecute::Withhold).unwrap();
    assert_eq!(done, [Exported::Withheld, Exported::Written]);
    assert!(!tree.path("out/.git").exists());
    let done = run(&tree, &list, MayExecute::Write).unwrap();
    assert_eq!(done, [Exported::Written, Exported::Written]);
    let mode = fs::metadata(tree.path("out/.git/hooks/pre-commit"))
        .unwrap()
        .mode();
    assert_eq!(mode & 0o7111, 0);
}

/// A directory of the destination trades places with a link that leads out of it.
#[test]
fn swaps_in_the_destination_lead_nowhere() {
    let tree = Tree::new("export-race");
    fs::create_dir(tree.path("out/d")).unwrap();
    std::os::unix::fs::symlink(tree.path("outside"), tree.path("out/link")).unwrap();
    let list = staged(&tree, &[("d/planted", "x")]);
    let stop = AtomicBool::new(false);
    let (mut met, mut control) = (Vec::new(), false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (left, right) = (tree.path("out/d"), tree.path("out/link"));
            while !stop.load(Ordering::Relaxed) {
                renameat_with(CWD, &left, CWD, &right, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for _ in 0..2_000 {
            met.extend(run(&tree, &list, MayExecute::Withhold).unwrap());
        }
        let planted = tree.path("outside").join("planted").exists();
        // Who writes by path is led out.
        let begun = Instant::now();
        while !control && begun.elapsed() < Duration::from_secs(60) {
            let _ = fs::write(tree.path("out/d/control"), "x");
            control = tree.path("outside").join("control").exists();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(!planted);
    });
    assert!(control, "the control never won");
    assert!(met.contains(&Exported::Written) && met.contains(&Exported::InTheWay));
}
