//! The effective record of one run, fixed at admission. No secret values, ever (invariant I8).

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::image::ImageUse;
use crate::isolation::Isolation;
use crate::limits::{Limits, Resource};
use crate::spec::{ModuleSpec, WorkspaceMode};

/// How well one limit holds on the host that ran it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Enforcement {
    /// The kernel, the supervisor or a host of ours inside holds it.
    Enforced,
    /// Nobody asked for it and this host cannot hold it.
    BestEffort,
    /// It was asked for, this host cannot hold it, and the caller said to go on.
    Unenforced,
}

/// One resource and how its limit holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Enforced {
    /// Which limit.
    pub which: Resource,
    /// How it holds.
    pub how: Enforcement,
}

/// What the posture builder really applied, for the record and for comparison by hash.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Posture {
    /// Profile name and version, such as `native/1`.
    pub profile: String,
    /// `root` or `user`: who made the sandbox.
    pub maker: String,
    /// First host user id of the leased range and its length; the range never contains 0.
    pub uid_range: (u32, u32),
    /// One user id for our init and the workload: no sub-uid range is there, or the command of an image is
    /// its user 0.
    pub single_uid: bool,
    /// New namespaces.
    pub namespaces: Vec<String>,
    /// Landlock interface version in use; 0 means absent.
    pub landlock_abi: u32,
    /// SHA-256 of the seccomp program, hexadecimal.
    pub seccomp_sha256: String,
    /// Where limits are held: `v1`, `v2`, `hybrid` or `none`.
    pub cgroup: String,
    /// Kernel release.
    pub kernel: String,
    /// Controls of the hardening list that this host lacks, such as `H28 landlock`.
    pub missing: Vec<String>,
    /// What the program in the sandbox confines itself by, beside all this, before it reads anything: a
    /// WebAssembly host. Absent for every other command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostPosture>,
}

/// A WebAssembly host that confines itself inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostPosture {
    /// Of its program's file, as whoever supplied it says.
    pub program: Digest,
    /// Name and version of the engine in it.
    pub engine: String,
    /// SHA-256 of its own seccomp program, hexadecimal.
    pub seccomp_sha256: String,
    /// Places it keeps access to by its own Landlock rules, such as `/workspace`; empty is none.
    pub places: Vec<String>,
}

/// The contract of a run without a daemon; a daemon adds tenant, tool and policy to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Contract {
    /// Which backend made the computer.
    pub backend: String,
    /// How strong it is.
    pub isolation: Isolation,
    /// Why that one.
    pub isolation_reason: String,
    /// Limits as settled.
    pub limits: Limits,
    /// How each holds here.
    pub enforcement: Vec<Enforced>,
    /// How the workspace came to be.
    pub workspace: WorkspaceMode,
    /// Network: always `none` here; no route exists.
    pub network: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The WebAssembly module that is run with these arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ModuleSpec>,
    /// The image whose file system was the root; without one it was the host's system directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageUse>,
    /// Names of the declared environment; values are not recorded.
    pub env_names: Vec<String>,
    /// What the posture builder applied.
    pub posture: Posture,
}
