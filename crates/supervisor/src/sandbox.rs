//! One sandbox as the supervisor holds it: its descriptors, its host resources and where it is in
//! its life. Dropping one closes descriptors and nothing else; removal is `remove.rs`.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use leasehold_core::id::SandboxId;
use leasehold_core::image::User;
use leasehold_core::sandbox::state::{self, Action, State};
use leasehold_core::spec::SandboxSpec;
use leasehold_jail::cgroup::{Group, OomWatch};
use leasehold_jail::namespaces::Handles;
use leasehold_jail::spawn::Made;
use leasehold_protocol::guest::{Control, ROUSE, SignalTarget};
use rustix::process::{Pid, WaitId, WaitIdOptions};

use crate::admit::Admitted;
use crate::collector::lookout::Lookout;
use crate::image::{self, ImageFds};
use crate::records::Blank;
use crate::scratch::{Formatting, Image};
use crate::source::Key;
use crate::streams::Streams;

/// For whom a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Made for, or claimed by, a run.
    Run(Key),
    /// Untouched, waiting in the pool of this index.
    Pool(Key),
    /// Provisioned for a caller; the connection and tag that wait for it to be parked.
    Provisioned(Option<(Key, u64)>),
}

/// One sandbox.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) id: SandboxId,
    pub(crate) spec: SandboxSpec,
    pub(crate) admitted: Admitted,
    pub(crate) role: Role,
    /// The connection with which it ends as long as it is provisioned for nobody else.
    pub(crate) holder: Option<Key>,
    state: State,
    /// First id of its block, as the maker counts them, and the number of ids.
    pub(crate) uid_range: (u32, u32),
    /// Whether the block is leased in the registry.
    pub(crate) leased: bool,
    pub(crate) group: Option<Group>,
    pub(crate) oom: Option<OomWatch>,
    pub(crate) image: Option<Image>,
    /// The image while its file system is made.
    pub(crate) formatting: Option<Formatting>,
    /// The directory of the run it may have, made ahead.
    pub(crate) blank: Option<Blank>,
    /// The streams of the command it may have, made ahead.
    pub(crate) streams: Option<Streams>,
    /// Our ends of init's and the stub's sockets.
    pub(crate) init: Option<OwnedFd>,
    pub(crate) stub: Option<OwnedFd>,
    pub(crate) made: Option<Made>,
    /// What tells, after its end, whether its namespaces are there; none where this kernel has none.
    pub(crate) namespaces: Option<Handles>,
    /// Since when it is dead and namespaces of it are there all the same.
    pub(crate) lingers: Option<Instant>,
    /// It waits for the spawner, or the spawner is at it.
    pub(crate) making: bool,
    /// How often it was ordered.
    pub(crate) tries: u32,
    /// The host directory of its workspace, until it is made.
    pub(crate) directory: Option<OwnedFd>,
    /// The image that is its root.
    pub(crate) rootfs: Option<ImageFds>,
    /// Who looks after a read-write workspace.
    pub(crate) lookout: Option<Lookout>,
    /// Host cores it may run on.
    pub(crate) cores: Vec<u32>,
    /// Init and stub, while it waits.
    pub(crate) tasks: Vec<Pid>,
    /// Init and stub both said that they are ready.
    pub(crate) init_ready: bool,
    pub(crate) stub_ready: bool,
    /// We ended it, so that its death is no crash.
    pub(crate) killed: bool,
    /// How init ended, once it is reaped.
    pub(crate) death: Option<String>,
    /// Its death did not come within the bound.
    pub(crate) overdue: bool,
    /// Calls for the agent that init has not answered: connection, tag, our end of the channel.
    pub(crate) agents: VecDeque<(Key, u64, OwnedFd)>,
    /// Agents that were started.
    pub(crate) agents_started: u32,
    /// Calls that wait for its removal.
    pub(crate) destroyers: Vec<(Key, u64)>,
    /// When making it began.
    pub(crate) begun: Instant,
}

impl Sandbox {
    /// An intention: no resource exists.
    pub(crate) fn new(id: SandboxId, spec: SandboxSpec, admitted: Admitted, role: Role) -> Self {
        Self {
            id,
            spec,
            admitted,
            role,
            holder: None,
            state: State::Pending,
            uid_range: (0, 0),
            leased: false,
            group: None,
            oom: None,
            image: None,
            formatting: None,
            blank: None,
            streams: None,
            init: None,
            stub: None,
            made: None,
            namespaces: None,
            lingers: None,
            making: false,
            tries: 0,
            directory: None,
            rootfs: None,
            lookout: None,
            cores: Vec::new(),
            tasks: Vec::new(),
            init_ready: false,
            stub_ready: false,
            killed: false,
            death: None,
            overdue: false,
            agents: VecDeque::new(),
            agents_started: 0,
            destroyers: Vec::new(),
            begun: Instant::now(),
        }
    }

