//! A child for attempts that cannot be undone.

#![allow(unsafe_code, reason = "memory shared with the child, raw system calls")]

use leasehold_jail::sys;
use rustix::process::WaitOptions;

/// How a child ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Status(i32),
    Signal(i32),
}

/// Runs `act` in a child and waits for it.
pub(crate) fn child(act: impl FnOnce() -> u8) -> Ended {
    let none: [i32; 0] = [];
    let pid = sys::spawn_child(&none, act).unwrap();
    let (_, status) = rustix::process::waitpid(Some(pid), WaitOptions::empty())
        .unwrap()
        .unwrap();
    match status.terminating_signal() {
        Some(signal) => Ended::Signal(signal),
        None => Ended::Status(status.exit_status().unwrap()),
    }
}

/// Numbers that a child can leave for its parent.
pub(crate) struct Shared(*mut i64);

impl Shared {
    pub(crate) const LEN: usize = 4096;

    pub(crate) fn new() -> Self {
        // SAFETY: a fresh anonymous mapping.
        let place = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Self::LEN * size_of::<i64>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(place, libc::MAP_FAILED);
        Self(place.cast())
    }

    pub(crate) fn set(&self, at: usize, value: i64) {
        assert!(at < Self::LEN);
        // SAFETY: within the mapping; the parent reads when the child is gone.
        unsafe { self.0.add(at).write_volatile(value) }
    }

    pub(crate) fn get(&self, at: usize) -> i64 {
        assert!(at < Self::LEN);
        // SAFETY: within the mapping.
        unsafe { self.0.add(at).read_volatile() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.0.cast(), Self::LEN * size_of::<i64>()) };
    }
}

/// A raw system call: its answer, or the negative error number.
pub(crate) fn call(nr: i64, args: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = args;
    // SAFETY: either the call is answered by a filter, or the caller gives it what it wants.
    let answer = unsafe { libc::syscall(nr, a, b, c, d, e, f) };
    if answer == -1 {
        -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        answer
    }
}

/// Runs `act` in a child and gives the number it came to; `i64::MIN` when it came to none.
pub(crate) fn answer(act: impl FnOnce() -> i64) -> i64 {
    let shared = Shared::new();
    shared.set(0, i64::MIN);
    let ended = child(|| {
        shared.set(0, act());
        0
    });
    assert!(
        matches!(ended, Ended::Status(0) | Ended::Signal(_)),
        "{ended:?}"
    );
    shared.get(0)
}
