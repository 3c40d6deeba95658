//! Moving a run through its seven stages. [`Server::step`] looks at what is so and does what follows;
//! whoever sees something happen notes it and calls it. So every way into and out of a stage is here.
//!
//! | stage | ends when |
//! |---|---|
//! | allocate | a sandbox was made or claimed |
//! | initialize | its init and stub wait |
//! | inject | the stub became the command |
//! | execute | the command ended, or its sandbox did |
//! | collect | output and files are gathered: the outcome is fixed |
//! | destroy | every process is gone and control groups are removed |
//! | cleanup | everything else is removed and was looked at |
//!
//! Output that something holds open after the command ended is read until nothing came for 100 ms,
//! at most 1 s in all. Then everything is killed and what is left in the pipes is read.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use leasehold_core::end::{CancelledBy, LimitHit};
use leasehold_core::image::User;
use leasehold_core::limits::{OnDenied, Resource};
use leasehold_core::stage::Stage;
use leasehold_jail::failpoint;
use leasehold_protocol::guest::ExecRequest;
use leasehold_protocol::socket::send_with_fds;
use leasehold_protocol::supervisor::Event;
use rustix::io::fcntl_dupfd_cloexec;

use crate::image;
use crate::run::Exec;
use crate::server::{Server, Timer};
use crate::source::{Key, Source};
use crate::streams::Streams;
use crate::supplied::Supply;

/// Most time for output that is held open after the command ended.
const DRAIN: Duration = Duration::from_secs(1);
/// Longest pause between two looks at processor time and disk.
const WATCH_MAX: Duration = Duration::from_millis(250);
/// Shortest such pause for the sake of the disk: how full it was is not told afterwards.
const WATCH_SHORT: Duration = Duration::from_millis(20);
/// Shortest such pause.
const WATCH_MIN: Duration = Duration::from_millis(5);

impl Server {
    /// Does what follows from what is so, until nothing does.
    pub(crate) fn step(&mut self, key: Key) {
        loop {
            let Some(run) = self.runs.get(&key) else {
                return;
            };
            if run.held {
                return;
            }
            let moved = match run.stage {
                Stage::Allocate => self.allocated(key),
                Stage::Initialize => self.initialized(key),
                Stage::Inject => self.injected(key),
                Stage::Execute => self.executed(key),
                Stage::Collect => self.collected(key),
                Stage::Destroy => self.destroyed(key),
                Stage::Cleanup => return self.cleaned(key),
            };
            if !moved {
                return;
            }
        }
    }

    /// Ends the stage a run is in and tells its followers.
    pub(crate) fn finish(&mut self, key: Key, next: Stage) -> bool {
        let now = Instant::now();
        let Some(run) = self.runs.get_mut(&key) else {
            return false;
        };
        let time = run.enter(next, now);
        if let Some(hold) = self.failpoints.hold(time.stage) {
            run.held = true;
            self.timers.set(Timer::Hold(key), now, hold);
        }
        if run.accepted {
            for (from, tag) in run.followers.clone() {
                self.notify_soon(from, tag, Event::Stage(time), Vec::new());
            }
        }
        true
    }

    /// Whether the sandbox of a run is dead; without one there is nothing that lives.
    pub(crate) fn sandbox_dead(&self, key: Key) -> bool {
        let sandbox = self.runs.get(&key).and_then(|run| run.sandbox);
        let sandbox = sandbox.and_then(|sandbox| self.sandboxes.get(&sandbox));
        sandbox.is_none_or(|sandbox| sandbox.dead() || sandbox.overdue)
    }

    /// Whether the sandbox of a run outlived its kill.
    pub(crate) fn sandbox_overdue(&self, key: Key) -> bool {
        let sandbox = self.runs.get(&key).and_then(|run| run.sandbox);
        let sandbox = sandbox.and_then(|sandbox| self.sandboxes.get(&sandbox));
        sandbox.is_some_and(|sandbox| sandbox.overdue && !sandbox.dead())
    }

    fn allocated(&mut self, key: Key) -> bool {
        let run = &self.runs[&key];
        if run.abort {
            return self.finish(key, Stage::Collect);
        }
        let sandbox = run.sandbox.and_then(|sandbox| self.sandboxes.get(&sandbox));
        let made = sandbox.is_some_and(|sandbox| sandbox.made.is_some());
        made && self.finish(key, Stage::Initialize)
    }

    fn initialized(&mut self, key: Key) -> bool {
        let run = &self.runs[&key];
        if run.abort || self.sandbox_dead(key) {
            return self.finish(key, Stage::Collect);
        }
        let ready = run
            .sandbox
            .and_then(|sandbox| self.sandboxes.get(&sandbox))
            .is_some_and(crate::sandbox::Sandbox::ready);
        if !ready {
            return false;
        }
        self.finish(key, Stage::Inject)
    }

