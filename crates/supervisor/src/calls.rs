//! What each call of a caller does. Every answer is queued; nothing here waits.

use std::os::fd::OwnedFd;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use leasehold_core::end::{CancelledBy, Observations};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::record::{Observed, Residue, RunRecord, Usage};
use leasehold_core::sandbox::state::State;
use leasehold_core::spec::{ExecSpec, SandboxSpec};
use leasehold_core::stage::Stage;
use leasehold_protocol::guest::Control;
use leasehold_protocol::supervisor::{Call, Event, Request, SandboxStatus, Target, VERSION};

use crate::admit::{Admitted, admit, contract};
use crate::log;
use crate::make::group_limits;
use crate::records::{Blank, RecordError};
use crate::run::{Collection, Exec, Run};
use crate::sandbox::Role;
use crate::server::{Server, Timer};
use crate::source::Key;
use crate::spool::Spool;

/// Most callers that follow one run.
const FOLLOWERS_MAX: usize = 16;
/// Most calls for the agent that init has not answered.
const AGENT_CALLS_MAX: usize = 16;

type Answer = Result<(), PublicError>;

fn refuse(kind: ErrorKind, message: impl Into<String>) -> PublicError {
    PublicError::new(kind, message)
}

/// Milliseconds since 1970 on the wall clock.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A fresh sandbox id.
pub(crate) fn new_sandbox_id() -> SandboxId {
    let mut entropy = [0; 13];
    let mut filled = 0;
    while filled < entropy.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        // Small reads from the kernel's generator fail only when interrupted.
        filled += rustix::rand::getrandom(&mut entropy[filled..], flags).unwrap_or(0);
    }
    SandboxId::from_entropy(&entropy)
}

impl Server {
    /// Carries out one call.
    pub(crate) fn on_call(&mut self, from: Key, call: Call) {
        let tag = call.tag;
        if let Err(error) = self.carry_out(from, tag, call.request) {
            self.notify(from, tag, Event::Refused(error));
        }
    }

    fn carry_out(&mut self, from: Key, tag: u64, request: Request) -> Answer {
        let greeted = self
            .connections
            .get(&from)
            .is_some_and(|caller| caller.greeted);
        match request {
            Request::Hello { version } => self.hello(from, tag, version),
            _ if !greeted => Err(refuse(ErrorKind::WrongState, "say hello first")),
            Request::Run {
                supplied: Some(_), ..
            } => Err(refuse(
                ErrorKind::Unsupported,
                "a supplied program is not taken yet",
            )),
            Request::Run {
                run,
                target,
                exec,
                supplied: None,
            } => self.run(from, tag, run, target, *exec),
            Request::Attach { run } => self.attach(from, tag, &run),
            Request::Cancel { run, by, at_once } => self.on_cancel(from, tag, &run, by, at_once),
            Request::Provision { sandbox } => self.provision(from, tag, sandbox),
            Request::Pool {
                sandbox,
                count,
                held,
            } => self.on_pool((from, tag), sandbox, count, held),
            Request::Agent { sandbox } => self.agent(from, tag, &sandbox),
            Request::Usage { sandbox } => {
                let usage = self.usage(&sandbox)?;
                self.notify(from, tag, Event::Usage(usage));
                Ok(())
            }
            Request::Destroy { sandbox } => self.destroy(from, tag, &sandbox),
            Request::Status => {
                let sandboxes = self.status();
                self.notify(from, tag, Event::Status { sandboxes });
                Ok(())
            }
            Request::Stop => {
                self.stoppers.push((from, tag));
                self.stop();
                Ok(())
            }
        }
    }

    fn hello(&mut self, from: Key, tag: u64, version: u32) -> Answer {
        let pid = std::process::id();
        if let Some(connection) = self.connections.get_mut(&from) {
            connection.greeted = version == VERSION;
            self.timers.clear(Timer::Hello(from));
        }
        // The version is told in any case, so that the caller can say what is wrong.
        self.notify(
            from,
            tag,
            Event::Hello {
                version: VERSION,
                pid,
            },
        );
        Ok(())
    }

