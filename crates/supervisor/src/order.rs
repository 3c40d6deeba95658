//! What the spawner is told and what it says: orders, answers, and its loss. Sandboxes that it made are
//! children of ours and outlive it.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use leasehold_core::spec::WorkspaceMode;
use leasehold_jail::cgroup::Group;
use leasehold_jail::failpoint;
use leasehold_jail::spawn::{Disk, IdBlock, Made, MakeFds, MakeSpec, ORDERS_MAX, SpawnError};
use rustix::net::SocketType;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::guest::DEATH_BOUND;
use crate::log;
use crate::make::{Stopped, socket_pair, stopped};
use crate::sandbox::{Role, Sandbox};
use crate::server::{Server, Timer, readable};
use crate::source::{Key, Source};

/// How long the loss of a spawner may hold us up until its half-made sandbox is dead.
const HALF_MADE_BOUND: Duration = Duration::from_millis(200);
/// How often a sandbox is ordered: a spawner that dies of an order takes no more of it.
const TRIES_MAX: u32 = 3;
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
/// Why a sandbox was not ordered.
enum Unordered {
    /// The spawner takes nothing any more. Another may.
    Lost(Stopped),
    /// It cannot be made.
    Unmade(Stopped),
}

impl Server {
    /// Hands waiting sandboxes to the spawner, as many as it may have at a time.
    pub(crate) fn order_waiting(&mut self) {
        while self.ordered.len() < ORDERS_MAX {
            let Some(key) = self.waiting.pop_front() else {
                break;
            };
            let Some(mut sandbox) = self.sandboxes.remove(&key) else {
                continue;
            };
            if self.failpoints.turn("spawner", 3) {
                self.kill_spawner();
            }
            let ordered = if sandbox.killed {
                Err(Unordered::Unmade(
                    "it was ended before it was made".to_owned(),
                ))
            } else {
                self.order(&mut sandbox)
            };
            let tries = sandbox.tries;
            self.sandboxes.insert(key, sandbox);
            match ordered {
                Ok(()) => self.ordered.push_back(key),
                Err(Unordered::Lost(_)) if tries < TRIES_MAX => {
                    // It is the next one's: the loss is seen, and mended, by the loop.
                    self.waiting.push_front(key);
                    self.timers
                        .set(Timer::Answer, Instant::now(), Duration::ZERO);
                    return;
                }
                Err(Unordered::Lost(detail) | Unordered::Unmade(detail)) => {
                    self.not_made(key, detail);
                }
            }
        }
        self.await_answer();
    }

