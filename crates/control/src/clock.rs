//! The two clocks of the control plane: wall time for what is written down, a clock that never goes back
//! for what is waited for.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970.
    fn unix_ms(&self) -> u64;

    /// Since some moment before; never goes back. Advances with the runtime's own timers.
    fn elapsed(&self) -> Duration;
}

/// The clock of the system.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    begun: Instant,
}

impl SystemClock {
    /// A clock that begins now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            begun: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn unix_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
    }

    fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// A clock for tests with paused time: wall time goes on with the runtime's.
#[derive(Debug, Clone, Copy)]
pub struct PausedClock {
    begun: Instant,
    unix_ms: u64,
}

impl PausedClock {
    /// A clock that shows this now.
    #[must_use]
    pub fn new(unix_ms: u64) -> Self {
        Self {
            begun: Instant::now(),
            unix_ms,
        }
    }
}

impl Clock for PausedClock {
    fn unix_ms(&self) -> u64 {
        let gone = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.unix_ms.saturating_add(gone)
    }

    fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}
