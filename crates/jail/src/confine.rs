//! A short-lived process of ours that must look at what a guest made: forked, stripped of every
//! right, and left with a handful of system calls.
//!
//! It has the ids of the guest's own workload, so it may read no more than the guest could; the
//! directory it looks at is its root; it cannot open a socket, start a program, or, by Landlock, make
//! or change a file. What it has to say goes through descriptors it was given. Not for processes of a
//! sandbox: those take `posture`.

#![allow(unsafe_code, reason = "unshare(2) has no safe binding")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{
    DumpableBehavior, Gid, Pid, PidfdFlags, Resource, Signal, Uid, chroot, fchdir, getegid,
    geteuid, getpid, getppid, pidfd_open, set_dumpable_behavior, set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid, unshare_unsafe,
};

use crate::landlock::Ruleset;
use crate::posture::{self, PostureError, step};
use crate::seccomp::Program;
use crate::{rlimit, sys};

/// Most bytes of its data, what it was forked with included.
const DATA_BYTES: u64 = 512 << 20;

/// What such a process is confined to.
#[derive(Debug, Clone, Copy)]
pub struct Confinement<'a> {
    /// User id it takes. An ordinary user can take no other than the own.
    pub uid: u32,
    /// Group id it takes; as root it leaves all other groups.
    pub gid: u32,
    /// Its root and working directory.
    pub root: BorrowedFd<'a>,
    /// Most bytes of any file it writes.
    pub file_bytes: u64,
    /// Processor seconds after which the kernel ends it.
    pub cpu_seconds: u32,
    /// Most open files.
    pub open_files: u32,
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
    failed: impl FnOnce(&PostureError) -> u8,
    body: impl FnOnce() -> u8,
) -> io::Result<(Pid, OwnedFd)> {
    let parent = getpid();
    let kept: Vec<BorrowedFd<'_>> = keep.iter().copied().chain([confinement.root]).collect();
    let pid = sys::spawn_child(&kept, || match confine(confinement, parent) {
        Ok(()) => body(),
        Err(error) => failed(&error),
    })?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    Ok((pid, pidfd))
}

