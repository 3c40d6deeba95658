//! Where the arenas are. Their files go when everything has been measured and not before: some file
//! systems (ext4 without a journal) look past every file that was deleted in the last minute when they
//! make a new one, and what one part tidies up would be measured in the next.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

/// The directories of all arenas so far.
#[derive(Debug, Default)]
pub(crate) struct Ground(RefCell<Vec<PathBuf>>);

impl Ground {
    /// Takes over a directory, which is gone with the ground.
    pub(crate) fn take(&self, directory: PathBuf) {
        self.0.borrow_mut().push(directory);
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for directory in self.0.borrow().iter() {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_go_with_the_ground() {
        let path = std::env::temp_dir().join(format!("leasehold-ground-{}", std::process::id()));
        fs::create_dir_all(path.join("inner")).unwrap();
        let ground = Ground::default();
        ground.take(path.clone());
        assert!(path.exists());
        drop(ground);
        assert!(!path.exists());
    }
}
