//! The event loop: who is connected, which sandboxes and runs there are, and what each event and
//! deadline sets in motion. One thread; nothing in here waits for anything but the loop itself.
//!
//! Callers come and go in `callers.rs`, are answered in `calls.rs` and told in `notices.rs`; runs are moved
//! in `step.rs`, sandboxes made in `make.rs` by the spawner (`order.rs`), watched in `guest.rs` and removed
//! in `remove.rs`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use leasehold_core::id::{RunId, SandboxId};
use leasehold_jail::cgroup::Cgroups;
use leasehold_jail::spawn::Spawner;
use leasehold_protocol::supervisor::Event;

use crate::admit::Host;
use crate::connection::Connection;
use crate::failpoint::Failpoints;
use crate::kept::Kept;
use crate::ledger::{Entry, Ledger};
use crate::log;
use crate::paths::Paths;
use crate::pool::Pool;
use crate::records::Records;
use crate::remove::Stuck;
use crate::retention::{Pruner, Retention};
use crate::run::Run;
use crate::sandbox::{Role, Sandbox};
use crate::source::{Happening, Key, Source, Sources};
use crate::spare::Spares;
use crate::start::SpawnerSeed;
use crate::timer::Timers;
use crate::uids::Uids;

/// Descriptors one sandbox holds that waits for its run or has one, rounded up, an image or a program that came along with all it is passed included; the descriptor limit is divided by it.
pub(crate) const FDS_PER_SANDBOX: u64 = 28;
/// Bytes moved from a pipe to its spool in one go.
const BUFFER: usize = 128 << 10;
/// Pause between two looks for init's program, until it is there.
const AGENT_LOOK: Duration = Duration::from_millis(2);
/// How long an orderly end may take before the supervisor leaves the rest to parent-death signals
/// and the next sweep.
const STOP_BOUND: Duration = Duration::from_secs(10);

/// Everything that can be due. The key is a run's or a sandbox's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Timer {
    /// The wall limit of a run.
    Wall(Key),
    /// The time between TERM and KILL is over.
    Grace(Key),
    /// No output came for a while after the command ended.
    Quiet(Key),
    /// Output after the command ended took too long.
    Drain(Key),
    /// Look at processor time and disk.
    Watch(Key),
    /// Tell output counts that were held back.
    Output(Key),
    /// A test's hold is over.
    Hold(Key),
    /// The collector took too long.
    Collector(Key),
    /// A look of a lookout took too long.
    Lookout(Key),
    /// The program that makes a sandbox's disk took too long.
    Format(Key),
    /// A sandbox was not parked in time.
    Ready(Key),
    /// A killed sandbox did not die in time.
    Bound(Key),
    /// Look again whether the namespaces of a dead sandbox are gone.
    Linger(Key),
    /// A caller did not say hello in time.
    Hello(Key),
    /// The spawner did not answer in time.
    Answer,
    /// Try again to remove what did not go.
    Stuck,
    /// A command has had the machine to itself for long enough.
    Refill,
    /// Whoever a pool was kept for has been away for long enough.
    Forsaken(Key),
    /// Notices that nobody waits for have waited long enough.
    Unhurried,
    /// Look for what is not kept any longer.
    Prune,
    /// Nothing was to do for a while.
    Idle,
    /// An orderly end took too long.
    Stop,
}