fn confine(to: &Confinement<'_>, parent: Pid) -> Result<(), PostureError> {
    silence()?;
    step("reset signals", sys::reset_signals())?;
    step("turn off core dumps", rlimit::no_core_dumps())?;
    step("give up new privileges", set_no_new_privs(true))?;
    let held = step("read capabilities", capabilities(None))?.effective;
    if held.contains(CapabilitySet::SYS_CHROOT) {
        enter(to)?;
        take_ids(to, held)?;
    } else {
        take_ids(to, held)?;
        // In a user namespace of its own it may change its root; it gains nothing outside of it.
        // SAFETY: the process has one thread, shares nothing with another, and keeps its
        // descriptors.
        let unshared = unsafe { unshare_unsafe(UnshareFlags::NEWUSER) };
        step("make a user namespace", unshared)?;
        enter(to)?;
        // Those over its own user namespace, too.
        posture::bind(CapabilitySet::empty())?;
        posture::drop_all()?;
    }
    step("hide", set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    step(
        "die with the parent",
        set_parent_process_death_signal(Some(Signal::KILL)),
    )?;
    if getppid() != Some(parent) {
        return step("find the parent alive", Err(rustix::io::Errno::SRCH));
    }
    take_limits(to)?;
    restrict(to)?;
    allow_list().load().map_err(PostureError::Seccomp)
}

/// It reads below its root and makes, changes or removes nothing, its own files included. A kernel
/// without Landlock leaves it to the rights of its ids.
fn restrict(to: &Confinement<'_>) -> Result<(), PostureError> {
    match Ruleset::reading(to.root).map_err(PostureError::Landlock)? {
        Some(rules) => rules.restrict().map_err(PostureError::Landlock),
        None => Ok(()),
    }
}

fn enter(to: &Confinement<'_>) -> Result<(), PostureError> {
    step("enter the directory", fchdir(to.root))?;
    step("make the directory its root", chroot("."))
}

/// Standard descriptors lead nowhere.
fn silence() -> Result<(), PostureError> {
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

fn take_ids(to: &Confinement<'_>, held: CapabilitySet) -> Result<(), PostureError> {
    if held.contains(CapabilitySet::SETGID) {
        step("leave all groups", set_thread_groups(&[]))?;
    }
    if to.uid == u32::MAX || to.gid == u32::MAX {
        return step("take the ids", Err(rustix::io::Errno::INVAL));
    }
    if held.contains(CapabilitySet::SETPCAP) {
        posture::bind(CapabilitySet::empty())?;
    }
    let (user, group) = (Uid::from_raw(to.uid), Gid::from_raw(to.gid));
    step("take the group", set_thread_res_gid(group, group, group))?;
    step("take the user", set_thread_res_uid(user, user, user))?;
    if geteuid() != user || getegid() != group {
        return Err(PostureError::NotSo("the ids are those it took"));
    }
    posture::drop_all()
}

fn take_limits(to: &Confinement<'_>) -> Result<(), PostureError> {
    let rows = [
        (Resource::Fsize, to.file_bytes),
        (Resource::Data, DATA_BYTES),
        (Resource::Nproc, 0),
        (Resource::Memlock, 0),
        (Resource::Cpu, to.cpu_seconds.into()),
        (Resource::Nofile, to.open_files.into()),
    ];
    step("lower a resource limit", rlimit::cap(rows))
}

/// Calls that look, read, copy and answer; `mmap` and `mprotect` without execution. Everything else
/// is refused with `EPERM`: it costs a defect its effect and not the whole collection.
fn allow_list() -> Program {
    const ALLOWED: [libc::c_long; 35] = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_openat2,
        libc::SYS_close,
        libc::SYS_fstat,
        libc::SYS_newfstatat,
        libc::SYS_readlinkat,
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

#[cfg(test)]
mod tests {
    use rustix::fs::openat;
    use rustix::process::{WaitOptions, waitpid};

    use super::*;

    /// An id of nobody.
    const ORDINARY: u32 = 12_345;

    fn status(child: Pid) -> u8 {
        let waited = waitpid(Some(child), WaitOptions::empty()).unwrap();
        let status = waited.and_then(|(_, status)| status.exit_status());
        status.map_or(u8::MAX, |status| status as u8)
    }

    /// Bits: opened a file of the host, opened one of its root, made a file, opened a socket.
    fn tries() -> u8 {
        let open = |path: &str, flags: OFlags| {
            let nothing = rustix::fs::ResolveFlags::empty();
            let makes = flags.contains(OFlags::CREATE);
            let mode = if makes { Mode::RUSR } else { Mode::empty() };
            u8::from(rustix::fs::openat2(CWD, path, flags, mode, nothing).is_ok())
        };
        let family = rustix::net::AddressFamily::UNIX;
        let socket = rustix::net::socket(family, rustix::net::SocketType::STREAM, None);
        open("/etc/passwd", OFlags::RDONLY)
            | open("/inside", OFlags::RDONLY) << 1
            | open("/made", OFlags::WRONLY | OFlags::CREATE) << 2
            | u8::from(socket.is_ok()) << 3
    }

    /// What a helper can do that was started by root, or by an ordinary user.
    fn outcome(ordinary: bool) -> u8 {
        let name = format!("leasehold-confine-{}-{ordinary}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("inside"), "x").unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, &path, flags, Mode::empty()).unwrap();
        let own = geteuid();
        let id = if own.is_root() {
            ORDINARY
        } else {
            own.as_raw()
        };
        // It is its own directory, so that only a rule keeps it from making a file there.
        std::os::unix::fs::chown(&path, Some(id), Some(id)).unwrap();
        let to = Confinement {
            uid: id,
            gid: id,
            root: root.as_fd(),
            file_bytes: 1_000,
            cpu_seconds: 10,
            open_files: 32,
        };
        let child = sys::spawn_child(&[root.as_fd()], || {
            if ordinary && own.is_root() {
                let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
                let became = set_thread_groups(&[])
                    .and_then(|()| set_thread_res_gid(group, group, group))
                    .and_then(|()| set_thread_res_uid(user, user, user));
                if became.is_err() {
                    return 97;
                }
            }
            match spawn(&to, &[], |_| 99, tries) {
                Ok((helper, _)) => status(helper),
                Err(_) => 98,
            }
        });
        let status = status(child.unwrap());
        std::fs::remove_dir_all(path).unwrap();
        status
    }

    #[test]
    fn only_files_of_its_root_can_be_opened() {
        // The host's file is there for everybody else.
        assert!(std::fs::File::open("/etc/passwd").is_ok());
        // Without Landlock its own directory is its own to write in.
        let want = if crate::landlock::abi() > 0 {
            0b0010
        } else {
            0b0110
        };
        assert_eq!(outcome(true), want);
        if geteuid().is_root() {
            assert_eq!(outcome(false), want);
        }
    }
}
