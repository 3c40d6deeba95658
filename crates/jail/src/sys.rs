//! System calls that have no safe form elsewhere: fork, exec, inherited descriptors, signals.
//!
//! Each function does one call, decides nothing and keeps no state.

#![allow(
    unsafe_code,
    reason = "these calls have no safe binding: raw descriptors, fork, exec, signal actions"
)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::Pid;

/// Status of a forked child whose code panicked.
pub(crate) const PANICKED: u8 = 101;

/// Highest signal number of Linux.
pub const SIGNAL_MAX: i32 = 64;

/// Bytes of the kernel's signal set.
const SIGNAL_SET_BYTES: usize = 8;

fn check(answer: libc::c_long) -> io::Result<libc::c_long> {
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}

/// Takes a descriptor that came through exec. To be called once per number, at the start of the
/// program, before anything else can have opened it.
///
/// # Errors
/// `EBADF` when there is none.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: `fcntl(F_GETFD)` touches no memory.
    check(unsafe { libc::fcntl(number, libc::F_GETFD) }.into())?;
    // SAFETY: the descriptor is open, and the caller is its only owner by contract.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Forks. The child runs `child` with the standard descriptors and those of `keep` alone (the others
/// are closed there) and ends with its status, running nothing else of this program. To be called
/// from a process of one thread; `child` must use no descriptor outside `keep`.
///
/// # Errors
/// As `fork(2)`.
pub fn spawn_child(keep: &[impl AsRawFd], child: impl FnOnce() -> u8) -> io::Result<Pid> {
    let mut keep: Vec<RawFd> = keep.iter().map(AsRawFd::as_raw_fd).collect();
    keep.sort_unstable();
    // SAFETY: with one thread no lock is held by another, so the child may go on in full.
    let pid = unsafe { libc::fork() };
    if pid != 0 {
        let pid = check(pid.into())?;
        // A successful fork gives a positive number.
        return Pid::from_raw(pid as i32).ok_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN));
    }
    let status = match close_all_but(&keep) {
        Ok(()) => catch_unwind(AssertUnwindSafe(child)).unwrap_or(PANICKED),
        Err(_) => PANICKED,
    };
    // SAFETY: ends the process without running what the parent registered for its own end.
    unsafe { libc::_exit(status.into()) }
}

/// Closes everything above the standard descriptors but the given ones, sorted.
pub(crate) fn close_all_but(keep: &[RawFd]) -> io::Result<()> {
    let mut first = 3;
    for number in keep.iter().copied().filter(|number| *number >= 3) {
        if number > first {
            close_range(first, number - 1, 0)?;
        }
        first = first.max(number + 1);
    }
    close_range(first, RawFd::MAX, 0)
}

fn close_range(first: RawFd, last: RawFd, flags: u32) -> io::Result<()> {
    // SAFETY: only called in a fresh child or program for descriptors nobody there uses, or to set a
    // flag.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first as libc::c_uint,
            last as libc::c_uint,
            flags,
        )
    };
    check(answer).map(drop)
}

