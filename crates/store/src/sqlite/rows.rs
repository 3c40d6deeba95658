//! Between columns and nouns. What does not read back is damage, never a default.

use leasehold_core::digest::Digest;
use leasehold_core::event::Head;
use leasehold_core::id::{KeyId, LeaseId, RunId, SandboxId, WorkerId};
use leasehold_core::lease::{Epoch, Lease, LeaseState};
use leasehold_core::name::{Name, ToolRef, Version};
use leasehold_core::outcome::RunState;
use leasehold_core::tenant::Role;
use rusqlite::Row;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::damaged;
use crate::seam::{KeyRow, PolicyRow, RunRow, StoreError, ToolRow, ToolState, WorkerRow};

type Result<T> = std::result::Result<T, StoreError>;

/// A count or time as the engine keeps it; the few that do not fit are as good as endless.
pub(super) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Most events of one run.
pub(super) const EVENTS_MAX: u64 = 1 << 20;

/// The id of an event of a run, from its place in the chain.
pub(super) fn event_id(run: i64, seq: u64) -> i64 {
    run.saturating_mul(int(EVENTS_MAX)).saturating_add(int(seq))
}

/// Reads a count or time.
pub(super) fn count(row: &Row<'_>, column: usize) -> Result<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|error| damaged("a count", error))
}

fn count_or_none(row: &Row<'_>, column: usize) -> Result<Option<u64>> {
    let value: Option<i64> = row.get(column)?;
    value
        .map(|value| u64::try_from(value).map_err(|error| damaged("a count", error)))
        .transpose()
}

macro_rules! parsed {
    ($($reads:ident: $noun:ty, $what:literal;)*) => {
        $(pub(super) fn $reads(row: &Row<'_>, column: usize) -> Result<$noun> {
            let text = row.get_ref(column)?.as_str().map_err(|error| damaged($what, error))?;
            <$noun>::parse(text).map_err(|error| damaged($what, error))
        })*
    };
}

parsed! {
    name: Name, "a name";
    version: Version, "a version";
    digest: Digest, "a digest";
    run_id: RunId, "a run's id";
    lease_id: LeaseId, "a lease's id";
    worker_id: WorkerId, "a worker's id";
    sandbox_id: SandboxId, "a sandbox's id";
    key_id: KeyId, "a key's id";
}

/// Reads JSON text or bytes.
pub(super) fn json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Result<T> {
    let bytes = row
        .get_ref(column)?
        .as_bytes()
        .map_err(|error| damaged("a value", error))?;
    serde_json::from_slice(bytes).map_err(|error| damaged("a value", error))
}

/// Writes a value as JSON text.
pub(super) fn text<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| damaged("a value to write", error))
}

fn word<T: Copy>(
    row: &Row<'_>,
    column: usize,
    all: &[T],
    word: fn(T) -> &'static str,
) -> Result<T> {
    let found: String = row.get(column)?;
    all.iter()
        .copied()
        .find(|each| word(*each) == found)
        .ok_or_else(|| damaged("a state", found))
}

/// Reads a run's state.
pub(super) fn run_state(row: &Row<'_>, column: usize) -> Result<RunState> {
    word(row, column, &RunState::ALL, RunState::word)
}

/// The words of leases in rows.
pub(super) fn lease_word(state: LeaseState) -> &'static str {
    match state {
        LeaseState::Active => "active",
        LeaseState::Revoked => "revoked",
        LeaseState::Closed => "closed",
    }
}

/// Reads a lease's state.
pub(super) fn lease_state(row: &Row<'_>, column: usize) -> Result<LeaseState> {
    let all = [LeaseState::Active, LeaseState::Revoked, LeaseState::Closed];
    word(row, column, &all, lease_word)
}

/// Reads a head from two columns.
pub(super) fn head(row: &Row<'_>, column: usize) -> Result<Head> {
    Ok(Head {
        count: count(row, column)?,
        digest: digest(row, column + 1)?,
    })
}

