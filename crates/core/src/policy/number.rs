//! The numbers a policy can bound: one closed table with place, unit and bounds.

use crate::document::Field;
use crate::limits::Resource;

/// A number that a policy can bound. In all of them less is more restrictive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Number {
    /// Processor share, thousandths of a core.
    Cpu,
    /// Memory, bytes.
    Memory,
    /// Disk, bytes.
    Disk,
    /// Files and directories.
    Inodes,
    /// Processes and threads.
    Pids,
    /// Open files of one process.
    Files,
    /// Wall time, milliseconds.
    Wall,
    /// Processor time, milliseconds.
    CpuTime,
    /// From TERM to KILL, milliseconds.
    Grace,
    /// Kept output of each stream, bytes.
    Output,
    /// Runs of a tenant at once.
    Running,
    /// Runs of one tool of a tenant at once.
    ToolRunning,
    /// Waiting runs of a tenant.
    Queued,
    /// Bytes of the requests of a tenant's runs that wait or run.
    RequestBytes,
    /// Runs admitted in a minute.
    PerMinute,
    /// Weight in fair queueing.
    Weight,
    /// Highest priority a caller may ask for.
    Priority,
    /// Longest wait for a computer, milliseconds.
    MaxWait,
    /// From lease to forced end, milliseconds.
    HardDeadline,
    /// Longest time without use, milliseconds.
    IdleTimeout,
    /// Of the lease before it is renewed, milliseconds.
    Lease,
    /// Of a credential, milliseconds.
    Credentials,
    /// Kept output streams, milliseconds.
    Logs,
    /// Kept artifacts, milliseconds.
    Artifacts,
    /// Kept records and evidence, milliseconds.
    Record,
}

/// How a number is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Cores, kept in thousandths.
    Cores,
    /// A size, kept in bytes.
    Bytes,
    /// A duration, kept in milliseconds.
    Millis,
    /// A whole number.
    Count,
}

const SECOND: u64 = 1_000;
const DAY: u64 = 86_400 * SECOND;
const TEN_YEARS: u64 = 3_650 * DAY;
const MOST_BYTES: u64 = 1 << 50;

impl Number {
    /// Every number, in the order documents are written.
    pub const ALL: [Self; 25] = [
        Self::Cpu,
        Self::Memory,
        Self::Disk,
        Self::Inodes,
        Self::Pids,
        Self::Files,
        Self::Wall,
        Self::CpuTime,
        Self::Grace,
        Self::Output,
        Self::Running,
        Self::ToolRunning,
        Self::Queued,
        Self::RequestBytes,
        Self::PerMinute,
        Self::Weight,
        Self::Priority,
        Self::MaxWait,
        Self::HardDeadline,
        Self::IdleTimeout,
        Self::Lease,
        Self::Credentials,
        Self::Logs,
        Self::Artifacts,
        Self::Record,
    ];

    /// Where it stands in a document: section and field.
    #[must_use]
    pub fn place(self) -> (&'static str, &'static str) {
        match self {
            Self::Cpu => ("limits", "cpu"),
            Self::Memory => ("limits", "memory"),
            Self::Disk => ("limits", "disk"),
            Self::Inodes => ("limits", "inodes"),
            Self::Pids => ("limits", "pids"),
            Self::Files => ("limits", "files"),
            Self::Wall => ("limits", "timeout"),
            Self::CpuTime => ("limits", "cpu_time"),
            Self::Grace => ("limits", "grace"),
            Self::Output => ("limits", "output"),
            Self::Running => ("share", "running"),
            Self::ToolRunning => ("share", "tool_running"),
            Self::Queued => ("share", "queued"),
            Self::RequestBytes => ("share", "request_bytes"),
            Self::PerMinute => ("share", "per_minute"),
            Self::Weight => ("share", "weight"),
            Self::Priority => ("share", "priority"),
            Self::MaxWait => ("share", "max_wait"),
            Self::HardDeadline => ("lifetimes", "hard_deadline"),
            Self::IdleTimeout => ("lifetimes", "idle_timeout"),
            Self::Lease => ("lifetimes", "lease"),
            Self::Credentials => ("lifetimes", "credentials"),
            Self::Logs => ("retention", "logs"),
            Self::Artifacts => ("retention", "artifacts"),
            Self::Record => ("retention", "record"),
        }
    }

