//! Runs as callers see them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use leasehold_control::control::RunRow;
use leasehold_core::digest::Digest;
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::name::{Name, ToolRef};
use leasehold_core::outcome::{Outcome, RunState};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::{ErrorObject, of_end};

/// Most bytes of each output stream that an answer repeats; the whole is at `links.stdout`.
pub(crate) const INLINE_MAX: usize = 64 << 10;

/// The beginning of an output stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Inline {
    /// The bytes as text, where they are UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    /// The bytes in base 64, where they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) base64: Option<String>,
    /// Whether there is more than is repeated here.
    pub(crate) more: bool,
}

impl Inline {
    /// Shows bytes, of `kept` in all. A character cut by the bound is left out.
    pub(crate) fn of(bytes: &[u8], kept: u64) -> Self {
        let more = u64::try_from(bytes.len()).unwrap_or(u64::MAX) < kept;
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => Some(text.to_owned()),
            Err(error) if more && error.error_len().is_none() => {
                std::str::from_utf8(&bytes[..error.valid_up_to()])
                    .ok()
                    .map(str::to_owned)
            }
            Err(_) => None,
        };
        let base64 = text.is_none().then(|| BASE64.encode(bytes));
        Self { text, base64, more }
    }
}

/// Where more is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Links {
    /// The run itself.
    #[serde(rename = "self")]
    own: String,
    /// Its stream of events.
    events: String,
    /// All of standard output.
    stdout: String,
    /// All of standard error.
    stderr: String,
    /// Collected files.
    artifacts: String,
    /// What proves it, once it is sealed.
    evidence: String,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct RunView {
    /// Which.
    pub(crate) run: RunId,
    /// Whose.
    tenant: Name,
    /// In which project.
    project: Name,
    /// Asked by whom.
    principal: Name,
    /// Which tool; null for a bare command.
    tool: Option<ToolRef>,
    /// Where it is.
    pub(crate) state: RunState,
    /// Its sandbox, once known.
    sandbox: Option<SandboxId>,
    /// Digest of the contract.
    contract: Digest,
    /// Whether somebody asked for its end.
    cancel_requested: bool,
    /// Whether it was set aside, since it cannot be carried on: an operator is told why with the workers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) stuck: bool,
    /// When it was admitted, milliseconds since 1970.
    accepted_unix_ms: u64,
    /// How it ended, and with what.
    pub(crate) outcome: Option<Outcome>,
    /// Structured output of a tool.
    output: Option<Value>,
    /// The beginning of standard output; only in the answer to whoever waited for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stdout: Option<Inline>,
    /// The beginning of standard error; only in the answer to whoever waited for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stderr: Option<Inline>,
    /// What went wrong, where something did.
    error: Option<ErrorObject>,
    /// What the caller should know although the run was admitted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
    /// Where more is.
    links: Links,
}

impl RunView {
    /// Whether a tool ran, and not a bare command.
    pub(crate) fn is_tool(&self) -> bool {
        self.tool.is_some()
    }

    /// Whether it ended otherwise than its caller could wish.
    pub(crate) fn failed(&self) -> bool {
        self.error.is_some()
    }
}

/// What went wrong, with what the compiler or the host of a module says of it.
fn of_outcome(outcome: &Outcome, is_tool: bool) -> Option<ErrorObject> {
    let (_, mut object) = of_end(&outcome.end, is_tool)?;
    let module = outcome.module.as_ref();
    let said = module.and_then(|module| module.uncompiled.as_ref().or(module.detail.as_ref()));
    if let Some(said) = said {
        object.message = format!("{}: {said}", object.message);
    }
    Some(object)
}

impl From<RunRow> for RunView {
    fn from(row: RunRow) -> Self {
        let own = format!("/v1/runs/{}", row.run);
        let below = |part: &str| format!("{own}/{part}");
        let links = Links {
            events: below("events"),
            stdout: below("logs/stdout"),
            stderr: below("logs/stderr"),
            artifacts: below("artifacts"),
            evidence: below("evidence"),
            own,
        };
        let error = row
            .outcome
            .as_ref()
            .and_then(|outcome| of_outcome(outcome, row.tool.is_some()));
        Self {
            run: row.run,
            tenant: row.tenant,
            project: row.project,
            principal: row.principal,
            tool: row.tool,
            state: row.state,
            sandbox: row.sandbox,
            contract: row.contract,
            cancel_requested: row.cancel_requested,
            stuck: false,
            accepted_unix_ms: row.accepted_unix_ms,
            output: row.outcome.as_ref().and_then(Outcome::output_value),
            outcome: row.outcome,
            stdout: None,
            stderr: None,
            error,
            warnings: Vec::new(),
            links,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_cut_by_the_bound_is_left_out() {
        let bytes = "aé".as_bytes();
        let cut = Inline::of(&bytes[..2], 3);
        assert_eq!((cut.text.as_deref(), cut.more), (Some("a"), true));
        let broken = Inline::of(&bytes[..2], 2);
        assert_eq!(
            (broken.text, broken.base64.as_deref()),
            (None, Some("YcM="))
        );
    }
}
