//! Names exchanged under the collector's hands (P36), with a naive reader as control.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{RenameFlags, renameat_with};

use super::*;

const COLLECTIONS: usize = 1_000;

/// A tree in which a file and a directory trade places with links to the canary and to its
/// directory, for as long as `body` runs.
fn while_swapping<T>(tree: &Tree, body: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    let swap = |left: &str, right: &str| {
        let (left, right) = (tree.ws(left), tree.ws(right));
        while !stop.load(Ordering::Relaxed) {
            renameat_with(CWD, &left, CWD, &right, RenameFlags::EXCHANGE).unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| swap("d/file", "link-to-file"));
        scope.spawn(|| swap("e", "link-to-directory"));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        stop.store(true, Ordering::Relaxed);
        result.unwrap()
    })
}

fn racing_tree(test: &str) -> Tree {
    let tree = Tree::new(test);
    tree.put("d/file", "mine");
    tree.put("e/canary", "mine");
    tree.link(tree.path("outside/canary"), "link-to-file");
    tree.link(tree.path("outside"), "link-to-directory");
    tree
}

/// The race is real: who reads by path gets the canary, even after a look that it is no link.
#[test]
fn p36_control_a_naive_reader_is_raced() {
    let tree = racing_tree("collect-race-control");
    let begun = Instant::now();
    let leaks = while_swapping(&tree, || {
        let mut leaks = [0_u32; 2];
        while leaks.contains(&0) && begun.elapsed() < Duration::from_secs(60) {
            for (at, name) in ["d/file", "e/canary"].iter().enumerate() {
                let path = tree.ws(name);
                let looks_fine = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file())
                    && !fs::symlink_metadata(tree.ws("e")).unwrap().is_symlink();
                if looks_fine && fs::read(&path).is_ok_and(|bytes| bytes == CANARY.as_bytes()) {
                    leaks[at] += 1;
                }
            }
        }
        leaks
    });
    assert!(!leaks.contains(&0), "the control never won: {leaks:?}");
}

#[test]
fn p36_a_thousand_collections_under_swaps_never_leave_the_tree() {
    let tree = racing_tree("collect-race");
    tree.job(&[]);
    let (uid, gid) = workload();
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    while_swapping(&tree, || {
        for _ in 0..COLLECTIONS {
            let job = CollectJob {
                workspace: directory(&tree.path("ws")),
                staging: directory(&tree.path("staging")),
                globs: vec!["d/*".to_owned(), "e/**".to_owned(), "e/canary".to_owned()],
                host_uid: uid,
                host_gid: gid,
                bounds: CollectBounds::default(),
            };
            let collected = start(job).unwrap().finish().unwrap();
            assert!(!tree.leaked(), "{:?}", collected.artifacts);
            tree.empty_staging();
            for (path, reason) in rows(&collected.artifacts) {
                *seen.entry(format!("{path} {reason}")).or_default() += 1;
            }
        }
    });
    // Both faces of both names were met, else nothing was raced.
    for face in [
        "d/file taken",
        "d/file symlink",
        "e/canary taken",
        "e symlink",
    ] {
        assert!(seen.contains_key(face), "{face} was never met: {seen:?}");
    }
}

/// The walk by itself, without the new root and the foreign ids that would hide a mistake in it.
#[test]
fn p36_the_walk_alone_never_leaves_the_tree() {
    let tree = racing_tree("collect-race-walk");
    let globs = Globs::parse(&["d/*".to_owned(), "e/**".to_owned()]).unwrap();
    let bounds = CollectBounds::default();
    while_swapping(&tree, || {
        for _ in 0..COLLECTIONS {
            let workspace = directory(&tree.path("ws"));
            let flags = SocketFlags::CLOEXEC;
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
            std::thread::scope(|scope| {
                let socket = theirs.as_fd();
                let (root, globs) = (workspace.as_fd(), &globs);
                scope.spawn(move || walk::run(root, socket, globs, &bounds));
                listen(&tree, &ours);
            });
            assert!(!tree.leaked());
            tree.empty_staging();
        }
    });
}

/// Gives a file for each that is asked for, until the walk is done.
fn listen(tree: &Tree, socket: &OwnedFd) {
    let mut buffer = [0; MESSAGE_MAX];
    for place in 0.. {
        loop {
            let (_, got) = recv(socket, &mut buffer, RecvFlags::empty()).unwrap();
            match Message::decode(&buffer[..got]).unwrap() {
                Message::Want => break,
                Message::Done { .. } => return,
                _ => {}
            }
        }
        let path = tree.path("staging").join(staged_name(place));
        let file = fs::File::create(path).unwrap();
        send_with_fds(socket, &[TAKE], &[file.as_fd()]).unwrap();
    }
}
