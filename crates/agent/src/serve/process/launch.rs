//! How a process begins: what is asked is checked, a child takes the workload posture and becomes
//! the program, and only then is it in the table.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use leasehold_core::spec::{ARGS_MAX, ENV_MAX, EXEC_BYTES_MAX};
use leasehold_jail::exec::{self, ExecFailure, ExecPlan, Stdio};
use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::envd::process::{Size, StartRequest};
use leasehold_protocol::guest::ExecStep;
use rustix::fs::{CWD, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::pty::OpenptFlags;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, Notify};

use super::super::acting::reap;
use super::super::bounds;
use super::super::ready;
use super::super::request::Meta;
use super::super::state::State;
use super::super::users::User;
use super::Process;
use super::input::{Input, window};
use super::output::{Kind, Output};
use crate::program;

/// A process that runs but is not followed yet.
pub(super) struct Launched {
    pub(super) process: Rc<Process>,
    pub(super) pidfd: AsyncFd<OwnedFd>,
    pub(super) outputs: Vec<Output>,
}

fn invalid(message: String) -> CallError {
    CallError::new(Code::InvalidArgument, message)
}

/// Starts what is asked.
///
/// # Errors
/// `invalid_argument` for what cannot be started, `unauthenticated` for an unknown user,
/// `resource_exhausted` when there is no room.
pub(super) async fn launch(
    state: &State,
    meta: &Meta,
    request: StartRequest,
) -> Result<Launched, CallError> {
    let user = state.user(meta.user.as_deref())?;
    let cwd = state.path(request.process.cwd.as_deref().unwrap_or(""), &user)?;
    let words = Words::new(state, &user, &request)?;
    let registry = &state.processes;
    if registry.count() + registry.starting.get() >= bounds::PROCESSES {
        let most = bounds::PROCESSES;
        let message = format!("{most} processes were started and still run");
        return Err(CallError::new(Code::ResourceExhausted, message));
    }
    if registry.words.get() + words.bytes > bounds::PROCESS_WORDS {
        let most = bounds::PROCESS_WORDS;
        let message = format!("arguments and environments of all processes exceed {most} bytes");
        return Err(CallError::new(Code::ResourceExhausted, message));
    }
    registry.starting.set(registry.starting.get() + 1);
    let outcome = begin(state, &user, &cwd, words, request).await;
    registry.starting.set(registry.starting.get() - 1);
    let launched = outcome?;
    registry.enter(&launched.process);
    Ok(launched)
}

/// Arguments and environment as the kernel takes them.
struct Words {
    argv: Vec<Vec<u8>>,
    env: Vec<Vec<u8>>,
    bytes: usize,
}

impl Words {
    fn new(state: &State, user: &User, request: &StartRequest) -> Result<Self, CallError> {
        let process = &request.process;
        if process.cmd.is_empty() {
            return Err(invalid("process.cmd is empty".to_owned()));
        }
        if process.args.len() >= ARGS_MAX {
            let count = process.args.len();
            return Err(invalid(format!(
                "{count} arguments: most is {}",
                ARGS_MAX - 1
            )));
        }
        if request
            .tag
            .as_ref()
            .is_some_and(|tag| tag.len() > bounds::TAG_BYTES)
        {
            return Err(invalid(format!(
                "tag is longer than {} bytes",
                bounds::TAG_BYTES
            )));
        }
        let env = environment(state, user, request)?;
        let argv: Vec<Vec<u8>> = std::iter::once(&process.cmd)
            .chain(&process.args)
            .map(|word| word.as_bytes().to_vec())
            .collect();
        let bytes: usize = argv.iter().chain(&env).map(|word| word.len() + 1).sum();
        if bytes > EXEC_BYTES_MAX {
            return Err(invalid(format!(
                "arguments and environment have {bytes} bytes: most is {EXEC_BYTES_MAX}"
            )));
        }
        if argv.iter().chain(&env).any(|word| word.contains(&0)) {
            return Err(invalid(
                "arguments or environment hold a NUL byte".to_owned(),
            ));
        }
        Ok(Self { argv, env, bytes })
    }
}

