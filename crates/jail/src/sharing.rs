//! A child that shares its parent's memory until it executes a program or ends.
//!
//! Such a child costs no copy of page tables when it is made, no page fault when it goes on, and no
//! teardown when it executes a program, which gives it memory of its own. Two processes on one memory
//! also share its allocator and what the C library keeps for a thread; neither is made for that, so
//! they take turns ([`Turns`]). Descriptors, signal actions, credentials and directories are each one's
//! own from the start. What belongs to the memory, above all whether others may read it, is common.

#![allow(
    unsafe_code,
    reason = "a clone that shares memory, and descriptors that are another owner's in the child, have no safe form"
)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Pid;
use rustix::thread::futex;

use crate::sys::{PANICKED, close_all_but};

/// Bytes of stack of such a child. Only what it touches is memory.
const STACK: usize = 256 << 10;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and somebody waits for it.
const AWAITED: u32 = 2;

/// Whose turn it is with a memory that two processes share. Whoever has it may allocate and call the
/// C library; without it only single system calls that do neither. The kernel gives it back for a
/// child that executes a program or ends, however that comes.
#[derive(Debug)]
pub struct Turns(AtomicU32);

impl Turns {
    /// It is the maker's turn.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(TAKEN))
    }

    /// Waits for a turn.
    pub fn take(&self) {
        let order = (Ordering::Acquire, Ordering::Relaxed);
        let swap = |old, new| self.0.compare_exchange(old, new, order.0, order.1);
        let Err(mut seen) = swap(FREE, TAKEN) else {
            return;
        };
        loop {
            if seen == AWAITED || swap(TAKEN, AWAITED) != Err(FREE) {
                // Woken, interrupted, or no longer so: all are answered by looking again. Not private,
                // since the kernel's own wake-up at an exec is not.
                let _ = futex::wait(&self.0, futex::Flags::empty(), AWAITED, None);
            }
            match swap(FREE, AWAITED) {
                Ok(_) => return,
                Err(other) => seen = other,
            }
        }
    }

    /// Ends a turn.
    pub fn give(&self) {
        if self.0.swap(FREE, Ordering::Release) == AWAITED {
            let _ = futex::wake(&self.0, futex::Flags::empty(), 1);
        }
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self::new()
    }
}

/// What the child starts with.
struct Start<const N: usize, F> {
    fds: [RawFd; N],
    child: F,
}

/// Makes a child on this memory, which has the turn that the caller had; the caller takes part in
/// nothing that needs one until [`Turns::take`] is back. The child runs `child` with its own copies
/// of `fds` and the standard descriptors alone, and ends with its status, running nothing else of this
/// program; it must give its turn before it waits for anybody, and take it again. The caller's copies
/// are closed. To be called once, from a process of one thread that has the turn.
///
/// # Errors
/// As `clone(2)`; the turn is the caller's again then.
pub fn spawn_sharing<const N: usize, F>(
    turns: &'static Turns,
    fds: [OwnedFd; N],
    child: F,
) -> io::Result<Pid>
where
    F: FnOnce([OwnedFd; N]) -> u8 + 'static,
{
    let numbers = fds.each_ref().map(AsRawFd::as_raw_fd);
    // Both are the child's, which never comes back to free them.
    let stack = Box::leak(vec![0_u128; STACK / size_of::<u128>()].into_boxed_slice());
    let start = Box::into_raw(Box::new(Start {
        fds: numbers,
        child,
    }));
    let flags = libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID | libc::SIGCHLD;
    // SAFETY: the stack is aligned, large enough and never freed, and stacks grow down from its end.
    // The start is the child's alone from here on. Both processes take turns with everything else, and
    // the caller does not go on with more than this call's answer before the turn is given. The word
    // the kernel clears lives for ever.
    let pid = unsafe {
        libc::clone(
            begin::<N, F>,
            stack.as_mut_ptr_range().end.cast(),
            flags,
            start.cast(),
            std::ptr::null_mut::<libc::pid_t>(),
            std::ptr::null_mut::<libc::c_void>(),
            turns.0.as_ptr(),
        )
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // The child has a table of descriptors of its own.
    turns.take();
    drop(fds);
    Pid::from_raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN))
}

/// What the child starts in.
extern "C" fn begin<const N: usize, F>(start: *mut libc::c_void) -> libc::c_int
where
    F: FnOnce([OwnedFd; N]) -> u8 + 'static,
{
    // SAFETY: it is the pointer that `spawn_sharing` made of a box and used no more.
    let Start { fds, child } = *unsafe { Box::from_raw(start.cast::<Start<N, F>>()) };
    let mut keep = fds;
    keep.sort_unstable();
    let status = match close_all_but(&keep) {
        Ok(()) => {
            // SAFETY: the numbers are open in this process's own table, where nobody else owns them.
            let fds = fds.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
            catch_unwind(AssertUnwindSafe(|| child(fds))).unwrap_or(PANICKED)
        }
        Err(_) => PANICKED,
    };
    // SAFETY: ends the process without running what the parent registered for its own end.
    unsafe { libc::_exit(status.into()) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// What is read and written in two steps loses nothing, whoever waits for whom.
    #[test]
    fn one_at_a_time_has_the_turn() {
        const EACH: u64 = 20_000;
        let turns = Turns::new();
        let count = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        turns.take();
                        let seen = count.load(Ordering::Relaxed);
                        std::hint::black_box(seen);
                        count.store(seen + 1, Ordering::Relaxed);
                        turns.give();
                    }
                });
            }
            assert_eq!(count.load(Ordering::Relaxed), 0, "it is the maker's");
            turns.give();
        });
        assert_eq!(count.load(Ordering::Relaxed), 3 * EACH);
    }
}