/// The supervisor's whole state.
pub(crate) struct Server {
    pub(crate) paths: Paths,
    pub(crate) sources: Sources,
    pub(crate) timers: Timers<Timer>,
    pub(crate) failpoints: Failpoints,
    pub(crate) host: Host,
    pub(crate) cgroups: Cgroups,
    pub(crate) spawner: Spawner,
    pub(crate) ledger: Ledger,
    pub(crate) records: Records,
    pub(crate) spares: Spares,
    pub(crate) retention: Retention,
    /// The pass that is under way.
    pub(crate) pruner: Option<Pruner>,
    /// Absent for an ordinary user.
    pub(crate) uids: Option<Uids>,
    /// The one range of an ordinary user.
    pub(crate) own_range: (u32, u32),
    pub(crate) cores: Vec<u32>,
    pub(crate) connections: HashMap<Key, Connection>,
    pub(crate) sandboxes: HashMap<Key, Sandbox>,
    pub(crate) sandbox_ids: HashMap<SandboxId, Key>,
    /// When the host was last searched for what holds a namespace.
    pub(crate) searched: Option<Instant>,
    /// Sandboxes whose removal did not converge.
    pub(crate) stuck: BTreeMap<SandboxId, Stuck>,
    /// Sandboxes that wait for the spawner, and those it is at, oldest first.
    pub(crate) waiting: VecDeque<Key>,
    pub(crate) ordered: VecDeque<Key>,
    /// Killed children that no sandbox stands for: number and process.
    pub(crate) orphans: Vec<(u32, OwnedFd)>,
    pub(crate) runs: HashMap<Key, Run>,
    pub(crate) run_ids: HashMap<RunId, Key>,
    pub(crate) pools: Vec<Pool>,
    /// What callers left for those after them.
    pub(crate) kept: Kept,
    pub(crate) capacity: usize,
    pub(crate) buffer: Box<[u8]>,
    pub(crate) stopping: bool,
    /// It ends since it cannot work.
    pub(crate) failed: bool,
    /// Calls that wait for the end.
    pub(crate) stoppers: Vec<(Key, u64)>,
    /// What a successor of the spawner is started with.
    pub(crate) spawner_seed: SpawnerSeed,
    pub(crate) listener: Option<OwnedFd>,
    signals: OwnedFd,
    pub(crate) idle_exit: Duration,
    /// Connections with something to send now, and those with something that may wait.
    pub(crate) unflushed: Vec<Key>,
    pub(crate) unhurried: Vec<Key>,
    next_key: Key,
}

/// What the start hands to the loop.
pub(crate) struct Parts {
    pub(crate) paths: Paths,
    pub(crate) host: Host,
    pub(crate) cgroups: Cgroups,
    pub(crate) spawner: Spawner,
    pub(crate) ledger: Ledger,
    pub(crate) records: Records,
    pub(crate) spares: Spares,
    pub(crate) retention: Retention,
    pub(crate) uids: Option<Uids>,
    pub(crate) own_range: (u32, u32),
    pub(crate) cores: Vec<u32>,
    pub(crate) capacity: usize,
    pub(crate) listener: OwnedFd,
    pub(crate) signals: OwnedFd,
    pub(crate) idle_exit: Duration,
    pub(crate) stuck: Vec<Entry>,
    pub(crate) spawner_seed: SpawnerSeed,
}

/// Whether there is something to read, or an end, without waiting.
pub(crate) fn readable(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut polled = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut polled, Some(&rustix::event::Timespec::default())).is_ok_and(|count| count > 0)
}

impl Server {
    pub(crate) fn new(parts: Parts) -> io::Result<Self> {
        let sources = Sources::new()?;
        sources.add(&parts.listener, Source::Listener)?;
        sources.add(&parts.signals, Source::Signal)?;
        let stuck = parts
            .stuck
            .into_iter()
            .map(|entry| (entry.sandbox.clone(), Stuck::new(entry, None)))
            .collect();
        let server = Self {
            paths: parts.paths,
            sources,
            timers: Timers::new(),
            failpoints: Failpoints::from_env(),
            host: parts.host,
            cgroups: parts.cgroups,
            spawner: parts.spawner,
            ledger: parts.ledger,
            records: parts.records,
            spares: parts.spares,
            retention: parts.retention,
            pruner: None,
            uids: parts.uids,
            own_range: parts.own_range,
            cores: parts.cores,
            connections: HashMap::new(),
            sandboxes: HashMap::new(),
            sandbox_ids: HashMap::new(),
            searched: None,
            stuck,
            waiting: VecDeque::new(),
            ordered: VecDeque::new(),
            orphans: Vec::new(),
            runs: HashMap::new(),
            run_ids: HashMap::new(),
            pools: Vec::new(),
            kept: Kept::default(),
            capacity: parts.capacity,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            stopping: false,
            failed: false,
            stoppers: Vec::new(),
            spawner_seed: parts.spawner_seed,
            listener: Some(parts.listener),
            signals: parts.signals,
            idle_exit: parts.idle_exit,
            unflushed: Vec::new(),
            unhurried: Vec::new(),
            next_key: 1,
        };
        server.watch_spawner()?;
        Ok(server)
    }

