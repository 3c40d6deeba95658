//! What admission hands on: a contract that is fixed, and what is needed to carry it out.

use std::fmt;
use std::sync::Arc;

use leasehold_core::digest::Digest;
use leasehold_core::name::Name;
use leasehold_core::run_contract::RunContract;
use leasehold_core::spec::{ExecSpec, ModuleSpec, SandboxSpec};
use serde::{Deserialize, Serialize};

use crate::image::ImageStart;
use crate::module::ModuleStart;

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
    /// Most bytes of the requests of the tenant's runs that wait or run, see [`Start::request_bytes`].
    #[serde(default = "unbounded")]
    pub tenant_request_bytes_max: u64,
}

/// What was admitted before there was such a bound has none.
fn unbounded() -> u64 {
    u64::MAX
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
    #[serde(default, with = "input")]
    pub stdin: Option<Vec<u8>>,
    /// Objects that hold the workspace's content as tar archives: of the tool's own files, all below
    /// [`crate::archive::TOOL_DIR`], and of what came with the request. They are unpacked one after
    /// another into one fresh tree; a name that is there already is refused. Empty means an empty
    /// workspace.
    pub workspace: Vec<Digest>,
    /// The WebAssembly module that `exec` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<ModuleStart>,
    /// The image that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageStart>,
}

impl Start {
    /// Bytes that somebody sent and that are kept until the run ends: input, variables, arguments, script.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        let variables = self.exec.env.iter();
        let variables: usize = variables
            .map(|(name, value)| name.len() + value.len())
            .sum();
        let arguments: usize = self.exec.argv.iter().map(String::len).sum();
        let input = self.stdin.as_ref().map_or(0, Vec::len);
        let script = self.module.as_ref().map_or(0, ModuleStart::request_bytes);
        (input + variables + arguments + script) as u64
    }
}

/// Bytes of input as base 64 text: a list of numbers, as it was kept before, is four times as long. Both read.
mod input {
    use data_encoding::BASE64;
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Kept {
        Text(String),
        Numbers(Vec<u8>),
    }

    pub(super) fn serialize<S: Serializer>(
        input: &Option<Vec<u8>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match input {
            Some(bytes) => to.serialize_some(&BASE64.encode(bytes)),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        match Option::<Kept>::deserialize(from)? {
            None => Ok(None),
            Some(Kept::Numbers(bytes)) => Ok(Some(bytes)),
            Some(Kept::Text(text)) => {
                let bytes = BASE64.decode(text.as_bytes());
                bytes.map(Some).map_err(de::Error::custom)
            }
        }
    }
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

impl Plan {
    /// The module it runs, and where that is; nothing for a program of the sandbox.
    #[must_use]
    pub fn module(&self) -> Option<(&ModuleSpec, &ModuleStart)> {
        self.start
            .exec
            .module
            .as_ref()
            .zip(self.start.module.as_ref())
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Plan")
            .field("contract", &self.contract)
            .field("start", &self.start)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_kept_as_text_of_its_bytes_and_reads_back_in_both_forms() {
        let bytes: Vec<u8> = (0..=255).cycle().take(9_000).collect();
        let start = Start {
            sandbox: SandboxSpec::default(),
            exec: ExecSpec::command(["cat"]),
            stdin: Some(bytes.clone()),
            workspace: Vec::new(),
            module: None,
            image: None,
        };
        let kept = serde_json::to_value(&start).unwrap();
        assert!(kept["stdin"].as_str().unwrap().len() <= bytes.len() * 4 / 3 + 4);
        let again: Start = serde_json::from_value(kept.clone()).unwrap();
        assert_eq!(again, start);
        // As it was kept before, and none at all.
        let mut before = kept;
        before["stdin"] = serde_json::json!(bytes);
        let again: Start = serde_json::from_value(before.clone()).unwrap();
        assert_eq!(again, start);
        before["stdin"] = serde_json::Value::Null;
        let none: Start = serde_json::from_value(before.clone()).unwrap();
        assert_eq!(none.stdin, None);
        before["stdin"] = serde_json::json!("no base 64");
        assert!(serde_json::from_value::<Start>(before).is_err());
        assert_eq!(start.request_bytes() - none.request_bytes(), 9_000);
    }
}