    fn room(&self) -> Answer {
        if self.stopping {
            return Err(refuse(
                ErrorKind::Unavailable,
                "the supervisor is about to end",
            ));
        }
        if self.sandboxes.len() + self.stuck.len() >= self.capacity {
            let message = format!(
                "{} sandboxes exist: most is {}",
                self.capacity, self.capacity
            );
            return Err(refuse(ErrorKind::NoCapacity, message)
                .hint("wait for one to end, or raise the open file limit (`ulimit -n`)"));
        }
        Ok(())
    }

    /// The workspace directory that belongs to a call, which takes it from the queue even if the
    /// call is refused later.
    fn directory(&mut self, from: Key, spec: &SandboxSpec) -> Result<Option<OwnedFd>, PublicError> {
        if !spec.workspace.needs_directory() {
            return Ok(None);
        }
        let connection = self.connections.get_mut(&from);
        let Some(directory) = connection.and_then(crate::connection::Connection::take_fd) else {
            return Ok(None);
        };
        let is_directory = rustix::fs::fstat(&directory).is_ok_and(|found| {
            rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Directory
        });
        if is_directory {
            Ok(Some(directory))
        } else {
            Err(refuse(ErrorKind::Invalid, "`workspace` is not a directory"))
        }
    }

    fn run(&mut self, from: Key, tag: u64, run: RunId, target: Target, exec: ExecSpec) -> Answer {
        let (spec, parked, directory) = match &target {
            Target::New(spec) => (spec.clone(), None, self.directory(from, spec)?),
            Target::Parked(id) => {
                let key = self.parked(id)?;
                (self.sandboxes[&key].spec.clone(), Some(key), None)
            }
        };
        exec.check()?;
        crate::collector::check(&exec.artifacts)
            .map_err(|error| refuse(ErrorKind::Invalid, format!("`artifact` {error}")))?;
        let admitted = match parked {
            Some(key) => self.sandboxes[&key].admitted.clone(),
            None => {
                self.room()?;
                admit(&self.host, &spec, directory.is_some())?
            }
        };
        if self.stopping {
            return Err(refuse(
                ErrorKind::Unavailable,
                "the supervisor is about to end",
            ));
        }
        let warm = parked.or_else(|| self.claimable(&spec, &admitted));
        let sandbox = match warm {
            Some(key) => self.sandboxes[&key].id.clone(),
            None => new_sandbox_id(),
        };
        let begun = Instant::now();
        let range = warm.and_then(|key| self.sandboxes[&key].leased_range());
        let contract = contract(&self.host, &admitted, spec.workspace, &exec, range);
        let record = RunRecord {
            contract: Some(contract),
            warm: warm.is_some(),
            ..RunRecord::accepted(run.clone(), sandbox.clone(), unix_ms())
        };
        let blank = warm.and_then(|key| self.sandboxes.get_mut(&key)?.blank.take());
        let key = self.begin(record, exec, &admitted, begun, blank)?;
        self.follow(key, from, tag);
        self.open_input(key);
        if warm.is_none() && self.runs[&key].exec.tty.is_none() {
            self.tell_accepted(key);
        }
        match warm {
            Some(sandbox) => self.claim(key, sandbox, spec, admitted),
            None => self.make_for_run(key, sandbox, spec, admitted, directory),
        }
        self.step(key);
        // Nobody waits for the rest as for the command, which is on its way. With a terminal a run is
        // accepted when that is there; one that is over already was.
        let claimed = warm.and_then(|sandbox| self.sandboxes.get_mut(&sandbox));
        if let Some(group) = claimed.and_then(|sandbox| sandbox.group.as_mut()) {
            group.keep_counts();
        }
        let told = |run: &Run| run.accepted || run.exec.tty.is_some();
        if self.runs.get(&key).is_some_and(|run| !told(run)) {
            self.tell_accepted(key);
        }
        Ok(())
    }

    /// Makes the pipe a command reads its input from, if it is to have any.
    fn open_input(&mut self, key: Key) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        if run.exec.stdin
            && run.exec.tty.is_none()
            && let Ok((reader, writer)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        {
            run.message_fds.push(reader);
            run.input = Some(writer);
        }
    }

