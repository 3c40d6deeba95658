//! The floor: the same claim with nothing of ours around it. A parked sandbox of the jail's own spawn,
//! with the posture, the control groups and the workspace of any other, but no supervisor, no client
//! and no record: the message goes straight to its stub, and its init's word that the command ended
//! comes straight back. What the supervisor adds to that is what is ours to make smaller.

use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use leasehold_core::limits::Limits;
use leasehold_jail::cgroup::{Cgroups, Group, GroupLimits};
use leasehold_jail::spawn::{
    Disk, IdBlock, Made, MakeFds, MakeSpec, Spawner, SpawnerConfig, WorkspaceMode,
};
use leasehold_protocol::guest::{CONTROL_LEN, Control, ExecRequest};
use leasehold_protocol::socket::send_with_fds;
use leasehold_supervisor::uids::{self, Uids};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use super::arena::{self, Arena, PATIENCE};
use crate::supervise::AGENT;

/// Id of the workload inside.
const WORKLOAD: u32 = 1_000;
/// Our own process beside the workload: init.
const OWN_PROCESSES: u32 = 2;
/// Open files of the command, as by default.
const FILES: u32 = 1_024;

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

/// One that waits.
struct Parked {
    made: Made,
    group: Group,
    base: u32,
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
            agent: agent().map_err(failed("the agent cannot be held in memory"))?,
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

    /// From the message until the word that the command ended.
    ///
    /// # Errors
    /// What could not be done, in words.
    pub(crate) fn once(&mut self, program: &str) -> Result<Duration, String> {
        let parked = self.park()?;
        let took = claim(&parked, program);
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
            cores: vec![self.made % cores()],
            memory_bytes: self.limits.memory_bytes.value,
            disk: Disk::Tmpfs {
                bytes: self.limits.disk_bytes.value,
                inodes: self.limits.inodes.value,
            },
            shm_bytes: 64 << 20,
            workspace: WorkspaceMode::ReadOnly,
            warm: None,
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

/// The message, and the wait for the end.
fn claim(parked: &Parked, program: &str) -> Result<Duration, String> {
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
    let got = hear(&parked.init, &mut word)?;
    let took = begun.elapsed();
    match Control::decode(&word[..got]) {
        Ok(Control::MainExited { status: 0 }) => Ok(took),
        other => Err(format!("its init said {other:?}")),
    }
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

/// The agent's program, as the supervisor holds it.
fn agent() -> std::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("leasehold-agent", flags)?);
    file.write_all(AGENT)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}
