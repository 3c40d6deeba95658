//! A process of its own: this very test binary, told by its environment what to be.

use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Says what to be.
pub(crate) const ROLE: &str = "LEASEHOLD_STORE_TEST_ROLE";
/// Says where.
pub(crate) const DIR: &str = "LEASEHOLD_STORE_TEST_DIR";

/// Starts this binary as one test with a role; `before` are words put before it, such as `unshare -m`.
pub(crate) fn start(test: &str, role: &str, dir: &Path, before: &[&str]) -> Child {
    let binary = std::env::current_exe().unwrap();
    let mut words: Vec<&std::ffi::OsStr> = before.iter().map(std::ffi::OsStr::new).collect();
    words.push(binary.as_os_str());
    Command::new(words[0])
        .args(&words[1..])
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

/// The role of this process, if it was given one.
pub(crate) fn role() -> Option<(String, std::path::PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(DIR)?.into()))
}