    /// A test's wish: the spawner is dead before anybody knows.
    fn kill_spawner(&self) {
        let pidfd = self.spawner.pidfd();
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let _ = waitid(WaitId::PidFd(pidfd), options);
        // A process that makes namespaces for it goes a moment later, and holds the socket until then.
        let end = Instant::now() + HALF_MADE_BOUND;
        while !self.spawner.answers().is_some_and(readable) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
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
    fn order(&mut self, sandbox: &mut Sandbox) -> Result<(), Unordered> {
        let stopped = |what: &str, error: &dyn std::error::Error| {
            Unordered::Unmade(self::stopped(what, error))
        };
        let sockets = |error: io::Error| stopped("its sockets could not be made", &error);
        let pairs = || {
            Ok((
                socket_pair(SocketType::SEQPACKET)?,
                socket_pair(SocketType::STREAM)?,
            ))
        };
        let ((init, init_end), (stub, stub_end)) =
            failpoint::around("sockets", pairs).map_err(sockets)?;
        if sandbox.cores.is_empty() {
            sandbox.cores = self.cores_to_wait_on(&sandbox.admitted.limits);
        }
        sandbox.tries += 1;
        let image = sandbox.image.as_ref();
        let device = image.and_then(|image| image.device.as_ref());
        let groups = sandbox.group.as_ref().map_or_else(Vec::new, Group::joins);
        let directory = sandbox.directory.as_ref();
        let fds = MakeFds {
            init: init_end.as_fd(),
            stub: stub_end.as_fd(),
            workspace: directory.map(AsFd::as_fd),
            disk: device.map(|device| device.device.as_fd()),
            layers: sandbox
                .rootfs
                .as_ref()
                .and_then(|rootfs| rootfs.layers.as_ref())
                .map(AsFd::as_fd),
            cgroup: sandbox.group.as_ref().and_then(Group::into_cgroup),
            cgroup_procs: &groups,
        };
        let order = order(sandbox, directory)
            .map_err(|error| stopped("its workspace could not be read", &error))?;
        failpoint::around("order", || self.spawner.order(&order, fds)).map_err(|error| {
            let detail = self::stopped("it could not be made", &error);
            match error.spawner_lost() {
                true => Unordered::Lost(detail),
                false => Unordered::Unmade(detail),
            }
        })?;
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

    /// The spawner said something. News of one that is lost is none of its successor.
    pub(crate) fn on_answer(&mut self) {
        if self.spawner.answers().is_none_or(readable) {
            self.take_answer();
        }
    }

    /// Takes what the spawner made. One that has nothing to say is late, and of no more use.
    pub(crate) fn take_answer(&mut self) {
        self.timers.clear(Timer::Answer);
        let answer = self.spawner.take(Duration::ZERO);
        let lost = answer.as_ref().is_err_and(SpawnError::spawner_lost);
        self.answered(answer);
        if lost {
            self.renew_spawner();
        }
        self.order_waiting();
    }

    /// An answer is that to the oldest order.
    fn answered(&mut self, answer: Result<Made, SpawnError>) {
        match (self.ordered.pop_front(), answer) {
            (None, Ok(made)) => self.abandon(made),
            (None, Err(_)) => {}
            (Some(key), Ok(made)) => self.was_made(key, made),
            (Some(key), Err(error)) => {
                let directory = self
                    .sandboxes
                    .get(&key)
                    .and_then(|it| it.directory.as_ref());
                let detail = directory
                    .and_then(|directory| crate::lend::refusal(directory.as_fd(), &error))
                    .or_else(|| crate::image::refusal(&error))
                    .unwrap_or_else(|| stopped("it could not be made", &error));
                self.not_made(key, detail);
            }
        }
    }

    fn was_made(&mut self, key: Key, made: Made) {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return self.abandon(made);
        };
        sandbox.making = false;
        sandbox.directory = None;
        if let Some(rootfs) = &mut sandbox.rootfs {
            rootfs.layers = None;
        }
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
        self.post_lookout(key);
        if let Role::Run(run) = self.sandboxes[&key].role {
            self.note_ids(run, key);
            self.step(run);
        }
    }

    /// Ends what was made for a sandbox that was given up meanwhile.
    fn abandon(&mut self, made: Made) {
        let _ = pidfd_send_signal(&made.pidfd, Signal::KILL);
        self.adopt(made.pid, made.pidfd);
    }

    /// A sandbox was not made. Of one whose spawner died half-way a process may live, which nobody
    /// can name any more; its control group can.
    pub(crate) fn not_made(&mut self, key: Key, detail: Stopped) {
        if let Some(sandbox) = self.sandboxes.get_mut(&key) {
            sandbox.making = false;
            if let Some(group) = &sandbox.group {
                let _ = group.kill();
            }
            self.fail_sandbox(key, detail);
        }
    }

    /// The spawner is dead or of no more use: starts another. Sandboxes that were made are our own
    /// children and go on; the order it was at is lost, and so are those it had not begun.
    pub(crate) fn renew_spawner(&mut self) {
        log::line("the spawner is lost; starting another");
        self.forget_spawner();
        // What it said before it died counts.
        while !self.ordered.is_empty() && self.spawner.answers().is_some_and(readable) {
            let answer = self.spawner.take(Duration::ZERO);
            if answer.as_ref().is_err_and(SpawnError::spawner_lost) {
                break;
            }
            self.answered(answer);
        }
        let lost: Vec<Key> = self.ordered.drain(..).collect();
        self.timers.clear(Timer::Answer);
        let half_made_lives = self.end_half_made();
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
        self.slots_lost(&lost);
        for (at, key) in lost.into_iter().enumerate() {
            // It is at the oldest, one for each core.
            if let Some(sandbox) = self.sandboxes.get_mut(&key) {
                sandbox.overdue |= at < self.cores.len() && half_made_lives;
            }
            self.not_made(key, "it could not be made: the spawner is gone".to_owned());
        }
        // Those that had not been ordered yet.
        self.order_waiting();
    }

    /// Ends what a lost spawner half made: children of ours whose numbers were never told. Returns
    /// whether one still lives.
    fn end_half_made(&mut self) -> bool {
        let mut known: HashSet<u32> = self.sandboxes.values().map(Sandbox::init_pid).collect();
        known.insert(self.spawner.pid());
        let formatting = self
            .sandboxes
            .values()
            .filter_map(|it| it.formatting.as_ref());
        known.extend(formatting.map(crate::scratch::Formatting::pid));
        known.extend(self.orphans.iter().map(|orphan| orphan.0));
        let mut left: Vec<Pid> = made_children()
            .into_iter()
            .filter(|pid| !known.contains(&pid.as_raw_nonzero().get().cast_unsigned()))
            .collect();
        for pid in &left {
            // Not waited for, so that the number is still its own.
            let _ = rustix::process::kill_process(*pid, Signal::KILL);
        }
        let end = Instant::now() + HALF_MADE_BOUND;
        loop {
            left.retain(|pid| !reaped(WaitId::Pid(*pid)));
            if left.is_empty() || Instant::now() >= end {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        for pid in &left {
            let none = rustix::process::PidfdFlags::empty();
            if let Ok(pidfd) = rustix::process::pidfd_open(*pid, none) {
                self.adopt(pid.as_raw_nonzero().get().cast_unsigned(), pidfd);
            }
        }
        !left.is_empty()
    }

    /// Takes care of a killed child that no sandbox stands for until it is gone.
    pub(crate) fn adopt(&mut self, pid: u32, pidfd: OwnedFd) {
        if self.sources.add(&pidfd, Source::Orphan).is_ok() {
            self.orphans.push((pid, pidfd));
        }
    }

    /// Waits for orphans that are gone. What they held up is removed then.
    pub(crate) fn reap_orphans(&mut self) {
        let before = self.orphans.len();
        let sources = &self.sources;
        self.orphans.retain(|(_, pidfd)| {
            let gone = reaped(WaitId::PidFd(pidfd.as_fd()));
            if gone {
                sources.forget(pidfd);
            }
            !gone
        });
        if self.orphans.len() < before {
            self.hurry_stuck();
        }
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

    /// Notes in the contract of a run which ids its sandbox has.
    fn note_ids(&mut self, run: Key, key: Key) {
        let (Some(run), Some(sandbox)) = (self.runs.get_mut(&run), self.sandboxes.get(&key)) else {
            return;
        };
        if let Some(contract) = &mut run.record.contract {
            let posture = &mut contract.posture;
            posture.uid_range = sandbox.leased_range().unwrap_or(posture.uid_range);
            let shared = crate::image::user(&sandbox.spec).uid == 0;
            posture.single_uid =
                shared || sandbox.made.as_ref().is_some_and(|made| made.single_uid);
        }
    }
}

/// Waits for a child of ours, if it ended. Whether nothing of it is left.
fn reaped(child: WaitId<'_>) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    !matches!(waitid(child, options), Ok(None))
}

/// Children of ours that the spawner made, and itself. Those we forked ourselves have our name.
fn made_children() -> Vec<Pid> {
    let name = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let own = std::process::id().to_string();
    let ours = name(&own);
    let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
    let children = children.unwrap_or_default();
    let made = children.split_whitespace().filter(|pid| name(pid) != ours);
    made.filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
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
        image: sandbox.spec.image.clone(),
        caller_uid,
        caller_gid,
        deadline: order_bound(sandbox),
    })
}
