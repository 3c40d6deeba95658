//! Making a sandbox: the supervisor's half, in the order that lets a sweep find whatever a crash
//! leaves. The ledger entry comes before the first resource (invariant I3).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::limits::Limits;
use leasehold_core::record::Usage;
use leasehold_core::sandbox::state::Action;
use leasehold_core::spec::{SandboxSpec, WorkspaceMode};
use leasehold_jail::cgroup::{Group, GroupLimits};
use leasehold_jail::spawn::{Disk, IdBlock, Made, MakeFds, MakeSpec, ORDERS_MAX, SpawnError};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::admit::{Admitted, Host};
use crate::calls::unix_ms;
use crate::guest::DEATH_BOUND;
use crate::ledger::Entry;
use crate::log;
use crate::sandbox::{Role, Sandbox};
use crate::scratch::{Image, image_path};
use crate::server::{Server, Timer};
use crate::source::{Key, Source};
use crate::uids;

/// How long after the loss of a spawner its half-made sandboxes are waited for: they are killed by then.
const HALF_MADE_AFTER: Duration = Duration::from_secs(1);
/// What a process of the spawner is called until it has become the agent.
const SPAWNER_NAME: &str = "lease-spawner";
/// How long init and stub may take until they wait.
const READY_BOUND: Duration = Duration::from_secs(10);
/// The same with an interpreter that imports its library first.
const WARM_BOUND: Duration = Duration::from_secs(60);
/// How long the spawner may take for one sandbox.
const MAKE_BOUND: Duration = Duration::from_secs(10);
/// The same where a workspace may have to be copied.
const COPY_BOUND: Duration = Duration::from_secs(60);
/// Time beyond that until the spawner counts as stuck.
const ANSWER_SLACK: Duration = Duration::from_secs(2);
/// Most bytes of `/dev/shm`; it is charged to the sandbox's memory.
const SHM_MAX: u64 = 64 << 20;
/// Our own processes in a sandbox, counted beside its limit: init, and the agent on demand.
const OWN_PROCESSES: u32 = 2;
/// Most blocks tried before giving up on a uid lease.
const LEASE_ATTEMPTS: u32 = 256;

/// A pair of connected sockets: ours, which does not block, and the other's.
pub(crate) fn socket_pair(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fcntl_setfl(&ours, rustix::fs::OFlags::NONBLOCK)?;
    Ok((ours, theirs))
}

/// The limits a control group holds, as far as this host can.
pub(crate) fn group_limits(host: &Host, limits: &Limits) -> GroupLimits {
    GroupLimits {
        memory_bytes: host.memory.is_none().then_some(limits.memory_bytes.value),
        pids: host
            .pids
            .is_none()
            .then_some(limits.pids.value + OWN_PROCESSES),
        cpu_milli: host.cpu.is_none().then_some(limits.cpu_milli.value),
    }
}

/// What stopped the making of a sandbox, for the record: no host paths.
type Stopped = String;

