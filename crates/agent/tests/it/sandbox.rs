//! Namespaces for one test, the program under test as their PID 1, and the host's ends of its sockets.
//!
//! The root file system is the machine's own with fresh mounts over the writable places: what is
//! tested is what happens inside, not how the tree is made.

use std::ffi::CString;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use leasehold_jail::sys;
use leasehold_protocol::guest::{
    CONTROL_LEN, Control, ExecRequest, INIT_FD, STUB_FD, STUB_REPLY_LEN, StubReply,
};
use leasehold_protocol::socket::{recv_with_fds, send_with_fds};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitOptions};
use rustix::thread::UnshareFlags;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// First host id of the block that is mapped inside.
const ID_BASE: u32 = 0x6100_0000;

/// A sandbox with its host ends. Dropping it ends it.
pub(crate) struct Sandbox {
    pub(crate) control: OwnedFd,
    pub(crate) stub: OwnedFd,
    maker: Pid,
}

/// What a command left behind.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// As `wait4(2)` gives it.
    pub(crate) status: i32,
}

impl Outcome {
    pub(crate) fn code(&self) -> Option<i32> {
        (self.status & 0x7f == 0).then_some(self.status >> 8 & 0xff)
    }
}

/// Whether this machine lets the test run; says so loudly when not.
pub(crate) fn able(name: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIP {name}: needs root to make namespaces");
    }
    root
}

/// The program of the agent.
pub(crate) fn agent_program() -> OwnedFd {
    std::fs::File::open(env!("CARGO_BIN_EXE_leasehold-agent"))
        .unwrap()
        .into()
}

pub(crate) fn request(argv: &[&str]) -> ExecRequest {
    let bytes = |text: &str| text.as_bytes().to_vec();
    ExecRequest {
        cwd: bytes("/tmp"),
        argv: argv.iter().map(|word| bytes(word)).collect(),
        env: vec![
            bytes("PATH=/usr/local/bin:/usr/bin:/bin"),
            bytes("HOME=/home/user"),
            bytes("LANG=C.UTF-8"),
        ],
        ids: (1000, 1000),
        tty: None,
        files: 1024,
        cpu_seconds: 0,
        passed: None,
    }
}

impl Sandbox {
    /// Boots the program with these arguments after its name.
    pub(crate) fn boot(arguments: &[&str]) -> Self {
        Self::boot_with(arguments, 65_536)
    }

    /// As `boot`, with so many ids: with one, the command shares it with init (single-uid mode).
    pub(crate) fn boot_with(arguments: &[&str], ids: u32) -> Self {
        let pair =
            |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let (control, init_end) = pair(SocketType::SEQPACKET);
        let (stub, stub_end) = pair(SocketType::STREAM);
        let program = std::fs::File::open(env!("CARGO_BIN_EXE_leasehold-init")).unwrap();
        let program = OwnedFd::from(program);
        let argv: Vec<CString> = std::iter::once(&"leasehold-init")
            .chain(arguments)
            .map(|word| CString::new(*word).unwrap())
            .collect();
        let keep = [
            init_end.as_raw_fd(),
            stub_end.as_raw_fd(),
            program.as_raw_fd(),
        ];
        let maker = sys::spawn_child(&keep, move || {
            make(&program, &argv, init_end, stub_end, ids)
        });
        Self {
            control,
            stub,
            maker: maker.unwrap(),
        }
    }

    /// Boots and waits until the stub is parked.
    pub(crate) fn parked(arguments: &[&str]) -> Self {
        Self::boot(arguments).awaited()
    }

    /// Waits until the stub is parked.
    pub(crate) fn awaited(self) -> Self {
        let sandbox = self;
        let reply = sandbox.reply();
        assert!(
            matches!(reply, Some((StubReply::Ready, _))),
            "{reply:?}, {:?}",
            sandbox.hear()
        );
        match sandbox.hear() {
            Some(Control::Ready { stub }) => assert!(stub > 1),
            other => panic!("{other:?}"),
        }
        sandbox
    }

