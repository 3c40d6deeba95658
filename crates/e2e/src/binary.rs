//! Finding the binary under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The `leasehold` binary: the one that `LEASEHOLD_BIN` names, else the one in the target folder of
/// this build, brought up to date once per test run.
///
/// # Panics
/// When it is not there and cannot be built.
pub fn leasehold() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("LEASEHOLD_BIN") {
        Some(path) => {
            let path = PathBuf::from(path);
            assert!(
                path.is_file(),
                "LEASEHOLD_BIN names no file: {}",
                path.display()
            );
            path
        }
        None => built(),
    })
}

/// The folder that cargo builds into, found from where this test itself is.
pub(crate) fn target() -> PathBuf {
    let me = std::env::current_exe().expect("path of this test");
    // target/<profile>/deps/<test>
    let profile = me.parent().and_then(Path::parent).expect("profile folder");
    profile.parent().expect("target folder").to_owned()
}

/// Builds the binary unless this run of nextest, which has a process per test, has done so already.
fn built() -> PathBuf {
    let me = std::env::current_exe().expect("path of this test");
    let profile = me.parent().and_then(Path::parent).expect("profile folder");
    let binary = profile.join("leasehold");
    let marker = std::env::var("NEXTEST_RUN_ID")
        .ok()
        .map(|run| target().join("e2e").join(format!("built-{run}")));
    let before = marker
        .as_ref()
        .and_then(|marker| std::fs::read(marker).ok());
    match before.as_deref() {
        Some(b"built") if binary.is_file() => return binary,
        Some(_) => panic!("cargo build of leasehold failed earlier in this run"),
        None => {}
    }
    let mut build = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    build
        .args(["build", "--quiet", "-p", "leasehold", "--bin", "leasehold"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    if profile.file_name().is_some_and(|name| name == "release") {
        build.arg("--release");
    }
    let status = build.status().expect("start cargo");
    if let Some(marker) = marker {
        std::fs::create_dir_all(marker.parent().expect("folder")).expect("make folder");
        let word: &[u8] = if status.success() {
            b"built"
        } else {
            b"failed"
        };
        std::fs::write(marker, word).expect("write marker");
    }
    assert!(
        status.success(),
        "cargo build of leasehold failed: {status}"
    );
    assert!(binary.is_file(), "cargo built no {}", binary.display());
    binary
}
