//! The system calls that make processes and change what they are, which no safe wrapper offers.
//!
//! Whoever calls [`fork`] or [`clone_process`] gets a second copy of itself: the child must end
//! through [`end`] or an exec and must never unwind into its caller's frames; [`Bomb`] sees to
//! the latter.

#![allow(
    unsafe_code,
    reason = "fork, clone3, unshare, descriptor numbers and interface flags have no safe wrapper"
)]

use std::ffi::CStr;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::thread::{CpuSet, UnshareFlags};

use crate::mount::last_errno;

/// Which side of a fork one is on.
pub(super) enum Side {
    /// The new process.
    Child,
    /// The old one, with the new one's id and descriptor.
    Parent { pid: u32, pidfd: OwnedFd },
}

/// Ends the process when it is dropped, so that a panic in a forked child cannot unwind into frames
/// that belong to the parent's life.
pub(super) struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        end(70);
    }
}

/// Ends this process at once: no destructors, no flushing of what was copied from the parent.
pub(super) fn end(status: i32) -> ! {
    // SAFETY: `_exit` takes a number, touches no memory of ours and does not return.
    unsafe { libc::_exit(status) }
}

/// `fork(2)` through the C library, which puts its allocator's locks right in the child.
pub(super) fn fork() -> Result<Side, Errno> {
    // SAFETY: the child runs only code of this module tree, which takes no lock that another thread
    // of the parent could have held but the allocator's, and those the C library resets.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => Ok(Side::Child),
        pid if pid > 0 => {
            let known = rustix::process::Pid::from_raw(pid).ok_or(Errno::SRCH)?;
            // The child is unreaped, so the id is still its own.
            let pidfd = rustix::process::pidfd_open(known, rustix::process::PidfdFlags::empty())?;
            Ok(Side::Parent {
                pid: pid.cast_unsigned(),
                pidfd,
            })
        }
        _ => Err(last_errno()),
    }
}

/// `struct clone_args` of the kernel, up to the control group.
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// `CLONE_INTO_CGROUP`; its constant in `libc` is too narrow.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `clone3(2)` like a fork, but a child of the caller's parent, with namespaces and, where given, into
/// the control group of that directory. Only from a single-threaded process.
pub(super) fn clone_process(
    namespaces: UnshareFlags,
    cgroup: Option<BorrowedFd<'_>>,
) -> Result<Side, Errno> {
    let mut pidfd: i32 = -1;
    let args = CloneArgs {
        flags: u64::from(namespaces.bits())
            | u64::from((libc::CLONE_PIDFD | libc::CLONE_PARENT).cast_unsigned())
            | cgroup.map_or(0, |_| CLONE_INTO_CGROUP),
        pidfd: std::ptr::from_mut(&mut pidfd) as u64,
        // The exit signal is the caller's own, and must not be named.
        exit_signal: 0,
        cgroup: cgroup.map_or(0, |group| u64::from(group.as_raw_fd().cast_unsigned())),
        ..CloneArgs::default()
    };
    // SAFETY: no CLONE_VM and no stack: the child has its own copy of all memory and continues here
    // on its own copy of this stack. The caller is single-threaded, so that copy is consistent. The
    // arguments are `struct clone_args` of the size given; the kernel writes one int to `pidfd`.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            std::ptr::from_ref(&args),
            size_of::<CloneArgs>(),
        )
    };
    match pid {
        0 => Ok(Side::Child),
        pid if pid > 0 => Ok(Side::Parent {
            pid: u32::try_from(pid).unwrap_or_default(),
            // SAFETY: the call succeeded, so the kernel stored a new descriptor nobody else owns.
            pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
        }),
        _ => Err(last_errno()),
    }
}

