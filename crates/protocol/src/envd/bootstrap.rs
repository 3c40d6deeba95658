//! Messages of `leasehold.Bootstrap`, which the agent serves on host connections alone
//! ([`super::channel::Kind::Host`]); on a client connection its paths do not exist.
//!
//! Everything the agent reports here is the guest's own word.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::base64::Base64;

/// Most files in one [`Inject`].
pub const FILES_MAX: usize = 64;

/// Request of `Inject`: what a sandbox is given before it is used. Fields that are absent stay.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Inject {
    /// Environment of every process, replacing what was injected before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub envs: Option<BTreeMap<String, String>>,
    /// What clients must send in `X-Access-Token`; the empty text takes the need away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_token: Option<String>,
    /// Acting user where a request names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_user: Option<String>,
    /// Directory that an absent path or working directory means; the empty text means the home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_workdir: Option<String>,
    /// Files to write, at most [`FILES_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<InjectFile>,
}

/// One file to write.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InjectFile {
    /// Absolute, `~`, or relative to the user's home.
    pub path: String,
    /// Its bytes.
    pub content: Base64,
    /// Permission bits; 0 means 0644.
    pub mode: u32,
    /// Owner; empty means the default user.
    pub user: String,
}

/// Request of `Rearm`: after a restore from a snapshot, before anybody else may call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rearm {
    /// The new access token; the old one is dead.
    pub access_token: String,
}

/// Answer of `Rearm`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rearmed {
    /// Client connections that were cut.
    pub connections_cut: u32,
    /// Watchers that were dropped.
    pub watchers_dropped: u32,
}

/// Answer of `Reset`: every process but init, stub and agent is killed and the scratch
/// directories are emptied.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResetDone {
    /// Processes that were killed.
    pub processes_killed: u32,
    /// Whether no such process is left.
    pub processes_gone: bool,
    /// Whether every scratch directory is empty.
    pub scratch_empty: bool,
    /// What could not be removed, at most a few lines.
    pub left: Vec<String>,
}

/// Answer of `Usage`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GuestUsage {
    /// Processes inside, init and agent included.
    pub processes: u32,
    /// Processes started by the agent that still run.
    pub started: u32,
    /// Open client connections.
    pub connections: u32,
    /// Watchers.
    pub watchers: u32,
    /// Processor time of all live processes in milliseconds.
    pub cpu_ms: u64,
    /// Resident memory of all live processes in bytes.
    pub resident_bytes: u64,
    /// Used and total bytes of the scratch file system.
    pub disk_used: u64,
    /// Total bytes of the scratch file system.
    pub disk_total: u64,
}

/// Answer of `Ports`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ports {
    /// Listening TCP ports in ascending order.
    pub ports: Vec<ListeningPort>,
}

/// One listening TCP socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListeningPort {
    /// Port.
    pub port: u16,
    /// Address it listens on, as text.
    pub address: String,
    /// User id inside of the listener.
    pub uid: u32,
}
