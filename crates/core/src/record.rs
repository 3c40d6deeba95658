//! The record of one run: what an incident responder reads after the sandbox is gone.

use serde::{Deserialize, Serialize};

use crate::contract::Contract;
use crate::end::{EndReason, ExitStatus, LimitHit};
use crate::id::{RunId, SandboxId};
use crate::stage::StageTime;

/// What a run used, as counted by the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Usage {
    /// Wall time of the execution in microseconds.
    pub wall_micros: u64,
    /// Processor time in microseconds; absent where the host cannot count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_micros: Option<u64>,
    /// Highest memory use in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    /// Time spent throttled by the processor quota, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_micros: Option<u64>,
    /// Bytes in use below `/workspace` and `/tmp` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
}

/// One output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamRecord {
    /// Bytes the workload wrote.
    pub written: u64,
    /// Bytes kept.
    pub kept: u64,
    /// Whether the rest was cut at the limit.
    pub truncated: bool,
}

/// One collected file, or one that was asked for and not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Artifact {
    /// Path below the workspace; bytes that are not UTF-8 are written as `\xNN`, a backslash as `\\`.
    pub path: String,
    /// Bytes copied.
    #[serde(default)]
    pub bytes: u64,
    /// SHA-256 of the copied bytes, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Why it was skipped or cut: `symlink`, `not_regular`, `too_large`, `changed_while_read` (a copy
    /// is there), `unreadable`, `limit` (for `.`: there may be more files than are listed), `not_found`
    /// (`path` is then the glob that nothing matched). A copy is there exactly where `sha256` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Whether the host may execute it later (hooks, shell start files, editor tasks).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_execute_on_host: bool,
}

/// What the host that ran a WebAssembly module tells of it, beside the end. Its own word, within bounds; names
/// are the module's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModuleReport {
    /// Why its compiler made no code of it; nothing of it ran then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncompiled: Option<String>,
    /// Why its host could not start it, or what failed under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Its functions at a trap, innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backtrace: Vec<String>,
    /// Most bytes of its memories and tables at one time.
    #[serde(default)]
    pub memory_peak_bytes: u64,
    /// Instructions, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuel_used: Option<u64>,
    /// Outgoing HTTP requests that were denied.
    #[serde(default)]
    pub http_denied: u64,
    /// Where the first of them were to go: method and authority.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub http_denied_to: Vec<String>,
}

/// How a file in a read-write workspace is not as it was before the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftChange {
    /// It was not there: made, renamed or linked in, or come with a parent that was replaced.
    Created,
    /// It is another file, or its content, mode, owner, links or times changed.
    Changed,
    /// It is gone: what it turned off or on is no longer so.
    Removed,
    /// A directory that could not be looked into.
    Unreadable,
    /// The first look did not come to it, so nobody knows whether it is new.
    Uncompared,
}

impl LeftChange {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Removed => "removed",
            Self::Unreadable => "unreadable",
            Self::Uncompared => "uncompared",
        }
    }
}

/// One file that a program of the host may run or obey by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftFile {
    /// Path below the workspace, written as in [`Artifact::path`].
    pub path: String,
    /// What became of it.
    pub change: LeftChange,
}

/// What a run left in a read-write workspace that a program of the host may run or obey by itself,
/// as the host saw it once every process of the sandbox was dead.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LeftOnHost {
    /// Such files that are not as they were before the run, by path.
    #[serde(default)]
    pub files: Vec<LeftFile>,
    /// Why there may be more: `entries`, `depth`, `time`, `files`, `mounts`, `record` (a bound was
    /// reached), `unreadable`, `died`, `failed`. Absent when everything was looked at twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// One host resource and whether it is gone, as the host saw or, where it says so, inferred.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Residue {
    /// Kind of resource: `processes`, `cgroups`, `mounts`, `netns`, `uids`, `scratch`, `sockets`.
    pub resource: String,
    /// Whether it is gone.
    pub clean: bool,
    /// What was looked at, or what is left.
    pub detail: String,
    /// Whether nobody looked at the resource itself: it follows, by a rule of the kernel, from what was seen of
    /// others. Absent where it was looked at.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inferred: bool,
}

/// The cleanup inventory: observed by the host after the fact (invariant I7). May say "not clean".
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Observed {
    /// Each resource and what was seen.
    pub residues: Vec<Residue>,
}

impl Observed {
    /// Whether every resource was seen gone.
    #[must_use]
    pub fn clean(&self) -> bool {
        !self.residues.is_empty() && self.residues.iter().all(|residue| residue.clean)
    }
}

/// The whole record. `end` is absent while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Format version of this record.
    pub version: u32,
    /// The run.
    pub run: RunId,
    /// The sandbox it had.
    pub sandbox: SandboxId,
    /// When it was accepted, milliseconds since 1970 on the host's wall clock.
    pub accepted_unix_ms: u64,
    /// What was fixed at admission; absent when it could not be admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<Contract>,
    /// Why it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EndReason>,
    /// How the main process ended, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitStatus>,
    /// Limits that denied or killed.
    #[serde(default)]
    pub limits_hit: Vec<LimitHit>,
    /// Whether a warm slot served it, and why not if a pool was there.
    #[serde(default)]
    pub warm: bool,
    /// The stages so far.
    #[serde(default)]
    pub stages: Vec<StageTime>,
    /// What it used.
    #[serde(default)]
    pub usage: Usage,
    /// Standard output.
    #[serde(default)]
    pub stdout: StreamRecord,
    /// Standard error.
    #[serde(default)]
    pub stderr: StreamRecord,
    /// Collected files.
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
    /// What of a read-write workspace the host may execute later; absent for other workspaces, and
    /// while or where no command ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_execute_on_host: Option<LeftOnHost>,
    /// What the WebAssembly host tells; absent for every other command, and where it told nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<ModuleReport>,
    /// Whether it is work of our own for somebody who is connected: it ends with the connection, is listed
    /// nowhere, and its record goes when it is complete.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bound: bool,
    /// What the host saw after removal; absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleanup: Option<Observed>,
    /// When both streams and the collected files were removed by the rule of retention, milliseconds
    /// since 1970 on the host's wall clock. What the record says of them is what they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pruned_unix_ms: Option<u64>,
}

impl RunRecord {
    /// The record of a run that was accepted: nothing has happened yet.
    #[must_use]
    pub fn accepted(run: RunId, sandbox: SandboxId, accepted_unix_ms: u64) -> Self {
        Self {
            version: RECORD_VERSION,
            run,
            sandbox,
            accepted_unix_ms,
            contract: None,
            end: None,
            exit: None,
            limits_hit: Vec::new(),
            warm: false,
            stages: Vec::new(),
            usage: Usage::default(),
            stdout: StreamRecord::default(),
            stderr: StreamRecord::default(),
            artifacts: Vec::new(),
            may_execute_on_host: None,
            module: None,
            bound: false,
            cleanup: None,
            pruned_unix_ms: None,
        }
    }
}

/// Current format version of [`RunRecord`].
pub const RECORD_VERSION: u32 = 1;
