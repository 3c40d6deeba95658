//! Every bound cuts, and says so.

use super::*;

fn many(test: &str, files: usize) -> Tree {
    let tree = Tree::new(test);
    for at in 0..files {
        tree.put(&format!("f{at:03}"), [b'x'; 100]);
    }
    tree
}

#[test]
fn a_file_above_its_bound_is_skipped() {
    let tree = many("bound-file", 1);
    tree.put("g", [b'x'; 99]);
    let bounds = CollectBounds {
        file_bytes: 99,
        ..CollectBounds::default()
    };
    let collected = tree.collect_within(&["*"], bounds);
    assert_eq!(
        rows(&collected.artifacts),
        [("f000", "too_large"), ("g", "taken")]
    );
}

#[test]
fn all_bytes_together_are_bounded() {
    let tree = many("bound-total", 5);
    let bounds = CollectBounds {
        total_bytes: 250,
        ..CollectBounds::default()
    };
    let collected = tree.collect_within(&["*"], bounds);
    let taken = collected.artifacts.iter().filter(|row| row.bytes > 0);
    assert_eq!(taken.count(), 2);
    assert_eq!(collected.artifacts[4].skipped.as_deref(), Some("limit"));
    assert_eq!(tree.staged_names(), ["0001", "0002"]);
}

#[test]
fn the_number_of_copies_is_bounded() {
    let tree = many("bound-files", 5);
    let bounds = CollectBounds {
        files: 3,
        ..CollectBounds::default()
    };
    let collected = tree.collect_within(&["*"], bounds);
    assert_eq!(collected.cut, Some(Cut::Files));
    assert_eq!(
        rows(&collected.artifacts)[2..],
        [("f002", "taken"), ("f003", "limit"), (".", "limit")]
    );
    assert_eq!(tree.staged_names().len(), 3);
}

#[test]
fn the_number_of_names_is_bounded() {
    let tree = many("bound-entries", 50);
    let bounds = CollectBounds {
        entries: 49,
        ..CollectBounds::default()
    };
    let collected = tree.collect_within(&["*"], bounds);
    assert_eq!(collected.cut, Some(Cut::Entries));
    assert_eq!(rows(&collected.artifacts), [(".", "limit")]);
    // Names that are asked for by name are not looked for among all others.
    let collected = tree.collect_within(&["f007"], bounds);
    assert_eq!(rows(&collected.artifacts), [("f007", "taken")]);
}

#[test]
fn the_list_itself_is_bounded() {
    let tree = many("bound-record", 50);
    let bounds = CollectBounds {
        record_bytes: 10 * 200,
        ..CollectBounds::default()
    };
    let collected = tree.collect_within(&["*"], bounds);
    assert_eq!(collected.cut, Some(Cut::Record));
    assert_eq!(collected.artifacts.len(), 11);
    assert_eq!(tree.staged_names().len(), 10);
}

#[test]
fn time_is_bounded_by_the_collector_itself() {
    let tree = many("bound-time", 50);
    let bounds = CollectBounds {
        time: Duration::ZERO,
        ..CollectBounds::default()
    };
    let collected = tree.collect_within(&["*"], bounds);
    assert_eq!(collected.cut, Some(Cut::Time));
    assert_eq!(rows(&collected.artifacts), [(".", "limit")]);
}

/// A collector that does nothing at all any more is ended from outside.
#[test]
fn time_is_bounded_from_outside_too() {
    let tree = many("bound-outside", 1);
    let bounds = CollectBounds {
        time: Duration::from_millis(50),
        ..CollectBounds::default()
    };
    let job = CollectJob {
        bounds,
        ..tree.job(&["*"])
    };
    let collector = start(job).unwrap();
    pidfd_send_signal(&collector.pidfd, Signal::STOP).unwrap();
    let begun = Instant::now();
    let collected = collector.finish().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(collected.cut, Some(Cut::Time));
}
