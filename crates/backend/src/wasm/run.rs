//! One run in a shared host, as its owner keeps it: record, output, and how it came to its end.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leasehold_core::contract::Contract;
use leasehold_core::end::{CancelledBy, ExitStatus, Observations, decide};
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::limits::Resource;
use leasehold_core::record::{ModuleReport, Observed, Residue, RunRecord, Usage};
use leasehold_core::stage::Stage;
use leasehold_protocol::wasm::{Counted, Report, RunLimits, printable};

use super::room::Taken;
use crate::kept::Kept;

/// Most characters of what a host says of a module it cannot use.
const TEXT_MAX: usize = 500;

/// How a run came to its end.
#[derive(Debug)]
pub(super) enum Over {
    /// Its host says so.
    Report(Box<Report>),
    /// Its host cannot use the module.
    Unusable(String),
    /// Its host did not end it in time, and is ended.
    Late,
    /// Its host is gone.
    Lost(String),
}

/// A run in a shared host.
#[derive(Debug)]
pub(super) struct SharedRun {
    pub(super) kept: Kept,
    limits: RunLimits,
    /// When its host was told to start it.
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    cancelled: Option<CancelledBy>,
    over: bool,
    /// Output that it may come to hold in memory.
    output: Taken,
}

/// What a run begins with.
pub(super) struct Beginning {
    pub(super) run: RunId,
    pub(super) sandbox: SandboxId,
    pub(super) contract: Contract,
    pub(super) limits: RunLimits,
    pub(super) output: Taken,
    /// When it was launched, and when its code was at hand.
    pub(super) launched: Instant,
    pub(super) coded: Instant,
    /// Whether its host was there already.
    pub(super) warm: bool,
}

/// A host that says more than it can know.
#[derive(Debug)]
pub(super) struct Breach(pub(super) String);