/// Keeps the caller on its core, where what it clones begins too: the caller is about to wait for it, and on another
/// core it may have to wait in turn. Gives where the caller could be before.
fn stay() -> Option<CpuSet> {
    let all = rustix::thread::sched_getaffinity(None).ok()?;
    let core = rustix::thread::sched_getcpu();
    let mut here = CpuSet::new();
    if core >= CpuSet::MAX_CPU || !all.is_set(core) {
        return None;
    }
    here.set(core);
    rustix::thread::sched_setaffinity(None, &here).ok()?;
    Some(all)
}

/// Bytes of stack for a process beside this one.
const BESIDE_STACK: usize = 64 << 10;

/// What a process beside this one is to do.
type Work<'a> = dyn FnMut() -> Result<(), Errno> + 'a;

/// What such a process starts with.
struct Task<'a, 'b> {
    work: &'a mut Work<'b>,
    parent: Option<rustix::process::Pid>,
    said: BorrowedFd<'a>,
}

/// A process that shares this one's memory and nothing else, has done its work, and does nothing any
/// more. It ends with the value.
#[derive(Debug)]
pub(super) struct Beside {
    pid: rustix::process::Pid,
    /// What it runs on, to be kept until it is gone.
    _stack: Vec<u128>,
}

impl Beside {
    /// Has `work` done by such a process, while this one waits: far cheaper than a fork. The work
    /// must not panic, allocate, or use a call of the C library that can fail: memory, and in it the
    /// place for error numbers, is shared. Only from a single-threaded process.
    ///
    /// # Errors
    /// When there can be no such process, and what the work gives.
    pub(super) fn run(work: &mut Work<'_>) -> Result<Self, Errno> {
        let (outcome, said) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let dumpable = rustix::process::dumpable_behavior()?;
        let mut stack = vec![0_u128; BESIDE_STACK / size_of::<u128>()];
        let mut task = Task {
            work,
            parent: Some(rustix::process::getpid()),
            said: said.as_fd(),
        };
        let anywhere = stay();
        // SAFETY: the stack is memory of our own, aligned, large enough, and kept until the process
        // is reaped; stacks grow down from its end. The task is used before the answer alone, for
        // which this frame waits, and by nobody else meanwhile. The process ends by a signal or by
        // `_exit` and never returns into frames of this one.
        let pid = unsafe {
            libc::clone(
                begin_beside,
                stack.as_mut_ptr_range().end.cast(),
                libc::CLONE_VM | libc::SIGCHLD,
                (&raw mut task).cast(),
            )
        };
        if let Some(cores) = anywhere {
            let _ = rustix::thread::sched_setaffinity(None, &cores);
        }
        let pid = match pid {
            pid if pid > 0 => rustix::process::Pid::from_raw(pid).ok_or(Errno::SRCH)?,
            _ => return Err(last_errno()),
        };
        let beside = Self { pid, _stack: stack };
        drop(said);
        let mut errno = [0; 1];
        let got = rustix::io::retry_on_intr(|| rustix::io::read(&outcome, &mut errno))?;
        // A change of identity over there has changed it for the memory that both share.
        rustix::process::set_dumpable_behavior(dumpable)?;
        match (got, errno) {
            (1, [0]) => Ok(beside),
            (1, [errno]) => Err(Errno::from_raw_os_error(errno.into())),
            _ => Err(Errno::SRCH),
        }
    }

    /// Its number.
    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // A child of ours that nobody else reaps, so the number is its own.
        let _ = rustix::process::kill_process(self.pid, rustix::process::Signal::KILL);
        let options = rustix::process::WaitOptions::empty();
        let _ = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(self.pid), options));
    }
}