/// The user's, then the sandbox's, then the request's variables.
fn environment(
    state: &State,
    user: &User,
    request: &StartRequest,
) -> Result<Vec<Vec<u8>>, CallError> {
    let path = String::from_utf8_lossy(program::DEFAULT_PATH);
    let mut all: BTreeMap<&str, &str> = BTreeMap::from([
        ("PATH", path.as_ref()),
        ("HOME", &user.home),
        ("USER", &user.name),
        ("LOGNAME", &user.name),
    ]);
    if request.pty.is_some() {
        all.extend([
            ("TERM", "xterm-256color"),
            ("LANG", "C.UTF-8"),
            ("LC_ALL", "C.UTF-8"),
        ]);
    }
    let settings = state.settings.borrow();
    for (name, value) in settings.envs.iter().chain(&request.process.envs) {
        if name.is_empty() || name.contains('=') {
            return Err(invalid(format!(
                "environment name {name:?} is empty or holds `=`"
            )));
        }
        all.insert(name, value);
    }
    if all.len() > ENV_MAX {
        return Err(invalid(format!(
            "environment has {} variables: most is {ENV_MAX}",
            all.len()
        )));
    }
    Ok(all
        .iter()
        .map(|(name, value)| format!("{name}={value}").into_bytes())
        .collect())
}

/// Descriptors of a process: its side and ours.
struct Ends {
    stdio: Stdio,
    input: Input,
    outputs: Vec<Output>,
}

fn no_room(error: io::Error) -> CallError {
    CallError::new(
        Code::ResourceExhausted,
        format!("cannot start a process: {error}"),
    )
}

fn unblocked(fd: OwnedFd) -> Result<OwnedFd, CallError> {
    rustix::io::ioctl_fionbio(&fd, true).map_err(|errno| no_room(errno.into()))?;
    Ok(fd)
}

/// A pipe of the user's: `/dev/stderr` opens it anew, as the user.
fn pipe(user: &User) -> Result<(OwnedFd, OwnedFd), CallError> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
        .and_then(|(reads, writes)| {
            rustix::fs::fchown(&reads, Some(uid), Some(gid))?;
            Ok((reads, writes))
        })
        .map_err(|errno| no_room(errno.into()))
}

impl Ends {
    fn pipes(stdin_open: bool, user: &User) -> Result<Self, CallError> {
        let pipe = || pipe(user);
        let (stdin, input) = if stdin_open {
            let (theirs, ours) = pipe()?;
            (
                theirs,
                Some(ready::to_write(unblocked(ours)?).map_err(no_room)?),
            )
        } else {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let null = rustix::fs::openat(CWD, "/dev/null", flags, Mode::empty());
            (null.map_err(|errno| no_room(errno.into()))?, None)
        };
        let ((from_out, stdout), (from_err, stderr)) = (pipe()?, pipe()?);
        let output = |kind, from| {
            Ok(Output {
                kind,
                from: Rc::new(ready::to_read(unblocked(from)?).map_err(no_room)?),
            })
        };
        Ok(Self {
            stdio: Stdio::Pipes {
                stdin,
                stdout,
                stderr,
            },
            input: Input::Pipe(Mutex::new(input)),
            outputs: vec![
                output(Kind::Stdout, from_out)?,
                output(Kind::Stderr, from_err)?,
            ],
        })
    }

    fn terminal(size: Size, user: &User) -> Result<Self, CallError> {
        let size = window(size)?;
        let made = || -> Result<(OwnedFd, OwnedFd), Errno> {
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            let master = rustix::fs::openat(CWD, "/dev/ptmx", flags, Mode::empty())?;
            rustix::pty::unlockpt(&master)?;
            // By descriptor: a path could be made to lead elsewhere.
            let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
            let theirs = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
            rustix::termios::tcsetwinsize(&master, size)?;
            let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
            rustix::fs::fchown(&theirs, Some(uid), Some(gid))?;
            Ok((master, theirs))
        };
        let (master, theirs) = made().map_err(|errno| {
            CallError::new(
                Code::ResourceExhausted,
                format!("cannot make a terminal: {errno}"),
            )
        })?;
        let master = Rc::new(ready::both_ways(unblocked(master)?).map_err(no_room)?);
        Ok(Self {
            stdio: Stdio::Terminal(theirs),
            input: Input::Terminal(master.clone(), Mutex::new(())),
            outputs: vec![Output {
                kind: Kind::Terminal,
                from: master,
            }],
        })
    }
}

