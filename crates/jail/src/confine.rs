//! A short-lived process of ours that must look at what a guest made: forked, stripped of every
//! right, and left with a handful of system calls.
//!
//! It has the ids of the guest's own workload, so it may read no more than the guest could; the
//! directory it looks at is its root; it cannot open a socket, start a program, or make a file
//! anywhere. What it has to say goes through descriptors it was given. Not for processes of a
//! sandbox: those take `posture`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{
    DumpableBehavior, Gid, Pid, PidfdFlags, Resource, Rlimit, Signal, Uid, chroot, fchdir, getegid,
    geteuid, getpid, getppid, pidfd_open, set_dumpable_behavior, set_parent_process_death_signal,
    setrlimit,
};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::seccomp::Program;
use crate::{caps, rlimit, sys};

/// Most bytes of its data, what it was forked with included.
const DATA_BYTES: u64 = 512 << 20;

/// What such a process is confined to.
#[derive(Debug, Clone, Copy)]
pub struct Confinement<'a> {
    /// User id it takes, in [`Confinement::userns`] where one is given.
    pub uid: u32,
    /// Group id it takes; it has no other groups.
    pub gid: u32,
    /// User namespace it enters first: how an ordinary user gets at its subordinate ids.
    pub userns: Option<BorrowedFd<'a>>,
    /// Its working directory, and its root wherever it has the right to change that.
    pub root: BorrowedFd<'a>,
    /// Most bytes of any file it writes.
    pub file_bytes: u64,
    /// Processor seconds after which the kernel ends it.
    pub cpu_seconds: u32,
    /// Most open files.
    pub open_files: u32,
}

