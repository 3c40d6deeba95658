//! Becoming the supervisor: locks, spawner, socket, sweep. Of two starters one wins and the other
//! leaves with status 0.
//!
//! Somebody waits for the first sandbox, and it cannot be made before the spawner has built its
//! template. So the spawner is forked as early as can be, and all else is done meanwhile: callers
//! are let in, control groups are made, and what a dead predecessor left is swept. Calls are taken
//! when that is done, orders wait in the spawner's socket. Init's program is put in its file by
//! whoever began us, beside all that; it is asked for when the first sandbox is on its way.
//!
//! The supervisor cannot take `no_new_privs`: as an ordinary user its spawner is mapped by set-uid
//! programs, and as root every sandbox is made by it. It is not dumpable, so that no process of the
//! same user reads its memory; its children are forked from the spawner, which holds no secret.

use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use leasehold_core::contract::Posture;
use leasehold_jail::cgroup::{CgroupError, Cgroups, scope_thinkable};
use leasehold_jail::spawn::{RootlessIds, SpawnError, Spawner, SpawnerConfig};
use leasehold_jail::{landlock, seccomp, termination};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::DumpableBehavior;

use crate::admit::Host;
use crate::heritage::{self, FDS_RESERVED, Shortage};
use crate::ledger::Ledger;
use crate::lock::Lock;
use crate::log;
use crate::paths::Paths;
use crate::program::InitProgram;
use crate::records::Records;
use crate::retention::Retention;
use crate::rootless;
use crate::scratch;
use crate::server::{FDS_PER_SANDBOX, Parts, Server};
use crate::source::Key;
use crate::spare::Spares;
use crate::sweep::{Depth, SweepError, open_registry, sweep_locked};

/// Callers that may wait to be accepted.
const BACKLOG: i32 = 1_024;
/// Most cores that are handed out.
const CORES_MAX: usize = 1_024;

/// What the supervisor is started with.
#[derive(Debug)]
pub struct Config {
    /// Its directories.
    pub paths: Paths,
    /// The program that every sandbox executes.
    pub init: InitProgram,
    /// How long it stays with nothing to do.
    pub idle_exit: Duration,
    /// How long what runs leave is kept.
    pub retention: Retention,
    /// Whether systemd may be asked for control groups where none can be made otherwise.
    pub scope: bool,
}

/// How long a supervisor stays with nothing to do, when nobody says.
pub const IDLE_EXIT: Duration = Duration::from_secs(15);

