//! What comes out of sandboxes: words of init and stub, deaths, memory running out, output. All of
//! it is bounded and none of it is believed where the host can see for itself (invariant I7).

use std::time::{Duration, Instant};

use leasehold_core::end::{ExitStatus, LimitHit};
use leasehold_core::limits::{OnOutputLimit, Resource};
use leasehold_core::sandbox::state::{Action, State};
use leasehold_core::stage::Stage;
use leasehold_protocol::guest::{
    CONTROL_LEN, Control, ExecStep, STUB_REPLY_LEN, SetupStep, StubReply,
};
use leasehold_protocol::socket::recv_with_fds;
use leasehold_protocol::supervisor::Event;
use rustix::io::Errno;

use crate::log;
use crate::run::Exec;
use crate::sandbox::Role;
use crate::server::{Server, Timer};
use crate::source::Key;
use crate::spool::Left;

/// How long nothing may come from a held output stream after the command ended.
const QUIET: Duration = Duration::from_millis(100);
/// Least time between two notices of one run's output.
const OUTPUT_EVERY: Duration = Duration::from_millis(1);
/// How long a killed sandbox may take to die before it is called stuck.
pub(crate) const DEATH_BOUND: Duration = Duration::from_secs(5);

/// Reads a wait status as `wait4(2)` gives it.
fn exit_status(status: i32) -> ExitStatus {
    let signal = status & 0x7f;
    if signal == 0 {
        ExitStatus::Exit {
            code: (status >> 8 & 0xff) as u8,
        }
    } else {
        ExitStatus::Signal {
            number: signal as u8,
        }
    }
}

fn setup_step(step: u32) -> &'static str {
    let steps = [
        (SetupStep::Posture, "taking init's posture"),
        (SetupStep::Seccomp, "loading the system call filter"),
        (SetupStep::Stub, "starting the stub"),
        (SetupStep::Landlock, "restricting files by Landlock"),
        (SetupStep::Loop, "starting init's event loop"),
    ];
    let found = steps.into_iter().find(|(known, _)| *known as u32 == step);
    found.map_or("an unknown step", |(_, word)| word)
}

