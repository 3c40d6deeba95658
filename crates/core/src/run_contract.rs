//! The contract of a run under a daemon: what an incident responder reads. Fixed at admission, hashed in
//! its canonical form, named by that digest in every later event. No secret values, ever (invariant I8).

use serde::{Deserialize, Serialize};

use crate::digest::{CanonicalError, Digest};
use crate::id::{KeyId, RunId};
use crate::isolation::{Isolation, TrustClass};
use crate::limits::Limits;
use crate::name::{Name, ToolRef};
use crate::spec::{ModuleSpec, WorkspaceMode};
use crate::tenant::Role;

/// Format version of [`RunContract`].
pub const CONTRACT_VERSION: u32 = 1;

/// Why the boundary is as strong as it is: the inputs of the max (invariant I2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Why {
    /// What the tool or the caller prefers.
    pub preference: Isolation,
    /// What the policies demand at least.
    pub floor: Isolation,
    /// How much the tool is trusted.
    pub trust: TrustClass,
    /// What that trust class requires at least.
    pub required: Isolation,
}

/// Where the root file system comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Rootfs {
    /// The host's system tree, read-only. First-party commands at `process` only.
    HostSystem,
    /// The `base` template image.
    Base,
    /// An image by digest.
    Image {
        /// Of its manifest.
        digest: Digest,
    },
    /// None: a WebAssembly host has none of its own.
    None,
}

/// Which computer was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Selected {
    /// Name of the backend.
    pub backend: String,
    /// Its isolation: at least the max of [`Why`].
    pub isolation: Isolation,
    /// The backend inside it, where a WebAssembly host runs inside a stronger sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nested: Option<String>,
    /// Root file system.
    pub rootfs: Rootfs,
    /// The inputs of the max.
    pub why: Why,
    /// One sentence for people.
    pub reason: String,
}

/// The writable tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkspaceTerms {
    /// How it comes to be.
    pub mode: WorkspaceMode,
    /// Digest of the uploaded archive, if its content came with the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Digest>,
    /// Globs of files that leave it; empty exports nothing.
    pub artifacts: Vec<String>,
}

/// Network. Empty lists are no network at all (invariant I9).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkTerms {
    /// Ports that may be reached from outside.
    pub ingress: Vec<u16>,
    /// `name:port` rules that may be reached from inside, as resolved from tool and policies.
    pub egress: Vec<String>,
}

/// One credential that the run may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CredentialGrant {
    /// Name the tool knows it by.
    pub name: String,
    /// Where its value is; never the value.
    pub secret_ref: String,
    /// `env`, `file`, `proxy` or `broker`.
    pub way: String,
    /// How long it is good for, in milliseconds.
    pub ttl_ms: u64,
}

/// The first lifetime: of the computer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AllocationTerms {
    /// From lease to forced end, in milliseconds; at least wall limit and grace together.
    pub hard_deadline_ms: u64,
    /// Longest time without use, for sessions; absent for a run of one command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
}

/// The second lifetime: of lease, routes and credentials. Ends at once with the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuthorityTerms {
    /// Of the lease, in milliseconds; it is not renewed past the hard deadline.
    pub lease_ms: u64,
    /// Longest of a credential, in milliseconds.
    pub credentials_ms: u64,
}

/// The third lifetime: of what is kept. Never ended by the end of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetentionTerms {
    /// Of output streams, in seconds.
    pub logs_s: u64,
    /// Of artifacts, in seconds.
    pub artifacts_s: u64,
    /// Of the record and its evidence, in seconds.
    pub record_s: u64,
}

/// One policy that had a say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyUsed {
    /// Where it holds.
    pub scope: String,
    /// Its version there.
    pub version: u64,
    /// Digest of its canonical form.
    pub digest: Digest,
}

/// The effective record of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunContract {
    /// [`CONTRACT_VERSION`].
    pub version: u32,
    /// Which run.
    pub run: RunId,
    /// Whose.
    pub tenant: Name,
    /// In which project.
    pub project: Name,
    /// Asked by whom.
    pub principal: Name,
    /// With which role.
    pub role: Role,
    /// Proven by which key.
    pub key: KeyId,
    /// Which tool; absent for a bare command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolRef>,
    /// Digest of its manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Digest>,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The WebAssembly module that is run with these arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ModuleSpec>,
    /// Name of the image it runs in, in full, as it was asked for; its digest is that of `selected.rootfs`. What the
    /// image declares of environment and directory goes with its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Names of the declared environment; values are not recorded.
    pub env_names: Vec<String>,
    /// Working directory inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Digest of what standard input gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Digest>,
    /// Which computer, and why.
    pub selected: Selected,
    /// Digest of what the posture builder applies here, as probed; the computer's own is in its event.
    pub posture: Digest,
    /// What bounds it.
    pub limits: Limits,
    /// Its writable tree.
    pub workspace: WorkspaceTerms,
    /// Its network.
    pub network: NetworkTerms,
    /// Permissions: the caller's, cut down to the tool's, within policy. Empty is none.
    pub permissions: Vec<String>,
    /// Credentials it may use. A service account token is never among them.
    pub credentials: Vec<CredentialGrant>,
    /// Of the computer.
    pub allocation: AllocationTerms,
    /// Of lease and credentials.
    pub authority: AuthorityTerms,
    /// Of what is kept.
    pub retention: RetentionTerms,
    /// Policies that had a say, outermost first.
    pub policies: Vec<PolicyUsed>,
    /// Whether it may be run again after its worker or computer was lost.
    pub idempotent: bool,
    /// So often it is begun at most; 1 unless it is idempotent.
    pub attempts: u32,
    /// Whether its result may be given to an equal request.
    pub cacheable: bool,
    /// Place in its tenant's queue; higher goes first.
    pub priority: i32,
    /// Longest wait for a computer, in milliseconds.
    pub max_wait_ms: u64,
}

impl RunContract {
    /// Its digest.
    ///
    /// # Errors
    /// When it has no canonical form, which a value made by admission always has.
    pub fn digest(&self) -> Result<Digest, CanonicalError> {
        Digest::of_value(self)
    }
}
