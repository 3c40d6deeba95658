//! The last three stages of a run: gather, fix the outcome, remove, look at what is left.

use std::time::Instant;

use leasehold_core::end::{LimitHit, decide};
use leasehold_core::limits::Resource;
use leasehold_core::record::Artifact;
use leasehold_core::stage::Stage;
use leasehold_jail::failpoint;
use leasehold_protocol::supervisor::RecordWord;

use crate::collector::{self, CollectBounds, CollectJob};
use crate::log;
use crate::records::encode;
use crate::run::{Collection, micros};
use crate::server::{Server, Timer};
use crate::source::{Key, Source};
use crate::step::{note_disk, pids_hit};
use crate::supplied::{Supply, note_report, settle_denied};

impl Server {
    /// Gathers output and files; then the outcome is fixed.
    pub(crate) fn collected(&mut self, key: Key) -> bool {
        let now = Instant::now();
        let dead = self.sandbox_dead(key);
        let overdue = self.sandbox_overdue(key);
        let Some(run) = self.runs.get_mut(&key) else {
            return false;
        };
        if run.over.is_none() {
            run.over = Some(now);
            for timer in [Timer::Wall(key), Timer::Grace(key), Timer::Watch(key)] {
                self.timers.clear(timer);
            }
        }
        if dead {
            for spool in &mut run.spools {
                if let Some(source) = spool.finish(&mut self.buffer) {
                    self.sources.forget(&source);
                }
            }
        }
        let never = run.started.is_none();
        if never {
            run.collection = Collection::None;
        }
        if !dead && run.abort && !never {
            self.kill_run(key);
            return false;
        }
        if !dead && !never && !run.silent() {
            self.drain(key);
            return false;
        }
        // What it reports is read when nobody can write it any more.
        let reports = run.supply.as_ref().is_some_and(Supply::reports);
        if !dead && reports {
            self.kill_run(key);
            return false;
        }
        let looking = !never && !overdue && self.lookout_waits(key);
        if looking && dead {
            self.look_again(key);
        }
        let Some(run) = self.runs.get_mut(&key) else {
            return false;
        };
        match run.collection {
            Collection::Running(_) => return false,
            _ if looking && !dead => {
                self.kill_run(key);
                return false;
            }
            Collection::Wanted if !dead => {
                self.kill_run(key);
                return false;
            }
            // Nothing is read from under a process that may still write.
            Collection::Wanted if overdue => {
                run.collection = Collection::None;
                run.record.artifacts = vec![uncollected()];
            }
            Collection::Wanted => {
                failpoint::around("collector", || self.start_collector(key));
                if looking || matches!(self.runs[&key].collection, Collection::Running(_)) {
                    return false;
                }
            }
            Collection::None if looking => return false,
            Collection::None => {}
        }
        self.conclude(key);
        self.finish(key, Stage::Destroy);
        true
    }

