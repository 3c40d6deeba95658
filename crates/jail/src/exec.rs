//! How the agent starts processes: a child that becomes a command, and a child that does file work
//! for a user.
//!
//! Both take the workload posture through [`crate::posture`] and nothing else (invariant I12), for
//! which the agent must have taken its own ([`crate::posture::agent`]). Both are for single-threaded
//! callers, as [`crate::sys::spawn_child`] is; the agent runs everything on one thread for this
//! reason. This module decides neither what runs nor as whom.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use leasehold_protocol::guest::ExecStep;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use crate::posture::{self, PostureError};
use crate::sys;

/// User and group id inside the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A child that was started. Whoever holds it must wait for it.
#[derive(Debug)]
pub struct Child {
    /// Its process id.
    pub pid: Pid,
    /// Becomes readable when it ended. Close-on-exec.
    pub pidfd: OwnedFd,
}

/// Standard input, output and error of a command.
#[derive(Debug)]
pub enum Stdio {
    /// Three descriptors.
    Pipes {
        /// Standard input.
        stdin: OwnedFd,
        /// Standard output.
        stdout: OwnedFd,
        /// Standard error.
        stderr: OwnedFd,
    },
    /// One terminal for all three; it becomes the controlling terminal of the new session.
    Terminal(OwnedFd),
}

impl Stdio {
    fn in_order(&self) -> [BorrowedFd<'_>; 3] {
        match self {
            Self::Pipes {
                stdin,
                stdout,
                stderr,
            } => [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
            Self::Terminal(terminal) => [terminal.as_fd(); 3],
        }
    }
}

/// How a command is to run; what it is, the caller's closure knows.
#[derive(Debug)]
pub struct ExecPlan {
    /// Absolute working directory, entered with the user's rights.
    pub cwd: CString,
    /// Whether somebody asked for it; else the root directory will do where it cannot be entered.
    pub cwd_asked: bool,
    /// Its descriptors, none of them 0, 1 or 2; nothing else crosses.
    pub stdio: Stdio,
    /// As whom.
    pub ids: Ids,
    /// RLIMIT_NOFILE, soft and hard.
    pub files: u32,
}

/// Bytes of a report on the status pipe of [`spawn`].
pub const REPORT_LEN: usize = 8;

/// A command that could not be started, as its child reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecFailure {
    /// What the child was doing.
    pub step: ExecStep,
    /// Error number.
    pub errno: i32,
}

impl ExecFailure {
    /// Reads what came over the status pipe: nothing means the program runs.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h] = *bytes.first_chunk::<REPORT_LEN>()?;
        let step = ExecStep::from_word(u32::from_le_bytes([a, b, c, d]));
        Some(Self {
            step: step.unwrap_or(ExecStep::Exec),
            errno: i32::from_le_bytes([e, f, g, h]),
        })
    }

    fn encode(self) -> [u8; REPORT_LEN] {
        let mut bytes = [0; REPORT_LEN];
        bytes[..4].copy_from_slice(&(self.step as u32).to_le_bytes());
        bytes[4..].copy_from_slice(&self.errno.to_le_bytes());
        bytes
    }
}

/// Starts a command in a session of its own; `become_program` ends with its exec and comes back only
/// with the error number. The returned descriptor is the status pipe: its end without bytes means
/// that the program runs, else [`ExecFailure::decode`] tells why not; a child that failed must be
/// waited for as well. Reads on the pipe do not block.
///
/// # Errors
/// When no pipe or process can be made.
pub fn spawn(
    plan: &ExecPlan,
    become_program: impl FnOnce() -> i32,
) -> io::Result<(Child, OwnedFd)> {
    let (status, report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let keep = plan.stdio.in_order().map(|fd| fd.as_raw_fd());
    let keep = [keep[0], keep[1], keep[2], report.as_raw_fd()];
    let pid = sys::spawn_child(&keep, || {
        let prepared = arrange(plan).and_then(|()| take_posture(plan).and_then(|()| enter(plan)));
        let failure = match prepared {
            Err(failure) => failure,
            Ok(()) => ExecFailure {
                step: ExecStep::Exec,
                errno: become_program(),
            },
        };
        // Eight bytes into an empty pipe always fit.
        let _ = rustix::io::write(&report, &failure.encode());
        127
    })?;
    Ok((follow(pid)?, status))
}

fn failure<E: Into<io::Error>>(step: ExecStep) -> impl Fn(E) -> ExecFailure {
    move |error| ExecFailure {
        step,
        errno: error.into().raw_os_error().unwrap_or(libc::EIO),
    }
}

/// Own session, descriptors, terminal, signals and mask.
fn arrange(plan: &ExecPlan) -> Result<(), ExecFailure> {
    rustix::process::setsid().map_err(failure(ExecStep::Stdio))?;
    for (number, from) in (0..).zip(plan.stdio.in_order()) {
        sys::place(from, number).map_err(failure(ExecStep::Stdio))?;
    }
    if matches!(plan.stdio, Stdio::Terminal(_)) {
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).map_err(failure(ExecStep::Tty))?;
    }
    sys::reset_signals().map_err(failure(ExecStep::Stdio))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(())
}

