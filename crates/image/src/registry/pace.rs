//! A body that has to come at some rate: a byte now and then keeps a connection from standing still, for ever.

use std::io::{self, Read};
use std::time::{Duration, Instant};

/// Fewest bytes a second, averaged over the time that a connection may stand still.
const RATE: u64 = 1_024;

/// Fewest bytes within such a time.
pub(super) fn least(stall: Duration) -> u64 {
    u64::try_from(stall.as_millis())
        .unwrap_or(u64::MAX)
        .saturating_mul(RATE)
        / 1_000
}

/// Reads a body, and fails where it comes too slowly.
pub(super) struct Paced<R> {
    body: R,
    stall: Duration,
    /// Time waited since the bytes were counted anew.
    waited: Duration,
    bytes: u64,
}

impl<R> Paced<R> {
    pub(super) fn new(body: R, stall: Duration) -> Self {
        Self {
            body,
            stall,
            waited: Duration::ZERO,
            bytes: 0,
        }
    }
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Only the wait for bytes counts, and not what is done with them meanwhile.
        let begun = Instant::now();
        let got = self.body.read(buffer)?;
        self.waited += begun.elapsed();
        self.bytes += got as u64;
        if self.waited >= self.stall {
            if got > 0 && self.bytes < least(self.stall) {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("it comes slower than {RATE} bytes a second"),
                ));
            }
            (self.waited, self.bytes) = (Duration::ZERO, 0);
        }
        Ok(got)
    }
}