    fn injected(&mut self, key: Key) -> bool {
        let run = &self.runs[&key];
        if run.abort || self.sandbox_dead(key) {
            return self.finish(key, Stage::Collect);
        }
        match run.exec_state {
            Exec::Unsent => {
                self.send_message(key);
                self.runs[&key].abort
            }
            Exec::Sent => false,
            Exec::Done => self.finish(key, Stage::Execute),
            Exec::Failed => self.finish(key, Stage::Collect),
        }
    }

    fn executed(&mut self, key: Key) -> bool {
        let run = &self.runs[&key];
        let over = run.main_exited || run.abort || self.sandbox_dead(key);
        over && self.finish(key, Stage::Collect)
    }

    /// Hands the command over to the stub, with its descriptors.
    fn send_message(&mut self, key: Key) {
        if let Err(error) = failpoint::around("pipes", || self.prepare_message(key)) {
            let Some(run) = self.runs.get_mut(&key) else {
                return;
            };
            run.seen.never_started = Some(format!("its pipes could not be made: {error}"));
            run.abort = true;
            return;
        }
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        let (sandbox, now) = (run.sandbox, Instant::now());
        run.exec_state = Exec::Sent;
        run.started = Some(now);
        if let Some(sandbox) = sandbox {
            failpoint::around("message", || self.continue_message(sandbox));
            self.arm(key, sandbox, now);
        }
        self.watch_streams(key);
    }

