//! A spawner and sandboxes for the cases, cleaned up when they are dropped.

use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_jail::spawn::{
    Disk, IdBlock, Made, MakeFds, MakeSpec, RootlessIds, SpawnError, Spawner, SpawnerConfig,
    WorkspaceMode,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::probe::MESSAGE_MAX;

/// This program as a sealed memfd.
pub(crate) fn first_program() -> OwnedFd {
    let program = std::fs::read("/proc/self/exe").unwrap();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = memfd_create("init", flags).unwrap();
    let mut file = std::fs::File::from(memfd);
    file.write_all(&program).unwrap();
    let memfd = OwnedFd::from(file);
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&memfd, seals).unwrap();
    memfd
}

pub(crate) fn spawner(rootless: Option<RootlessIds>) -> Result<Spawner, SpawnError> {
    Spawner::start(SpawnerConfig {
        init: first_program(),
        rootless,
    })
}

/// An order in the middle of every bound.
pub(crate) fn spec() -> MakeSpec {
    static NEXT: AtomicU32 = AtomicU32::new(0x6100_0000);
    MakeSpec {
        ids: IdBlock {
            host_base: NEXT.fetch_add(65_536, Ordering::Relaxed),
            count: 65_536,
        },
        cores: vec![0],
        memory_bytes: 256 << 20,
        disk: Disk::Tmpfs {
            bytes: 4 << 20,
            inodes: 256,
        },
        shm_bytes: 1 << 20,
        workspace: WorkspaceMode::Ephemeral,
        warm: None,
        image: None,
        caller_uid: 1000,
        caller_gid: 1000,
        deadline: Duration::from_secs(10),
    }
}

/// A live sandbox with the probe in it. Dropping it kills and reaps it.
pub(crate) struct Sandbox {
    pub(crate) made: Made,
    socket: OwnedFd,
}

/// Makes a sandbox.
pub(crate) fn make(
    spawner: &mut Spawner,
    spec: &MakeSpec,
    workspace: Option<BorrowedFd<'_>>,
) -> Result<Sandbox, SpawnError> {
    make_with(spawner, spec, workspace, None, &[])
}

/// Makes a sandbox on a block device, in control groups.
pub(crate) fn make_with(
    spawner: &mut Spawner,
    spec: &MakeSpec,
    workspace: Option<BorrowedFd<'_>>,
    disk: Option<BorrowedFd<'_>>,
    cgroup_procs: &[BorrowedFd<'_>],
) -> Result<Sandbox, SpawnError> {
    let ((ours, init), (_stub_ours, stub)) = (pair(), pair());
    let fds = MakeFds {
        init: init.as_fd(),
        stub: stub.as_fd(),
        workspace,
        disk,
        layers: None,
        cgroup: None,
        cgroup_procs,
    };
    let made = spawner.make(spec, fds)?;
    Ok(Sandbox::new(made, ours))
}

/// Connected sockets: ours, and one for the other side.
pub(crate) fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

impl Sandbox {
    /// One that was ordered with the other end of this socket for its init.
    pub(crate) fn new(made: Made, socket: OwnedFd) -> Self {
        Self { made, socket }
    }

    fn ask(&self, request: &str) -> String {
        send(&self.socket, request.as_bytes(), SendFlags::NOSIGNAL).unwrap();
        assert!(readable(self.socket.as_fd(), 20), "no answer to {request}");
        let mut answer = vec![0; MESSAGE_MAX];
        let (got, _) = recv(&self.socket, &mut answer[..], RecvFlags::empty()).unwrap();
        assert!(got > 0, "the probe died over {request}");
        String::from_utf8_lossy(&answer[..got]).into_owned()
    }

    /// Status and output of a script run as the workload.
    pub(crate) fn sh(&self, script: &str) -> (i32, String) {
        parse(&self.ask(&format!("sh {script}")))
    }

    /// Output of a script that must succeed.
    pub(crate) fn out(&self, script: &str) -> Result<String, String> {
        match self.sh(script) {
            (0, out) => Ok(out.trim_end().to_owned()),
            (status, out) => Err(format!("`{script}` ended with {status}: {out}")),
        }
    }

    /// Status and output of a script run as init.
    pub(crate) fn init(&self, script: &str) -> (i32, String) {
        parse(&self.ask(&format!("init {script}")))
    }

    pub(crate) fn args(&self) -> String {
        self.ask("args")
    }

    pub(crate) fn fds(&self) -> String {
        self.ask("fds")
    }

    /// A file of the host's `/proc` about the first process.
    pub(crate) fn seen(&self, file: &str) -> String {
        let path = format!("/proc/{}/{file}", self.made.pid);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.made.pidfd, Signal::KILL);
        assert!(readable(self.made.pidfd.as_fd(), 10), "init does not die");
        waitid(
            WaitId::PidFd(self.made.pidfd.as_fd()),
            WaitIdOptions::EXITED,
        )
        .unwrap();
    }
}

fn parse(answer: &str) -> (i32, String) {
    let (status, out) = answer.split_once('\n').unwrap_or((answer, ""));
    (status.parse().unwrap_or(-9), out.to_owned())
}

/// Waits for a descriptor, bounded.
pub(crate) fn readable(fd: BorrowedFd<'_>, seconds: i64) -> bool {
    let until = Instant::now() + Duration::from_secs(seconds.unsigned_abs());
    loop {
        let limit = Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match poll(&mut fds, Some(&limit)) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) if Instant::now() < until => {}
            Err(_) => return false,
        }
    }
}

/// A directory of the host that is gone with the value.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let path = std::env::temp_dir().join(format!("spawn-{pid}-{number}-{name}"));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Gives everything to the caller that the orders name.
    pub(crate) fn give(&self, uid: u32) {
        let give = |path: &Path| std::os::unix::fs::lchown(path, Some(uid), Some(uid)).unwrap();
        give(&self.0);
        for entry in std::fs::read_dir(&self.0).unwrap().flatten() {
            give(&entry.path());
        }
    }

    pub(crate) fn open(&self) -> OwnedFd {
        let flags = rustix::fs::OFlags::RDONLY
            | rustix::fs::OFlags::DIRECTORY
            | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(&self.0, flags, rustix::fs::Mode::empty()).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Fails a case unless it holds.
pub(crate) fn expect(holds: bool, what: impl Into<String>) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.into()) }
}