fn stopped(what: &str, error: &dyn std::error::Error) -> Stopped {
    log::failure(what, error);
    let mut text = format!("{what}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

impl Server {
    /// Makes a sandbox; it is parked later, when its init and stub say so.
    ///
    /// # Errors
    /// Says what could not be made; nothing is left then, or it is quarantined.
    pub(crate) fn make(
        &mut self,
        id: SandboxId,
        spec: SandboxSpec,
        admitted: Admitted,
        role: Role,
        run: Option<RunId>,
        directory: Option<OwnedFd>,
    ) -> Result<Key, Stopped> {
        let key = self.new_key();
        let mut sandbox = Sandbox::new(id, spec, admitted, role);
        let built = self.build(key, &mut sandbox, run, directory);
        sandbox.making = built.is_ok();
        self.sandbox_ids.insert(sandbox.id.clone(), key);
        self.sandboxes.insert(key, sandbox);
        match built {
            Ok(()) => {
                self.order_waiting();
                Ok(key)
            }
            Err(detail) => {
                self.remove(key);
                Err(detail)
            }
        }
    }

    fn build(
        &mut self,
        key: Key,
        sandbox: &mut Sandbox,
        run: Option<RunId>,
        directory: Option<OwnedFd>,
    ) -> Result<(), Stopped> {
        self.enter_ledger(sandbox, run)?;
        sandbox.act(Action::Create);
        let limits = &sandbox.admitted.limits;
        let group = self
            .cgroups
            .create(sandbox.id.as_str(), &group_limits(&self.host, limits))
            .map_err(|error| stopped("its control groups could not be made", &error))?;
        sandbox.oom = group.oom_watch();
        sandbox.group = Some(group);
        if sandbox.admitted.image {
            let path = image_path(&self.paths.scratch(), &sandbox.id);
            let image = Image::make(&path, limits.disk_bytes.value, limits.inodes.value)
                .map_err(|error| stopped("its disk could not be made", &error))?;
            sandbox.image = Some(image);
        }
        sandbox.directory = directory;
        self.waiting.push_back(key);
        Ok(())
    }

    /// Hands waiting sandboxes to the spawner, as many as it may have at a time.
    pub(crate) fn order_waiting(&mut self) {
        while self.ordered.len() < ORDERS_MAX {
            let Some(key) = self.waiting.pop_front() else {
                break;
            };
            let Some(mut sandbox) = self.sandboxes.remove(&key) else {
                continue;
            };
            let ordered = if sandbox.killed {
                Err("it was ended before it was made".to_owned())
            } else {
                self.order(&mut sandbox)
            };
            self.sandboxes.insert(key, sandbox);
            match ordered {
                Ok(()) => self.ordered.push_back(key),
                Err(detail) => self.not_made(key, detail),
            }
        }
        self.await_answer();
    }

    /// Arms or clears the deadline of the oldest order.
    fn await_answer(&mut self) {
        let oldest = self.ordered.front().and_then(|key| self.sandboxes.get(key));
        match oldest.map(order_bound) {
            None => self.timers.clear(Timer::Answer),
            Some(_) if self.timers.pending(Timer::Answer) => {}
            Some(bound) => self
                .timers
                .set(Timer::Answer, Instant::now(), bound + ANSWER_SLACK),
        }
    }

    /// Orders a sandbox of the spawner.
    fn order(&mut self, sandbox: &mut Sandbox) -> Result<(), Stopped> {
        let sockets = |error: io::Error| stopped("its sockets could not be made", &error);
        let (init, init_end) = socket_pair(SocketType::SEQPACKET).map_err(sockets)?;
        let (stub, stub_end) = socket_pair(SocketType::STREAM).map_err(sockets)?;
        let directory = sandbox.directory.take();
        let image = sandbox.image.as_ref();
        let device = image.and_then(|image| image.device.as_ref());
        let groups = sandbox.group.as_ref().map_or_else(Vec::new, Group::joins);
        let fds = MakeFds {
            init: init_end.as_fd(),
            stub: stub_end.as_fd(),
            workspace: directory.as_ref().map(AsFd::as_fd),
            disk: device.map(|device| device.device.as_fd()),
            cgroup: sandbox.group.as_ref().and_then(Group::into_cgroup),
            cgroup_procs: &groups,
        };
        sandbox.cores = self.next_cores(&sandbox.admitted.limits);
        let order = order(sandbox, directory.as_ref())
            .map_err(|error| stopped("its workspace could not be read", &error))?;
        self.spawner
            .order(&order, fds)
            .map_err(|error| stopped("it could not be made", &error))?;
        if let Some(group) = &mut sandbox.group {
            group.seated();
        }
        if let Some(image) = &mut sandbox.image {
            image.device = None;
        }
        sandbox.init = Some(init);
        sandbox.stub = Some(stub);
        Ok(())
    }

    /// Takes what the spawner made.
    pub(crate) fn on_answer(&mut self) {
        self.timers.clear(Timer::Answer);
        let answer = self.spawner.take(Duration::ZERO);
        let lost = answer.as_ref().is_err_and(SpawnError::spawner_lost);
        let key = self.ordered.pop_front();
        match (key, answer) {
            (None, _) => {}
            (Some(key), Ok(made)) => self.was_made(key, made),
            (Some(key), Err(error)) => {
                let detail = stopped("it could not be made", &error);
                self.not_made(key, detail);
            }
        }
        if lost {
            self.renew_spawner();
        }
        self.order_waiting();
    }

    fn was_made(&mut self, key: Key, made: Made) {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return;
        };
        sandbox.making = false;
        sandbox.made = Some(made);
        if sandbox.killed {
            sandbox.kill();
            self.timers
                .set(Timer::Bound(key), Instant::now(), DEATH_BOUND);
        } else {
            let bound = match sandbox.spec.warm {
                Some(_) => WARM_BOUND,
                None => READY_BOUND,
            };
            self.timers.set(Timer::Ready(key), Instant::now(), bound);
        }
        if let Err(error) = self.watch(key) {
            let detail = stopped("it could not be watched", &error);
            return self.fail_sandbox(key, detail);
        }
        if let Role::Run(run) = self.sandboxes[&key].role {
            self.note_ids(run, key);
            self.step(run);
        }
    }

    /// A sandbox was not made. Of one whose spawner died half-way a process may live, which nobody
    /// can name any more; its control group can.
    fn not_made(&mut self, key: Key, detail: Stopped) {
        if let Some(sandbox) = self.sandboxes.get_mut(&key) {
            sandbox.making = false;
            if let Some(group) = &sandbox.group {
                let _ = group.kill();
            }
            self.fail_sandbox(key, detail);
        }
    }

    /// The spawner is dead or of no more use: starts another. Sandboxes that were made are our own
    /// children and go on; orders it had are lost.
    pub(crate) fn renew_spawner(&mut self) {
        log::line("the spawner is lost; starting another");
        self.forget_spawner();
        let lost: Vec<Key> = self.ordered.drain(..).collect();
        self.timers.clear(Timer::Answer);
        match self.spawner_seed.start() {
            Ok(spawner) => {
                self.spawner = spawner;
                if let Err(error) = self.watch_spawner() {
                    log::failure("the spawner cannot be watched", &error);
                    self.stop();
                }
            }
            Err(error) => {
                log::failure("no spawner can be started", &error);
                self.stop();
            }
        }
        for key in lost {
            self.not_made(key, "it could not be made: the spawner is gone".to_owned());
        }
        self.timers
            .set(Timer::HalfMade, Instant::now(), HALF_MADE_AFTER);
        // Those that had not been ordered yet.
        self.order_waiting();
    }

    /// Waits for what a lost spawner half made. These are our children, but their numbers were never
    /// told; the name says which they are.
    pub(crate) fn reap_half_made(&mut self) {
        let own = std::process::id();
        let children = std::fs::read_to_string(format!("/proc/self/task/{own}/children"));
        for pid in children.unwrap_or_default().split_whitespace() {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) else {
                continue;
            };
            let spawner = pid.as_raw_nonzero().get().cast_unsigned() == self.spawner.pid();
            if name.trim_end() == SPAWNER_NAME && !spawner {
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
                let _ = waitid(WaitId::Pid(pid), options);
            }
        }
    }

    /// Writes the ledger entry with the uid block it is about to lease, then leases the block.
    fn enter_ledger(&mut self, sandbox: &mut Sandbox, run: Option<RunId>) -> Result<(), Stopped> {
        let mut entry = Entry {
            version: 1,
            sandbox: sandbox.id.clone(),
            run,
            uid_base: 0,
            image: sandbox.admitted.image,
            supervisor: std::process::id(),
            written_unix_ms: unix_ms(),
            stuck: false,
        };
        let failed = |error: io::Error| stopped("it could not be entered in the ledger", &error);
        let Some(uids) = &mut self.uids else {
            sandbox.uid_range = self.own_range;
            return self.ledger.enter(&entry, &mut self.spares).map_err(failed);
        };
        for attempt in 0..LEASE_ATTEMPTS {
            entry.uid_base = uids.candidate();
            if attempt == 0 {
                self.ledger
                    .enter(&entry, &mut self.spares)
                    .map_err(failed)?;
            } else {
                self.ledger.write(&entry).map_err(failed)?;
            }
            if uids.lease().map_err(failed)? {
                sandbox.uid_range = (entry.uid_base, uids::BLOCK);
                sandbox.leased = true;
                return Ok(());
            }
        }
        Err(format!(
            "no uid block is free after {LEASE_ATTEMPTS} attempts"
        ))
    }

    fn watch(&self, key: Key) -> io::Result<()> {
        let Some(sandbox) = self.sandboxes.get(&key) else {
            return Ok(());
        };
        if let Some(made) = &sandbox.made {
            self.sources.add(&made.pidfd, Source::Death(key))?;
        }
        if let Some(init) = &sandbox.init {
            self.sources.add(init, Source::Init(key))?;
        }
        if let Some(stub) = &sandbox.stub {
            self.sources.add(stub, Source::Stub(key))?;
        }
        if let Some(oom) = &sandbox.oom {
            if oom.interest().contains(rustix::event::PollFlags::PRI) {
                self.sources.add_urgent(oom, Source::Oom(key))?;
            } else {
                self.sources.add(oom, Source::Oom(key))?;
            }
        }
        Ok(())
    }

    /// The host's cores in turn, as many as the sandbox sees.
    fn next_cores(&mut self, limits: &Limits) -> Vec<u32> {
        let count = (limits.visible_cores() as usize).min(self.cores.len());
        let start = self.next_core;
        self.next_core = (start + count) % self.cores.len().max(1);
        (0..count)
            .map(|at| self.cores[(start + at) % self.cores.len()])
            .collect()
    }

    /// Notes in the contract of a run which ids its sandbox has.
    fn note_ids(&mut self, run: Key, key: Key) {
        let (Some(run), Some(sandbox)) = (self.runs.get_mut(&run), self.sandboxes.get(&key)) else {
            return;
        };
        if let Some(contract) = &mut run.record.contract {
            let posture = &mut contract.posture;
            posture.uid_range = sandbox.leased_range().unwrap_or(posture.uid_range);
            posture.single_uid = sandbox.made.as_ref().is_some_and(|made| made.single_uid);
        }
    }

    /// Makes the sandbox of a run; a failure becomes the end of the run.
    pub(crate) fn make_for_run(
        &mut self,
        run: Key,
        id: SandboxId,
        spec: SandboxSpec,
        admitted: Admitted,
        directory: Option<OwnedFd>,
    ) {
        let name = self.runs.get(&run).map(|run| run.record.run.clone());
        let made = self.make(id, spec, admitted, Role::Run(run), name, directory);
        let Some(run) = self.runs.get_mut(&run) else {
            return;
        };
        match made {
            Ok(key) => run.sandbox = Some(key),
            Err(detail) => {
                run.seen.never_started = Some(detail);
                run.abort = true;
            }
        }
    }
}

