//! What a group used and which of its limits were felt.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::fs::OFlags;

use super::file;
use super::group::Group;
use super::locate::Controller;

/// Files of counts that the end of a sandbox needs.
const PEAK_V1: &CStr = c"memory.max_usage_in_bytes";
const PEAK_V2: &CStr = c"memory.peak";
const EVENTS_V1: &CStr = c"memory.oom_control";
const EVENTS_V2: &CStr = c"memory.events";
const CPU: &CStr = c"cpu.stat";
const PIDS: &CStr = c"pids.events";

/// What a group uses. A field is absent where this host cannot count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupUsage {
    /// Bytes of memory now.
    pub memory_bytes: Option<u64>,
    /// Most bytes of memory at any time.
    pub memory_peak_bytes: Option<u64>,
    /// Processor time used, in microseconds.
    pub cpu_micros: Option<u64>,
    /// Time its processes had to wait because of the quota, in microseconds, over all cores.
    pub throttled_micros: Option<u64>,
    /// Processes and threads now.
    pub pids: Option<u64>,
}

/// How often limits were felt. 0 where this host cannot tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupEvents {
    /// Processes the kernel killed for memory.
    pub oom_kills: u64,
    /// How often memory reached its limit and had to be reclaimed first; `None` on v1 when it reads 0,
    /// since some kernels do not count there, and when nothing was killed. With `oom_kills` above and this at 0, the host ran out
    /// and not the sandbox.
    pub memory_hits: Option<u64>,
    /// Forks and threads denied by the pids limit.
    pub pids_denied: u64,
}

/// A descriptor that becomes ready when the group ran out of memory. On v2 it also becomes ready
/// when memory merely reached its limit: ask [`Group::events`] then.
#[derive(Debug)]
pub struct OomWatch {
    descriptor: OwnedFd,
    v2: bool,
}

impl OomWatch {
    /// What to wait for: on v1 `POLLIN` (the descriptor is an eventfd), on v2 `POLLPRI` (it is
    /// `memory.events`, which is always readable and also reports `POLLERR` with each change). Level
    /// triggered: ready until [`OomWatch::rearm`].
    #[must_use]
    pub fn interest(&self) -> PollFlags {
        if self.v2 {
            PollFlags::PRI
        } else {
            PollFlags::IN
        }
    }

    /// Takes the notice, so that only a later one makes it ready again. Never blocks.
    pub fn rearm(&self) {
        if self.v2 {
            let _ = file::read_open(self.descriptor.as_fd());
        } else {
            let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
        }
    }
}

impl AsFd for OomWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Group {
    fn number(&self, dir: BorrowedFd<'_>, name: &CStr) -> Option<u64> {
        self.read(dir, name).ok()?.number()
    }

    /// Opens the files that [`Group::usage_so_far`] and [`Group::events`] read, while a command is
    /// about to start and nobody waits: at its end each call is time before its outcome is known. Up
    /// to five descriptors, until the group is dropped. Idempotent.
    pub fn keep_counts(&mut self) {
        if self.keeps_counts() {
            return;
        }
        let v2 = |group: &Self, of| group.with(of).map(|(tree, _)| tree.v2);
        match v2(self, Controller::Memory) {
            Some(true) => self.keep_open(Some(Controller::Memory), &[PEAK_V2, EVENTS_V2]),
            Some(false) => self.keep_open(Some(Controller::Memory), &[PEAK_V1, EVENTS_V1]),
            None => {}
        }
        self.keep_open(None, &[CPU]);
        if v2(self, Controller::Cpu) == Some(false) {
            self.keep_open(Some(Controller::Cpu), &[CPU]);
        }
        self.keep_open(Some(Controller::Pids), &[PIDS]);
    }

