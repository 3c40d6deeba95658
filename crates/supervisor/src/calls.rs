//! What each call of a caller does. Every answer is queued; nothing here waits.

mod runs;

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_core::digest::Digest;
use leasehold_core::end::CancelledBy;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::SandboxId;
use leasehold_core::record::{Observed, Residue, Usage};
use leasehold_core::sandbox::state::State;
use leasehold_core::spec::SandboxSpec;
use leasehold_protocol::guest::Control;
use leasehold_protocol::memory;
use leasehold_protocol::supervisor::{Call, Event, Request, SandboxStatus, VERSION};

use crate::admit::{Beside, admit};
use crate::make::{Came, group_limits};
use crate::sandbox::Role;
use crate::server::{Server, Timer};
use crate::source::Key;

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
                run,
                target,
                exec,
                supplied,
            } => {
                let supplied = supplied.map(|supplied| *supplied);
                self.run(from, tag, run, target, *exec, supplied)
            }
            Request::Attach { run } => self.attach(from, tag, &run),
            Request::Cancel { run, by, at_once } => self.on_cancel(from, tag, &run, by, at_once),
            Request::Provision { sandbox, held } => self.provision((from, tag), sandbox, held),
            Request::Pool {
                sandbox,
                count,
                held,
            } => self.on_pool((from, tag), sandbox, count, held),
            Request::Agent { sandbox } => {
                let program = self.file_of(from)?;
                self.agent(from, tag, &sandbox, &program)
            }
            Request::Usage { sandbox } => {
                let usage = self.usage(&sandbox)?;
                self.notify(from, tag, Event::Usage(usage));
                Ok(())
            }
            Request::Destroy { sandbox } => self.destroy(from, tag, &sandbox),
            Request::Keep { digest } => {
                let file = self.file_of(from)?;
                self.kept.put(digest, file)?;
                self.notify(from, tag, Event::Done);
                Ok(())
            }
            Request::Kept { digest } => {
                self.on_kept(from, tag, &digest);
                Ok(())
            }
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

    /// Answers with a file that was kept; one that cannot be handed on is as good as none.
    fn on_kept(&mut self, from: Key, tag: u64, digest: &Digest) {
        let found = self.kept.get(digest);
        let copied = found.and_then(|file| rustix::io::fcntl_dupfd_cloexec(file, 3).ok());
        let there = copied.is_some();
        self.notify_with(
            from,
            tag,
            Event::Kept { there },
            copied.into_iter().collect(),
        );
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

    fn provision(&mut self, (from, tag): (Key, u64), spec: SandboxSpec, held: bool) -> Answer {
        let directory = self.directory(from, &spec)?;
        crate::image::take(self.connections.get_mut(&from), &spec)?;
        crate::image::refuse_parked(&spec)?;
        self.room()?;
        let admitted = admit(&self.host, &spec, directory.is_some(), Beside::NOTHING)?;
        let role = Role::Provisioned(Some((from, tag)));
        let came = Came {
            directory,
            image: None,
        };
        let made = self.make(new_sandbox_id(), spec, admitted, role, None, came);
        let key = made.map_err(|detail| {
            refuse(
                ErrorKind::Unavailable,
                format!("the sandbox could not be made: {detail}"),
            )
        })?;
        if let Some(sandbox) = self.sandboxes.get_mut(&key) {
            sandbox.holder = held.then_some(from);
        }
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

    /// The file that came with a call.
    fn file_of(&mut self, from: Key) -> Result<OwnedFd, PublicError> {
        let caller = self.connections.get_mut(&from);
        caller
            .and_then(crate::connection::Connection::take_fd)
            .ok_or_else(|| refuse(ErrorKind::Invalid, "no file came with it"))
    }

    fn agent(&mut self, from: Key, tag: u64, id: &SandboxId, program: &OwnedFd) -> Answer {
        if !memory::is_sealed(program) {
            let message = "the agent's program is no sealed memory file: it could change";
            return Err(refuse(ErrorKind::Invalid, message));
        }
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
            let admitted = &sandbox.admitted;
            group
                .set_limits(&group_limits(&self.host, admitted, sandbox.agents_started))
                .map_err(|_| refuse(ErrorKind::Internal, "no room could be made for the agent"))?;
        }
        let init = sandbox.init.as_ref().ok_or_else(missing)?;
        let message = Control::StartAgent.encode();
        let fds = [theirs.as_fd(), program.as_fd()];
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
        let living = self.sandboxes.values().map(|sandbox| {
            let run = match sandbox.role {
                Role::Run(run) => self.runs.get(&run),
                Role::Pool(_) | Role::Provisioned(_) => None,
            };
            let bound = run.is_some_and(|run| run.record.bound);
            SandboxStatus {
                sandbox: sandbox.id.clone(),
                state: sandbox.state(),
                init_pid: sandbox.init_pid(),
                run: run.filter(|_| !bound).map(|run| run.record.run.clone()),
                pooled: matches!(sandbox.role, Role::Pool(_)),
                bound,
            }
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