impl SharedRun {
    /// A run whose host is about to be told to start it.
    ///
    /// # Errors
    /// When there is no memory or descriptor for its output.
    pub(super) fn new(begin: Beginning) -> io::Result<Self> {
        let begun = Instant::now();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let accepted = since.map_or(0, |since| since.as_millis() as u64);
        let record = RunRecord {
            contract: Some(begin.contract),
            warm: begin.warm,
            ..RunRecord::accepted(begin.run, begin.sandbox, accepted)
        };
        let run = Self {
            kept: Kept::new(record)?,
            limits: begin.limits,
            begun,
            state: Mutex::new(State {
                cancelled: None,
                over: false,
                output: begin.output,
            }),
        };
        let found = begun.saturating_duration_since(begin.coded);
        let coded = begin.coded.saturating_duration_since(begin.launched);
        run.kept.stage(Stage::Allocate, micros(found));
        run.kept.stage(Stage::Initialize, micros(coded));
        Ok(run)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that its host was told everything.
    pub(super) fn injected(&self) {
        self.kept.stage(Stage::Inject, micros(self.begun.elapsed()));
    }

    /// Notes who wants its end. Says whether there is anything to end.
    pub(super) fn wish(&self, by: CancelledBy) -> bool {
        let mut state = self.state();
        if !state.over {
            state.cancelled.get_or_insert(by);
        }
        !state.over
    }

    pub(super) fn over(&self) -> bool {
        self.state().over
    }

    /// Takes output from its host.
    pub(super) fn output(&self, which: usize, bytes: &[u8]) -> Result<(), Breach> {
        let most = self.limits.output_bytes;
        let stream = self.kept.put(which, bytes, most);
        let stream =
            stream.map_err(|error| Breach(format!("its output cannot be kept: {error}")))?;
        if stream.written > most {
            return Err(Breach(format!("it sent more output than {most} bytes")));
        }
        Ok(())
    }

    /// Fixes its end. Only the first time counts.
    pub(super) fn end(&self, over: Over) {
        let cancelled = {
            let mut state = self.state();
            if std::mem::replace(&mut state.over, true) {
                return;
            }
            state.cancelled
        };
        let ran = self.begun.elapsed();
        let executed = Instant::now();
        let (seen, module, report) = self.observe(over, cancelled);
        self.kept.stage(Stage::Execute, micros(ran));
        let held = self.kept.change(|record| {
            record.end = Some(decide(&seen));
            record.limits_hit = seen.killed_by.iter().chain(&seen.denied).copied().collect();
            record.exit = seen.exit;
            record.usage = Usage {
                wall_micros: micros(ran),
                // A host has one thread for its runs, and holds them to their memory.
                cpu_micros: report.as_ref().map(|report| report.cpu_us.min(micros(ran))),
                memory_peak_bytes: report
                    .as_ref()
                    .map(|report| report.memory_peak_bytes.min(self.limits.memory_bytes)),
                ..Usage::default()
            };
            record.module = module;
            if let Some(report) = &report {
                for (stream, said) in [
                    (&mut record.stdout, report.stdout),
                    (&mut record.stderr, report.stderr),
                ] {
                    // What came is what was seen; the host alone knows what it dropped.
                    stream.written = written(said, stream.kept);
                    stream.truncated = stream.written > stream.kept;
                }
            }
            record.stdout.kept + record.stderr.kept
        });
        self.state().output.shrink(held);
        self.kept.tell_output();
        self.kept.stage(Stage::Collect, micros(executed.elapsed()));
        self.kept.end();
    }

    /// What is known of its end, and what the record keeps beside it.
    fn observe(
        &self,
        over: Over,
        cancelled: Option<CancelledBy>,
    ) -> (Observations, Option<ModuleReport>, Option<Report>) {
        let seen = Observations {
            cancelled,
            ..Observations::default()
        };
        match over {
            Over::Lost(why) => (
                Observations {
                    crashed: Some(format!("the WebAssembly host of this run is gone: {why}")),
                    ..seen
                },
                None,
                None,
            ),
            Over::Late => (
                Observations {
                    wall_expired_ms: Some(self.limits.wall_ms),
                    ..seen
                },
                None,
                None,
            ),
            Over::Unusable(why) => (
                Observations {
                    exit: Some(ExitStatus::NotExecutable),
                    ..seen
                },
                Some(ModuleReport {
                    detail: Some(printable(&why, TEXT_MAX)),
                    ..ModuleReport::default()
                }),
                None,
            ),
            Over::Report(report) => {
                let kept = report.kept();
                (self.believed(&report, cancelled), Some(kept), Some(*report))
            }
        }
    }

    /// What a report says, as far as it can be so.
    fn believed(&self, report: &Report, cancelled: Option<CancelledBy>) -> Observations {
        match (report.observations(&self.limits), report.cancelled) {
            (Err(why), _) => Observations {
                cancelled,
                crashed: Some(why),
                ..Observations::default()
            },
            (Ok(mut seen), false) => {
                // Output that is cut is counted as such, and no denial.
                seen.denied.retain(|hit| hit.which != Resource::Output);
                seen
            }
            (Ok(seen), true) => match cancelled {
                Some(_) => Observations { cancelled, ..seen },
                None => Observations {
                    crashed: Some("the WebAssembly host ended it of its own accord".to_owned()),
                    ..Observations::default()
                },
            },
        }
    }

    /// Notes what was seen of its removal, which closes it.
    pub(super) fn removed(&self, observed: Observed, took: Duration) {
        self.kept.stage(Stage::Destroy, micros(took));
        self.kept.stage(Stage::Cleanup, 0);
        self.kept.change(|record| record.cleanup = Some(observed));
        self.kept.close();
    }
}

/// Bytes that a program wrote, of which so many came.
fn written(said: Counted, came: u64) -> u64 {
    said.total.max(came)
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn residue(resource: &str, clean: bool, detail: &str, inferred: bool) -> Observed {
    Observed {
        residues: vec![Residue {
            resource: resource.to_owned(),
            clean,
            detail: detail.to_owned(),
            inferred,
        }],
    }
}

/// What is said of a run whose host goes on: its instance is gone by the host's word.
pub(super) fn set_back() -> Observed {
    let detail = "its host says that it is over, and sets its slot back before the next run";
    residue("instance", true, detail, true)
}

/// What is said of a run whose host nobody saw end.
pub(super) fn unseen() -> Observed {
    residue(
        "processes",
        false,
        "nobody told of the end of its host",
        false,
    )
}

/// What is said of a run that was in a host of a process that is gone.
pub(super) fn gone_with_its_owner() -> Observed {
    let detail = "its host ends with the process that owned it, and that is gone";
    residue("processes", true, detail, true)
}

#[cfg(test)]
pub(super) mod tests;
