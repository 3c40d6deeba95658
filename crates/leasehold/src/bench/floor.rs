//! The floor: the same claim with nothing of ours around it. A parked sandbox of the jail's own spawn,
//! with the posture, the control groups and the workspace of any other, but no supervisor, no client
//! and no record: the message goes straight to its stub, and its init's word that the command ended
//! comes straight back.
//!
//! The *relayed* floor has the one thing more that no design of ours can be without: who wants a run is not
//! who holds its sandbox. A thread that holds the sockets is told by one byte, stays awake until the end and
//! answers by one byte. What the supervisor adds to that is what is ours to make smaller.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use leasehold_core::limits::Limits;
use leasehold_jail::cgroup::{Cgroups, Group, GroupLimits};
use leasehold_jail::spawn::{
    Disk, IdBlock, Made, MakeFds, MakeSpec, Spawner, SpawnerConfig, WorkspaceMode,
};
use leasehold_protocol::guest::{CONTROL_LEN, Control, ExecRequest};
use leasehold_protocol::memory;
use leasehold_protocol::socket::send_with_fds;
use leasehold_supervisor::uids::{self, Uids};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::arena::{self, Arena, PATIENCE};
use crate::carried::INIT;

/// Id of the workload inside.
const WORKLOAD: u32 = 1_000;
/// Our own process beside the workload: init.
const OWN_PROCESSES: u32 = 2;
/// Open files of the command, as by default.
const FILES: u32 = 1_024;
/// Time for a thread to fall asleep.
const SETTLE: Duration = Duration::from_millis(2);
/// Longest that a relay stays awake for a command, as a supervisor does.
const AWAKE: Duration = Duration::from_micros(500);

/// Makes sandboxes for the floor and removes them.
#[derive(Debug)]
pub(crate) struct Floor {
    spawner: Spawner,
    cgroups: Cgroups,
    uids: Uids,
    limits: Limits,
    programs: OwnedFd,
    made: u32,
}

/// How the message goes to the stub.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// From whoever wants the run.
    Straight,
    /// From a thread that is told to send it.
    Relayed,
}

/// How the end of the command is waited for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wait {
    Asleep,
    Awake,
}

/// One that waits.
struct Parked {
    made: Made,
    group: Group,
    base: u32,
    core: u32,
    init: OwnedFd,
    stub: OwnedFd,
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{what}: {error}")
}

impl Floor {
    /// Forks the spawner. To be called before the process has another thread.
    ///
    /// # Errors
    /// Why there is no floor here, in words.
    pub(crate) fn new(arena: &Arena) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("the floor is measured as root".to_owned());
        }
        let config = SpawnerConfig {
            init: memory::sealed("leasehold-init", INIT)
                .map_err(failed("the first program cannot be held in memory"))?,
            rootless: None,
        };
        let spawner = Spawner::start(config).map_err(|error| error.to_string())?;
        let instance = format!("floor{}", std::process::id());
        let cgroups = Cgroups::discover(&instance).map_err(|error| error.to_string())?;
        let ledger = arena.directory().join("floor");
        std::fs::create_dir(&ledger).map_err(failed("its ledger cannot be made"))?;
        let registry = (uids::REGISTRY.as_ref(), uids::HOLDERS.as_ref());
        let uids =
            Uids::open(registry.0, registry.1, &ledger).map_err(failed("ids cannot be leased"))?;
        Ok(Self {
            spawner,
            cgroups,
            uids,
            limits: Limits::default(),
            programs: arena
                .programs_fd()
                .try_clone_to_owned()
                .map_err(failed("no descriptor"))?,
            made: 0,
        })
    }

    /// From the message, or the byte to whoever sends it, until the word that the command ended.
    ///
    /// # Errors
    /// What could not be done, in words.
    pub(crate) fn once(&mut self, program: &str, way: Way) -> Result<Duration, String> {
        let parked = self.park()?;
        let took = match way {
            Way::Straight => claim(&parked, program, Wait::Asleep),
            Way::Relayed => relayed(&parked, program),
        };
        let removed = self.remove(parked);
        removed.and(took)
    }

    fn park(&mut self) -> Result<Parked, String> {
        let base = (0..uids::BLOCKS)
            .find_map(|_| {
                let base = self.uids.candidate();
                match self.uids.lease() {
                    Ok(true) => Some(Ok(base)),
                    Ok(false) => None,
                    Err(error) => Some(Err(failed("no lease")(error))),
                }
            })
            .ok_or("no block of ids is free")??;
        self.made += 1;
        let can = self.cgroups.can();
        let limits = GroupLimits {
            memory_bytes: can.memory.then_some(self.limits.memory_bytes.value),
            pids: can.pids.then_some(self.limits.pids.value + OWN_PROCESSES),
            cpu_milli: can.cpu.then_some(self.limits.cpu_milli.value),
        };
        let group = self
            .cgroups
            .create(&format!("floor-{}", self.made), &limits)
            .map_err(|error| error.to_string())?;
        match self.make(base, &group) {
            Ok((made, init, stub)) => Ok(Parked {
                made,
                group,
                base,
                core: self.core(),
                init,
                stub,
            }),
            Err(reason) => {
                let _ = group.kill();
                let _ = group.destroy(PATIENCE);
                self.uids.give_back(base);
                Err(reason)
            }
        }
    }

    fn make(&mut self, base: u32, group: &Group) -> Result<(Made, OwnedFd, OwnedFd), String> {
        let pair = |kind| {
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
                .map_err(|errno| failed("no socket pair")(errno.into()))
        };
        let (init, init_end) = pair(SocketType::SEQPACKET)?;
        let (stub, stub_end) = pair(SocketType::STREAM)?;
        let found = rustix::fs::fstat(&self.programs).map_err(|errno| errno.to_string())?;
        let spec = MakeSpec {
            ids: IdBlock {
                host_base: base,
                count: uids::BLOCK,
            },
            cores: vec![self.core()],
            memory_bytes: self.limits.memory_bytes.value,
            disk: Disk::Tmpfs {
                bytes: self.limits.disk_bytes.value,
                inodes: self.limits.inodes.value,
            },
            shm_bytes: 64 << 20,
            workspace: WorkspaceMode::ReadOnly,
            warm: None,
            image: None,
            caller_uid: found.st_uid,
            caller_gid: found.st_gid,
            deadline: Duration::from_secs(10),
        };
        let joins = group.joins();
        let fds = MakeFds {
            init: init_end.as_fd(),
            stub: stub_end.as_fd(),
            workspace: Some(self.programs.as_fd()),
            disk: None,
            layers: None,
            cgroup: group.into_cgroup(),
            cgroup_procs: &joins,
        };
        let made = self.spawner.make(&spec, fds);
        let made = made.map_err(|error| error.to_string())?;
        // Two words: of the stub, and of init.
        let mut word = [0; CONTROL_LEN];
        for socket in [&stub, &init] {
            if hear(socket, &mut word)? == 0 {
                return Err("it did not park".to_owned());
            }
        }
        Ok((made, init, stub))
    }

    /// The core of the sandbox made last: each has the next.
    fn core(&self) -> u32 {
        self.made % cores()
    }

    fn remove(&mut self, parked: Parked) -> Result<(), String> {
        let _ = pidfd_send_signal(&parked.made.pidfd, Signal::KILL);
        let _ = waitid(
            WaitId::PidFd(parked.made.pidfd.as_fd()),
            WaitIdOptions::EXITED,
        );
        let left = parked.group.destroy(PATIENCE).left;
        let free = self.uids.give_back(parked.base);
        match left.is_empty() && free {
            true => Ok(()),
            false => Err("what it left cannot be removed".to_owned()),
        }
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        self.cgroups.remove_base();
        self.uids.close();
    }
}

fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

/// The same by a thread that is asleep before it is told, as a supervisor is, and never on the core of the
/// sandbox, if there is another.
fn relayed(parked: &Parked, program: &str) -> Result<Duration, String> {
    let flags = SocketFlags::CLOEXEC;
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| errno.to_string())?;
    std::thread::scope(|scope| {
        let relay = scope.spawn(move || {
            let mut byte = [0; 1];
            let mut beside = CpuSet::new();
            beside.set((parked.core as usize + 1) % cores() as usize);
            sched_setaffinity(None, &beside).map_err(|errno| errno.to_string())?;
            hear(&far, &mut byte)?;
            let took = claim(parked, program, Wait::Awake);
            let _ = rustix::net::send(&far, &byte, SendFlags::NOSIGNAL);
            took
        });
        std::thread::sleep(SETTLE);
        let begun = Instant::now();
        let sent = rustix::net::send(&near, &[1], SendFlags::NOSIGNAL);
        let heard = hear(&near, &mut [0; 1]);
        let took = begun.elapsed();
        let claimed = relay.join().map_err(|_| "its thread panicked")?;
        sent.map_err(|errno| errno.to_string())?;
        heard.and(claimed).map(|_| took)
    })
}

/// The message, and the wait for the end.
fn claim(parked: &Parked, program: &str, wait: Wait) -> Result<Duration, String> {
    let request = ExecRequest {
        cwd: b"/workspace".to_vec(),
        argv: vec![program.as_bytes().to_vec()],
        env: arena::command(&[program])
            .env
            .iter()
            .map(|(name, value)| format!("{name}={value}").into_bytes())
            .collect(),
        ids: (WORKLOAD, WORKLOAD),
        tty: None,
        files: FILES,
        cpu_seconds: 0,
        passed: None,
    };
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, 0.into())
        .map_err(|errno| errno.to_string())?;
    let pipes = [0, 1].map(|_| pipe_with(PipeFlags::CLOEXEC).map_err(|errno| errno.to_string()));
    let [output, error] = pipes;
    let ((_output, output), (_error, error)) = (output?, error?);
    let fds: [BorrowedFd<'_>; 3] = [null.as_fd(), output.as_fd(), error.as_fd()];
    let bytes = request.encode();
    let begun = Instant::now();
    let sent = send_with_fds(&parked.stub, &bytes, &fds).map_err(|error| error.to_string())?;
    if sent < bytes.len() {
        return Err("the message did not go in one piece".to_owned());
    }
    let mut word = [0; CONTROL_LEN];
    while wait == Wait::Awake && begun.elapsed() < AWAKE {
        if readable(&parked.init) {
            break;
        }
    }
    let got = hear(&parked.init, &mut word)?;
    let took = begun.elapsed();
    match Control::decode(&word[..got]) {
        Ok(Control::MainExited { status: 0 }) => Ok(took),
        other => Err(format!("its init said {other:?}")),
    }
}

/// Whether something can be heard now.
fn readable(socket: &OwnedFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    !matches!(poll(&mut polled, Some(&now)), Ok(0))
}

/// One message, waited for no longer than [`PATIENCE`].
fn hear(socket: &OwnedFd, bytes: &mut [u8]) -> Result<usize, String> {
    let limit = Timespec::try_from(PATIENCE).ok();
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], limit.as_ref()) {
        Ok(0) => return Err("nothing came".to_owned()),
        Ok(_) => {}
        Err(errno) => return Err(errno.to_string()),
    }
    recv(socket, bytes, RecvFlags::empty())
        .map(|(got, _)| got)
        .map_err(|errno| errno.to_string())
}