    /// A key nothing had before.
    pub(crate) fn new_key(&mut self) -> Key {
        self.next_key += 1;
        self.next_key
    }

    /// Works until there is nothing to do any more, or somebody ends it.
    pub(crate) fn serve(mut self) -> io::Result<()> {
        self.start_stuck();
        self.start_pruning();
        loop {
            self.flush();
            if self.over() {
                break;
            }
            self.rest();
            let now = Instant::now();
            let wait = if self.wants_refill() {
                Some(Duration::ZERO)
            } else if self.spawner_seed.awaits_init() {
                Some(AGENT_LOOK)
            } else {
                self.timers.wait(now)
            };
            let happened = self.await_events(wait)?;
            let quiet = happened.is_empty();
            for happening in happened {
                self.handle(happening);
            }
            self.look_for_init();
            let now = Instant::now();
            while let Some(timer) = self.timers.due(now) {
                self.on_timer(timer);
            }
            if (quiet || self.runs_dry()) && self.wants_refill() {
                self.refill();
            }
        }
        self.say_goodbye();
        if self.failed {
            return Err(io::Error::other("no sandbox can be made here"));
        }
        Ok(())
    }

    /// Whether the loop is over: told to stop and nothing lives, or idle for long enough.
    fn over(&self) -> bool {
        let empty = self.sandboxes.is_empty() && self.runs.is_empty();
        self.stopping && (empty || !self.timers.pending(Timer::Stop)) || self.listener.is_none()
    }

    /// Arms or clears the idle deadline.
    fn rest(&mut self) {
        let busy = !self.connections.is_empty()
            || !self.sandboxes.is_empty()
            || !self.runs.is_empty()
            || !self.pools.is_empty();
        if busy || self.stopping {
            self.timers.clear(Timer::Idle);
        } else if !self.timers.pending(Timer::Idle) {
            self.timers.set(Timer::Idle, Instant::now(), self.idle_exit);
        }
    }

    fn handle(&mut self, happening: Happening) {
        match happening.source {
            Source::Listener => self.accept(),
            Source::Signal => {
                let mut bytes = [0; 128];
                while rustix::io::read(&self.signals, &mut bytes).is_ok_and(|count| count > 0) {}
                self.stop();
            }
            Source::Spawner | Source::Answer if !self.spawner.is_ready() => self.on_spawner_start(),
            Source::Spawner if self.spawner_dead() => self.renew_spawner(),
            Source::Spawner => {}
            Source::Answer => self.on_answer(),
            Source::Orphan => self.reap_orphans(),
            Source::Connection(key) => self.on_connection(key, happening),
            Source::Init(key) => self.on_init(key),
            Source::Stub(key) => {
                if happening.writable {
                    self.continue_message(key);
                }
                if happening.readable {
                    self.on_stub(key);
                }
            }
            Source::Death(key) => self.on_death(key),
            Source::Oom(key) => self.on_oom(key),
            Source::Stream(key, which) => self.on_stream(key, which),
            Source::Collector(key) => self.on_collector(key),
            Source::Lookout(key) => self.on_lookout(key),
            Source::Format(key) => self.on_formatted(key),
        }
    }