/// Why there is no supervisor.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Short(#[from] Shortage),
    #[error(transparent)]
    Sweep(#[from] SweepError),
    #[error("the spawner cannot be started")]
    Spawner(#[source] SpawnError),
    #[error("control groups cannot be looked at")]
    Cgroups(#[source] CgroupError),
    #[error("socket `{path}` cannot be opened")]
    Socket {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("the event loop failed")]
    Loop(#[source] io::Error),
    #[error("{attempt} failed")]
    Io {
        attempt: &'static str,
        #[source]
        source: io::Error,
    },
}

fn io_error<E: Into<io::Error>>(attempt: &'static str) -> impl Fn(E) -> StartError {
    move |source| StartError::Io {
        attempt,
        source: source.into(),
    }
}

/// Is the supervisor until there is nothing to do, or somebody ends it. Writes one line to standard
/// output when it listens. The process must have one thread.
#[must_use]
pub fn main(config: Config) -> ExitCode {
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::failure("the supervisor cannot go on", &error);
            ExitCode::FAILURE
        }
    }
}

fn run(config: Config) -> Result<(), StartError> {
    let paths = config.paths;
    // Of the session of whoever started us, which may end before us; a session leader stays one.
    let _ = rustix::process::setsid();
    let limits = heritage::shed()?;
    paths.create().map_err(SweepError::from)?;
    let Some(lock) = Lock::try_take(&paths).map_err(SweepError::from)? else {
        return Ok(());
    };
    crate::failpoint::arm();
    // Who refuses us this makes us slower and nothing else.
    let _ = leasehold_jail::schedule::be_prompt();
    let signals = termination::termination_events().map_err(io_error("taking over signals"))?;
    let capacity = room_for_sandboxes()?;
    let root = rustix::process::geteuid().is_root();
    let spawner_seed = SpawnerSeed {
        init: config.init,
        rootless: (!root).then(rootless::find),
    };
    // A scope takes in this process alone, so it comes before the first child.
    let scoped = (config.scope && scope_thinkable())
        .then(|| Cgroups::discover_or_ask(paths.instance()))
        .transpose()
        .map_err(StartError::Cgroups)?;
    // Before there is anything a fork should not have; afterwards nobody may read our memory.
    let spawner = spawner_seed.begin().map_err(StartError::Spawner)?;
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let listener = listen(&paths)?;
    announce(&open_null().map_err(io_error("opening the null device"))?);
    let early = Early {
        limits,
        signals,
        capacity,
        spawner_seed,
        spawner,
        listener,
        scoped,
        idle_exit: config.idle_exit,
        retention: config.retention,
    };
    let socket = paths.socket();
    let served = go_on(paths, &lock, early);
    if served.is_err() {
        // Nobody listens there any more, and nobody else can as long as we hold the lock.
        let _ = std::fs::remove_file(socket);
    }
    drop(lock);
    served
}

/// What is there before the rest of the start.
struct Early {
    /// Hard limits that stay.
    limits: Vec<String>,
    signals: OwnedFd,
    capacity: usize,
    spawner_seed: SpawnerSeed,
    spawner: Spawner,
    listener: OwnedFd,
    scoped: Option<Cgroups>,
    idle_exit: Duration,
    retention: Retention,
}

/// Does the rest of the start and serves.
fn go_on(paths: Paths, lock: &Lock, early: Early) -> Result<(), StartError> {
    let cgroups = match early.scoped {
        Some(found) => found,
        None => Cgroups::discover(paths.instance()).map_err(StartError::Cgroups)?,
    };
    let uids = open_registry(&paths).map_err(SweepError::Uids)?;
    let (report, stuck) = sweep_locked(&paths, lock, &cgroups, uids.as_ref(), Depth::Start)?;
    if !report.nothing() {
        log::line(&format!(
            "swept {} sandboxes, {} runs, {} uid blocks, {} images of dead predecessors",
            report.sandboxes.len(),
            report.runs.len(),
            report.uid_blocks.len(),
            report.images.len()
        ));
    }
    let parts = Parts {
        host: look_at_host(&cgroups, &early.spawner_seed, early.limits),
        own_range: early.spawner_seed.block(),
        cores: own_cores(),
        ledger: Ledger::open(&paths).map_err(SweepError::Ledger)?,
        records: Records::open(&paths).map_err(SweepError::from)?,
        spares: Spares::open(&paths).map_err(io_error("opening the spare files"))?,
        listener: early.listener,
        cgroups,
        spawner: early.spawner,
        spawner_seed: early.spawner_seed,
        uids,
        capacity: early.capacity,
        signals: early.signals,
        idle_exit: early.idle_exit,
        retention: early.retention,
        stuck,
        paths,
    };
    let server = Server::new(parts).map_err(StartError::Loop)?;
    server.serve().map_err(StartError::Loop)
}

/// The end of a start, once callers are served.
impl Server {
    /// The first spawner has built its template, or cannot.
    pub(crate) fn on_spawner_start(&mut self) {
        let error = match self.spawner.await_ready() {
            Ok(()) => return,
            // It was killed and said nothing, which need not happen to the next.
            Err(SpawnError::Gone) => return self.renew_spawner(),
            Err(error) => error,
        };
        log::failure("the spawner cannot be started", &error);
        self.forget_spawner();
        self.cannot_work(&error);
    }

    /// Looks for init's program, if it was not there yet.
    pub(crate) fn look_for_init(&mut self) {
        if let Err(error) = self.spawner_seed.init.look() {
            log::failure("init's program cannot be used", &error);
            self.cannot_work(&error);
        }
    }

    /// Nothing can be made here: who waits is told, and we go.
    fn cannot_work(&mut self, error: &dyn std::error::Error) {
        let detail = format!("no sandbox can be made here: {error}");
        let waiting: Vec<Key> = self
            .ordered
            .drain(..)
            .chain(self.waiting.drain(..))
            .collect();
        for key in waiting {
            self.not_made(key, detail.clone());
        }
        self.failed = true;
        self.stop();
    }
}

/// What a spawner is started with, any number of times.
#[derive(Debug)]
pub(crate) struct SpawnerSeed {
    init: InitProgram,
    rootless: Option<RootlessIds>,
}

impl SpawnerSeed {
    /// Whether init's program may not be there yet.
    pub(crate) fn awaits_init(&self) -> bool {
        self.init.is_awaited()
    }

    pub(crate) fn start(&self) -> Result<Spawner, SpawnError> {
        let mut spawner = self.begin()?;
        spawner.await_ready()?;
        Ok(spawner)
    }

    fn begin(&self) -> Result<Spawner, SpawnError> {
        // A duplicate of an open descriptor fails only when there are no more descriptors at all,
        // and then there is no spawner either.
        let init = self.init.share().map_err(|_| SpawnError::Gone)?;
        Spawner::begin(SpawnerConfig {
            init,
            rootless: self.rootless,
        })
    }

    /// The ids every sandbox of an ordinary user has, as the spawner counts them.
    fn block(&self) -> (u32, u32) {
        match self.rootless {
            Some(RootlessIds::Range { count, .. }) => (1, count),
            // Not looked at, and within the bounds of an order.
            Some(RootlessIds::Single) | None => (1, 65_536),
        }
    }

    /// The range of host ids, for the record.
    fn host_range(&self) -> (u32, u32) {
        match self.rootless {
            Some(RootlessIds::Range {
                uid_first, count, ..
            }) => (uid_first, count),
            Some(RootlessIds::Single) => (rustix::process::geteuid().as_raw(), 1),
            None => (0, 0),
        }
    }
}

/// Raises the descriptor limit as far as it goes. Returns how many sandboxes fit it.
fn room_for_sandboxes() -> Result<usize, Shortage> {
    let room = heritage::descriptors()?.saturating_sub(FDS_RESERVED) / FDS_PER_SANDBOX;
    Ok(usize::try_from(room).unwrap_or(usize::MAX).clamp(1, 16_384))
}

fn own_cores() -> Vec<u32> {
    let set = rustix::thread::sched_getaffinity(None);
    let cores: Vec<u32> = set.map_or_else(
        |_| Vec::new(),
        |set| {
            (0..CORES_MAX)
                .filter(|core| set.is_set(*core))
                .map(|core| core as u32)
                .collect()
        },
    );
    if cores.is_empty() { vec![0] } else { cores }
}

pub(crate) fn open_null() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, "/dev/null", flags, Mode::empty())?)
}

