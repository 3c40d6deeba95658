//! Links of every kind where files were asked for (P35): never followed, always told.

use super::*;

#[test]
fn p35_links_are_told_and_never_followed() {
    let tree = Tree::new("collect-links");
    let canary = tree.path("outside/canary");
    tree.link(&canary, "absolute");
    tree.link("../outside/canary", "relative");
    tree.link("/etc/shadow", "shadow");
    tree.link("/proc/1/environ", "environ");
    tree.link("/proc/self/fd/0", "fd");
    tree.link("../../..", "up");
    tree.link("nowhere", "dangling");
    tree.link("loop", "loop");
    tree.link(tree.path("outside"), "linked");
    tree.link(&canary, "chain0");
    for at in 1..40 {
        tree.link(format!("chain{}", at - 1), &format!("chain{at}"));
    }
    // The links lead to the canary: whoever follows them has it.
    for name in ["absolute", "relative", "chain39", "linked/canary"] {
        assert_eq!(fs::read_to_string(tree.ws(name)).unwrap(), CANARY);
    }
    let artifacts = tree.collect(&["**"]);
    assert_eq!(artifacts.len(), 49);
    for row in &artifacts {
        assert_eq!(row.skipped.as_deref(), Some("symlink"), "{}", row.path);
    }
    assert!(tree.staged_names().is_empty());
}

#[test]
fn p35_a_linked_directory_on_the_way_is_told() {
    let tree = Tree::new("collect-linked-way");
    tree.link(tree.path("outside"), "linked");
    for glob in ["linked/canary", "linked/*", "*/canary", "l*/**"] {
        let artifacts = tree.collect(&[glob]);
        assert_eq!(rows(&artifacts), [("linked", "symlink")], "{glob}");
        assert!(tree.staged_names().is_empty());
    }
    // A search through everything does not list every link it passes.
    assert_eq!(
        rows(&tree.collect(&["**/canary"])),
        [("**/canary", "not_found")]
    );
}

/// A link to a file of another owner gives the workload no right to it, and so none to us.
#[test]
fn a_hard_link_to_what_the_workload_may_not_read_is_unreadable() {
    if !is_root("a_hard_link_to_what_the_workload_may_not_read_is_unreadable") {
        return;
    }
    let tree = Tree::new("collect-hard-link");
    let job = tree.job(&["**"]);
    fs::hard_link(tree.path("outside/canary"), tree.ws("hard")).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(tree.ws("hard"), private).unwrap();
    assert_eq!(fs::read_to_string(tree.ws("hard")).unwrap(), CANARY);
    let collected = start(job).unwrap().finish().unwrap();
    assert_eq!(rows(&collected.artifacts), [("hard", "unreadable")]);
    assert!(!tree.leaked());
}