/// Marks every descriptor from `first` on close-on-exec.
///
/// # Errors
/// As `close_range(2)`.
pub fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    close_range(first, RawFd::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

/// Closes every descriptor above the standard ones that came through exec. To be called at the start
/// of the program, before anything else can have opened one.
///
/// # Errors
/// As `close_range(2)`.
pub fn close_inherited() -> io::Result<()> {
    close_range(3, RawFd::MAX, 0)
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

/// Becomes the program at `path`. Comes back only with the reason it could not.
#[must_use]
pub fn exec(path: &CStr, argv: &[CString], env: &[CString]) -> io::Error {
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both lists end with null and live until the call comes back.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Becomes the program behind a descriptor. Comes back only with the reason it could not.
#[must_use]
pub fn exec_fd(program: BorrowedFd<'_>, argv: &[CString], env: &[CString]) -> io::Error {
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: the path is a C string, both lists end with null, and all live until the call is back.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            env.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Puts a copy of `from` at the descriptor number `to`, not close-on-exec. To be called between fork
/// and exec, where nobody else uses the number.
///
/// # Errors
/// As `dup2(2)`.
pub fn place(from: BorrowedFd<'_>, to: RawFd) -> io::Result<()> {
    // SAFETY: these calls touch no memory; by contract nobody owns `to`.
    unsafe {
        if from.as_raw_fd() == to {
            return check(libc::fcntl(to, libc::F_SETFD, 0).into()).map(drop);
        }
        check(libc::dup2(from.as_raw_fd(), to).into()).map(drop)
    }
}

/// Every signal back to its default action, and none blocked.
///
/// # Errors
/// As `rt_sigaction(2)` and `rt_sigprocmask(2)`.
pub fn reset_signals() -> io::Result<()> {
    // The kernel's own structure, longer than any of its forms: default action, no flags, empty mask.
    // The library's call would leave out its own two signals, which can have been inherited ignored.
    let default = [0u64; 4];
    for number in
        (1..=SIGNAL_MAX).filter(|number| !matches!(*number, libc::SIGKILL | libc::SIGSTOP))
    {
        // SAFETY: `default` is a whole structure with the default action and lives through the call.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                libc::c_long::from(number),
                default.as_ptr(),
                std::ptr::null::<u64>(),
                SIGNAL_SET_BYTES,
            )
        };
        check(answer)?;
    }
    change_mask(libc::SIG_SETMASK, &[])
}

/// Ignores `SIGPIPE`, as the runtime of this language does at its start: a broken pipe is an error
/// then, and no end.
///
/// # Errors
/// As `sigaction(2)`.
pub fn ignore_broken_pipes() -> io::Result<()> {
    // SAFETY: sets a disposition that runs no code of ours.
    if unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn change_mask(how: libc::c_int, signals: &[i32]) -> io::Result<()> {
    let set = signal_set(signals);
    // SAFETY: `set` is initialized and lives through the call.
    check(unsafe { libc::sigprocmask(how, &raw const set, std::ptr::null_mut()) }.into()).map(drop)
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initializes the set before it is read.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in signals {
            libc::sigaddset(set.as_mut_ptr(), *number);
        }
        set.assume_init()
    }
}

/// Blocks `SIGCHLD` and gives a descriptor that becomes readable when a child changes state. It does
/// not block and is close-on-exec.
///
/// # Errors
/// As `signalfd(2)`.
pub fn child_events() -> io::Result<OwnedFd> {
    change_mask(libc::SIG_BLOCK, &[libc::SIGCHLD])?;
    let set = signal_set(&[libc::SIGCHLD]);
    // SAFETY: `set` is initialized and lives through the call.
    let number =
        unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    check(number.into())?;
    // SAFETY: the kernel just gave this descriptor to us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Sends a signal by raw number, so that real-time signals can be sent too. `target` is as in
/// `kill(2)`: negative for a group, -1 for everything that may be signalled.
///
/// # Errors
/// As `kill(2)`.
pub fn kill(target: i32, signal: i32) -> io::Result<()> {
    // SAFETY: touches no memory.
    check(unsafe { libc::kill(target, signal) }.into()).map(drop)
}

/// A session keyring of its own, empty. `Ok(false)` where the kernel has no keyrings.
///
/// # Errors
/// As `keyctl(2)`.
pub fn fresh_session_keyring() -> io::Result<bool> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for an anonymous keyring.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            JOIN_SESSION_KEYRING,
            std::ptr::null::<libc::c_char>(),
        )
    };
    match check(answer) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The ordinary execution domain, whatever was inherited.
///
/// # Errors
/// As `personality(2)`.
pub fn reset_personality() -> io::Result<()> {
    // SAFETY: touches no memory.
    check(unsafe { libc::personality(0) }.into()).map(drop)
}
