//! A vigil: for a moment after a command was let go, the loop looks again and again in place of sleeping.
//!
//! A short command ends before a sleeping core is awake again, and its end is heard on the way to its
//! caller: to be woken costs more than the command. So where one run has the machine to itself, and its
//! sandbox does not run on our core, we stay awake for it, [`VIGIL`] at most. Where more is going on
//! there is no vigil: the core is somebody's.

use std::io;
use std::time::Duration;

use crate::server::Server;
use crate::source::Happening;

/// Longest time awake for one command: twice what the least one takes.
const VIGIL: Duration = Duration::from_micros(500);

impl Server {
    /// Waits until something happens or the time is over, awake for as long as that pays. With no time
    /// there is other work.
    pub(crate) fn await_events(&self, time: Option<Duration>) -> io::Result<Vec<Happening>> {
        while time != Some(Duration::ZERO) && self.watchful() {
            let happened = self.sources.wait(Some(Duration::ZERO))?;
            if !happened.is_empty() {
                return Ok(happened);
            }
        }
        self.sources.wait(time)
    }

    /// Whether the one run there is began a moment ago on another core, and has not ended.
    fn watchful(&self) -> bool {
        if self.runs.len() != 1 || !self.ordered.is_empty() || !self.waiting.is_empty() {
            return false;
        }
        let begun = |run: &crate::run::Run| {
            let fresh = run.started.is_some_and(|at| at.elapsed() < VIGIL);
            (fresh && !run.told_end && !run.held).then_some(run.sandbox)?
        };
        let sandbox = self.runs.values().find_map(begun);
        let sandbox = sandbox.and_then(|key| self.sandboxes.get(&key));
        sandbox.is_some_and(crate::sandbox::Sandbox::beside_us)
    }
}
