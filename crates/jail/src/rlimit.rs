//! Resource limits: the second net behind the control groups.
//!
//! A limit is never raised here: what the host allows is the upper end of each.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const MIB: u64 = 1 << 20;

/// Soft and hard limit of every process of a workload, besides those of a run.
const WORKLOAD: [(Resource, u64, u64); 6] = [
    (Resource::Memlock, 8 * MIB, 8 * MIB),
    (Resource::Msgqueue, 800 << 10, 800 << 10),
    (Resource::Sigpending, 4096, 4096),
    (Resource::Stack, 8 * MIB, 64 * MIB),
    (Resource::Rtprio, 0, 0),
    (Resource::Nice, 0, 0),
];

/// Lowers soft and hard limit of each to its value, as far as they are above it.
pub(crate) fn cap(rows: impl IntoIterator<Item = (Resource, u64)>) -> Result<(), Errno> {
    rows.into_iter()
        .try_for_each(|(resource, value)| lower(resource, value, value))
}

fn lower(resource: Resource, soft: u64, hard: u64) -> Result<(), Errno> {
    let allowed = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let limit = Rlimit {
        current: Some(soft.min(allowed)),
        maximum: Some(hard.min(allowed)),
    };
    setrlimit(resource, limit)
}

/// Lowers the limits that are the same for every workload.
///
/// # Errors
/// As `setrlimit(2)`.
pub fn workload() -> Result<(), Errno> {
    WORKLOAD
        .into_iter()
        .try_for_each(|(resource, soft, hard)| lower(resource, soft, hard))
}

/// Lowers the limits of one run: open files, and processor seconds as a second net (0 for none). At
/// the soft limit of seconds a process gets `SIGXCPU`, one second later `SIGKILL`.
///
/// # Errors
/// As `setrlimit(2)`.
pub fn run(files: u32, cpu_seconds: u32) -> Result<(), Errno> {
    lower(Resource::Nofile, files.into(), files.into())?;
    if cpu_seconds > 0 {
        lower(
            Resource::Cpu,
            cpu_seconds.into(),
            u64::from(cpu_seconds) + 1,
        )?;
    }
    Ok(())
}

/// No core dumps, not even to a program: exactly 1 is what the kernel takes for that, where 0 lets a
/// piped `core_pattern` run. Must come before the seccomp program, which refuses any further change.
///
/// # Errors
/// When the limit cannot become 1 and the kernel's pattern is a pipe or socket, or cannot be read.
pub fn no_core_dumps() -> io::Result<()> {
    let one = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    let Err(refused) = setrlimit(Resource::Core, one) else {
        return Ok(());
    };
    // The hard limit is 0 already and may not be raised: harmless while dumps go to files.
    let pattern = std::fs::read("/proc/sys/kernel/core_pattern")?;
    match pattern.first() {
        Some(b'|' | b'@') => Err(refused.into()),
        _ => Ok(()),
    }
}