async fn begin(
    state: &State,
    user: &User,
    cwd: &str,
    words: Words,
    request: StartRequest,
) -> Result<Launched, CallError> {
    let ends = match request.pty {
        Some(pty) => Ends::terminal(pty.size.unwrap_or(Size { cols: 80, rows: 24 }), user)?,
        None => Ends::pipes(request.stdin.unwrap_or(true), user)?,
    };
    let plan = ExecPlan {
        cwd: CString::new(cwd).map_err(|_| invalid("cwd holds a NUL byte".to_owned()))?,
        cwd_asked: request
            .process
            .cwd
            .as_ref()
            .is_some_and(|cwd| !cwd.is_empty()),
        stdio: ends.stdio,
        ids: user.ids(),
        files: state.files,
    };
    let (child, status) =
        exec::spawn(&plan, || program::become_program(&words.argv, &words.env)).map_err(no_room)?;
    // The child's sides must be its own alone, or their ends would never be seen.
    drop(plan);
    let guard = Unproven(Some(child.pid));
    let pidfd = ready::to_read(child.pidfd).map_err(no_room)?;
    if let Some(failure) = report(status).await? {
        let _ = pidfd.readable().await;
        reap(pidfd.get_ref());
        guard.proven();
        return Err(told(failure, &request.process.cmd, cwd));
    }
    guard.proven();
    let process = Rc::new(Process {
        pid: child.pid,
        tag: request.tag,
        config: request.process,
        input: ends.input,
        subscribers: RefCell::default(),
        next: Cell::new(0),
        reaped: Cell::new(false),
        gone: Notify::new(),
        deadline: RefCell::default(),
        words: words.bytes,
    });
    Ok(Launched {
        process,
        pidfd,
        outputs: ends.outputs,
    })
}

/// A child of which nobody knows yet whether it became its program; left behind, it is killed.
struct Unproven(Option<Pid>);

impl Unproven {
    fn proven(mut self) {
        self.0 = None;
    }
}

impl Drop for Unproven {
    fn drop(&mut self) {
        if let Some(pid) = self.0
            && let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        {
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            let options = rustix::process::WaitOptions::empty();
            let _ = rustix::process::waitpid(Some(pid), options);
        }
    }
}

/// Waits until the child is its program, or says why not.
async fn report(status: OwnedFd) -> Result<Option<ExecFailure>, CallError> {
    let status = ready::to_read(status).map_err(no_room)?;
    let mut bytes = [0; exec::REPORT_LEN];
    let read = async {
        loop {
            let mut guard = status.readable().await?;
            let outcome =
                guard.try_io(|status| Ok(rustix::io::read(status.get_ref(), &mut bytes[..])?));
            match outcome {
                Ok(outcome) => return outcome,
                Err(_would_block) => {}
            }
        }
    };
    match tokio::time::timeout(bounds::START_TIME, read).await {
        Ok(Ok(got)) => Ok(ExecFailure::decode(&bytes[..got])),
        Ok(Err(error)) => Err(no_room(error)),
        Err(_) => {
            let seconds = bounds::START_TIME.as_secs();
            let message = format!("process did not start within {seconds} s");
            Err(CallError::new(Code::DeadlineExceeded, message))
        }
    }
}

fn told(failure: ExecFailure, cmd: &str, cwd: &str) -> CallError {
    let errno = Errno::from_raw_os_error(failure.errno);
    match failure.step {
        ExecStep::Cwd if errno == Errno::NOENT => invalid(format!("cwd '{cwd}' does not exist")),
        ExecStep::Cwd => invalid(format!("cwd '{cwd}' cannot be entered: {errno}")),
        ExecStep::Exec => invalid(format!("error starting process '{cmd}': {errno}")),
        ExecStep::Message
        | ExecStep::Tty
        | ExecStep::Stdio
        | ExecStep::Rlimits
        | ExecStep::Posture => CallError::new(
            Code::Internal,
            format!(
                "cannot confine process '{cmd}' ({:?}): {errno}",
                failure.step
            ),
        ),
    }
}