    /// Counts as of now.
    #[must_use]
    pub fn usage(&self) -> GroupUsage {
        let mut usage = self.usage_so_far();
        if let Some((tree, dir)) = self.with(Controller::Memory) {
            let now = if tree.v2 {
                c"memory.current"
            } else {
                c"memory.usage_in_bytes"
            };
            usage.memory_bytes = self.number(dir, now);
        }
        if let Some((_, dir)) = self.with(Controller::Pids) {
            usage.pids = self.number(dir, c"pids.current");
        }
        usage
    }

    /// Counts that only grow: [`Group::usage`] without what is in use at this moment, for the end of
    /// a sandbox, where each file read is time before its outcome is known.
    #[must_use]
    pub fn usage_so_far(&self) -> GroupUsage {
        let mut usage = GroupUsage {
            cpu_micros: self.cpu_micros(),
            ..GroupUsage::default()
        };
        if let Some((tree, dir)) = self.with(Controller::Memory) {
            let peak = if tree.v2 { PEAK_V2 } else { PEAK_V1 };
            usage.memory_peak_bytes = self.number(dir, peak);
        }
        if let Some((tree, dir)) = self.with(Controller::Cpu)
            && let Ok(text) = self.read(dir, CPU)
        {
            usage.throttled_micros = if tree.v2 {
                text.value_of("throttled_usec")
            } else {
                text.value_of("throttled_time").map(|nanos| nanos / 1_000)
            };
        }
        usage
    }

    /// Processor time alone, in microseconds: one file, for a watch that asks often.
    #[must_use]
    pub fn cpu_micros(&self) -> Option<u64> {
        let v2 = self.v2().and_then(|dir| {
            let text = self.read(dir, CPU).ok()?;
            text.value_of("usage_usec")
        });
        v2.or_else(|| {
            let (_, dir) = self.with(Controller::Cpuacct)?;
            Some(self.number(dir, c"cpuacct.usage")? / 1_000)
        })
    }

    /// How often limits were felt so far.
    #[must_use]
    pub fn events(&self) -> GroupEvents {
        let mut events = GroupEvents::default();
        if let Some((tree, dir)) = self.with(Controller::Memory) {
            if tree.v2 {
                if let Ok(text) = self.read(dir, EVENTS_V2) {
                    events.oom_kills = text.value_of("oom_kill").unwrap_or(0);
                    events.memory_hits = text.value_of("max");
                }
            } else {
                if let Ok(text) = self.read(dir, EVENTS_V1) {
                    events.oom_kills = text.value_of("oom_kill").unwrap_or(0);
                }
                if events.oom_kills > 0 {
                    // With both limits equal the one over memory and swap is felt first.
                    let both = self.number(dir, c"memory.memsw.failcnt").unwrap_or(0);
                    let alone = self.number(dir, c"memory.failcnt").unwrap_or(0);
                    events.memory_hits = Some(both.max(alone)).filter(|count| *count > 0);
                }
            }
        }
        if let Some((_, dir)) = self.with(Controller::Pids)
            && let Ok(text) = self.read(dir, PIDS)
        {
            events.pids_denied = text.value_of("max").unwrap_or(0);
        }
        events
    }

    /// A descriptor to wait on for running out of memory; `None` where memory is not held here or the
    /// kernel offers no notice.
    #[must_use]
    pub fn oom_watch(&self) -> Option<OomWatch> {
        let (tree, dir) = self.with(Controller::Memory)?;
        if tree.v2 {
            let descriptor = file::open(dir, c"memory.events", OFlags::RDONLY).ok()?;
            file::read_open(descriptor.as_fd()).ok()?;
            return Some(OomWatch {
                descriptor,
                v2: true,
            });
        }
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        let control = file::open(dir, c"memory.oom_control", OFlags::RDONLY).ok()?;
        let order = format!(
            "{} {}",
            std::os::fd::AsRawFd::as_raw_fd(&descriptor),
            std::os::fd::AsRawFd::as_raw_fd(&control)
        );
        file::write(dir, c"cgroup.event_control", order.as_bytes()).ok()?;
        Some(OomWatch {
            descriptor,
            v2: false,
        })
    }
}