    fn on_timer(&mut self, timer: Timer) {
        match timer {
            Timer::Wall(key) => self.on_wall(key),
            Timer::Grace(key) => self.kill_run(key),
            Timer::Quiet(key) | Timer::Drain(key) => self.on_drained(key),
            Timer::Watch(key) => self.on_watch(key),
            Timer::Output(key) => self.tell_output(key, Instant::now()),
            Timer::Hold(key) => {
                if let Some(run) = self.runs.get_mut(&key) {
                    run.held = false;
                }
                self.step(key);
            }
            Timer::Collector(key) => self.on_collector(key),
            Timer::Lookout(key) => self.on_lookout(key),
            Timer::Format(key) => self.on_format_late(key),
            Timer::Ready(key) => self.fail_sandbox(key, "it was not ready within 10 s".to_owned()),
            Timer::Bound(key) => self.on_overdue(key),
            Timer::Linger(key) => self.on_linger(key),
            Timer::Answer => self.take_answer(),
            Timer::Stuck => self.retry_stuck(),
            Timer::Refill => {}
            Timer::Forsaken(pool) => self.let_go(pool),
            Timer::Unhurried => self.hurry(),
            Timer::Hello(key) => self.on_hello_late(key),
            Timer::Prune => self.on_prune(),
            Timer::Idle => self.leave_if_alone(),
            Timer::Stop => {}
        }
    }

    /// Leaves for want of work. Whoever connected up to the last moment is served: the socket is
    /// taken away first, and put back when somebody had come by then.
    fn leave_if_alone(&mut self) {
        let _ = std::fs::remove_file(self.paths.socket());
        self.accept();
        if self.connections.is_empty() {
            self.listener = None;
            return;
        }
        match crate::start::listen(&self.paths) {
            Ok(listener) if self.sources.add(&listener, Source::Listener).is_ok() => {
                if let Some(before) = self.listener.replace(listener) {
                    self.sources.forget(before);
                }
            }
            _ => log::line("the socket could not be put back"),
        }
    }

    /// Begins an orderly end: nothing new, runs cancelled, sandboxes removed.
    pub(crate) fn stop(&mut self) {
        if self.stopping {
            return;
        }
        self.stopping = true;
        self.timers.set(Timer::Stop, Instant::now(), STOP_BOUND);
        self.pools.clear();
        for key in self.runs.keys().copied().collect::<Vec<_>>() {
            self.cancel(key, leasehold_core::end::CancelledBy::Operator, true);
        }
        for key in self.sandboxes.keys().copied().collect::<Vec<_>>() {
            if !matches!(self.sandboxes[&key].role, Role::Run(_)) {
                self.end_sandbox(key);
            }
        }
    }

    fn say_goodbye(&mut self) {
        for (key, tag) in std::mem::take(&mut self.stoppers) {
            self.notify(key, tag, Event::Done);
        }
        self.hurry();
        self.flush();
        if self.listener.is_some() {
            let _ = std::fs::remove_file(self.paths.socket());
        }
        // What was busy when it was removed may have ended since.
        self.hurry_stuck();
        self.cgroups.remove_base();
        self.spares.clear();
        if let Some(uids) = &mut self.uids {
            uids.close();
        }
    }

    /// Waits for the spawner's answers and for its end.
    pub(crate) fn watch_spawner(&self) -> io::Result<()> {
        self.sources.add(self.spawner.pidfd(), Source::Spawner)?;
        match self.spawner.answers() {
            Some(answers) => self.sources.add(answers, Source::Answer),
            None => Ok(()),
        }
    }

    /// Whether the spawner of this moment ended: the news may be of the one before.
    fn spawner_dead(&self) -> bool {
        readable(self.spawner.pidfd())
    }

    /// Waits for the spawner no longer.
    pub(crate) fn forget_spawner(&self) {
        self.sources.forget(self.spawner.pidfd());
        if let Some(answers) = self.spawner.answers() {
            self.sources.forget(answers);
        }
    }
}