    /// Writes the first record and makes the spools; nothing else exists before (invariant I1).
    fn begin(
        &mut self,
        record: RunRecord,
        exec: ExecSpec,
        admitted: &Admitted,
        begun: Instant,
        blank: Option<Blank>,
    ) -> Result<Key, PublicError> {
        let run = record.run.clone();
        let blank = match blank {
            Some(blank) => Ok(blank),
            None => self.records.blank(&record.sandbox, &mut self.spares),
        };
        let recorded = blank.and_then(|blank| self.records.begin(blank, &record));
        let (folder, files) = recorded.map_err(|error| match error {
            RecordError::Exists(_) => refuse(ErrorKind::Exists, error.to_string()),
            RecordError::Io { .. } | RecordError::Format { .. } => {
                log::failure("a run could not be recorded", &error);
                refuse(ErrorKind::Internal, "the run could not be recorded")
                    .hint("see the supervisor's log; is the state directory's disk full?")
            }
        })?;
        let limit = admitted.limits.output_bytes.value;
        let spools = files.map(|file| Spool::new(file, limit));
        let collection = if exec.artifacts.is_empty() {
            Collection::None
        } else {
            Collection::Wanted
        };
        let key = self.new_key();
        self.run_ids.insert(run, key);
        self.runs.insert(
            key,
            Run {
                record,
                folder,
                exec,
                spools,
                sandbox: None,
                followers: Vec::new(),
                accepted: false,
                stage: Stage::Allocate,
                since: begun,
                held: false,
                seen: Observations::default(),
                exec_state: Exec::Unsent,
                main_exited: false,
                message: Vec::new(),
                message_sent: 0,
                message_waits: false,
                message_fds: Vec::new(),
                input: None,
                started: None,
                over: None,
                abort: false,
                collection,
                told_end: false,
                removing: None,
                told: (0, 0),
                told_at: None,
            },
        );
        Ok(key)
    }

    fn follow(&mut self, run: Key, from: Key, tag: u64) {
        if let (Some(run_), Some(connection)) =
            (self.runs.get_mut(&run), self.connections.get_mut(&from))
        {
            run_.followers.push((from, tag));
            connection.follows.insert((tag, run));
        }
    }

