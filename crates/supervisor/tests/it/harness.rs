//! A supervisor of its own for each test, in directories of its own, and a small blocking client.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::record::RunRecord;
use leasehold_core::spec::{ExecSpec, SandboxSpec};
use leasehold_core::stage::StageTime;
use leasehold_protocol::socket::{FrameReader, encode_frame, send_with_fds};
use leasehold_protocol::supervisor::{Call, Event, Notice, Request, Target, VERSION};
use leasehold_supervisor::paths::Paths;

/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How long a supervisor stays with nothing to do.
const IDLE_MS: &str = "60000";

/// Where init's program and the supervisor's are; prints a loud line when a test cannot run.
fn programs(test: &str) -> Option<(PathBuf, PathBuf)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP {test}: needs root");
        return None;
    }
    let exe = std::env::current_exe().unwrap();
    let profile = exe.parent().unwrap().parent().unwrap();
    let program = profile.join("examples/supervise");
    let init = carried("leasehold-init");
    for (what, path) in [
        ("cargo build --example supervise", &program),
        ("cargo build", &init),
    ] {
        if !path.exists() {
            eprintln!(
                "SKIP {test}: {} is not there (`{what}` makes it)",
                path.display()
            );
            return None;
        }
    }
    Some((init, program))
}

/// A static program that a build of the command line leaves beside it.
fn carried(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let target = exe.ancestors().nth(3).unwrap();
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    target.join("agent").join(triple).join("release").join(name)
}

/// The agent's program as it is passed.
pub(crate) fn agent_program() -> OwnedFd {
    let bytes = fs::read(carried("leasehold-agent")).unwrap();
    leasehold_protocol::memory::sealed("leasehold-agent", &bytes).unwrap()
}

/// A supervisor and its directories. Ended, and everything removed, on drop.
pub(crate) struct Supervisor {
    pub(crate) paths: Paths,
    pub(crate) child: Child,
    home: PathBuf,
    programs: (PathBuf, PathBuf),
    variables: Vec<(String, String)>,
}

impl Supervisor {
    /// Starts one; none where this machine cannot.
    pub(crate) fn start(test: &str) -> Option<Self> {
        Self::start_with(test, &[])
    }

    /// Starts one with further environment variables; of them `NOFILE` is its limit of open files.
    pub(crate) fn start_with(test: &str, variables: &[(&str, &str)]) -> Option<Self> {
        let programs = programs(test)?;
        let home = std::env::temp_dir().join(format!("leasehold-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&home);
        fs::create_dir_all(&home).unwrap();
        let paths = Paths::new(&home.join("state"), &home.join("run"));
        let variables: Vec<_> = variables
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        let child = spawn(&paths, &programs, &variables);
        Some(Self {
            paths,
            child,
            home,
            programs,
            variables,
        })
    }

    /// Kills it without a word, and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts a successor without the variables of the first.
    pub(crate) fn succeed(&mut self) {
        self.succeed_with(&[]);
    }

    /// Starts a successor with other variables. It has swept when this returns.
    pub(crate) fn succeed_with(&mut self, variables: &[(&str, &str)]) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.variables = variables.iter().map(owned).collect();
        self.child = spawn(&self.paths, &self.programs, &self.variables);
        // It listens before it sweeps, and answers afterwards.
        drop(self.connect());
    }

    /// Starts another for the same directories.
    pub(crate) fn rival(&self) -> Child {
        command(&self.paths, &self.programs, IDLE_MS)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Ends it and starts one that stays only so long with nothing to do.
    pub(crate) fn hurry(&mut self, idle_ms: &str) {
        self.kill();
        self.child = start(&self.paths, || {
            command(&self.paths, &self.programs, idle_ms)
        });
    }

    /// A connection that has said hello.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(&self.paths.socket())
    }

    /// Kilobytes of memory it has to itself and shares.
    pub(crate) fn rss_kb(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Processor time of the supervisor, and of the spawner and all sandboxes that were reaped, in
    /// milliseconds.
    pub(crate) fn cpu_ms(&self) -> (u64, u64) {
        let times = |pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            let field = |at: usize| -> u64 {
                rest.split_whitespace()
                    .nth(at)
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(0)
            };
            // Hundredths of a second: user, system, and the same of reaped children.
            ((field(11) + field(12)) * 10, (field(13) + field(14)) * 10)
        };
        let (own, reaped) = times(self.child.id());
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let living: u64 = fs::read_to_string(children)
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .map(|pid| times(pid).0)
            .sum();
        (own, reaped + living)
    }

    /// Number of open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id()))
            .unwrap()
            .count()
    }

    /// Names in the ledger.
    pub(crate) fn ledger(&self) -> Vec<String> {
        names(&self.paths.ledger())
    }

