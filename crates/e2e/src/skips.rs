//! Saying loudly that a test did not run, and why.

use std::io::Write;
use std::path::PathBuf;

/// Something a test needs of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need<'a> {
    /// The test runs as root.
    Root,
    /// A program on the search path.
    Program(&'a str),
    /// A file or directory.
    Path(&'a str),
}

/// Says that the test `name` does not run here, on standard error and in the list that CI prints
/// (`LEASEHOLD_SKIPS`, else `target/e2e/skips`).
pub fn skip(name: &str, reason: &str) {
    let line = format!("SKIP {name}: {reason}\n");
    // Written past the capture of the test runner, which hides what passing tests print.
    std::io::stderr().write_all(line.as_bytes()).ok();
    let list = std::env::var_os("LEASEHOLD_SKIPS").map_or_else(
        || crate::binary::target().join("e2e").join("skips"),
        PathBuf::from,
    );
    if let Some(folder) = list.parent() {
        std::fs::create_dir_all(folder).ok();
    }
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(list);
    if let Ok(mut file) = file {
        file.write_all(line.as_bytes()).ok();
    }
}

/// Whether the machine has all that test `name` needs; says so loudly when it has not.
#[must_use]
pub fn need(name: &str, needs: &[Need<'_>]) -> bool {
    for need in needs {
        let missing = match need {
            Need::Root if !rustix::process::geteuid().is_root() => Some("needs root".to_owned()),
            Need::Program(program) if which(program).is_none() => {
                Some(format!("needs the program {program}"))
            }
            Need::Path(path) if !std::path::Path::new(path).exists() => {
                Some(format!("needs {path}"))
            }
            _ => None,
        };
        if let Some(missing) = missing {
            skip(name, &missing);
            return false;
        }
    }
    true
}

/// Where a program is on the search path or among the system's own.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/bin", "/usr/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}