/// A step of confinement that failed; nothing was looked at.
#[derive(Debug, thiserror::Error)]
#[error("cannot {attempt}")]
pub struct ConfineError {
    /// What was tried.
    pub attempt: &'static str,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

fn step<T, E: Into<io::Error>>(
    attempt: &'static str,
    result: Result<T, E>,
) -> Result<T, ConfineError> {
    result.map_err(|error| ConfineError {
        attempt,
        source: error.into(),
    })
}

/// Forks such a process. It gets the descriptors of `keep` and no others, runs `body` once it is
/// confined, or `failed` with the step that was not possible, and ends with their status. To be
/// called from a process of one thread.
///
/// # Errors
/// As `fork(2)` and `pidfd_open(2)`.
pub fn spawn(
    confinement: &Confinement<'_>,
    keep: &[BorrowedFd<'_>],
    failed: impl FnOnce(&ConfineError) -> u8,
    body: impl FnOnce() -> u8,
) -> io::Result<(Pid, OwnedFd)> {
    let parent = getpid();
    let kept: Vec<BorrowedFd<'_>> = keep
        .iter()
        .copied()
        .chain(confinement.userns)
        .chain([confinement.root])
        .collect();
    let pid = sys::spawn_child(&kept, || match confine(confinement, parent) {
        Ok(()) => body(),
        Err(error) => failed(&error),
    })?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    Ok((pid, pidfd))
}

fn confine(to: &Confinement<'_>, parent: Pid) -> Result<(), ConfineError> {
    silence()?;
    step("reset signals", sys::reset_signals())?;
    step("turn off core dumps", rlimit::no_core_dumps())?;
    if let Some(userns) = to.userns {
        let kind = Some(LinkNameSpaceType::User);
        step(
            "enter the user namespace",
            move_into_link_name_space(userns, kind),
        )?;
    }
    step("enter the directory", fchdir(to.root))?;
    let held = step("read capabilities", capabilities(None))?.effective;
    if held.contains(CapabilitySet::SYS_CHROOT) {
        step("make the directory its root", chroot("."))?;
    }
    step("give up new privileges", set_no_new_privs(true))?;
    take_ids(to, held)?;
    step("hide", set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    step(
        "die with the parent",
        set_parent_process_death_signal(Some(Signal::KILL)),
    )?;
    if to.userns.is_none() && getppid() != Some(parent) {
        return step("find the parent alive", Err(rustix::io::Errno::SRCH));
    }
    take_limits(to)?;
    step(
        "take the seccomp program",
        allow_list()
            .load()
            .map_err(|error| io::Error::from_raw_os_error(error.errno())),
    )
}

/// Standard descriptors lead nowhere.
fn silence() -> Result<(), ConfineError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let null = step(
        "open the null device",
        rustix::fs::openat(CWD, "/dev/null", flags, Mode::empty()),
    )?;
    for number in 0..3 {
        step("silence a descriptor", sys::place(null.as_fd(), number))?;
    }
    Ok(())
}

fn take_ids(to: &Confinement<'_>, held: CapabilitySet) -> Result<(), ConfineError> {
    if held.contains(CapabilitySet::SETPCAP) {
        step(
            "empty the bounding set",
            caps::bound(CapabilitySet::empty()),
        )?;
        step("lock the securebits", caps::lock())?;
    }
    if held.contains(CapabilitySet::SETGID) {
        match set_thread_groups(&[]) {
            // A user namespace may forbid it to everybody; then the groups are the maker's own.
            Err(rustix::io::Errno::PERM) if to.userns.is_some() => {}
            done => step("leave all groups", done)?,
        }
    }
    if to.uid == u32::MAX || to.gid == u32::MAX {
        return step("take the ids", Err(rustix::io::Errno::INVAL));
    }
    let (user, group) = (Uid::from_raw(to.uid), Gid::from_raw(to.gid));
    step("take the group", set_thread_res_gid(group, group, group))?;
    step("take the user", set_thread_res_uid(user, user, user))?;
    step(
        "give up all capabilities",
        caps::reduce(CapabilitySet::empty()),
    )?;
    let none = step("read capabilities", caps::none_held())?;
    if !none || geteuid() != user || getegid() != group {
        return step("be who it should be", Err(rustix::io::Errno::PERM));
    }
    Ok(())
}

fn take_limits(to: &Confinement<'_>) -> Result<(), ConfineError> {
    let rows = [
        (Resource::Fsize, to.file_bytes),
        (Resource::Data, DATA_BYTES),
        (Resource::Nproc, 0),
        (Resource::Memlock, 0),
        (Resource::Cpu, to.cpu_seconds.into()),
        (Resource::Nofile, to.open_files.into()),
    ];
    for (resource, value) in rows {
        let hard = rustix::process::getrlimit(resource).maximum;
        let value = Some(hard.map_or(value, |hard| hard.min(value)));
        let limit = Rlimit {
            current: value,
            maximum: value,
        };
        step("lower a resource limit", setrlimit(resource, limit))?;
    }
    Ok(())
}

/// Calls that look, read, copy and answer; `mmap` and `mprotect` without execution. Everything else
/// is refused with `EPERM`: it costs a defect its effect and not the whole collection.
fn allow_list() -> Program {
    const ALLOWED: [libc::c_long; 34] = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_openat2,
        libc::SYS_close,
        libc::SYS_fstat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_getdents64,
        libc::SYS_lseek,
        libc::SYS_ftruncate,
        libc::SYS_fadvise64,
        libc::SYS_fcntl,
        libc::SYS_recvmsg,
        libc::SYS_recvfrom,
        libc::SYS_sendmsg,
        libc::SYS_sendto,
        libc::SYS_ppoll,
        libc::SYS_brk,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_futex,
        libc::SYS_sched_yield,
        libc::SYS_clock_gettime,
        libc::SYS_getrandom,
        libc::SYS_gettid,
        libc::SYS_getpid,
        libc::SYS_tgkill,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_restart_syscall,
        libc::SYS_exit_group,
    ];
    Program::allow_only(&ALLOWED, &[libc::SYS_mmap, libc::SYS_mprotect])
}