    fn start_collector(&mut self, key: Key) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        run.collection = Collection::None;
        let Some(sandbox) = run.sandbox.and_then(|sandbox| self.sandboxes.get(&sandbox)) else {
            return;
        };
        let Some(made) = &sandbox.made else { return };
        let (host_uid, host_gid) = sandbox.workload_ids();
        let started = rustix::io::fcntl_dupfd_cloexec(&made.workspace, 3)
            .map_err(std::io::Error::from)
            .and_then(|workspace| Ok((workspace, run.folder.make_artifacts()?)))
            .map_err(|error| error.to_string())
            .and_then(|(workspace, staging)| {
                collector::start(CollectJob {
                    workspace,
                    staging,
                    globs: run.exec.artifacts.clone(),
                    host_uid,
                    host_gid,
                    bounds: CollectBounds::default(),
                })
                .map_err(|error| error.to_string())
            });
        match started {
            Ok(collector) => {
                let now = Instant::now();
                let late = collector.deadline().saturating_duration_since(now);
                if self.sources.add(&collector, Source::Collector(key)).is_ok() {
                    self.timers.set(Timer::Collector(key), now, late);
                    run.collection = Collection::Running(Box::new(collector));
                }
            }
            Err(error) => {
                log::line(&format!(
                    "run {}: no files collected: {error}",
                    run.record.run
                ));
                run.record.artifacts = vec![uncollected()];
            }
        }
    }

    /// Takes what the collector says.
    pub(crate) fn on_collector(&mut self, key: Key) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        let Collection::Running(collector) = &mut run.collection else {
            return;
        };
        if matches!(collector.advance(), Ok(false)) {
            return;
        }
        self.sources.forget(&**collector);
        self.timers.clear(Timer::Collector(key));
        let Collection::Running(collector) =
            std::mem::replace(&mut run.collection, Collection::None)
        else {
            return;
        };
        run.record.artifacts = match collector.finish() {
            Ok(collected) => collected.artifacts,
            Err(error) => {
                log::failure("the collector failed", &error);
                vec![uncollected()]
            }
        };
        self.step(key);
    }

    /// Puts together what was seen, decides the end and writes it down.
    fn conclude(&mut self, key: Key) {
        let overdue = self.sandbox_overdue(key);
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        let sandbox = run.sandbox.filter(|_| run.started.is_some());
        if let Some(sandbox) = sandbox.and_then(|sandbox| self.sandboxes.get(&sandbox)) {
            note_disk(run, sandbox);
            note_group(run, sandbox);
            if !overdue {
                note_report(run, sandbox);
            }
            settle_denied(run, sandbox.admitted.limits.on_denied);
            run.record.may_execute_on_host = sandbox.left_on_host();
        }
        if let (Some(started), Some(over)) = (run.started, run.over) {
            run.record.usage.wall_micros = micros(over.saturating_duration_since(started));
        }
        let hits = run.seen.killed_by.iter().chain(&run.seen.denied);
        run.record.limits_hit = hits.copied().collect();
        run.record.exit = run.seen.exit.clone();
        run.record.stdout = run.spools[0].seen();
        run.record.stderr = run.spools[1].seen();
        run.record.end = Some(decide(&run.seen));
        if !run.accepted {
            self.tell_accepted(key);
        }
        self.tell_last_output(key);
    }

    /// Tells the outcome and ends what lives; waits until it is gone.
    pub(crate) fn destroyed(&mut self, key: Key) -> bool {
        // Of one that ends as it begins.
        self.name_run(key);
        let Some(run) = self.runs.get_mut(&key) else {
            return false;
        };
        if !run.told_end {
            run.told_end = true;
            if let Some(bytes) = encode(&run.record) {
                let write = || run.folder.write_encoded(&run.record.run, &bytes);
                if let Err(error) = failpoint::around("outcome", write) {
                    log::failure("a record could not be written", &error);
                }
                let followers = run.followers.clone();
                self.tell_record(&followers, RecordWord::Ended, &bytes);
            }
            // Before what follows takes its time: somebody waits for this.
            self.flush();
            for timer in [Timer::Quiet(key), Timer::Drain(key)] {
                self.timers.clear(timer);
            }
        }
        if !self.sandbox_dead(key) {
            self.kill_run(key);
            return false;
        }
        let sandbox = self.runs.get_mut(&key).and_then(|run| run.sandbox.take());
        if let Some(sandbox) = sandbox {
            let groups = self.remove_groups(sandbox);
            if let Some(run) = self.runs.get_mut(&key) {
                run.removing = Some((sandbox, groups));
            }
        }
        self.finish(key, Stage::Cleanup)
    }

    /// Removes the rest, looks at what is left, and completes the record.
    pub(crate) fn cleaned(&mut self, key: Key) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        if run.record.cleanup.is_none() {
            let removing = run.removing.as_ref().map(|(sandbox, _)| *sandbox);
            if removing.is_some_and(|sandbox| !self.settled(sandbox)) {
                return;
            }
            let removing = self.runs.get_mut(&key).and_then(|run| run.removing.take());
            let observed = match removing {
                Some((sandbox, groups)) => self.remove_rest(sandbox, groups),
                None => crate::remove::nothing_made(),
            };
            if let Some(run) = self.runs.get_mut(&key) {
                run.record.cleanup = Some(observed);
            }
            self.finish(key, Stage::Cleanup);
        }
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        if run.held {
            return;
        }
        self.name_run(key);
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        let encoded = encode(&run.record);
        let written = encoded.as_ref().map(|bytes| {
            let (folder, spares) = (&mut run.folder, &mut self.spares);
            failpoint::around("last", || folder.write_last(&run.record.run, bytes, spares))
        });
        match written {
            Some(Ok(())) => {
                self.records.close(&run.record.run);
                self.records.let_go(&run.record);
            }
            Some(Err(error)) => log::failure("a record could not be completed", &error),
            None => {}
        }
        let Some(run) = self.runs.remove(&key) else {
            return;
        };
        self.run_ids.remove(&run.record.run);
        self.timers.clear(Timer::Hold(key));
        if let Some(bytes) = encoded {
            self.tell_record(&run.followers, RecordWord::Cleaned, &bytes);
        }
        for (from, tag) in run.followers {
            if let Some(connection) = self.connections.get_mut(&from) {
                connection.follows.remove(&(tag, key));
                connection.stale.remove(&(tag, key));
            }
        }
    }
}

fn uncollected() -> Artifact {
    Artifact {
        path: ".".to_owned(),
        bytes: 0,
        sha256: None,
        skipped: Some("unreadable".to_owned()),
        may_execute_on_host: false,
    }
}

/// Counts of the control group, and what they say of limits.
fn note_group(run: &mut crate::run::Run, sandbox: &crate::sandbox::Sandbox) {
    let Some(group) = &sandbox.group else { return };
    let (usage, events) = (group.usage_so_far(), group.events());
    run.record.usage.cpu_micros = usage.cpu_micros;
    run.record.usage.memory_peak_bytes = usage.memory_peak_bytes;
    run.record.usage.throttled_micros = usage.throttled_micros;
    let limits = &sandbox.admitted.limits;
    if events.oom_kills > 0 {
        if events.memory_hits.is_none_or(|hits| hits > 0) {
            run.seen.killed_by.get_or_insert(LimitHit {
                which: Resource::Memory,
                limit: limits.memory_bytes.value,
                observed: usage.memory_peak_bytes.unwrap_or(0),
            });
        } else if run.seen.exit.as_ref().is_none_or(|exit| !exit.success()) {
            let text = "the host ran out of memory and its kernel chose this sandbox";
            run.seen.crashed.get_or_insert(text.to_owned());
        }
    }
    if let Some(hit) = pids_hit(sandbox, events.pids_denied) {
        run.seen.denied.insert(0, hit);
    }
}
