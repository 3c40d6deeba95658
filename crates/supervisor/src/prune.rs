//! Retention as the supervisor applies it: once at its start and then now and then, a little at a time,
//! more slowly while there is something else to do. What it does not come to is its successor's.

use std::time::{Duration, Instant, SystemTime};

use crate::calls::unix_ms;
use crate::log;
use crate::paths::{open_directory, read_file, replace};
use crate::retention::{Pass, Pruner};
use crate::server::{Server, Timer};

/// How long after its start a supervisor leaves others the machine.
const FIRST: Duration = Duration::from_secs(1);
/// Time between two passes, also over the life of several supervisors.
const EVERY: Duration = Duration::from_secs(600);
/// Pause between two steps of a pass.
const PAUSE: Duration = Duration::from_millis(2);
/// The same while sandboxes are made or commands run.
const PAUSE_BUSY: Duration = Duration::from_millis(50);
/// The file that says by which rule, and when, the last whole pass was.
const MARK: &str = "retention";
/// Most bytes of it.
const MARK_MAX: usize = 4_096;

impl Server {
    /// Arms the first pass.
    pub(crate) fn start_pruning(&mut self) {
        let wait = self
            .passed()
            .map_or(FIRST, |ago| EVERY.saturating_sub(ago).max(FIRST));
        self.timers.set(Timer::Prune, Instant::now(), wait);
    }

    /// Does the next step of a pass.
    pub(crate) fn on_prune(&mut self) {
        let (retention, now) = (self.retention, unix_ms());
        let mut pruner = self
            .pruner
            .take()
            .unwrap_or_else(|| Pruner::new(retention, now, false));
        let wait = match pruner.step(&self.records) {
            Ok(Pass::On) => {
                self.pruner = Some(pruner);
                let busy = !self.runs.is_empty() || !self.ordered.is_empty();
                if busy { PAUSE_BUSY } else { PAUSE }
            }
            Ok(Pass::Over) => {
                self.pass_over(&pruner);
                EVERY
            }
            Err(error) => {
                log::failure("the runs cannot be looked at for retention", &error);
                EVERY
            }
        };
        self.timers.set(Timer::Prune, Instant::now(), wait);
    }

    fn pass_over(&self, pruner: &Pruner) {
        let records = pruner.pruned.iter().filter(|run| run.record).count();
        let outputs = pruner.pruned.len() - records;
        if !pruner.pruned.is_empty() {
            log::line(&format!(
                "retention: the output of {outputs} runs was pruned, and {records} runs with their records"
            ));
        }
        let marked = open_directory(self.paths.state())
            .and_then(|state| replace(&state, MARK, self.rule().as_bytes()));
        if let Err(error) = marked {
            log::failure("the mark of retention could not be written", &error);
        }
    }

    /// How long ago the last whole pass by the same rule was.
    fn passed(&self) -> Option<Duration> {
        let state = open_directory(self.paths.state()).ok()?;
        let rule = read_file(&state, MARK, MARK_MAX).ok()??;
        let found = std::fs::symlink_metadata(self.paths.state().join(MARK)).ok()?;
        let ago = SystemTime::now()
            .duration_since(found.modified().ok()?)
            .ok()?;
        (rule == self.rule().as_bytes()).then_some(ago)
    }

    fn rule(&self) -> String {
        format!("{:?}\n", self.retention)
    }
}
