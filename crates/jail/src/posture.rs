//! The posture builder: the only code that gives a process of a sandbox its restrictions.
//!
//! Three steps, in this order, each once per process and never undone: [`init`] for PID 1 (and so for
//! all it starts), [`park_stub`] for a process that will become somebody's program, and
//! [`become_workload`] when it knows whose. The first command of a sandbox and every later exec go
//! through the same three. Every step fails closed: after an error the process must end.

use std::io;

use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Signal, getegid, geteuid, set_dumpable_behavior,
    set_parent_process_death_signal,
};
use rustix::thread::{CapabilitySet, set_no_new_privs, set_thread_res_gid, set_thread_res_uid};
use sha2::{Digest as _, Sha256};

use crate::landlock::{self, LandlockError, Root, Ruleset};
use crate::seccomp::{Program, SeccompError};
use crate::{caps, rlimit, sys};

/// Ids are below this; the last one means "leave it".
const ID_NONE: u32 = u32::MAX;

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub enum PostureError {
    /// A call failed.
    #[error("cannot {attempt}")]
    Step {
        /// What was tried.
        attempt: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A limit of the run could not be set.
    #[error("cannot lower the limits of the run")]
    Limits(#[source] io::Error),
    /// The program is not loaded.
    #[error("cannot take the seccomp program")]
    Seccomp(#[source] SeccompError),
    /// The rules are not in force.
    #[error("cannot take the Landlock rules")]
    Landlock(#[source] LandlockError),
    /// Everything was done, and still this does not hold.
    #[error("after the change of identity this does not hold: {0}")]
    NotSo(&'static str),
}

impl PostureError {
    /// The error number behind it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Step { source, .. } | Self::Limits(source) => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Self::Seccomp(error) => error.errno(),
            Self::Landlock(error) => error.errno(),
            Self::NotSo(_) => libc::EPERM,
        }
    }

    /// What could not be done, to follow the word "cannot".
    #[must_use]
    pub fn attempt(&self) -> String {
        match self {
            Self::Step { attempt, .. } => (*attempt).to_owned(),
            Self::Limits(_) => "lower the limits of the run".to_owned(),
            Self::Seccomp(_) => "take the seccomp program".to_owned(),
            Self::Landlock(_) => "take the Landlock rules".to_owned(),
            Self::NotSo(what) => format!("make sure that {what}"),
        }
    }
}

impl From<PostureError> for io::Error {
    /// The error number; which step it was is lost.
    fn from(error: PostureError) -> Self {
        Self::from_raw_os_error(error.errno())
    }
}

pub(crate) fn step<T, E: Into<io::Error>>(
    attempt: &'static str,
    result: Result<T, E>,
) -> Result<T, PostureError> {
    result.map_err(|error| PostureError::Step {
        attempt,
        source: error.into(),
    })
}

/// Step one, for PID 1: hidden from the workload, bound to its parent's life, no new privileges, the
/// fewest capabilities, no core dumps, a keyring of its own, clean signals, mask and personality; then
/// the seccomp program and the Landlock scope. Children inherit all but the tie to the parent.
///
/// # Errors
/// The first step that failed.
pub fn init() -> Result<(), PostureError> {
    hide()?;
    step(
        "die with the parent",
        set_parent_process_death_signal(Some(Signal::KILL)),
    )?;
    step("give up new privileges", set_no_new_privs(true))?;
    step("cut the bounding set", caps::bound(caps::INIT))?;
    step("reduce capabilities", caps::reduce(caps::INIT))?;
    step("turn off core dumps", rlimit::no_core_dumps())?;
    step("make a session keyring", sys::fresh_session_keyring())?;
    step("reset the personality", sys::reset_personality())?;
    step("reset signals", sys::reset_signals())?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Program::native().load().map_err(PostureError::Seccomp)?;
    restrict(Ruleset::scope())
}

/// Makes this process unreadable for the workload: no trace, no memory, no `/proc` files. An exec
/// undoes it, so that init and agent call it again at their start.
///
/// # Errors
/// As `prctl(2)`.
pub fn hide() -> Result<(), PostureError> {
    step(
        "hide from the workload",
        set_dumpable_behavior(DumpableBehavior::NotDumpable),
    )
}

fn restrict(rules: Result<Option<Ruleset>, LandlockError>) -> Result<(), PostureError> {
    match rules.map_err(PostureError::Landlock)? {
        Some(rules) => rules.restrict().map_err(PostureError::Landlock),
        None => Ok(()),
    }
}

/// For the agent, once at its start, before any child: hidden, and under the Landlock rules of a
/// workload. Its children inherit this one layer. Were each to take its own, as the stub does, the
/// commands of a session could not see each other: to the kernel they would be strangers.
///
/// # Errors
/// The first step that failed.
pub fn agent() -> Result<(), PostureError> {
    hide()?;
    // No agent is started in a sandbox of an image.
    restrict(Ruleset::workload(Root::Template))
}

/// Step two, for a child of init: the Landlock rules of a workload with such a root, its fixed resource limits, an
/// empty bounding set, locked securebits, no capability but the change of identity, and on files of
/// the host no file that runs as its owner. Nothing here depends on what the process will become.
/// What is left of step three is [`become_user`].
///
/// # Errors
/// The first step that failed.
pub fn park_stub(root: Root) -> Result<(), PostureError> {
    restrict(Ruleset::workload(root))?;
    keep_set_id_off_host_files()?;
    park(caps::STUB)
}

/// Step two, for a child of the agent that will become a program: as [`park_stub`], with the rules
/// that [`agent`] took.
///
/// # Errors
/// The first step that failed.
pub fn park_agent_child() -> Result<(), PostureError> {
    park(caps::STUB)
}

/// What every child of init and agent has in common, and the few capabilities that it keeps.
fn park(keep: CapabilitySet) -> Result<(), PostureError> {
    step("lower resource limits", rlimit::workload())?;
    bind(CapabilitySet::empty())?;
    step("reduce capabilities", caps::reduce(keep))
}

/// No exec and no change of identity gives this process a capability beyond `keep` any more, and neither takes one
/// away. Needs `CAP_SETPCAP`. What it holds already it keeps: [`drop_all`] is the other half.
///
/// # Errors
/// The step that failed.
pub(crate) fn bind(keep: CapabilitySet) -> Result<(), PostureError> {
    step("cut the bounding set", caps::bound(keep))?;
    step("lock the securebits", caps::lock())
}

/// Gives up every capability that this process holds, and looks that none is left.
///
/// # Errors
/// The step that failed, or that one is left.
pub(crate) fn drop_all() -> Result<(), PostureError> {
    let none = CapabilitySet::empty();
    step("give up all capabilities", caps::reduce(none))?;
    match step("read capabilities", caps::none_held())? {
        true => Ok(()),
        false => Err(PostureError::NotSo("no capability is held")),
    }
}

/// Whether `/workspace` may be files of the host: it is not on scratch. Whether it can be written does
/// not count, since another file system may be mounted below it.
fn works_on_host_files() -> Result<bool, Errno> {
    let workspace = match rustix::fs::stat(c"/workspace") {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    let scratch = rustix::fs::stat(c"/tmp").map(|stat| stat.st_dev);
    Ok(scratch != Ok(workspace.st_dev))
}

fn keep_set_id_off_host_files() -> Result<(), PostureError> {
    if step("look at the workspace", works_on_host_files())? {
        Program::no_set_id().load().map_err(PostureError::Seccomp)?;
    }
    Ok(())
}

/// Step three, when the program is known: the limits of the run, its ids, and no capability at all.
/// On files of the host also: no file that runs as its owner.
/// `files` is the number of open files, `cpu_seconds` a second net on processor time (0 for none).
///
/// # Errors
/// The first step that failed, or what does not hold afterwards.
pub fn become_workload(
    uid: u32,
    gid: u32,
    files: u32,
    cpu_seconds: u32,
) -> Result<(), PostureError> {
    keep_set_id_off_host_files()?;
    become_user(uid, gid, files, cpu_seconds)
}

/// Step three for a process that has taken [`park_stub`], and with it the program for files of the host;
/// and in place of step three for a child of the agent that does file work as a user and never becomes a
/// program, which may open files in every way the agent does. Otherwise as [`become_workload`].
///
/// # Errors
/// The first step that failed, or what does not hold afterwards.
pub fn become_user(uid: u32, gid: u32, files: u32, cpu_seconds: u32) -> Result<(), PostureError> {
    rlimit::run(files, cpu_seconds).map_err(|error| PostureError::Limits(error.into()))?;
    if uid == ID_NONE || gid == ID_NONE {
        return step("take the workload's ids", Err(Errno::INVAL));
    }
    let (user, group) = (
        rustix::process::Uid::from_raw(uid),
        rustix::process::Gid::from_raw(gid),
    );
    step(
        "take the workload's group",
        set_thread_res_gid(group, group, group),
    )?;
    step(
        "take the workload's user",
        set_thread_res_uid(user, user, user),
    )?;
    drop_all()?;
    if geteuid() != user || getegid() != group {
        return Err(PostureError::NotSo("the ids are the workload's"));
    }
    Ok(())
}

/// In place of steps two and three, for a child of the agent that does file work as the sandbox's
/// root and never becomes a program: what [`park_agent_child`] does, but it keeps its ids and the
/// capabilities over files.
///
/// # Errors
/// The first step that failed.
pub fn become_root_worker() -> Result<(), PostureError> {
    park(caps::FILE_WORK)
}

/// Digest in hexadecimal of what this posture is on this kernel, for receipts: the seccomp program,
/// the Landlock version, the capabilities kept.
#[must_use]
pub fn digest() -> String {
    let text = format!(
        "seccomp {}\nno set-id {}\nlandlock {}\ninit {:#x}\nstub {:#x}\nfile work {:#x}\nworkload 0\n",
        Program::native().sha256(),
        Program::no_set_id().sha256(),
        landlock::abi(),
        caps::INIT.bits(),
        caps::STUB.bits(),
        caps::FILE_WORK.bits(),
    );
    crate::seccomp::hex(&Sha256::digest(text))
}