/// What the process starts in.
extern "C" fn begin_beside(task: *mut libc::c_void) -> libc::c_int {
    let _bomb = Bomb;
    // SAFETY: it is the pointer that `Beside::run` passed, to a value that lives until it is answered
    // below and that nobody else uses until then.
    let task = unsafe { &mut *task.cast::<Task<'_, '_>>() };
    let deadly = Some(rustix::process::Signal::KILL);
    let done = (task.work)()
        // After the change of identity, which clears it.
        .and_then(|()| rustix::process::set_parent_process_death_signal(deadly));
    if rustix::process::getppid() != task.parent {
        end(0);
    }
    let errno = done.map_or_else(Errno::raw_os_error, |()| 0);
    let _ = rustix::io::write(task.said, &[errno as u8]);
    loop {
        rustix::event::pause();
    }
}

/// `unshare(2)` of namespaces alone.
pub(super) fn unshare(namespaces: UnshareFlags) -> Result<(), Errno> {
    debug_assert!(!namespaces.contains(UnshareFlags::FILES));
    // SAFETY: without FILES no descriptor can come to mean something else for another thread.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }
}

/// The ordinary scheduling policy, and no class of its own for input and output.
pub(super) fn reset_scheduling() -> Result<(), Errno> {
    const IOPRIO_WHO_PROCESS: libc::c_long = 1;
    let ordinary = libc::sched_param { sched_priority: 0 };
    // SAFETY: `ordinary` lives through the call, which reads it; the other call takes numbers alone.
    let answers = unsafe {
        [
            libc::c_long::from(libc::sched_setscheduler(
                0,
                libc::SCHED_OTHER,
                &raw const ordinary,
            )),
            libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, 0),
        ]
    };
    if answers.contains(&-1) {
        return Err(last_errno());
    }
    Ok(())
}

/// `close_range(2)`: closes every descriptor from `first` to `last`.
pub(super) fn close_range(first: u32, last: u32) -> Result<(), Errno> {
    // SAFETY: the caller owns the process's descriptors in that range and uses none of them again;
    // that is why this is not public.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Moves descriptors to the numbers a program expects them at, the first to 0 and so on; the last
/// `closing` of them close when that program starts. Everything above is closed now. The numbers
/// must not be owned by a value that is still to be dropped: only for a process about to execute.
pub(super) fn arrange(fds: &[BorrowedFd<'_>], closing: usize) -> Result<(), Errno> {
    let above = 64.max(fds.len() as i32);
    let high = fds
        .iter()
        .map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, above))
        .collect::<Result<Vec<_>, _>>()?;
    for (number, fd) in high.iter().enumerate() {
        let flags = if number + closing >= fds.len() {
            libc::O_CLOEXEC
        } else {
            0
        };
        // SAFETY: the caller vouches that nothing it will still drop owns the number.
        if unsafe { libc::dup3(fd.as_raw_fd(), number as i32, flags) } < 0 {
            return Err(last_errno());
        }
    }
    std::mem::forget(high);
    close_range(fds.len() as u32, u32::MAX)
}

/// Brings an interface up through a socket of its network namespace.
pub(super) fn interface_up(socket: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let bytes = name.to_bytes_with_nul();
    // SAFETY: an all-zero `ifreq` is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if bytes.len() > request.ifr_name.len() {
        return Err(Errno::INVAL);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = from.cast_signed();
    }
    for (call, set) in [(libc::SIOCGIFFLAGS, false), (libc::SIOCSIFFLAGS, true)] {
        if set {
            // SAFETY: the call before has filled the flags.
            unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
        }
        // SAFETY: the request is an `ifreq` with a NUL-terminated name, which is what both read and
        // write.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), call, &raw mut request) };
        if result != 0 {
            return Err(last_errno());
        }
    }
    Ok(())
}

/// Two descriptors by the numbers [`arrange`] gave them.
pub(super) fn borrow_numbers(
    first: i32,
    second: i32,
) -> (BorrowedFd<'static>, BorrowedFd<'static>) {
    // SAFETY: called right after `arrange`, which has put open descriptors there that stay open
    // until the process executes another program or ends.
    unsafe {
        (
            BorrowedFd::borrow_raw(first),
            BorrowedFd::borrow_raw(second),
        )
    }
}
