//! Room set aside, so that a full disk cannot keep anything from ending.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rustix::fs::FallocateFlags;

/// Bytes set aside: some thousands of ends.
const RESERVE_BYTES: u64 = 8 << 20;

/// A file that is there only to take up room.
pub(super) struct Reserve {
    path: PathBuf,
    held: bool,
}

impl Reserve {
    /// Sets it aside where there is room.
    pub(super) fn new(path: PathBuf) -> Self {
        let mut reserve = Self { path, held: false };
        reserve.refill();
        reserve
    }

    /// Gives its room back to the disk; whether there was any.
    pub(super) fn release(&mut self) -> bool {
        let held = std::mem::replace(&mut self.held, false);
        held && std::fs::remove_file(&self.path).is_ok()
    }

    /// Sets it aside again; a disk that is still full is tried again later.
    pub(super) fn refill(&mut self) {
        if self.held {
            return;
        }
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&self.path);
        let room = file.is_ok_and(|file| {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES).is_ok()
        });
        self.held = room;
        if !room {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