impl Server {
    /// Takes what init says.
    pub(crate) fn on_init(&mut self, key: Key) {
        loop {
            let Some(sandbox) = self.sandboxes.get_mut(&key) else {
                return;
            };
            let Some(init) = &sandbox.init else { return };
            let mut bytes = [0; CONTROL_LEN + 1];
            let mut fds = Vec::new();
            match recv_with_fds(init, &mut bytes, &mut fds) {
                Ok(0) => {
                    // It is about to die, which is what counts.
                    self.sources.forget(init);
                    sandbox.init = None;
                    return;
                }
                Ok(count) => match Control::decode(&bytes[..count]) {
                    Ok(message) => self.init_said(key, message),
                    Err(error) => {
                        return self
                            .fail_sandbox(key, format!("its init broke the protocol: {error}"));
                    }
                },
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.sources.forget(init);
                    sandbox.init = None;
                    return;
                }
            }
        }
    }

    fn init_said(&mut self, key: Key, message: Control) {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return;
        };
        match message {
            Control::Ready { .. } => {
                sandbox.init_ready = true;
                self.on_ready(key);
            }
            Control::MainExited { status } => self.main_exited(key, status),
            Control::Agent { pid, errno } => {
                let Some((from, tag, channel)) = sandbox.agents.pop_front() else {
                    return;
                };
                if pid != 0 && errno == 0 {
                    return self.notify_with(from, tag, Event::Channel, vec![channel]);
                }
                let text = format!(
                    "the agent could not be started: {}",
                    std::io::Error::from_raw_os_error(errno)
                );
                let error = leasehold_core::error::PublicError::new(
                    leasehold_core::error::ErrorKind::Unavailable,
                    text,
                );
                self.notify(from, tag, Event::Refused(error));
            }
            Control::SetupFailed { step, errno } => {
                let error = std::io::Error::from_raw_os_error(errno);
                self.fail_sandbox(
                    key,
                    format!("set-up failed inside while {}: {error}", setup_step(step)),
                );
            }
            Control::Signal { .. } | Control::StartAgent | Control::Shutdown => {
                self.fail_sandbox(key, "its init sent what only the host may send".to_owned());
            }
        }
    }

    /// Takes what the stub says; its silence, the end of its socket, means it became the command.
    pub(crate) fn on_stub(&mut self, key: Key) {
        loop {
            let Some(sandbox) = self.sandboxes.get_mut(&key) else {
                return;
            };
            let Some(stub) = &sandbox.stub else { return };
            let mut bytes = [0; STUB_REPLY_LEN];
            let mut fds = Vec::new();
            let reply = match recv_with_fds(stub, &mut bytes, &mut fds) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Ok(0) | Err(_) => return self.stub_closed(key),
                Ok(count) => StubReply::decode(&bytes[..count]),
            };
            match reply {
                Ok(StubReply::Ready) => {
                    sandbox.stub_ready = true;
                    self.on_ready(key);
                }
                Ok(StubReply::Tty) => match (sandbox.role, fds.pop()) {
                    (Role::Run(run), Some(terminal)) => self.on_terminal(run, terminal),
                    _ => return self.fail_sandbox(key, "its stub sent no terminal".to_owned()),
                },
                Ok(StubReply::Failed { step, errno }) => self.exec_failed(key, step, errno),
                Err(error) => {
                    return self.fail_sandbox(key, format!("its stub broke the protocol: {error}"));
                }
            }
        }
    }

    fn stub_closed(&mut self, key: Key) {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return;
        };
        if let Some(stub) = sandbox.stub.take() {
            self.sources.forget(&stub);
        }
        let Role::Run(run_key) = sandbox.role else {
            // Nobody sent it anything, so it died.
            return self.fail_sandbox(key, "its stub died while parked".to_owned());
        };
        let Some(run) = self.runs.get_mut(&run_key) else {
            return;
        };
        match run.exec_state {
            Exec::Sent => run.exec_state = Exec::Done,
            Exec::Unsent => return self.fail_sandbox(key, "its stub died while parked".to_owned()),
            Exec::Done | Exec::Failed => {}
        }
        self.step(run_key);
    }

    fn exec_failed(&mut self, key: Key, step: ExecStep, errno: i32) {
        let Some(Role::Run(run_key)) = self.sandboxes.get(&key).map(|sandbox| sandbox.role) else {
            return;
        };
        let Some(run) = self.runs.get_mut(&run_key) else {
            return;
        };
        if run.exec_state != Exec::Sent {
            return;
        }
        run.exec_state = Exec::Failed;
        let error = std::io::Error::from_raw_os_error(errno);
        let missing = errno == Errno::NOENT.raw_os_error() || errno == Errno::NOTDIR.raw_os_error();
        match step {
            // It is ours, and not there to be found.
            ExecStep::Exec if run.supply.is_some() => {
                run.seen.crashed =
                    Some(format!("the supplied program cannot be executed: {error}"));
            }
            ExecStep::Exec if missing => run.seen.exit = Some(ExitStatus::NotFound),
            ExecStep::Exec => run.seen.exit = Some(ExitStatus::NotExecutable),
            ExecStep::Cwd => {
                run.seen.never_started =
                    Some(format!("working directory {:?}: {error}", run.cwd()));
            }
            ExecStep::Message
            | ExecStep::Tty
            | ExecStep::Stdio
            | ExecStep::Rlimits
            | ExecStep::Posture => {
                run.seen.crashed = Some(format!("the stub failed at {step:?}: {error}"));
            }
        }
        self.step(run_key);
    }

    /// Init and stub wait: a sandbox is parked.
    pub(crate) fn on_ready(&mut self, key: Key) {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return;
        };
        if sandbox.state() != State::Creating || !sandbox.ready() || !sandbox.act(Action::Park) {
            return;
        }
        self.timers.clear(Timer::Ready(key));
        sandbox.note_namespaces();
        if !matches!(sandbox.role, Role::Run(_)) {
            sandbox.furnish();
        }
        match sandbox.role {
            Role::Run(run) => {
                sandbox.act(Action::Claim);
                self.step(run);
            }
            Role::Pool(pool) => self.pool_grew(pool, key),
            Role::Provisioned(waiter) => {
                sandbox.role = Role::Provisioned(None);
                let exec = leasehold_core::spec::ExecSpec::command([""; 0]);
                let sandbox = &self.sandboxes[&key];
                let contract = crate::admit::contract(
                    &self.host,
                    &sandbox.admitted,
                    &sandbox.spec,
                    &exec,
                    sandbox.leased_range(),
                    None,
                );
                if let Some((from, tag)) = waiter {
                    let event = Event::Provisioned {
                        sandbox: sandbox.id.clone(),
                        contract: Box::new(contract),
                    };
                    self.notify(from, tag, event);
                }
            }
        }
    }

    /// The main command of a sandbox ended, as its init says: the first word counts.
    fn main_exited(&mut self, key: Key, status: i32) {
        // What the stub said last explains an exit that came before its program did.
        self.on_stub(key);
        let Some(Role::Run(run_key)) = self.sandboxes.get(&key).map(|sandbox| sandbox.role) else {
            return self.fail_sandbox(key, "its stub died while parked".to_owned());
        };
        let Some(run) = self.runs.get_mut(&run_key) else {
            return;
        };
        if run.main_exited {
            return;
        }
        if run.exec_state == Exec::Unsent {
            return self.fail_sandbox(key, "its stub died while parked".to_owned());
        }
        run.main_exited = true;
        if run.seen.exit.is_none() && run.exec_state != Exec::Failed {
            run.seen.exit = Some(exit_status(status));
        }
        self.step(run_key);
    }

    /// Something of ours in a sandbox failed: the sandbox is of no use.
    pub(crate) fn fail_sandbox(&mut self, key: Key, why: String) {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return;
        };
        if sandbox.killed && sandbox.made.is_some() {
            // These are the signs of its death, which is on the way.
            return;
        }
        log::line(&format!("sandbox {}: {why}", sandbox.id));
        match sandbox.role {
            Role::Run(run_key) => {
                let Some(run) = self.runs.get_mut(&run_key) else {
                    return;
                };
                if run.started.is_none() {
                    run.seen.never_started.get_or_insert(why);
                } else {
                    run.seen.crashed.get_or_insert(why);
                }
                run.abort = true;
                self.kill_sandbox(key);
                self.step(run_key);
            }
            Role::Provisioned(waiter) => {
                if let Some((from, tag)) = waiter {
                    let error = leasehold_core::error::PublicError::new(
                        leasehold_core::error::ErrorKind::Unavailable,
                        format!("the sandbox could not be made: {why}"),
                    );
                    self.notify(from, tag, Event::Refused(error));
                    if let Some(sandbox) = self.sandboxes.get_mut(&key) {
                        sandbox.role = Role::Provisioned(None);
                    }
                }
                self.end_sandbox(key);
            }
            Role::Pool(pool) => {
                self.pool_lost(pool, key);
                self.end_sandbox(key);
            }
        }
    }

    /// Kills a sandbox and bounds the wait for its death.
    pub(crate) fn kill_sandbox(&mut self, key: Key) {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return;
        };
        if !sandbox.killed && !sandbox.dead() {
            sandbox.kill();
            self.timers
                .set(Timer::Bound(key), Instant::now(), DEATH_BOUND);
        }
    }

    /// The init of a sandbox ended, and with it every process of its process namespace.
    pub(crate) fn on_death(&mut self, key: Key) {
        // Its last words first.
        self.on_init(key);
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return;
        };
        if sandbox.death.is_some() || !sandbox.reap() {
            return;
        }
        if let Some(made) = &sandbox.made {
            self.sources.forget(&made.pidfd);
        }
        self.timers.clear(Timer::Bound(key));
        let (killed, role, id) = (sandbox.killed, sandbox.role, sandbox.id.clone());
        let how = sandbox.death.clone().unwrap_or_default();
        match role {
            Role::Run(run_key) => {
                if let Some(run) = self.runs.get_mut(&run_key)
                    && !killed
                    && !run.main_exited
                {
                    run.seen
                        .crashed
                        .get_or_insert(format!("init ended with {how}"));
                }
                self.step(run_key);
            }
            Role::Pool(pool) => {
                if !killed {
                    log::line(&format!("sandbox {id}: a pooled init ended with {how}"));
                }
                self.pool_lost(pool, key);
                self.end_sandbox(key);
            }
            Role::Provisioned(_) => self.end_sandbox(key),
        }
    }

    /// A killed sandbox did not die in time.
    pub(crate) fn on_overdue(&mut self, key: Key) {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return;
        };
        sandbox.overdue = true;
        log::line(&format!(
            "sandbox {}: still alive after its kill",
            sandbox.id
        ));
        match sandbox.role {
            Role::Run(run) => self.step(run),
            Role::Pool(_) | Role::Provisioned(_) => self.end_sandbox(key),
        }
    }

    /// The kernel says that a sandbox ran out of memory: it ends as one, whichever process of it the
    /// kernel chose.
    pub(crate) fn on_oom(&mut self, key: Key) {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return;
        };
        let (Some(oom), Some(group)) = (&sandbox.oom, &sandbox.group) else {
            return;
        };
        oom.rearm();
        let by_count = oom.interest().contains(rustix::event::PollFlags::PRI);
        if by_count && group.events().oom_kills == 0 {
            return;
        }
        // The older notice also comes when somebody removes the group from outside: nothing can be read
        // of it then, no limit was reached, and what has no limit any more is ended all the same.
        let observed = group.usage().memory_peak_bytes;
        let hit = (by_count || observed.is_some()).then(|| LimitHit {
            which: Resource::Memory,
            limit: sandbox.admitted.limits.memory_bytes.value,
            observed: observed.unwrap_or(0),
        });
        if let Some(hit) = hit
            && let Role::Run(run) = sandbox.role
            && let Some(run) = self.runs.get_mut(&run)
            && !run.ended()
        {
            run.seen.killed_by.get_or_insert(hit);
        }
        self.kill_sandbox(key);
    }

    /// Moves output into its spool.
    pub(crate) fn on_stream(&mut self, key: Key, which: u8) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        let spool = &mut run.spools[usize::from(which)];
        let before = spool.seen().written;
        let left = spool.pump(&mut self.buffer);
        if left == Left::Ended
            && let Some(source) = spool.close()
        {
            self.sources.forget(&source);
        }
        let grew = spool.seen().written > before;
        if spool.over() {
            self.on_output_limit(key, which);
        }
        if grew {
            self.output_grew(key);
        }
        if left == Left::Ended {
            self.step(key);
        }
    }

    fn on_output_limit(&mut self, key: Key, which: u8) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        let Some(sandbox) = run.sandbox else { return };
        let Some(limits) = self
            .sandboxes
            .get(&sandbox)
            .map(|found| &found.admitted.limits)
        else {
            return;
        };
        if limits.on_output_limit != OnOutputLimit::Kill || run.seen.killed_by.is_some() {
            return;
        }
        run.seen.killed_by = Some(LimitHit {
            which: Resource::Output,
            limit: limits.output_bytes.value,
            observed: run.spools[usize::from(which)].seen().written,
        });
        self.kill_sandbox(sandbox);
    }

    fn output_grew(&mut self, key: Key) {
        let now = Instant::now();
        let Some(run) = self.runs.get(&key) else {
            return;
        };
        if run.stage == Stage::Collect && self.timers.pending(Timer::Quiet(key)) {
            self.timers.set(Timer::Quiet(key), now, QUIET);
        }
        if self.timers.pending(Timer::Output(key)) {
            return;
        }
        match run.told_at.map(|at| now.saturating_duration_since(at)) {
            Some(since) if since < OUTPUT_EVERY => {
                self.timers
                    .set(Timer::Output(key), now, OUTPUT_EVERY - since);
            }
            _ => self.tell_output(key, now),
        }
    }

    /// Tells the newest output counts, or notes them for callers that are slow.
    pub(crate) fn tell_output(&mut self, key: Key, now: Instant) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        let kept = run.kept();
        if !run.accepted || run.told == kept {
            return;
        }
        run.told = kept;
        run.told_at = Some(now);
        for (from, tag) in run.followers.clone() {
            match self.connections.get_mut(&from) {
                Some(slow) if slow.waits_for_room => {
                    slow.stale.insert((tag, key));
                }
                _ => {
                    let (stdout, stderr) = kept;
                    self.notify(from, tag, Event::Output { stdout, stderr });
                }
            }
        }
    }

    /// Tells the last output counts to everybody who does not know them, slow or not: the end comes
    /// next.
    pub(crate) fn tell_last_output(&mut self, key: Key) {
        self.timers.clear(Timer::Output(key));
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        let (stdout, stderr) = run.kept();
        let known = std::mem::replace(&mut run.told, (stdout, stderr)) == (stdout, stderr);
        for (from, tag) in run.followers.clone() {
            let missed = self.connections.get_mut(&from);
            let missed = missed.is_some_and(|slow| slow.stale.remove(&(tag, key)));
            if missed || !known {
                self.notify(from, tag, Event::Output { stdout, stderr });
            }
        }
    }

    /// Arms the wait for output that is held open after the command ended.
    pub(crate) fn await_quiet(&mut self, key: Key) {
        self.timers.set(Timer::Quiet(key), Instant::now(), QUIET);
    }
}
