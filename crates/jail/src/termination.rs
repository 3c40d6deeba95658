//! Requests to end, as a descriptor an event loop can wait for. Decides nothing about them.

#![allow(
    unsafe_code,
    reason = "the signal mask and signalfd have no safe binding"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

/// Blocks `SIGTERM`, `SIGINT` and `SIGHUP` and gives a descriptor that becomes readable when one of
/// them comes. It does not block and is close-on-exec. Children inherit the blocked mask, so whatever
/// they become must reset it.
///
/// # Errors
/// As `sigprocmask(2)` and `signalfd(2)`.
pub fn termination_events() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initializes the set before anything reads it; all pointers live through
    // the calls, and the old mask is not asked for.
    let number = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        let set = set.assume_init();
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave this descriptor to us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