/// Time the spawner has for a sandbox.
fn order_bound(sandbox: &Sandbox) -> Duration {
    match sandbox.spec.workspace {
        WorkspaceMode::Clone => COPY_BOUND,
        WorkspaceMode::Ephemeral | WorkspaceMode::ReadOnly | WorkspaceMode::ReadWrite => MAKE_BOUND,
    }
}

/// What the spawner is told.
fn order(sandbox: &Sandbox, directory: Option<&OwnedFd>) -> io::Result<MakeSpec> {
    let limits = &sandbox.admitted.limits;
    // The owner of the directory is the one whose files are in it.
    let (caller_uid, caller_gid) = match directory {
        Some(directory) => {
            let found = rustix::fs::fstat(directory)?;
            (found.st_uid, found.st_gid)
        }
        None => (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
    };
    let (host_base, count) = sandbox.uid_range;
    Ok(MakeSpec {
        ids: IdBlock { host_base, count },
        cores: sandbox.cores.clone(),
        memory_bytes: limits.memory_bytes.value,
        disk: if sandbox.admitted.image {
            Disk::Image
        } else {
            Disk::Tmpfs {
                bytes: limits.disk_bytes.value,
                inodes: limits.inodes.value,
            }
        },
        shm_bytes: (limits.memory_bytes.value / 2).min(SHM_MAX),
        workspace: sandbox.spec.workspace,
        warm: sandbox.spec.warm,
        caller_uid,
        caller_gid,
        deadline: order_bound(sandbox),
    })
}

impl Sandbox {
    /// What it uses now.
    pub(crate) fn usage(&self) -> Usage {
        let group = self.group.as_ref().map(Group::usage);
        let group = group.unwrap_or_default();
        Usage {
            wall_micros: crate::run::micros(self.begun.elapsed()),
            cpu_micros: group.cpu_micros,
            memory_peak_bytes: group.memory_peak_bytes,
            throttled_micros: group.throttled_micros,
            disk_bytes: self.disk().map(|disk| disk.bytes),
        }
    }

    /// How full its disk is.
    pub(crate) fn disk(&self) -> Option<DiskUse> {
        let scratch = &self.made.as_ref()?.scratch;
        let seen = rustix::fs::fstatvfs(scratch).ok()?;
        let used = seen.f_blocks.saturating_sub(seen.f_bfree);
        Some(DiskUse {
            bytes: used.saturating_mul(seen.f_frsize),
            inodes: seen.f_files.saturating_sub(seen.f_ffree),
            bytes_full: seen.f_bavail == 0,
            inodes_full: seen.f_ffree == 0,
        })
    }
}

/// What is used of a sandbox's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskUse {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    pub(crate) bytes_full: bool,
    pub(crate) inodes_full: bool,
}
