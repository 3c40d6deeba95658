//! Room set aside, so that a full disk cannot keep anything from ending.
//!
//! While it is not set aside, the disk has not this much room, and nothing new is begun: otherwise new work
//! would eat what was given up for ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// Bytes set aside: some hundreds of ends.
pub(super) const RESERVE_BYTES: u64 = 8 << 20;
/// Shortest time between two attempts that new work asks for.
const AGAIN: Duration = Duration::from_millis(100);

/// A file that is there only to take up room.
pub(super) struct Reserve {
    path: PathBuf,
    held: bool,
    tried: Instant,
}

impl Reserve {
    /// Sets it aside where there is room.
    pub(super) fn new(path: PathBuf) -> Self {
        let mut reserve = Self {
            path,
            held: false,
            tried: Instant::now(),
        };
        reserve.refill();
        reserve
    }

    /// Gives its room back to the disk, if it has any.
    pub(super) fn release(&mut self) {
        if std::mem::replace(&mut self.held, false) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Whether it is set aside; tried again, but not for each that asks.
    pub(super) fn is_held(&mut self) -> bool {
        if !self.held && self.tried.elapsed() >= AGAIN {
            self.refill();
        }
        self.held
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
        self.held = file.and_then(|file| take_up(&file)).is_ok();
        if !self.held {
            let _ = std::fs::remove_file(&self.path);
        }
        self.tried = Instant::now();
    }
}

/// Gives a file the blocks of the reserve.
fn take_up(mut file: &File) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, RESERVE_BYTES) {
        // A file system that cannot do this gives blocks to what is written.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let zeros = vec![0; 1 << 20];
            for _ in 0..RESERVE_BYTES >> 20 {
                file.write_all(&zeros)?;
            }
            file.sync_all()
        }
        other => Ok(other?),
    }
}
