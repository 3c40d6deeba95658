//! The workspace of a module: the sandbox's own, in the mode that was asked for.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use leasehold_core::end::EndReason;
use leasehold_core::spec::WorkspaceMode;

use crate::guests;
use crate::rig::{Bench, Order};

/// Makes `out.txt` in its first directory, writes four bytes, and tells both errors.
fn writes() -> String {
    guests::with(
        r#"(data (i32.const 0) "out.txt") (data (i32.const 16) "made")"#,
        "(call $tell (call $path_open (i32.const 3) (i32.const 1) (i32.const 0) (i32.const 7)
           (i32.const 1) (i64.const 64) (i64.const 0) (i32.const 0) (i32.const 64)))
         (call $tell (call $put (i32.load (i32.const 64)) (i32.const 16) (i32.const 4)))",
    )
}

/// Writes the first bytes of `given.txt` to its output.
fn reads() -> String {
    guests::with(
        r#"(data (i32.const 0) "given.txt")"#,
        "(if (call $path_open (i32.const 3) (i32.const 1) (i32.const 0) (i32.const 9)
           (i32.const 0) (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 64))
           (then (call $proc_exit (i32.const 3))))
         (i32.store (i32.const 80) (i32.const 200)) (i32.store (i32.const 84) (i32.const 100))
         (drop (call $fd_read (i32.load (i32.const 64)) (i32.const 80) (i32.const 1) (i32.const 88)))
         (drop (call $put (i32.const 1) (i32.const 200) (i32.load (i32.const 88))))",
    )
}

fn folder(bench: &Bench, name: &str) -> std::path::PathBuf {
    let place = bench.instance.scratch(name);
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(place.join("given.txt"), "of the host").unwrap();
    place
}

fn order(text: String, mode: WorkspaceMode, directory: Option<&Path>) -> Order {
    let mut order = Order::of(text).bounded(|spec| spec.workspace = mode);
    order.workspace = Some(mode != WorkspaceMode::ReadOnly);
    order.directory = directory.map(|path| File::open(path).unwrap().into());
    order
}

#[test]
fn what_a_module_writes_leaves_as_an_artifact() {
    let Some(mut bench) = Bench::new("what_a_module_writes_leaves_as_an_artifact") else {
        return;
    };
    let mut wanted = order(writes(), WorkspaceMode::Ephemeral, None);
    wanted.exec.artifacts = vec!["*.txt".to_owned()];
    let done = bench.run(&wanted);
    assert_eq!(
        *done.end(),
        EndReason::Completed,
        "{:?}",
        done.record.module
    );
    assert_eq!(done.stdout, b"00 00 ");
    let [file] = &done.record.artifacts[..] else {
        panic!("{:?}", done.record.artifacts);
    };
    assert_eq!((&*file.path, file.bytes), ("out.txt", 4));
    assert!(file.sha256.is_some());
    let place = bench.instance.run_record_folder(done.record.run.as_str());
    assert_eq!(fs::read(place.join("artifacts/0001")).unwrap(), b"made");
    let host = done.record.contract.unwrap().posture.host.unwrap();
    assert_eq!(host.places, ["/workspace (write)"]);
}

#[test]
fn a_workspace_is_read_and_written_as_its_mode_says() {
    let Some(mut bench) = Bench::new("a_workspace_is_read_and_written_as_its_mode_says") else {
        return;
    };
    for mode in [
        WorkspaceMode::ReadOnly,
        WorkspaceMode::Clone,
        WorkspaceMode::ReadWrite,
    ] {
        let place = folder(&bench, mode.word());
        let done = bench.run(&order(reads(), mode, Some(&place)));
        assert_eq!(done.stdout, b"of the host", "{mode:?}: {:?}", done.end());
        let done = bench.run(&order(writes(), mode, Some(&place)));
        assert_eq!(*done.end(), EndReason::Completed);
        let refused = mode == WorkspaceMode::ReadOnly;
        assert_eq!(
            done.stdout.starts_with(b"00 00"),
            !refused,
            "{mode:?}: {:?}",
            done.stdout
        );
        let kept = mode == WorkspaceMode::ReadWrite;
        assert_eq!(place.join("out.txt").exists(), kept, "{mode:?}");
    }
    // Without one there is no directory, whatever the sandbox has.
    let mut wanted = order(writes(), WorkspaceMode::Ephemeral, None);
    wanted.workspace = None;
    let done = bench.run(&wanted);
    assert!(!done.stdout.starts_with(b"00"), "{:?}", done.stdout);
}
