//! How soon a thread of ours that waits is on a core again.
//!
//! A scheduler gives whoever computes its whole slice, some milliseconds, before another has a turn there. Who is woken
//! with a shorter slice of its own comes first (Linux 6.12 and later). The threads that carry a run's output and its end
//! need a core for microseconds and often; without this they wait behind the very command that they tell of, where the kernel
//! puts them on its core.

#![allow(
    unsafe_code,
    reason = "reading and setting a thread's scheduling attributes has no safe binding"
)]

use std::io;

/// The slice asked for, in nanoseconds: the least that the kernel takes.
const SLICE_NANOS: u64 = 100_000;

/// `struct sched_attr`, first version.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Bytes of [`Attributes`], which every kernel knows.
const SIZE: u32 = size_of::<Attributes>() as u32;

impl Attributes {
    /// Those of this thread.
    fn read() -> io::Result<Self> {
        let mut found = Self::default();
        // SAFETY: the kernel writes at most `SIZE` bytes, which is what there is.
        let answer =
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut found, SIZE, 0_u32) };
        match answer {
            0 => Ok(found),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn set(&self) -> io::Result<()> {
        // SAFETY: the kernel reads `size` bytes of it, and changes it at most.
        let answer = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *self, 0_u32) };
        match answer {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Gives this thread a slice of 0.1 ms, so that it has its turn soon when it is woken; it has no more of a core
/// than before. Its children and threads begin with the slice of everybody, and with no better niceness than that. A thread whose policy somebody chose stays as
/// it is. Older kernels take it and do nothing.
///
/// # Errors
/// When the kernel refuses; nothing is lost but time.
pub fn be_prompt() -> io::Result<()> {
    let found = Attributes::read()?;
    if found.policy != libc::SCHED_OTHER.cast_unsigned() {
        return Ok(());
    }
    Attributes {
        size: SIZE,
        flags: found.flags | libc::SCHED_FLAG_RESET_ON_FORK as u64,
        runtime: SLICE_NANOS,
        ..found
    }
    .set()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_thread_has_a_short_slice_and_its_threads_have_not() {
        let before = Attributes::read().unwrap();
        let (prompt, heir) = std::thread::spawn(|| {
            be_prompt().unwrap();
            let heir = std::thread::spawn(|| Attributes::read().unwrap());
            (Attributes::read().unwrap(), heir.join().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!(
            (prompt.policy, prompt.nice),
            (before.policy, before.nice),
            "nothing else changes"
        );
        assert_eq!((heir.runtime, heir.flags), (before.runtime, before.flags));
        if prompt.runtime == 0 && before.runtime == 0 {
            eprintln!("SKIP a short slice: this kernel tells of none");
            return;
        }
        assert_eq!(prompt.runtime, SLICE_NANOS);
        assert_ne!(before.runtime, SLICE_NANOS);
    }

    #[test]
    fn a_thread_whose_policy_was_chosen_keeps_it() {
        let found = std::thread::spawn(|| {
            Attributes {
                size: SIZE,
                policy: libc::SCHED_BATCH.cast_unsigned(),
                ..Attributes::default()
            }
            .set()
            .unwrap();
            let before = Attributes::read().unwrap();
            be_prompt().unwrap();
            (before, Attributes::read().unwrap())
        });
        let (before, after) = found.join().unwrap();
        assert_eq!(
            (before.policy, before.runtime, before.flags),
            (after.policy, after.runtime, after.flags)
        );
    }
}