fn take_posture(plan: &ExecPlan) -> Result<(), ExecFailure> {
    let failed = |error: PostureError| ExecFailure {
        step: ExecStep::Posture,
        errno: error.errno(),
    };
    posture::park_agent_child().map_err(failed)?;
    posture::become_workload(plan.ids.uid, plan.ids.gid, plan.files, 0).map_err(failed)
}

fn enter(plan: &ExecPlan) -> Result<(), ExecFailure> {
    let entered = match rustix::process::chdir(&plan.cwd) {
        Err(Errno::NOENT | Errno::ACCESS) if !plan.cwd_asked => rustix::process::chdir("/"),
        entered => entered,
    };
    entered.map_err(failure(ExecStep::Cwd))?;
    let place = rustix::process::getcwd(Vec::new()).map_err(failure(ExecStep::Cwd))?;
    // Anything else names a directory that is not below this root.
    if place.as_bytes().starts_with(b"/") {
        Ok(())
    } else {
        Err(failure(ExecStep::Cwd)(Errno::XDEV))
    }
}

/// As whom file work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor {
    /// A user: the workload posture, with nothing beside it.
    User(Ids),
    /// The sandbox's root: its user id and the agent's capabilities over files, within the
    /// workload's Landlock rules.
    Root,
}

/// Exit status of a child of [`act`] that could not take its posture.
pub const POSTURE_FAILED: u8 = 126;

/// Starts a child that runs `work` as `actor` with a socket, and exits with its status.
///
/// The child has no other descriptor than that socket and 0, 1, 2; it dies with the caller, and
/// other processes can neither trace nor dump it. It exits with [`POSTURE_FAILED`], before `work`
/// runs, when it cannot take its posture.
///
/// # Errors
/// When no process can be made.
pub fn act(
    actor: Actor,
    files: u32,
    socket: OwnedFd,
    work: impl FnOnce(OwnedFd) -> u8,
) -> io::Result<Child> {
    let caller = rustix::process::getpid();
    let keep = [socket.as_raw_fd()];
    let pid = sys::spawn_child(&keep, move || {
        if take_actor(actor, files, caller).is_err() {
            return POSTURE_FAILED;
        }
        work(socket)
    })?;
    follow(pid)
}

fn take_actor(actor: Actor, files: u32, caller: Pid) -> Result<(), PostureError> {
    let step = |attempt| {
        move |error: io::Error| PostureError::Step {
            attempt,
            source: error,
        }
    };
    sys::reset_signals().map_err(step("reset signals"))?;
    match actor {
        Actor::User(ids) => {
            posture::park_agent_child()?;
            posture::become_user(ids.uid, ids.gid, files, 0)?;
        }
        Actor::Root => posture::become_root_worker()?,
    }
    // A change of ids undoes both of these.
    posture::hide()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| step("die with the caller")(error.into()))?;
    if rustix::process::getppid() == Some(caller) {
        Ok(())
    } else {
        Err(step("find the caller alive")(Errno::SRCH.into()))
    }
}

/// The child as something that can be waited for. Nobody reaps it before, so the number is its own.
fn follow(pid: Pid) -> io::Result<Child> {
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(Child { pid, pidfd }),
        Err(error) => {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            Err(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_cross_the_pipe() {
        let failure = ExecFailure {
            step: ExecStep::Cwd,
            errno: libc::ENOENT,
        };
        assert_eq!(ExecFailure::decode(&failure.encode()), Some(failure));
        assert_eq!(ExecFailure::decode(&[]), None);
        assert_eq!(ExecFailure::decode(&[1; 7]), None);
    }
}