/// Makes the socket appear whole: bound under another name, listening, then renamed.
pub(crate) fn listen(paths: &Paths) -> Result<OwnedFd, StartError> {
    let path = paths.socket();
    let failed = |source: io::Error| StartError::Socket {
        path: path.display().to_string(),
        source,
    };
    // By descriptor, since a socket's path may have 107 bytes only.
    let run = crate::paths::open_directory(paths.run()).map_err(failed)?;
    let new = format!(
        "/proc/self/fd/{}/supervisor.new",
        std::os::fd::AsRawFd::as_raw_fd(&run)
    );
    let _ = std::fs::remove_file(&new);
    let listener = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|errno| failed(errno.into()))?;
    let address = SocketAddrUnix::new(new.as_str()).map_err(|errno| failed(errno.into()))?;
    rustix::net::bind(&listener, &address).map_err(|errno| failed(errno.into()))?;
    rustix::net::listen(&listener, BACKLOG).map_err(|errno| failed(errno.into()))?;
    std::fs::rename(&new, &path).map_err(failed)?;
    Ok(listener)
}

/// Says that we listen, to whoever started us, and lets go of its pipe.
fn announce(null: &OwnedFd) {
    let mut out = io::stdout();
    let _ = out.write_all(b"ready\n");
    let _ = out.flush();
    let _ = rustix::stdio::dup2_stdin(null.as_fd());
    let _ = rustix::stdio::dup2_stdout(null.as_fd());
}

/// What this host can enforce and what every posture has in common.
fn look_at_host(cgroups: &Cgroups, seed: &SpawnerSeed, limits: Vec<String>) -> Host {
    let (can, layout) = (cgroups.can(), cgroups.layout().word());
    let missing = |there: bool, control: &str| (!there).then(|| can.reason(control).to_owned());
    let root = seed.rootless.is_none();
    let abi = landlock::abi();
    let mut gaps = Vec::new();
    if abi == 0 {
        gaps.push("H28 landlock".to_owned());
    }
    for (there, gap) in [
        (can.devices, "H09 device controller"),
        (can.kill, "H23 cgroup.kill"),
    ] {
        if !there {
            gaps.push(gap.to_owned());
        }
    }
    if can.missing.iter().any(|gap| gap.control == "sockets") {
        gaps.push("H19 network buffers in control group v1".to_owned());
    }
    gaps.extend(limits);
    let kernel = rustix::system::uname();
    Host {
        memory: missing(can.memory, "memory"),
        pids: missing(can.pids, "pids"),
        cpu: missing(can.cpu, "cpu"),
        cpu_time: missing(can.cpu_time, "cpu_time"),
        image: scratch::missing(root),
        posture: Posture {
            profile: "native/1".to_owned(),
            maker: if root { "root" } else { "user" }.to_owned(),
            uid_range: seed.host_range(),
            single_uid: seed.rootless == Some(RootlessIds::Single),
            namespaces: ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"]
                .map(str::to_owned)
                .to_vec(),
            landlock_abi: abi,
            seccomp_sha256: seccomp::Program::native().sha256(),
            cgroup: layout.to_owned(),
            kernel: kernel.release().to_string_lossy().into_owned(),
            missing: gaps,
            host: None,
        },
    }
}