    /// Where it is in its life.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Does one step of the life cycle; the table of `core` decides. Returns whether it is allowed.
    pub(crate) fn act(&mut self, action: Action) -> bool {
        match state::next(self.state, action) {
            Ok(next) => {
                self.state = next;
                true
            }
            Err(_) => false,
        }
    }

    /// Whether init and stub wait, and nobody looks at the workspace as it is before.
    pub(crate) fn ready(&self) -> bool {
        self.init_ready && self.stub_ready && self.looked()
    }

    /// Whether no process of it can be left: init was reaped, or there never was one.
    pub(crate) fn dead(&self) -> bool {
        self.death.is_some() || self.made.is_none() && !self.making && !self.overdue
    }

    /// Its leased block of host user ids, where there is one.
    pub(crate) fn leased_range(&self) -> Option<(u32, u32)> {
        self.leased.then_some(self.uid_range)
    }

    /// Makes ready what its command will need and its end will read, so that a claim need not: the
    /// streams, the counters of its control group, and who is to be moved. What cannot be made now is made, or missed, then.
    pub(crate) fn furnish(&mut self) {
        self.streams = self.new_streams().ok();
        self.tasks = crate::cores::tasks(self.init_pid());
        if let Some(group) = &mut self.group {
            group.keep_counts();
        }
    }

    /// The streams of its command, made ahead or now.
    pub(crate) fn take_streams(&mut self) -> std::io::Result<Streams> {
        match self.streams.take() {
            Some(streams) => Ok(streams),
            None => self.new_streams(),
        }
    }

    fn new_streams(&self) -> std::io::Result<Streams> {
        Streams::make(self.leased_range().map(|_| self.workload_ids()))
    }

    /// Host ids of its workload: an ordinary user's has the user's own, root's those of its block.
    pub(crate) fn workload_ids(&self) -> (u32, u32) {
        match self.leased_range() {
            Some((base, _)) => {
                let User { uid, gid } = image::user(&self.spec);
                (base + uid, base + gid)
            }
            None => (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
        }
    }

    /// Host process id of init; 0 when there is none.
    pub(crate) fn init_pid(&self) -> u32 {
        match (&self.made, &self.death) {
            (Some(made), None) => made.pid,
            _ => 0,
        }
    }

    /// Sends a message to init. A full or closed socket is no error here: the kill that follows
    /// every message that matters does not depend on it.
    pub(crate) fn tell_init(&self, message: Control) {
        if let Some(init) = &self.init {
            let _ = rustix::net::send(init, &message.encode(), rustix::net::SendFlags::NOSIGNAL);
        }
    }

    /// Has the stub be awake when its message comes, which is in a moment: to be woken takes it as long as
    /// us to make the message ready. Not where it would be in our way, and no interpreter: that sleeps.
    pub(crate) fn rouse(&self) {
        if let Some(stub) = &self.stub
            && self.spec.warm.is_none()
            && self.beside_us()
        {
            // It is a hint; a socket that is closed is seen when the message is sent.
            let _ = rustix::net::send(stub, &[ROUSE], rustix::net::SendFlags::NOSIGNAL);
        }
    }

    /// Whether it runs on other cores than we do just now.
    pub(crate) fn beside_us(&self) -> bool {
        let here = rustix::thread::sched_getcpu();
        self.cores.iter().all(|core| *core as usize != here)
    }

    /// Asks the main command to end.
    pub(crate) fn terminate(&self) {
        self.tell_init(Control::Signal {
            signal: 15,
            target: SignalTarget::Main,
        });
    }

    /// Kills every process of it. The kernel ends a process namespace with its first process; the
    /// group kill reaches what the supervisor may have lost sight of.
    pub(crate) fn kill(&mut self) {
        self.killed = true;
        if self.death.is_some() {
            return;
        }
        if let Some(formatting) = &self.formatting {
            formatting.kill();
        }
        if let Some(made) = &self.made {
            let _ = rustix::process::pidfd_send_signal(
                made.pidfd.as_fd(),
                rustix::process::Signal::KILL,
            );
        }
        if let Some(group) = &self.group {
            let _ = group.kill();
        }
    }

    /// Reaps init, if it ended. Returns whether it is dead.
    pub(crate) fn reap(&mut self) -> bool {
        let Some(made) = &self.made else {
            return true;
        };
        if self.death.is_some() {
            return true;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        match rustix::process::waitid(WaitId::PidFd(made.pidfd.as_fd()), options) {
            Ok(None) => false,
            Ok(Some(status)) => {
                self.death = Some(match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => format!("exit status {code}"),
                    (_, Some(signal)) => format!("signal {signal}"),
                    _ => "an unknown status".to_owned(),
                });
                true
            }
            Err(errno) => {
                // Somebody else reaped it: it is gone all the same.
                self.death = Some(format!("an unseen status ({errno})"));
                true
            }
        }
    }
}