fn present<T>(
    row: &Row<'_>,
    column: usize,
    read: fn(&Row<'_>, usize) -> Result<T>,
) -> Result<Option<T>> {
    match row.get_ref(column)? {
        rusqlite::types::ValueRef::Null => Ok(None),
        _ => read(row, column).map(Some),
    }
}

/// Columns of [`run`].
pub(super) const RUN: &str = "run, tenant, project, principal, tool, tool_version, state, epoch, sandbox, \
    contract_digest, cancel_requested, outcome, head_count, head_digest, accepted_ms";

/// A run.
pub(super) fn run(row: &Row<'_>) -> Result<RunRow> {
    let tool = present(row, 4, name)?.zip(present(row, 5, version)?);
    Ok(RunRow {
        run: run_id(row, 0)?,
        tenant: name(row, 1)?,
        project: name(row, 2)?,
        principal: name(row, 3)?,
        tool: tool.map(|(tool, version)| ToolRef { tool, version }),
        state: run_state(row, 6)?,
        epoch: Epoch(count(row, 7)?),
        sandbox: present(row, 8, sandbox_id)?,
        contract: digest(row, 9)?,
        cancel_requested: row.get(10)?,
        outcome: present(row, 11, json)?,
        head: head(row, 12)?,
        accepted_unix_ms: count(row, 14)?,
    })
}

/// Columns of [`lease`], with `runs` joined as `r`.
pub(super) const LEASE: &str =
    "l.lease, r.run, l.worker, l.epoch, l.sandbox, l.expires_ms, l.state";

/// A lease.
pub(super) fn lease(row: &Row<'_>) -> Result<Lease> {
    Ok(Lease {
        id: lease_id(row, 0)?,
        run: run_id(row, 1)?,
        worker: worker_id(row, 2)?,
        epoch: Epoch(count(row, 3)?),
        sandbox: present(row, 4, sandbox_id)?,
        expires_unix_ms: count(row, 5)?,
        state: lease_state(row, 6)?,
    })
}

/// Columns of [`key`].
pub(super) const KEY: &str =
    "key, secret, tenant, project, principal, role, grants, created_ms, expires_ms, revoked_ms";

/// A key.
pub(super) fn key(row: &Row<'_>) -> Result<KeyRow> {
    Ok(KeyRow {
        key: key_id(row, 0)?,
        secret: digest(row, 1)?,
        tenant: name(row, 2)?,
        project: name(row, 3)?,
        principal: name(row, 4)?,
        role: word(row, 5, &Role::ALL, Role::word)?,
        grants: json(row, 6)?,
        created_unix_ms: count(row, 7)?,
        expires_unix_ms: count_or_none(row, 8)?,
        revoked_unix_ms: count_or_none(row, 9)?,
    })
}

/// Columns of [`tool`].
pub(super) const TOOL: &str = "tenant, tool, version, manifest, digest, state, note, published_ms";

/// A version of a tool.
pub(super) fn tool(row: &Row<'_>) -> Result<ToolRow> {
    Ok(ToolRow {
        tenant: name(row, 0)?,
        tool: ToolRef {
            tool: name(row, 1)?,
            version: version(row, 2)?,
        },
        manifest: row.get(3)?,
        digest: digest(row, 4)?,
        state: word(row, 5, &ToolState::ALL, ToolState::word)?,
        note: row.get(6)?,
        published_unix_ms: count(row, 7)?,
    })
}

/// Columns of [`policy`].
pub(super) const POLICY: &str = "scope, version, document, digest, published_ms";

/// A version of a policy.
pub(super) fn policy(row: &Row<'_>) -> Result<PolicyRow> {
    Ok(PolicyRow {
        scope: row.get(0)?,
        version: count(row, 1)?,
        document: row.get(2)?,
        digest: digest(row, 3)?,
        published_unix_ms: count(row, 4)?,
    })
}

/// A worker.
pub(super) fn worker(row: &Row<'_>) -> Result<WorkerRow> {
    Ok(WorkerRow {
        worker: worker_id(row, 0)?,
        capabilities: row.get(1)?,
        seen_unix_ms: count(row, 2)?,
    })
}