    /// Waits for what comes out of a command that is let go.
    fn watch_streams(&mut self, key: Key) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        for (which, spool) in (0..).zip(&run.spools) {
            let Some(source) = spool.source() else {
                continue;
            };
            if let Err(error) = self.sources.add(source, Source::Stream(key, which)) {
                let why = format!("its output could not be watched: {error}");
                run.seen.crashed.get_or_insert(why);
                run.abort = true;
            }
        }
    }

    fn prepare_message(&mut self, key: Key) -> std::io::Result<()> {
        let Some(run) = self.runs.get_mut(&key) else {
            return Ok(());
        };
        let mut sandbox = run
            .sandbox
            .and_then(|sandbox| self.sandboxes.get_mut(&sandbox));
        let piped = sandbox.as_mut().filter(|_| run.exec.tty.is_none());
        let streams = piped.map(|sandbox| sandbox.take_streams());
        let User { uid, gid } = sandbox
            .as_ref()
            .map_or(image::WORKLOAD, |sandbox| image::user(&sandbox.spec));
        let admitted = sandbox.map(|sandbox| &sandbox.admitted);
        let bytes = |text: &String| text.as_bytes().to_vec();
        let pair = |(name, value): (&String, &String)| format!("{name}={value}").into_bytes();
        // What is declared is for the module; the program that runs it has an environment of nobody's.
        let (cwd, argv, env) = match &run.supply {
            Some(supply) => ("/", &supply.told.argv, Vec::new()),
            None => (
                run.cwd(),
                &run.exec.argv,
                run.exec.env.iter().map(pair).collect(),
            ),
        };
        let request = ExecRequest {
            cwd: cwd.as_bytes().to_vec(),
            argv: argv.iter().map(bytes).collect(),
            env,
            passed: run.supply.as_ref().map(Supply::passed),
            ids: (uid, gid),
            tty: run.exec.tty.map(|size| (size.rows, size.cols)),
            files: admitted.map_or(1_024, |admitted| {
                admitted.limits.files.value + admitted.beside.files
            }),
            // A second net in each process: a second above, so that ours decides first.
            cpu_seconds: admitted
                .and_then(|admitted| admitted.limits.cpu_time_ms)
                .map_or(0, |limit| {
                    u32::try_from(limit.value.div_ceil(1_000) + 1).unwrap_or(u32::MAX)
                }),
        };
        run.message = request.encode();
        if request.tty.is_some() {
            run.message_fds.clear();
            return Ok(());
        }
        let streams = match streams {
            Some(made) => made?,
            None => Streams::make(None)?,
        };
        if run.message_fds.is_empty() {
            run.message_fds.push(streams.null);
        }
        for (spool, reader) in run.spools.iter_mut().zip(streams.readers) {
            spool.open(reader);
        }
        run.message_fds.extend(streams.writers);
        if let Some(supply) = &mut run.supply {
            run.message_fds.extend(supply.hand_over()?);
        }
        Ok(())
    }

    /// Sends as much of the message as the stub's socket takes.
    pub(crate) fn continue_message(&mut self, sandbox: Key) {
        let Some(found) = self.sandboxes.get(&sandbox) else {
            return;
        };
        let crate::sandbox::Role::Run(key) = found.role else {
            return;
        };
        let (Some(stub), Some(run)) = (&found.stub, self.runs.get_mut(&key)) else {
            return;
        };
        while run.message_sent < run.message.len() {
            let fds: Vec<_> = run.message_fds.iter().map(AsFd::as_fd).collect();
            match send_with_fds(stub, &run.message[run.message_sent..], &fds) {
                Ok(count) => {
                    run.message_sent += count;
                    run.message_fds.clear();
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let _ = self.sources.want_room(stub, Source::Stub(sandbox), true);
                    run.message_waits = true;
                    return;
                }
                // Its end is told by its socket and by init.
                Err(_) => {
                    run.message_fds.clear();
                    break;
                }
            }
        }
        if run.message_sent > 0 && !run.message.is_empty() {
            // Values of the environment are in it: keep it no longer than needed.
            run.message.fill(0);
            run.message = Vec::new();
            run.message_sent = 0;
            if std::mem::take(&mut run.message_waits) {
                let _ = self.sources.want_room(stub, Source::Stub(sandbox), false);
            }
        }
    }

    /// The stub's terminal: its output is spooled, its input goes to the caller.
    pub(crate) fn on_terminal(&mut self, key: Key, terminal: OwnedFd) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        if run.exec.tty.is_none() || run.accepted || run.spools[0].source().is_some() {
            return;
        }
        let ready = rustix::fs::fcntl_setfl(&terminal, rustix::fs::OFlags::NONBLOCK)
            .map_err(std::io::Error::from)
            .and_then(|()| self.sources.add(&terminal, Source::Stream(key, 0)))
            .and_then(|()| Ok(fcntl_dupfd_cloexec(&terminal, 3)?));
        match ready {
            Ok(copy) => {
                run.input = Some(copy);
                run.spools[0].open(terminal);
                self.tell_accepted(key);
            }
            Err(error) => {
                run.seen.crashed = Some(format!("its terminal could not be watched: {error}"));
                run.abort = true;
                self.step(key);
            }
        }
    }

    /// Arms the deadlines of a command that is let go.
    fn arm(&mut self, key: Key, sandbox: Key, now: Instant) {
        let Some(sandbox) = self.sandboxes.get(&sandbox) else {
            return;
        };
        let limits = &sandbox.admitted.limits;
        let wall = Duration::from_millis(limits.wall_ms.value);
        self.timers.set(Timer::Wall(key), now, wall);
        let disk = sandbox.until_full().clamp(WATCH_SHORT, WATCH_MAX);
        let first = limits.cpu_time_ms.map_or(WATCH_MAX, |limit| {
            pause(limit.value.saturating_mul(1_000), limits.cpu_milli.value)
        });
        self.timers.set(Timer::Watch(key), now, first.min(disk));
    }

    /// Looks at what the kernel does not tell by itself: processor time used, and a full disk.
    pub(crate) fn on_watch(&mut self, key: Key) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        let Some(sandbox) = run.sandbox.and_then(|sandbox| self.sandboxes.get(&sandbox)) else {
            return;
        };
        if !matches!(run.stage, Stage::Inject | Stage::Execute) {
            return;
        }
        note_disk(run, sandbox);
        let limits = &sandbox.admitted.limits;
        if limits.on_denied == OnDenied::Kill
            && let Some(hit) = run
                .seen
                .denied
                .first()
                .copied()
                .or_else(|| denied_pids(sandbox))
        {
            run.seen.killed_by.get_or_insert(hit);
            let sandbox = run.sandbox;
            return self.kill_some(sandbox);
        }
        let full = |hit: &LimitHit| matches!(hit.which, Resource::Disk | Resource::Inodes);
        let mut next = match run.seen.denied.iter().any(full) {
            true => WATCH_MAX,
            false => sandbox.until_full().clamp(WATCH_SHORT, WATCH_MAX),
        };
        let used = sandbox
            .group
            .as_ref()
            .and_then(leasehold_jail::cgroup::Group::cpu_micros);
        if let (Some(limit), Some(used)) = (limits.cpu_time_ms, used) {
            let most = limit.value.saturating_mul(1_000);
            if used >= most {
                run.seen.killed_by.get_or_insert(LimitHit {
                    which: Resource::CpuTime,
                    limit: limit.value,
                    observed: used / 1_000,
                });
                let sandbox = run.sandbox;
                return self.kill_some(sandbox);
            }
            next = next.min(pause(most - used, limits.cpu_milli.value));
        }
        self.timers.set(Timer::Watch(key), Instant::now(), next);
    }

    fn kill_some(&mut self, sandbox: Option<Key>) {
        if let Some(sandbox) = sandbox {
            self.kill_sandbox(sandbox);
        }
    }

    /// The wall limit: TERM, and KILL when the grace is over.
    pub(crate) fn on_wall(&mut self, key: Key) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        if !matches!(run.stage, Stage::Inject | Stage::Execute) {
            return;
        }
        let Some(sandbox) = run.sandbox.and_then(|sandbox| self.sandboxes.get(&sandbox)) else {
            return;
        };
        run.seen.wall_expired_ms = Some(sandbox.admitted.limits.wall_ms.value);
        self.end_gently(key);
    }

    fn end_gently(&mut self, key: Key) {
        let sandbox = self.runs.get(&key).and_then(|run| run.sandbox);
        let Some(sandbox) = sandbox.and_then(|sandbox| self.sandboxes.get(&sandbox)) else {
            return;
        };
        let grace = Duration::from_millis(sandbox.admitted.limits.grace_ms);
        if grace.is_zero() {
            return self.kill_run(key);
        }
        sandbox.terminate();
        self.timers.set(Timer::Grace(key), Instant::now(), grace);
    }

    /// Kills the sandbox of a run.
    pub(crate) fn kill_run(&mut self, key: Key) {
        let sandbox = self.runs.get(&key).and_then(|run| run.sandbox);
        self.kill_some(sandbox);
    }

    /// Somebody ends a run.
    pub(crate) fn cancel(&mut self, key: Key, by: CancelledBy, at_once: bool) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        match run.stage {
            Stage::Allocate | Stage::Initialize | Stage::Inject => {
                run.seen.cancelled.get_or_insert(by);
                run.abort = true;
                self.kill_run(key);
                self.step(key);
            }
            Stage::Execute => {
                run.seen.cancelled.get_or_insert(by);
                if at_once {
                    self.kill_run(key);
                } else if !self.timers.pending(Timer::Grace(key)) {
                    self.end_gently(key);
                }
            }
            // The command is over; only what is left behind is to be hurried.
            Stage::Collect if at_once => self.kill_run(key),
            Stage::Collect | Stage::Destroy | Stage::Cleanup => {}
        }
    }

    /// The wait for held output is over.
    pub(crate) fn on_drained(&mut self, key: Key) {
        self.kill_run(key);
        self.step(key);
    }

    /// Arms the bounds of draining, once.
    pub(crate) fn drain(&mut self, key: Key) {
        if !self.timers.pending(Timer::Drain(key)) && !self.timers.pending(Timer::Quiet(key)) {
            self.timers.set(Timer::Drain(key), Instant::now(), DRAIN);
            self.await_quiet(key);
        }
    }
}

