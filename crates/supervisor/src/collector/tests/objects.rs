//! What is no file, what never ends, and what is called badly (P37, P38).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, mkdirat, mknodat};

use super::*;

#[test]
fn p37_objects_that_are_no_files_never_block() {
    let tree = Tree::new("collect-objects");
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, tree.ws("fifo"), FileType::Fifo, mode, 0).unwrap();
    let _socket = UnixListener::bind(tree.ws("socket")).unwrap();
    let mut want = vec![("fifo", "not_regular"), ("socket", "not_regular")];
    if is_root("p37_objects_that_are_no_files_never_block (devices)") {
        let zero = rustix::fs::makedev(1, 5);
        mknodat(
            CWD,
            tree.ws("device"),
            FileType::CharacterDevice,
            mode,
            zero,
        )
        .unwrap();
        want.insert(0, ("device", "not_regular"));
    }
    let begun = Instant::now();
    let artifacts = tree.collect(&["*"]);
    assert_eq!(rows(&artifacts), want);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn p37_what_may_not_be_read_is_told() {
    let tree = Tree::new("collect-unreadable");
    tree.put("closed/x", "x");
    tree.put("file", "x");
    let job = tree.job(&["**"]);
    let none: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o0);
    fs::set_permissions(tree.ws("closed"), none.clone()).unwrap();
    fs::set_permissions(tree.ws("file"), none).unwrap();
    let collected = start(job).unwrap().finish().unwrap();
    assert_eq!(
        rows(&collected.artifacts),
        [("closed", "unreadable"), ("file", "unreadable")]
    );
    let open: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(tree.ws("closed"), open).unwrap();
}

/// In memory, where a file may be that long.
#[test]
fn p37_a_file_of_one_exbibyte_costs_nothing() {
    let tree = Tree::new("collect-sparse");
    let vast = Path::new("/dev/shm").join(format!("leasehold-vast-{}", std::process::id()));
    fs::create_dir(&vast).unwrap();
    let file = fs::File::create(vast.join("vast")).unwrap();
    file.set_len(1 << 60).unwrap();
    fs::write(vast.join("small"), "x").unwrap();
    let (uid, gid) = workload();
    give(&vast, uid, gid);
    let job = CollectJob {
        workspace: directory(&vast),
        ..tree.job(&["*"])
    };
    let begun = Instant::now();
    let collected = start(job).unwrap().finish();
    fs::remove_dir_all(&vast).unwrap();
    assert_eq!(
        rows(&collected.unwrap().artifacts),
        [("small", "taken"), ("vast", "too_large")]
    );
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn p37_a_growing_file_is_cut_and_marked() {
    let tree = Tree::new("collect-growing");
    tree.put("grows", vec![b'x'; 8 << 20]);
    let stop = AtomicBool::new(false);
    let job = tree.job(&["*"]);
    let collected = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = fs::File::options()
                .append(true)
                .open(tree.ws("grows"))
                .unwrap();
            while !stop.load(Ordering::Relaxed) {
                std::io::Write::write_all(&mut file, &[b'y'; 4_096]).unwrap();
                if file.metadata().unwrap().len() > 256 << 20 {
                    file.set_len(8 << 20).unwrap();
                }
            }
        });
        let collected = start(job).unwrap().finish();
        stop.store(true, Ordering::Relaxed);
        collected.unwrap()
    });
    let artifacts = collected.artifacts;
    assert_eq!(rows(&artifacts), [("grows", "changed_while_read")]);
    assert_eq!(tree.staged(0).len() as u64, artifacts[0].bytes);
    assert!(artifacts[0].sha256.is_some());
}

#[test]
fn p32_a_tree_of_5000_directories_ends_at_the_bound() {
    let tree = Tree::new("collect-deep");
    let (uid, gid) = workload();
    let mut at = directory(&tree.path("ws"));
    for _ in 0..5_000 {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        let owner = Some(rustix::fs::Uid::from_raw(uid));
        let group = Some(rustix::fs::Gid::from_raw(gid));
        rustix::fs::chownat(&at, "d", owner, group, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        at = openat(&at, "d", flags, Mode::empty()).unwrap();
    }
    let job = CollectJob {
        workspace: directory(&tree.path("ws")),
        staging: directory(&tree.path("staging")),
        globs: vec!["**".to_owned()],
        host_uid: uid,
        host_gid: gid,
        bounds: CollectBounds::default(),
    };
    lchown(tree.path("ws"), Some(uid), Some(gid)).unwrap();
    let collected = start(job).unwrap().finish().unwrap();
    let deepest = ["d"; 65].join("/");
    assert_eq!(rows(&collected.artifacts), [(deepest.as_str(), "limit")]);
    drop(at);
    // Too deep for the standard library's own removal.
    let removed = Command::new("rm").arg("-rf").arg(tree.ws("d")).status();
    assert!(removed.unwrap().success());
}

#[test]
fn p38_hostile_names_come_back_as_they_were() {
    let tree = Tree::new("collect-names");
    let long = vec![b'n'; 255];
    let names: [&[u8]; 14] = [
        b"-rf",
        b"a\nb",
        b"\"'`$(touch x)",
        b"\xff\xfe",
        b"\x1b[2J\x07",
        "\u{202e}gpj.exe".as_bytes(),
        br"\x41",
        b"\\",
        b"A",
        b"a",
        "e\u{301}".as_bytes(),
        "\u{e9}".as_bytes(),
        b"...",
        &long,
    ];
    for (at, name) in names.iter().enumerate() {
        fs::write(tree.ws("").join(OsStr::from_bytes(name)), at.to_string()).unwrap();
    }
    let artifacts = tree.collect(&["*"]);
    assert_eq!(artifacts.len(), names.len());
    assert!(
        artifacts
            .iter()
            .all(|row| row.path.chars().all(|c| !c.is_control()))
    );
    let staging = directory(&tree.path("staging"));
    let out = directory(&tree.path("out"));
    let policy = super::super::export::MayExecute::Withhold;
    super::super::export::export(staging.as_fd(), &artifacts, out.as_fd(), policy).unwrap();
    assert_eq!(fs::read_dir(tree.path("out")).unwrap().count(), names.len());
    for (at, name) in names.iter().enumerate() {
        let content = fs::read_to_string(tree.path("out").join(OsStr::from_bytes(name)));
        assert_eq!(content.unwrap(), at.to_string());
    }
}

#[test]
fn p40_what_a_host_may_execute_is_marked() {
    let tree = Tree::new("collect-executable");
    for name in [".git/hooks/pre-commit", "sub/.envrc", "data.csv"] {
        tree.put(name, "x");
    }
    let artifacts = tree.collect(&["**"]);
    let marked: Vec<(&str, bool)> = artifacts
        .iter()
        .map(|row| (row.path.as_str(), row.may_execute_on_host))
        .collect();
    assert_eq!(
        marked,
        [
            (".git/hooks/pre-commit", true),
            ("data.csv", false),
            ("sub/.envrc", true),
        ]
    );
}