    /// Tells every follower that the run is accepted, with its spools and its input.
    pub(crate) fn tell_accepted(&mut self, key: Key) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        run.accepted = true;
        let stages = run.record.stages.clone();
        let mut input = run.input.take();
        for (from, tag) in run.followers.clone() {
            let fds = self.accepted_fds(key, input.take());
            self.send_accepted(key, from, tag, fds);
            for time in &stages {
                self.notify_soon(from, tag, Event::Stage(*time), Vec::new());
            }
        }
    }

    fn accepted_fds(&self, key: Key, input: Option<OwnedFd>) -> Vec<OwnedFd> {
        let folder = &self.runs[&key].folder;
        let spools = ["stdout", "stderr"].map(|name| folder.read_spool(name));
        let fds: Vec<OwnedFd> = spools.into_iter().filter_map(Result::ok).collect();
        fds.into_iter().chain(input).collect()
    }

    fn send_accepted(&mut self, key: Key, from: Key, tag: u64, fds: Vec<OwnedFd>) {
        if fds.len() < 2 {
            let error = refuse(
                ErrorKind::Internal,
                "the spools of the run cannot be opened",
            );
            return self.notify(from, tag, Event::Refused(error));
        }
        let record = &self.runs[&key].record;
        let event = Event::Accepted {
            run: record.run.clone(),
            sandbox: record.sandbox.clone(),
            input: fds.len() > 2,
            warm: record.warm,
        };
        self.notify_soon(from, tag, event, fds);
    }

    fn attach(&mut self, from: Key, tag: u64, run: &RunId) -> Answer {
        let Some(key) = self.run_ids.get(run).copied() else {
            return self.attach_finished(from, tag, run);
        };
        if self.runs[&key].followers.len() >= FOLLOWERS_MAX {
            let message = format!("run `{run}` has {FOLLOWERS_MAX} followers: that is the most");
            return Err(refuse(ErrorKind::NoCapacity, message));
        }
        self.follow(key, from, tag);
        let run = &self.runs[&key];
        if !run.accepted {
            return Ok(());
        }
        // A terminal can be taken up again; the input pipe belongs to whoever got it first.
        let terminal = run.exec.tty.and(run.spools[0].source());
        let terminal = terminal.and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 3).ok());
        let fds = self.accepted_fds(key, terminal);
        self.send_accepted(key, from, tag, fds);
        let run = &self.runs[&key];
        let (stdout, stderr) = run.kept();
        let record = run.record.clone();
        self.notify_record(from, tag, record, Event::Output { stdout, stderr });
        Ok(())
    }

    fn attach_finished(&mut self, from: Key, tag: u64, run: &RunId) -> Answer {
        let missing = || refuse(ErrorKind::NotFound, format!("run `{run}` is not there"));
        let record = self.records.read(run).ok().flatten().ok_or_else(missing)?;
        if record.pruned_unix_ms.is_some() {
            let message = format!("the output of run `{run}` was pruned by the rule of retention");
            return Err(refuse(ErrorKind::NotFound, message)
                .hint("`leasehold show` tells how it ended and when its output was pruned"));
        }
        let folder = self.records.folder(run).map_err(|_| missing())?;
        let spools = ["stdout", "stderr"].map(|name| folder.read_spool(name));
        let fds: Vec<OwnedFd> = spools.into_iter().filter_map(Result::ok).collect();
        if fds.len() < 2 {
            return Err(refuse(
                ErrorKind::NotFound,
                format!("the output of `{run}` is gone"),
            ));
        }
        let event = Event::Accepted {
            run: run.clone(),
            sandbox: record.sandbox.clone(),
            input: false,
            warm: record.warm,
        };
        self.notify_with(from, tag, event, fds);
        let (stdout, stderr) = (record.stdout.kept, record.stderr.kept);
        self.notify_record(from, tag, record, Event::Output { stdout, stderr });
        Ok(())
    }

    /// Tells what a record says so far.
    fn notify_record(&mut self, from: Key, tag: u64, record: RunRecord, output: Event) {
        for time in &record.stages {
            self.notify(from, tag, Event::Stage(*time));
        }
        self.notify(from, tag, output);
        if record.end.is_some() {
            self.notify(from, tag, Event::Ended(Box::new(record.clone())));
        }
        if record.cleanup.is_some() {
            self.notify(from, tag, Event::Cleaned(Box::new(record)));
        }
    }

    fn on_cancel(
        &mut self,
        from: Key,
        tag: u64,
        run: &RunId,
        by: CancelledBy,
        at_once: bool,
    ) -> Answer {
        match self.run_ids.get(run).copied() {
            Some(key) => self.cancel(key, by, at_once),
            None => {
                let known = self.records.read(run).ok().flatten();
                known.ok_or_else(|| {
                    refuse(ErrorKind::NotFound, format!("run `{run}` is not there"))
                })?;
            }
        }
        self.notify(from, tag, Event::Done);
        Ok(())
    }

    fn provision(&mut self, from: Key, tag: u64, spec: SandboxSpec) -> Answer {
        let directory = self.directory(from, &spec)?;
        self.room()?;
        let admitted = admit(&self.host, &spec, directory.is_some())?;
        let role = Role::Provisioned(Some((from, tag)));
        let made = self.make(new_sandbox_id(), spec, admitted, role, None, directory);
        let key = made.map_err(|detail| {
            refuse(
                ErrorKind::Unavailable,
                format!("the sandbox could not be made: {detail}"),
            )
        })?;
        self.order_waiting();
        if let Some(sandbox) = self.sandboxes.get_mut(&key) {
            // While the spawner works; without it the run makes its own, later and slower.
            sandbox.blank = self.records.blank(&sandbox.id, &mut self.spares).ok();
        }
        Ok(())
    }

    /// The key of a sandbox that waits for its one command.
    fn parked(&self, id: &SandboxId) -> Result<Key, PublicError> {
        let missing = || refuse(ErrorKind::NotFound, format!("sandbox `{id}` is not there"));
        let key = self.sandbox_ids.get(id).copied().ok_or_else(missing)?;
        let sandbox = &self.sandboxes[&key];
        match sandbox.role {
            Role::Provisioned(_) if sandbox.state() == State::Parked => Ok(key),
            Role::Provisioned(_) => {
                let message = format!(
                    "sandbox `{id}` is {:?} and takes no command",
                    sandbox.state()
                );
                Err(refuse(ErrorKind::WrongState, message))
            }
            Role::Run(_) | Role::Pool(_) => Err(missing()),
        }
    }

    fn agent(&mut self, from: Key, tag: u64, id: &SandboxId) -> Answer {
        let missing = || refuse(ErrorKind::NotFound, format!("sandbox `{id}` is not there"));
        let key = self.sandbox_ids.get(id).copied().ok_or_else(missing)?;
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return Err(missing());
        };
        let provisioned = matches!(sandbox.role, Role::Provisioned(_));
        let claimed = sandbox.state() == State::Running
            || sandbox.act(leasehold_core::sandbox::state::Action::Claim);
        if !provisioned || !claimed {
            let message = format!(
                "sandbox `{id}` is {:?} and starts no agent",
                sandbox.state()
            );
            return Err(refuse(ErrorKind::WrongState, message));
        }
        if sandbox.agents.len() >= AGENT_CALLS_MAX {
            return Err(refuse(
                ErrorKind::NoCapacity,
                "too many calls for the agent are open",
            ));
        }
        let failed = |_| refuse(ErrorKind::Internal, "the agent could not be asked for");
        let (ours, theirs) =
            crate::make::socket_pair(rustix::net::SocketType::STREAM).map_err(failed)?;
        // Room for it beside the workload, for as many as may be waited for at one time.
        sandbox.agents_started = (sandbox.agents_started + 1).min(AGENT_CALLS_MAX as u32);
        if let Some(group) = &sandbox.group {
            let limits = &sandbox.admitted.limits;
            group
                .set_limits(&group_limits(&self.host, limits, sandbox.agents_started))
                .map_err(|_| refuse(ErrorKind::Internal, "no room could be made for the agent"))?;
        }
        let init = sandbox.init.as_ref().ok_or_else(missing)?;
        let message = Control::StartAgent.encode();
        let fds = [std::os::fd::AsFd::as_fd(&theirs)];
        leasehold_protocol::socket::send_with_fds(init, &message, &fds).map_err(failed)?;
        sandbox.agents.push_back((from, tag, ours));
        Ok(())
    }

    fn usage(&self, id: &SandboxId) -> Result<Usage, PublicError> {
        let missing = || refuse(ErrorKind::NotFound, format!("sandbox `{id}` is not there"));
        let key = self.sandbox_ids.get(id).ok_or_else(missing)?;
        Ok(self.sandboxes[key].usage())
    }

    fn destroy(&mut self, from: Key, tag: u64, id: &SandboxId) -> Answer {
        let Some(key) = self.sandbox_ids.get(id).copied() else {
            let (clean, detail) = match self.stuck.contains_key(id) {
                true => (false, "its removal did not converge; it is quarantined"),
                false => (
                    true,
                    "no ledger entry: it was removed before, or never existed",
                ),
            };
            let residue = Residue {
                resource: "ledger".to_owned(),
                clean,
                detail: detail.to_owned(),
                inferred: false,
            };
            let observed = Observed {
                residues: vec![residue],
            };
            self.notify(from, tag, Event::Destroyed(observed));
            return Ok(());
        };
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return Ok(());
        };
        match sandbox.role {
            Role::Run(run) => {
                sandbox.destroyers.push((from, tag));
                self.cancel(run, CancelledBy::Caller, true);
            }
            Role::Provisioned(_) => {
                sandbox.destroyers.push((from, tag));
                self.end_sandbox(key);
            }
            Role::Pool(_) => {
                let message = format!("sandbox `{id}` is not there");
                return Err(refuse(ErrorKind::NotFound, message));
            }
        }
        Ok(())
    }

    fn status(&self) -> Vec<SandboxStatus> {
        let living = self.sandboxes.values().map(|sandbox| SandboxStatus {
            sandbox: sandbox.id.clone(),
            state: sandbox.state(),
            init_pid: sandbox.init_pid(),
            run: match sandbox.role {
                Role::Run(run) => self.runs.get(&run).map(|run| run.record.run.clone()),
                Role::Pool(_) | Role::Provisioned(_) => None,
            },
            pooled: matches!(sandbox.role, Role::Pool(_)),
            bound: false,
        });
        let stuck = self.stuck.values().map(|stuck| &stuck.entry);
        let stuck = stuck.map(|entry| SandboxStatus {
            sandbox: entry.sandbox.clone(),
            state: State::Stuck,
            init_pid: 0,
            run: entry.run.clone(),
            pooled: false,
            bound: false,
        });
        let mut all: Vec<_> = living.chain(stuck).collect();
        all.sort_by(|a, b| a.sandbox.cmp(&b.sandbox));
        all
    }
}