/// Time in which so much processor time cannot be used up, within bounds.
fn pause(micros: u64, cpu_milli: u32) -> Duration {
    let fastest = micros.saturating_mul(1_000) / u64::from(cpu_milli.max(1));
    Duration::from_micros(fastest).clamp(WATCH_MIN, WATCH_MAX)
}

/// Processes that were denied, as the group counts them.
pub(crate) fn denied_pids(sandbox: &crate::sandbox::Sandbox) -> Option<LimitHit> {
    pids_hit(sandbox, sandbox.group.as_ref()?.events().pids_denied)
}

/// So many processes that were denied, as a limit.
pub(crate) fn pids_hit(sandbox: &crate::sandbox::Sandbox, denied: u64) -> Option<LimitHit> {
    (denied > 0).then(|| LimitHit {
        which: Resource::Pids,
        limit: sandbox.admitted.limits.pids.value.into(),
        observed: denied,
    })
}

/// Notes a disk that is full: what was denied by it is seen by nobody else.
pub(crate) fn note_disk(run: &mut crate::run::Run, sandbox: &crate::sandbox::Sandbox) {
    let Some(disk) = sandbox.disk() else { return };
    let limits = &sandbox.admitted.limits;
    let rows = [
        (
            disk.bytes_full,
            Resource::Disk,
            limits.disk_bytes.value,
            disk.bytes,
        ),
        (
            disk.inodes_full,
            Resource::Inodes,
            limits.inodes.value,
            disk.inodes,
        ),
    ];
    for (full, which, limit, observed) in rows {
        let noted = run.seen.denied.iter().any(|hit| hit.which == which);
        if full && !noted {
            run.seen.denied.push(LimitHit {
                which,
                limit,
                observed,
            });
        }
    }
    run.record.usage.disk_bytes = Some(disk.bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_as_often_as_the_limit_can_be_reached() {
        assert_eq!(pause(100_000, 1_000), Duration::from_millis(100));
        assert_eq!(pause(100_000, 2_000), Duration::from_millis(50));
        assert_eq!(pause(100_000, 500), Duration::from_millis(200));
        assert_eq!(pause(0, 1_000), WATCH_MIN);
        assert_eq!(pause(u64::MAX, 10), WATCH_MAX);
    }
}