    /// Directories of sandboxes of this instance in any control group hierarchy.
    pub(crate) fn cgroups(&self) -> Vec<PathBuf> {
        cgroups(self.paths.instance())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.home.join("log")).unwrap_or_default()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::TERM,
        );
        let end = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("its log:\n{}", self.log());
        }
        let swept = leasehold_supervisor::sweep::sweep(&self.paths, false);
        let _ = fs::remove_dir_all(&self.home);
        if !std::thread::panicking() {
            let left = bases(self.paths.instance());
            assert!(left.is_empty(), "left: {left:?}, swept: {swept:?}");
        }
    }
}

fn spawn(paths: &Paths, programs: &(PathBuf, PathBuf), variables: &[(String, String)]) -> Child {
    start(paths, || {
        let limit = variables.iter().find(|(name, _)| name == "NOFILE");
        let mut command = limited(
            command(paths, programs, IDLE_MS),
            limit.map(|(_, most)| most),
        );
        command.envs(variables.iter().map(|(n, v)| (n, v)));
        command
    })
}

/// Starts one and waits until it listens. One that leaves the field to a dying predecessor, whose spawner
/// may hold the lock for a moment, is started again, as a caller would.
fn start(paths: &Paths, command: impl Fn() -> Command) -> Child {
    let log = paths.state().parent().unwrap().join("log");
    let end = Instant::now() + PATIENCE;
    loop {
        let out = fs::File::options().create(true).append(true).open(&log);
        let mut child = command()
            .stdout(Stdio::piped())
            .stderr(out.unwrap())
            .spawn()
            .unwrap();
        let mut word = [0; 6];
        if child.stdout.take().unwrap().read_exact(&mut word).is_ok() {
            assert_eq!(&word, b"ready\n");
            return child;
        }
        let left = child.wait().unwrap().success() && Instant::now() < end;
        let log = fs::read_to_string(&log).unwrap_or_default();
        assert!(left, "the supervisor does not start: {log}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The same command under a limit of open files, set by a shell.
fn limited(command: Command, most: Option<&String>) -> Command {
    let Some(most) = most else { return command };
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", &format!("ulimit -n {most}; exec \"$@\""), "sh"])
        .arg(command.get_program())
        .args(command.get_args())
        .envs(command.get_envs().filter_map(|(n, v)| Some((n, v?))))
        .stdin(Stdio::null());
    shell
}

