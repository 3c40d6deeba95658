//! Writing limits into the files of a group, on either version.

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::locate::Controller;
use super::{CgroupError, Controls, Tree, file};

/// Length of a processor quota's period in microseconds, the kernel's default. With it the least
/// share of 10 thousandths is the least quota the kernel takes, 1,000 µs. The kernel looks once a
/// tick, so a group can overrun by a tick on each core (4 ms at 250 Hz); it pays that back in the
/// next periods, so that the overrun is a constant and not a share. Another period would not lessen it.
pub(super) const CPU_PERIOD_MICROS: u64 = 100_000;

/// v1: the counter of network buffers, which the limit of memory does not hold. Without a limit of
/// its own the kernel does not count them at all, and one group can use up what all TCP and UDP of
/// the host may have.
pub(super) const SOCKETS: &CStr = c"memory.kmem.tcp.limit_in_bytes";
/// Network buffers are this part of the memory limit, on top of it, and at least so many bytes.
const SOCKETS_SHARE: u64 = 8;
const SOCKETS_MIN: u64 = 4 << 20;

/// Limits of one group. What is `None` is not touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupLimits {
    /// Bytes of memory, swap none. The kernel rounds down to whole pages.
    pub memory_bytes: Option<u64>,
    /// Processes and threads, all of them: a caller adds those of its own (init and stub).
    pub pids: Option<u32>,
    /// Processor share in thousandths of a core, from 10.
    pub cpu_milli: Option<u32>,
}

impl GroupLimits {
    /// Refuses what cannot be held here (invariant I6).
    pub(super) fn check(&self, controls: &Controls) -> Result<(), CgroupError> {
        let rows = [
            ("memory", self.memory_bytes.is_some() && !controls.memory),
            ("pids", self.pids.is_some() && !controls.pids),
            ("cpu", self.cpu_milli.is_some() && !controls.cpu),
        ];
        match rows.into_iter().find(|(_, lacking)| *lacking) {
            Some((control, _)) => Err(CgroupError::NotHere {
                control,
                reason: controls.reason(control).to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Writes what belongs to this hierarchy.
    pub(super) fn apply(&self, tree: &Tree, dir: BorrowedFd<'_>) -> Result<(), CgroupError> {
        if let Some(bytes) = self
            .memory_bytes
            .filter(|_| tree.set.has(Controller::Memory))
        {
            set_memory(tree, dir, bytes)?;
        }
        if let Some(most) = self.pids.filter(|_| tree.set.has(Controller::Pids)) {
            number(dir, c"pids.max", "pids.max", most.into())?;
        }
        if let Some(milli) = self.cpu_milli.filter(|_| tree.set.has(Controller::Cpu)) {
            set_cpu(tree, dir, milli)?;
        }
        Ok(())
    }
}

/// Quota for one period.
fn quota_micros(milli: u32) -> u64 {
    u64::from(milli).max(10) * CPU_PERIOD_MICROS / 1_000
}

fn refused(file: &'static str, value: u64, source: Errno) -> CgroupError {
    CgroupError::Limit {
        file,
        value,
        source: io::Error::from(source),
    }
}

fn number(
    dir: BorrowedFd<'_>,
    name: &CStr,
    word: &'static str,
    value: u64,
) -> Result<(), CgroupError> {
    file::write_number(dir, name, value).map_err(|error| refused(word, value, error))
}

fn set_memory(tree: &Tree, dir: BorrowedFd<'_>, bytes: u64) -> Result<(), CgroupError> {
    if tree.v2 {
        return number(dir, c"memory.max", "memory.max", bytes);
    }
    const LIMIT: &CStr = c"memory.limit_in_bytes";
    const BOTH: &CStr = c"memory.memsw.limit_in_bytes";
    match file::write_number(dir, LIMIT, bytes) {
        // Memory may not exceed memory and swap together: when raising, those two go first.
        Err(Errno::INVAL) if tree.swap => {
            number(dir, BOTH, "memory.memsw.limit_in_bytes", bytes)?;
            return number(dir, LIMIT, "memory.limit_in_bytes", bytes);
        }
        other => other.map_err(|error| refused("memory.limit_in_bytes", bytes, error))?,
    }
    if tree.swap {
        number(dir, BOTH, "memory.memsw.limit_in_bytes", bytes)?;
    }
    match file::write_number(dir, SOCKETS, (bytes / SOCKETS_SHARE).max(SOCKETS_MIN)) {
        // A kernel without it counts no network buffers in v1.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(refused("memory.kmem.tcp.limit_in_bytes", bytes, error)),
    }
}

fn set_cpu(tree: &Tree, dir: BorrowedFd<'_>, milli: u32) -> Result<(), CgroupError> {
    let quota = quota_micros(milli);
    if tree.v2 {
        // One number keeps the period, and the period of a new group is CPU_PERIOD_MICROS.
        number(dir, c"cpu.max", "cpu.max", quota)
    } else {
        number(dir, c"cpu.cfs_quota_us", "cpu.cfs_quota_us", quota)
    }
}

/// What a new group needs beside its limits: on v2 an out-of-memory kill takes the whole group.
pub(super) fn finish_new(tree: &Tree, dir: BorrowedFd<'_>) -> Result<(), CgroupError> {
    if !tree.v2 || !tree.set.has(Controller::Memory) {
        return Ok(());
    }
    match file::write(dir, c"memory.oom.group", b"1") {
        // Before Linux 4.19 the supervisor's watch does it, as on v1.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(refused("memory.oom.group", 1, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_shares_of_the_period_and_never_below_what_the_kernel_takes() {
        for (milli, quota) in [(0, 1_000), (10, 1_000), (250, 25_000), (1_500, 150_000)] {
            assert_eq!(quota_micros(milli), quota);
        }
        assert_eq!(quota_micros(u32::MAX), 429_496_729_500);
    }

    #[test]
    fn i6_a_limit_that_cannot_be_held_is_refused_and_one_that_nobody_asked_is_not() {
        let controls = Controls {
            pids: true,
            ..Controls::default()
        };
        let pids = GroupLimits {
            pids: Some(5),
            ..GroupLimits::default()
        };
        assert!(pids.check(&controls).is_ok());
        assert!(GroupLimits::default().check(&controls).is_ok());
        let memory = GroupLimits {
            memory_bytes: Some(1 << 20),
            ..pids
        };
        let refused = memory.check(&controls).unwrap_err().to_string();
        assert!(refused.starts_with("limit `memory` cannot be enforced here: "));
    }
}