    /// `limits.memory` and so on.
    #[must_use]
    pub fn path(self) -> String {
        let (section, field) = self.place();
        format!("{section}.{field}")
    }

    /// How it is written.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Self::Cpu => Unit::Cores,
            Self::Memory | Self::Disk | Self::Output | Self::RequestBytes => Unit::Bytes,
            Self::Inodes
            | Self::Pids
            | Self::Files
            | Self::Running
            | Self::ToolRunning
            | Self::Queued
            | Self::PerMinute
            | Self::Weight
            | Self::Priority => Unit::Count,
            Self::Wall
            | Self::CpuTime
            | Self::Grace
            | Self::MaxWait
            | Self::HardDeadline
            | Self::IdleTimeout
            | Self::Lease
            | Self::Credentials
            | Self::Logs
            | Self::Artifacts
            | Self::Record => Unit::Millis,
        }
    }

    /// Least and most.
    #[must_use]
    pub fn bounds(self) -> (u64, u64) {
        match self {
            Self::Cpu => (10, 1_024_000),
            Self::Memory => (8 << 20, MOST_BYTES),
            Self::Disk => (64 << 10, MOST_BYTES),
            Self::Output | Self::RequestBytes => (0, MOST_BYTES),
            Self::Inodes => (16, 1 << 32),
            Self::Pids => (1, 1_000_000),
            Self::Files => (16, 1 << 20),
            Self::Wall | Self::CpuTime => (1, TEN_YEARS),
            Self::Grace => (0, 3_600 * SECOND),
            Self::Running | Self::ToolRunning | Self::Queued => (0, 1_000_000),
            Self::PerMinute => (0, 10_000_000),
            Self::Weight => (1, 1_000),
            Self::Priority => (0, 1_000),
            Self::MaxWait => (0, DAY),
            Self::HardDeadline | Self::IdleTimeout | Self::Lease => (SECOND, TEN_YEARS),
            Self::Credentials => (SECOND, DAY),
            Self::Logs | Self::Artifacts | Self::Record => (0, TEN_YEARS),
        }
    }

    /// Whether it says how tenants stand to each other, so that the operator alone may say it.
    #[must_use]
    pub fn between_tenants(self) -> bool {
        self == Self::Weight
    }

    /// What holds where nobody says anything; `None` is no bound.
    #[must_use]
    pub fn unsaid(self) -> Option<u64> {
        (self == Self::Weight).then_some(1)
    }

    /// Reads it from a field, within its bounds.
    #[must_use]
    pub fn read(self, field: &Field<'_>) -> Option<u64> {
        let (low, high) = self.bounds();
        match self.unit() {
            Unit::Cores => field.cpu().map(u64::from),
            Unit::Bytes => field.bytes(low, high),
            Unit::Millis => field.millis(low, high),
            Unit::Count => field.count(low, high),
        }
    }

    /// Every number of one section, such as `limits`.
    pub fn of_section(section: &str) -> impl Iterator<Item = Self> {
        Self::ALL
            .into_iter()
            .filter(move |number| number.place().0 == section)
    }

    /// The limit of a computer it bounds, if it bounds one.
    #[must_use]
    pub fn resource(self) -> Option<Resource> {
        match self {
            Self::Cpu => Some(Resource::Cpu),
            Self::Memory => Some(Resource::Memory),
            Self::Disk => Some(Resource::Disk),
            Self::Inodes => Some(Resource::Inodes),
            Self::Pids => Some(Resource::Pids),
            Self::Files => Some(Resource::Files),
            Self::Wall => Some(Resource::Wall),
            Self::CpuTime => Some(Resource::CpuTime),
            Self::Output => Some(Resource::Output),
            _ => None,
        }
    }

    /// The value as a document would have it, for people.
    #[must_use]
    pub fn show(self, value: u64) -> String {
        match self.unit() {
            Unit::Cores => {
                let text = format!("{}.{:03}", value / 1_000, value % 1_000);
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            Unit::Bytes => crate::quantity::write_bytes(value),
            Unit::Millis => crate::quantity::write_millis(value),
            Unit::Count => value.to_string(),
        }
    }
}