fn command(paths: &Paths, programs: &(PathBuf, PathBuf), idle_ms: &str) -> Command {
    let mut command = Command::new(&programs.1);
    command
        .arg(&programs.0)
        .arg(idle_ms)
        .env("LEASEHOLD_STATE_DIR", paths.state())
        .env("LEASEHOLD_RUN_DIR", paths.run())
        .stdin(Stdio::null());
    command
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(found) = fs::read_dir(directory) else {
        return Vec::new();
    };
    found
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Directories of sandboxes of an instance in any control group hierarchy.
pub(crate) fn cgroups(instance: &str) -> Vec<PathBuf> {
    let bases = bases(instance).into_iter();
    let entries = bases.flat_map(|base| fs::read_dir(base).into_iter().flatten().flatten());
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}

/// The directory of an instance in each control group hierarchy.
fn bases(instance: &str) -> Vec<PathBuf> {
    let wanted = format!("leasehold-{instance}");
    let mut found = Vec::new();
    let mut open = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = open.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            if entry.file_name() == wanted.as_str() {
                found.push(entry.path());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
        }
    }
    found
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether this kernel tells if namespaces are gone; says so loudly when a test cannot run for it.
pub(crate) fn namespaces_are_seen(test: &str) -> bool {
    let seen = sees_namespaces();
    if !seen {
        eprintln!("SKIP {test}: namespaces have no handles before Linux 6.18");
    }
    seen
}

/// The same without a word.
pub(crate) fn sees_namespaces() -> bool {
    let flags = rustix::process::PidfdFlags::empty();
    let own = rustix::process::pidfd_open(rustix::process::getpid(), flags).unwrap();
    leasehold_jail::namespaces::Handles::of(own).is_ok()
}

pub(crate) fn run_id(letter: u8) -> RunId {
    RunId::from_entropy(&[letter; 13])
}

pub(crate) fn shell(script: &str) -> ExecSpec {
    let mut exec = ExecSpec::command(["/bin/sh", "-c", script]);
    exec.env
        .insert("PATH".into(), "/usr/bin:/bin:/usr/sbin:/sbin".into());
    exec
}

/// A directory anybody may look into.
pub(crate) fn open_directory(path: &Path) -> OwnedFd {
    fs::create_dir_all(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    fs::File::open(path).unwrap().into()
}

/// One connection.
pub(crate) struct Client {
    socket: UnixStream,
    reader: FrameReader,
    tag: u64,
}

/// A run that was followed to its end.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) sandbox: SandboxId,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) stages: Vec<StageTime>,
    pub(crate) ended: RunRecord,
    pub(crate) cleaned: RunRecord,
    pub(crate) took: Duration,
}

impl Client {
    pub(crate) fn connect(socket: &Path) -> Self {
        let socket = UnixStream::connect(socket).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Self {
            socket,
            reader: FrameReader::new(),
            tag: 0,
        };
        match client.ask(Request::Hello { version: VERSION }).0 {
            Event::Hello { version, .. } => assert_eq!(version, VERSION),
            other => panic!("{other:?}"),
        }
        client
    }

    /// Has the kernel hold as little for this caller as it can.
    pub(crate) fn shrink(&self) {
        rustix::net::sockopt::set_socket_recv_buffer_size(&self.socket, 1).unwrap();
    }

    pub(crate) fn send(&mut self, request: Request, fds: &[BorrowedFd<'_>]) -> u64 {
        self.tag += 1;
        let frame = encode_frame(&Call {
            tag: self.tag,
            request,
        })
        .unwrap();
        let mut sent = send_with_fds(&self.socket, &frame, fds).unwrap();
        while sent < frame.len() {
            sent += send_with_fds(&self.socket, &frame[sent..], &[]).unwrap();
        }
        self.tag
    }

    pub(crate) fn next(&mut self) -> Option<(Notice, Vec<OwnedFd>)> {
        loop {
            if let Some(found) = self.reader.take::<Notice>().unwrap() {
                return Some(found);
            }
            match self.reader.fill(self.socket.as_fd()) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => panic!("waiting for the supervisor: {error}"),
            }
        }
    }

    pub(crate) fn ask(&mut self, request: Request) -> (Event, Vec<OwnedFd>) {
        self.ask_with(request, &[])
    }

    pub(crate) fn ask_with(
        &mut self,
        request: Request,
        fds: &[BorrowedFd<'_>],
    ) -> (Event, Vec<OwnedFd>) {
        let tag = self.send(request, fds);
        loop {
            let (notice, fds) = self.next().expect("the supervisor went away");
            if notice.tag == tag {
                return (notice.event, fds);
            }
        }
    }

    pub(crate) fn run(&mut self, letter: u8, spec: SandboxSpec, exec: ExecSpec) -> Finished {
        let started = Instant::now();
        self.start(letter, Target::New(spec), exec, &[]);
        self.follow(started)
    }

    pub(crate) fn start(
        &mut self,
        letter: u8,
        target: Target,
        exec: ExecSpec,
        fds: &[BorrowedFd<'_>],
    ) {
        let run = run_id(letter);
        self.send(Request::run(run, target, exec), fds);
    }

    /// A run among very many.
    pub(crate) fn run_as(
        &mut self,
        lane: u8,
        number: u32,
        spec: SandboxSpec,
        exec: ExecSpec,
    ) -> Finished {
        let started = Instant::now();
        let mut entropy = [lane; 13];
        entropy[1..5].copy_from_slice(&number.to_le_bytes());
        let run = RunId::from_entropy(&entropy);
        let target = Target::New(spec);
        self.send(Request::run(run, target, exec), &[]);
        self.follow(started)
    }

    /// Follows the newest run to its end.
    pub(crate) fn follow(&mut self, started: Instant) -> Finished {
        let (mut spools, mut stages, mut sandbox_id) = (Vec::new(), Vec::new(), None);
        let (mut ended, mut took) = (None, Duration::ZERO);
        loop {
            let (notice, fds) = self.next().expect("the supervisor went away");
            match notice.event {
                Event::Refused(error) => panic!("refused: {error}"),
                Event::Accepted { sandbox, .. } => {
                    spools = fds;
                    sandbox_id = Some(sandbox);
                }
                Event::Stage(time) => stages.push(time),
                Event::Output { .. } => {}
                Event::Ended(record) => {
                    took = started.elapsed();
                    ended = Some(*record);
                }
                Event::Cleaned(record) => {
                    let ended = ended.expect("cleaned before it ended");
                    return Finished {
                        sandbox: sandbox_id.expect("not accepted"),
                        stdout: read(&spools[0], ended.stdout.kept),
                        stderr: read(&spools[1], ended.stderr.kept),
                        stages,
                        ended,
                        cleaned: *record,
                        took,
                    };
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Reads a whole spool, which must be exactly so long.
pub(crate) fn read(spool: &OwnedFd, kept: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = 0;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let got = rustix::io::pread(spool, &mut buffer, at).unwrap();
        if got == 0 {
            break;
        }
        bytes.extend_from_slice(&buffer[..got]);
        at += got as u64;
    }
    assert_eq!(bytes.len() as u64, kept, "the record says another length");
    bytes
}
