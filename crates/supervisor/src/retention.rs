//! Retention: how long what a run left is kept. It has nothing to do with the life of its sandbox,
//! which is long gone, nor with anybody's right to read it.
//!
//! Two things go at two times. *Output*, which is both streams and the collected files, goes when
//! the first of three bounds is reached: age, number of runs, bytes of all output. The *record*,
//! which is small, stays and says when its output went; it goes by a bound of its own. The newest
//! run keeps both, and a run that is not over is not looked at.
//!
//! A pass works in steps of bounded length, so that the supervisor can take one between two other
//! things. It can be ended at any point: the next one finds what is left.

use std::time::Duration;

use leasehold_core::id::RunId;
use serde::Serialize;

use crate::records::{RecordError, Records};

/// Environment variable: days for which output is kept.
pub const KEEP_DAYS_VARIABLE: &str = "LEASEHOLD_KEEP_DAYS";
/// Environment variable: how many runs keep their output.
pub const KEEP_RUNS_VARIABLE: &str = "LEASEHOLD_KEEP_RUNS";
/// Environment variable: bytes of output that are kept of all runs together.
pub const KEEP_BYTES_VARIABLE: &str = "LEASEHOLD_KEEP_BYTES";
/// Environment variable: how many runs keep their record.
pub const KEEP_RECORDS_VARIABLE: &str = "LEASEHOLD_KEEP_RECORDS";

const DAY: u64 = 86_400;
/// Longest age, in days, that can be asked for: a hundred years.
pub const DAYS_MAX: u64 = 36_500;
/// Most runs and records that can be asked for.
pub const COUNT_MAX: u64 = 10_000_000;
/// Most bytes that can be asked for: a pebibyte.
pub const BYTES_MAX: u64 = 1 << 50;

/// Runs looked at in one step.
const LOOKS: usize = 64;
/// Runs pruned in one step.
const PRUNES: usize = 8;

/// What is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// For how long after its end a run keeps its output.
    pub age: Duration,
    /// How many runs keep their output, the newest first. At least one.
    pub runs: u64,
    /// Bytes of output that are kept, of the newest runs first.
    pub bytes: u64,
    /// How many runs keep their record, the newest first. At least one.
    pub records: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            age: Duration::from_secs(30 * DAY),
            runs: 10_000,
            bytes: 10 << 30,
            records: 100_000,
        }
    }
}

/// A variable holds no number, or one out of bounds.
#[derive(Debug, thiserror::Error)]
#[error("`{variable}` is `{value}`: a whole number from {least} to {most} is needed")]
pub struct RetentionError {
    variable: &'static str,
    value: String,
    least: u64,
    most: u64,
}

impl Retention {
    /// What the environment asks for; the default where it says nothing.
    ///
    /// # Errors
    /// Names the variable, its value and the bounds.
    pub fn from_env() -> Result<Self, RetentionError> {
        Self::read(|name| {
            let value = std::env::var_os(name)?;
            Some(value.to_string_lossy().into_owned())
        })
    }

    fn read(value: impl Fn(&str) -> Option<String>) -> Result<Self, RetentionError> {
        let number = |variable, least, most, default| match value(variable) {
            None => Ok(default),
            Some(text) => match text.parse::<u64>() {
                Ok(number) if (least..=most).contains(&number) => Ok(number),
                _ => Err(RetentionError {
                    variable,
                    value: text.chars().take(64).collect(),
                    least,
                    most,
                }),
            },
        };
        let default = Self::default();
        let days = number(KEEP_DAYS_VARIABLE, 0, DAYS_MAX, default.age.as_secs() / DAY)?;
        Ok(Self {
            age: Duration::from_secs(days * DAY),
            runs: number(KEEP_RUNS_VARIABLE, 1, COUNT_MAX, default.runs)?,
            bytes: number(KEEP_BYTES_VARIABLE, 0, BYTES_MAX, default.bytes)?,
            records: number(KEEP_RECORDS_VARIABLE, 1, COUNT_MAX, default.records)?,
        })
    }

    /// What is to go of runs that are over, newest first.
    fn prunable(&self, mut seen: Vec<Seen>, now_unix_ms: u64) -> Vec<Pruned> {
        seen.sort_by(|a, b| (b.ended_unix_ms, &b.run).cmp(&(a.ended_unix_ms, &a.run)));
        let age_ms = u64::try_from(self.age.as_millis()).unwrap_or(u64::MAX);
        let mut bytes = 0_u64;
        let mut pruned = Vec::new();
        for (at, run) in seen.into_iter().enumerate() {
            let before = at as u64;
            bytes = bytes.saturating_add(run.output_bytes);
            let old = now_unix_ms.saturating_sub(run.ended_unix_ms) > age_ms;
            let whole = !run.recorded || before >= self.records && before > 0;
            let output = run.output && (old || before >= self.runs || bytes > self.bytes);
            if whole || output && before > 0 {
                pruned.push(Pruned {
                    run: run.run,
                    output_bytes: run.output_bytes,
                    record: whole,
                });
            }
        }
        pruned
    }
}

/// A run that is over, as a look at its directory shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) run: RunId,
    /// When its record was completed.
    pub(crate) ended_unix_ms: u64,
    pub(crate) output_bytes: u64,
    /// Whether there are files of output, empty ones too.
    pub(crate) output: bool,
    /// Whether there is a record: without one the directory is what an ended pass left.
    pub(crate) recorded: bool,
}

/// A run that was pruned, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Which.
    pub run: RunId,
    /// Bytes of output that went.
    pub output_bytes: u64,
    /// Whether its record went, too.
    pub record: bool,
}

/// Whether a pass is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// There is more to do.
    On,
    /// Everything that was to go is gone, or could not be removed.
    Over,
}