    pub(crate) fn say(&self, message: Control, fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        send_with_fds(&self.control, &message.encode(), &fds).unwrap();
    }

    /// The next message of init; `None` at its end.
    pub(crate) fn hear(&self) -> Option<Control> {
        readable(&self.control);
        let mut bytes = [0; CONTROL_LEN];
        match recv_with_fds(&self.control, &mut bytes, &mut Vec::new()) {
            Ok(0) => None,
            Ok(got) => Some(Control::decode(&bytes[..got]).unwrap()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The next reply of the stub, and what came with it; `None` when it became its program.
    pub(crate) fn reply(&self) -> Option<(StubReply, Vec<OwnedFd>)> {
        readable(&self.stub);
        let (mut bytes, mut fds) = ([0; STUB_REPLY_LEN], Vec::new());
        match recv_with_fds(&self.stub, &mut bytes, &mut fds) {
            Ok(0) => None,
            Ok(got) => Some((StubReply::decode(&bytes[..got]).unwrap(), fds)),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends a request with pipes for its output. Returns the reading ends and the writing end of its
    /// input.
    pub(crate) fn send(&self, request: &ExecRequest) -> (OwnedFd, OwnedFd, OwnedFd) {
        self.send_with(request, &[])
    }

    /// The same with further descriptors.
    pub(crate) fn send_with(
        &self,
        request: &ExecRequest,
        more: &[&OwnedFd],
    ) -> (OwnedFd, OwnedFd, OwnedFd) {
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let ((input, to), (from, output), (from_error, error)) = (pipe(), pipe(), pipe());
        // As the supervisor does: `/dev/stderr` opens the pipe anew, as the workload.
        for end in [&input, &output, &error] {
            let user = rustix::fs::Uid::from_raw(ID_BASE + 1000);
            let group = rustix::fs::Gid::from_raw(ID_BASE + 1000);
            rustix::fs::fchown(end, Some(user), Some(group)).unwrap();
        }
        let all = [&[&input, &output, &error], more].concat();
        self.transmit(&request.encode(), &all);
        (to, from, from_error)
    }

    /// Sends raw bytes to the stub, the descriptors with the first of them.
    pub(crate) fn transmit(&self, bytes: &[u8], fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let sent = send_with_fds(&self.stub, bytes, &fds).unwrap();
        let mut rest = UnixStream::from(self.stub.try_clone().unwrap());
        rest.write_all(&bytes[sent..]).unwrap();
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, request: &ExecRequest, input: &[u8]) -> Outcome {
        self.run_with(request, input, &[])
    }

    /// The same with further descriptors.
    pub(crate) fn run_with(
        &self,
        request: &ExecRequest,
        input: &[u8],
        more: &[&OwnedFd],
    ) -> Outcome {
        let (to, from, from_error) = self.send_with(request, more);
        let reply = self.reply();
        assert!(reply.is_none(), "{reply:?}");
        let mut to = std::fs::File::from(to);
        // A command need not read it.
        let _ = to.write_all(input);
        drop(to);
        let error = std::thread::spawn(move || drain(from_error));
        let stdout = drain(from);
        let stderr = error.join().unwrap();
        match self.hear() {
            Some(Control::MainExited { status }) => Outcome {
                stdout,
                stderr,
                status,
            },
            other => panic!("{other:?}"),
        }
    }

    /// Waits until PID 1 is gone.
    pub(crate) fn ended(&self) {
        assert_eq!(self.hear(), None);
    }
}

/// Boots a fresh sandbox for one command and runs it.
pub(crate) fn run(argv: &[&str]) -> Outcome {
    Sandbox::parked(&[]).run(&request(argv), b"")
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = send_with_fds(&self.control, &Control::Shutdown.encode(), &[]);
        let _ = rustix::process::waitpid(Some(self.maker), WaitOptions::empty());
    }
}

/// Waits for something to read, or fails the test.
pub(crate) fn readable(fd: impl AsFd) {
    let start = Instant::now();
    let limit = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut waited = [PollFd::new(&fd, PollFlags::IN)];
    let got = rustix::io::retry_on_intr(|| poll(&mut waited, Some(&limit))).unwrap();
    assert!(got > 0, "nothing came in {:?}", start.elapsed());
}

pub(crate) fn drain(fd: OwnedFd) -> String {
    let mut text = Vec::new();
    std::fs::File::from(fd).read_to_end(&mut text).unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

/// In the child: makes the namespaces, starts PID 1, writes its maps, and waits for it.
fn make(program: &OwnedFd, argv: &[CString], control: OwnedFd, stub: OwnedFd, ids: u32) -> u8 {
    let flags =
        UnshareFlags::NEWPID | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS | UnshareFlags::NEWNET;
    unshare(flags);
    let (mapped, map) = rustix::pipe::pipe().unwrap();
    let (asked, ask) = rustix::pipe::pipe().unwrap();
    let keep = [&control, &stub, program, &mapped, &ask];
    let keep = keep.map(|fd| fd.as_fd());
    let init = sys::spawn_child(&keep, || {
        // Only here: this process still needs its own `/proc`.
        unshare(UnshareFlags::NEWNS);
        enter_tree();
        rustix::thread::set_thread_groups(&[]).unwrap();
        unshare(UnshareFlags::NEWUSER);
        rustix::io::write(&ask, b"m").unwrap();
        assert_eq!(rustix::io::read(&mapped, &mut [0; 1]).unwrap(), 1);
        let (user, group) = (rustix::process::Uid::ROOT, rustix::process::Gid::ROOT);
        rustix::thread::set_thread_res_gid(group, group, group).unwrap();
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        sys::place(control.as_fd(), INIT_FD).unwrap();
        sys::place(stub.as_fd(), STUB_FD).unwrap();
        sys::close_on_exec_from(STUB_FD + 1).unwrap();
        let error = sys::exec_fd(program.as_fd(), argv, &[c"A=1".to_owned()]);
        eprintln!("{error}");
        99
    })
    .unwrap();
    drop((control, stub));
    rustix::io::read(&asked, &mut [0; 1]).unwrap();
    let proc = format!("/proc/{}", init.as_raw_nonzero());
    std::fs::write(format!("{proc}/setgroups"), "deny").unwrap();
    for map in ["uid_map", "gid_map"] {
        std::fs::write(format!("{proc}/{map}"), format!("0 {ID_BASE} {ids}")).unwrap();
    }
    rustix::io::write(&map, b"m").unwrap();
    let ended = rustix::process::waitpid(Some(init), WaitOptions::empty()).unwrap();
    ended.map_or(1, |(_, status)| status.exit_status().unwrap_or(1) as u8)
}

fn unshare(flags: UnshareFlags) {
    #[expect(deprecated, reason = "one thread, no descriptor table shared")]
    rustix::thread::unshare(flags).unwrap();
}

/// Fresh mounts over what a sandbox writes, with owners that are mapped inside.
fn enter_tree() {
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .unwrap();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let user = ID_BASE + 1000;
    let owned = CString::new(format!("mode=1777,size=64m,uid={user},gid={user}")).unwrap();
    for place in ["/tmp", "/dev/shm", "/home"] {
        mount("tmpfs", place, "tmpfs", flags, owned.as_c_str()).unwrap();
    }
    std::fs::create_dir("/home/user").unwrap();
    std::os::unix::fs::chown("/home/user", Some(user), Some(user)).unwrap();
    let terminals = c"newinstance,ptmxmode=0666,mode=0620";
    mount(
        "devpts",
        "/dev/pts",
        "devpts",
        MountFlags::NOSUID,
        terminals,
    )
    .unwrap();
    mount_bind("/dev/pts/ptmx", "/dev/ptmx").unwrap();
    mount("proc", "/proc", "proc", flags, c"").unwrap();
}
