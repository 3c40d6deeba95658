//! Bodies of the plain HTTP routes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Body of a failed plain request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpError {
    /// HTTP status.
    pub code: u16,
    /// One sentence.
    pub message: String,
}

/// One uploaded file. Clients compare this exactly: no further fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uploaded {
    /// Last part of the path.
    pub name: String,
    /// Absolute path.
    pub path: String,
    /// Always `file`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What the upload attached to it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// Request of `POST /files/compose`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ComposeRequest {
    /// Files to put together, in this order; they are removed afterwards.
    pub source_paths: Vec<String>,
    /// The file they become.
    pub destination: String,
    /// Acting user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
}

/// Answer of `GET /metrics`. All of it is the guest's own view.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Seconds since the epoch.
    pub ts: i64,
    /// Processors.
    pub cpu_count: u32,
    /// Share of all processors used since the last call, in percent.
    pub cpu_used_pct: f64,
    /// Memory in MiB.
    pub mem_total_mib: u64,
    /// Used memory in MiB.
    pub mem_used_mib: u64,
    /// Memory in bytes.
    pub mem_total: u64,
    /// Used memory in bytes.
    pub mem_used: u64,
    /// Page cache in bytes.
    pub mem_cache: u64,
    /// Used disk in bytes.
    pub disk_used: u64,
    /// Disk in bytes.
    pub disk_total: u64,
}