/// One pass over all runs.
#[derive(Debug)]
pub struct Pruner {
    retention: Retention,
    now_unix_ms: u64,
    dry_run: bool,
    state: State,
    /// What was pruned so far, or would be.
    pub pruned: Vec<Pruned>,
    /// How many could not be.
    pub failures: u64,
}

#[derive(Debug)]
enum State {
    Begun,
    Looking { left: Vec<RunId>, seen: Vec<Seen> },
    Pruning(Vec<Pruned>),
    Over,
}

impl Pruner {
    /// A pass that has done nothing yet. In a dry run it removes nothing.
    #[must_use]
    pub fn new(retention: Retention, now_unix_ms: u64, dry_run: bool) -> Self {
        Self {
            retention,
            now_unix_ms,
            dry_run,
            state: State::Begun,
            pruned: Vec::new(),
            failures: 0,
        }
    }

    /// Does a little of it.
    ///
    /// # Errors
    /// When the runs cannot be listed. What cannot be removed is counted instead.
    pub fn step(&mut self, records: &Records) -> Result<Pass, RecordError> {
        self.state = match std::mem::replace(&mut self.state, State::Over) {
            State::Begun => State::Looking {
                left: records.all()?,
                seen: Vec::new(),
            },
            State::Looking { mut left, mut seen } => {
                let from = left.len().saturating_sub(LOOKS);
                let looked = left.drain(from..);
                seen.extend(looked.filter_map(|run| records.look(&run).ok().flatten()));
                if left.is_empty() {
                    State::Pruning(self.retention.prunable(seen, self.now_unix_ms))
                } else {
                    State::Looking { left, seen }
                }
            }
            State::Pruning(mut left) => {
                // The oldest first.
                let from = left.len().saturating_sub(PRUNES);
                for run in left.drain(from..).rev() {
                    self.prune(records, run);
                }
                if left.is_empty() {
                    State::Over
                } else {
                    State::Pruning(left)
                }
            }
            State::Over => State::Over,
        };
        Ok(match self.state {
            State::Over => Pass::Over,
            _ => Pass::On,
        })
    }

    fn prune(&mut self, records: &Records, run: Pruned) {
        let done = match (self.dry_run, run.record) {
            (true, _) => Ok(()),
            (false, true) => records.remove(&run.run),
            (false, false) => records.remove_output(&run.run, self.now_unix_ms),
        };
        match done {
            Ok(()) => self.pruned.push(run),
            Err(error) => {
                self.failures += 1;
                crate::log::failure("a run could not be pruned", &error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000 * DAY * 1_000;

    fn seen(letter: u8, days_ago: u64, output_bytes: u64) -> Seen {
        Seen {
            run: RunId::from_entropy(&[letter; 13]),
            ended_unix_ms: NOW - days_ago * DAY * 1_000,
            output_bytes,
            output: true,
            recorded: true,
        }
    }

    fn all() -> Retention {
        Retention {
            age: Duration::from_secs(DAYS_MAX * DAY),
            runs: COUNT_MAX,
            bytes: BYTES_MAX,
            records: COUNT_MAX,
        }
    }

    fn gone(retention: Retention, runs: Vec<Seen>) -> Vec<(u8, bool)> {
        let letter = |run: &RunId| (1..9).find(|l| *run == RunId::from_entropy(&[*l; 13]));
        let pruned = retention.prunable(runs, NOW).into_iter();
        pruned
            .map(|one| (letter(&one.run).unwrap(), one.record))
            .collect()
    }

    #[test]
    fn whichever_bound_is_reached_first_decides_and_the_newest_stays() {
        let runs = || vec![seen(1, 9, 10), seen(2, 1, 30), seen(3, 4, 20)];
        assert_eq!(gone(all(), runs()), []);
        let age = Duration::from_secs(3 * DAY);
        assert_eq!(
            gone(Retention { age, ..all() }, runs()),
            [(3, false), (1, false)]
        );
        assert_eq!(gone(Retention { runs: 2, ..all() }, runs()), [(1, false)]);
        assert_eq!(gone(Retention { bytes: 50, ..all() }, runs()), [(1, false)]);
        let least = Retention {
            age: Duration::ZERO,
            runs: 1,
            bytes: 0,
            records: 1,
        };
        assert_eq!(gone(least, runs()), [(3, true), (1, true)]);
        assert_eq!(gone(least, vec![seen(1, 9, 10)]), []);
    }

    #[test]
    fn what_has_no_output_is_kept_until_its_record_goes_and_torn_directories_go_at_once() {
        let mut runs = vec![seen(1, 1, 0), seen(2, 2, 0), seen(3, 3, 0)];
        runs[1].output = false;
        runs[2].recorded = false;
        let few = Retention { runs: 1, ..all() };
        assert_eq!(gone(few, runs.clone()), [(3, true)]);
        let records = Retention {
            records: 1,
            ..all()
        };
        assert_eq!(gone(records, runs), [(2, true), (3, true)]);
    }

    #[test]
    fn the_environment_is_read_within_bounds() {
        let none = Retention::read(|_| None).unwrap();
        assert_eq!(none, Retention::default());
        let seven = Retention::read(|_| Some("7".to_owned())).unwrap();
        assert_eq!((seven.age.as_secs(), seven.runs), (7 * DAY, 7));
        for value in ["0", "-1", "7d", "", "99999999999999999999"] {
            let read =
                Retention::read(|name| (name == KEEP_RUNS_VARIABLE).then(|| value.to_owned()));
            let text = read.unwrap_err().to_string();
            let named = text.contains("LEASEHOLD_KEEP_RUNS") && text.contains("from 1 to 10000000");
            assert!(named && text.contains(&format!("`{value}`")), "{text}");
        }
    }
}
