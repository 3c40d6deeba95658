//! What admission hands on: a contract that is fixed, and what is needed to carry it out.

use std::fmt;
use std::sync::Arc;

use leasehold_core::digest::Digest;
use leasehold_core::name::Name;
use leasehold_core::run_contract::RunContract;
use leasehold_core::spec::{ExecSpec, SandboxSpec};
use serde::{Deserialize, Serialize};

/// How a tenant's runs share the workers, as the policies that meet say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Weight in fair queueing; from 1.
    pub weight: u32,
    /// Most runs of the tenant at once.
    pub tenant_running_max: u32,
    /// Most runs of the tenant that wait.
    pub tenant_queued_max: u32,
    /// Most runs of this tool of this tenant at once; absent for a bare command.
    pub tool_running_max: Option<(Name, u32)>,
    /// Most runs admitted in a minute.
    pub per_minute_max: u32,
}

/// What is needed to start a run and is not in its contract, since it may be secret. Kept by the store
/// until the run ends, so that a restarted daemon can start what was admitted.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The computer.
    pub sandbox: SandboxSpec,
    /// The command.
    pub exec: ExecSpec,
    /// Bytes of standard input, written and then closed; none means it reads as empty.
    pub stdin: Option<Vec<u8>>,
    /// Objects that hold the workspace's content as tar archives: of the tool's own files, all below
    /// [`crate::archive::TOOL_DIR`], and of what came with the request. They are unpacked one after
    /// another into one fresh tree; a name that is there already is refused. Empty means an empty
    /// workspace.
    pub workspace: Vec<Digest>,
}

impl fmt::Debug for Start {
    /// Without the values of variables and the input, which may be secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Start({:?})", self.exec.argv.first())
    }
}

/// How the output of a tool is checked once it has ended.
pub trait OutputCheck: Send + Sync {
    /// Checks standard output; gives the structured output as JSON text.
    ///
    /// # Errors
    /// Where it breaks the schema, for `invalid_output`.
    fn check(&self, stdout: &[u8]) -> Result<String, String>;
}

/// A run that may begin once it is committed.
#[derive(Clone)]
pub struct Plan {
    /// The contract.
    pub contract: RunContract,
    /// Its digest.
    pub digest: Digest,
    /// Its canonical form.
    pub canonical: Vec<u8>,
    /// What starts it.
    pub start: Start,
    /// How it shares.
    pub share: Share,
    /// Check of the structured output, for tools that declare one.
    pub output: Option<Arc<dyn OutputCheck>>,
    /// Digest of all that goes into the result, for tools that declare themselves pure.
    pub cache: Option<Digest>,
    /// What the caller should know although it was admitted, such as a deprecated version.
    pub warnings: Vec<String>,
}

impl fmt::Debug for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Plan")
            .field("contract", &self.contract)
            .field("start", &self.start)
            .finish_non_exhaustive()
    }
}
