//! A directory for one test, removed when the test ends. Must not be used outside tests.

use std::fs;
use std::path::{Path, PathBuf};

/// Removed with its content on drop.
pub(crate) struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    /// A fresh directory whose name tells the test.
    pub(crate) fn new(test: &str) -> Self {
        let name = format!("leasehold-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(fs::canonicalize(path).unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
