//! Test hooks, compiled only into debug builds: hold a run at the end of a stage, or fail a step of
//! removal, so that tests can kill us at each point and see what a sweep makes of it.

use std::time::Duration;

use leasehold_core::stage::Stage;

/// What the environment asked for at start.
#[derive(Debug, Default, Clone)]
pub(crate) struct Failpoints {
    holds: Vec<(Stage, Duration)>,
    faults: Vec<String>,
    turns: u32,
}

/// `LEASEHOLD_HOLD=<stage>:<ms>[,…]` holds every run that long at the end of that stage.
#[cfg(debug_assertions)]
pub(crate) const HOLD_VARIABLE: &str = "LEASEHOLD_HOLD";
/// `LEASEHOLD_FAULT=<name>[,…]` makes the named steps of removal fail: `cgroups`, `uids`, `scratch`; or
/// kills the spawner before every third order: `spawner`; or ends us between the first record of a run
/// and its name: `naming`.
#[cfg(debug_assertions)]
pub(crate) const FAULT_VARIABLE: &str = "LEASEHOLD_FAULT";

/// `LEASEHOLD_POINT=<file>`: the supervisor that starts next dies at the point that the file names
/// (`leasehold_jail::failpoint`). It takes the file away and leaves one of that name and `.pid`, which says who it
/// is. Its successor finds no order, and goes past.
#[cfg(debug_assertions)]
pub(crate) const POINT_VARIABLE: &str = "LEASEHOLD_POINT";

/// Reads where this process is to die; in release builds there is nothing to read.
pub(crate) fn arm() {
    #[cfg(debug_assertions)]
    if let Some(file) = std::env::var_os(POINT_VARIABLE)
        && let Ok(point) = std::fs::read_to_string(&file)
        && std::fs::remove_file(&file).is_ok()
    {
        let mut taken = file;
        taken.push(".pid");
        let _ = std::fs::write(taken, std::process::id().to_string());
        leasehold_jail::failpoint::arm(point.trim());
    }
}

impl Failpoints {
    /// Reads the environment; in release builds there is nothing to read.
    pub(crate) fn from_env() -> Self {
        #[cfg(debug_assertions)]
        {
            let read = |name| std::env::var(name).unwrap_or_default();
            Self::parse(&read(HOLD_VARIABLE), &read(FAULT_VARIABLE))
        }
        #[cfg(not(debug_assertions))]
        Self::default()
    }

    #[cfg_attr(
        not(debug_assertions),
        allow(dead_code, reason = "read in debug builds alone")
    )]
    fn parse(holds: &str, faults: &str) -> Self {
        let hold = |text: &str| {
            let (stage, ms) = text.split_once(':')?;
            let stage = Stage::ALL.into_iter().find(|known| known.word() == stage)?;
            Some((stage, Duration::from_millis(ms.parse().ok()?)))
        };
        Self {
            holds: holds.split(',').filter_map(hold).collect(),
            faults: faults
                .split(',')
                .filter(|f| !f.is_empty())
                .map(str::to_owned)
                .collect(),
            turns: 0,
        }
    }

    /// How long a run waits at the end of a stage.
    pub(crate) fn hold(&self, stage: Stage) -> Option<Duration> {
        self.holds
            .iter()
            .find(|(held, _)| *held == stage)
            .map(|(_, time)| *time)
    }

    /// Whether something is to happen this time: every so many times.
    pub(crate) fn turn(&mut self, name: &str, every: u32) -> bool {
        self.turns = self.turns.wrapping_add(u32::from(self.fault(name)));
        self.fault(name) && self.turns.is_multiple_of(every)
    }

    /// Ends us here and now, as `kill -9` does.
    pub(crate) fn die(&self, name: &str) {
        if self.fault(name) {
            let us = rustix::process::getpid();
            let _ = rustix::process::kill_process(us, rustix::process::Signal::KILL);
        }
    }

    /// Whether a step of removal is to fail.
    pub(crate) fn fault(&self, name: &str) -> bool {
        self.faults.iter().any(|fault| fault == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_are_read_and_nonsense_is_none() {
        let points = Failpoints::parse("inject:250,what:1,destroy:x", "uids");
        assert_eq!(points.hold(Stage::Inject), Some(Duration::from_millis(250)));
        assert_eq!(points.hold(Stage::Destroy), None);
        assert!(points.fault("uids") && !points.fault("cgroups"));
        let mut points = points;
        let turns = [(); 6].map(|()| points.turn("uids", 3));
        assert_eq!(turns, [false, false, true, false, false, true]);
        assert!(!points.turn("cgroups", 1));
    }
}
