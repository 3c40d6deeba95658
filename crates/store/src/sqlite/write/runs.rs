//! The life of a run: admitted, leased, ended, sealed.

use leasehold_core::digest::Digest;
use leasehold_core::event::{RunFact, TenantFact};
use leasehold_core::id::{LeaseId, RunId};
use leasehold_core::lease::{Epoch, Lease, LeaseState};
use leasehold_core::outcome::{Outcome, RunState};
use leasehold_core::tenant::Tenant;
use rusqlite::{Connection, OptionalExtension, params};
use serde::Deserialize;
use serde_json::Value;

use super::super::{read, rows, rows::int};
use super::Result;
use super::chain::{Live, Written};
use super::{log, objects};
use crate::seam::{Admission, Admitted, Idempotency, Sealing, StoreError};

/// What the store reads of a contract.
#[derive(Debug, Default, Deserialize)]
struct Terms {
    #[serde(default)]
    retention: Value,
    #[serde(default)]
    workspace: Value,
    #[serde(default)]
    program: Value,
    #[serde(default)]
    tool: Value,
}

/// An admission with what could be computed before its transaction.
#[derive(Debug)]
pub(in crate::sqlite) struct Prepared {
    admission: Admission,
    first: Written,
    contract: Digest,
    retain_ms: u64,
    /// The upload that its workspace begins with.
    content: Option<Digest>,
    /// The module of a bare command, which may have been uploaded.
    module: Option<Digest>,
}

impl Prepared {
    /// Checks the first event and reads the contract's retention.
    pub(in crate::sqlite) fn new(admission: Admission) -> Result<Self> {
        let contract = Digest::of(&admission.contract);
        let first = &admission.first;
        let begins = first.run == admission.run
            && first.seq == 0
            && first.prev == Digest::ZERO
            && first.epoch == Epoch::NONE
            && first.contract == contract
            && first.fact == RunFact::Accepted { contract };
        if !begins {
            return Err(StoreError::Fork);
        }
        let terms: Terms = serde_json::from_slice(&admission.contract).unwrap_or_default();
        let retain_s = terms.retention["record_s"].as_u64().unwrap_or(u64::MAX);
        let digest = |value: &Value| {
            let parsed = value.as_str().map(Digest::parse).transpose();
            parsed.map_err(|error| super::super::error::damaged("a digest", error))
        };
        Ok(Self {
            first: Written::new(first.clone())?,
            contract,
            content: digest(&terms.workspace["content"])?,
            module: match terms.tool.is_null() {
                true => digest(&terms.program["digest"])?,
                false => None,
            },
            retain_ms: retain_s.saturating_mul(1_000),
            admission,
        })
    }
}

/// See [`crate::seam::Store::admit`].
pub(in crate::sqlite) fn admit(conn: &Connection, prepared: &Prepared) -> Result<Admitted> {
    let admission = &prepared.admission;
    let tenant: Tenant = read::tenant(conn, &admission.tenant)?;
    if let Some(earlier) = earlier(conn, admission)? {
        return Ok(earlier);
    }
    if tenant.suspended {
        return Err(StoreError::WrongState {
            what: "tenant",
            state: "suspended",
        });
    }
    let taken = conn
        .prepare_cached("SELECT 1 FROM runs WHERE run = ?")?
        .exists([admission.run.as_str()])?;
    if taken {
        return Err(StoreError::Exists("run"));
    }
    let id = insert(conn, prepared)?;
    conn.prepare_cached("INSERT INTO contracts (run, contract) VALUES (?, ?)")?
        .execute(params![id, admission.contract])?;
    conn.prepare_cached("INSERT INTO sealed_requests (run, request) VALUES (?, ?)")?
        .execute(params![id, admission.sealed_request])?;
    if let Some(Idempotency { key, request }) = &admission.idempotency {
        conn.prepare_cached(
            "INSERT INTO idempotency (tenant, key, request, run) VALUES (?, ?, ?, ?)",
        )?
        .execute(params![
            admission.tenant.as_str(),
            key,
            request.to_string(),
            id
        ])?;
    }
    if let Some(content) = &prepared.content {
        objects::name_content(conn, &admission.tenant, id, content)?;
    }
    if let Some(module) = &prepared.module {
        objects::name_module(conn, &admission.tenant, id, module)?;
    }
    prepared.first.insert(conn, id)?;
    let opened = TenantFact::RunOpened {
        run: admission.run.clone(),
        contract: prepared.contract,
    };
    log::add(conn, &admission.tenant, None, admission.at_unix_ms, opened)?;
    Ok(Admitted::New)
}

fn insert(conn: &Connection, prepared: &Prepared) -> Result<i64> {
    let admission = &prepared.admission;
    let head = prepared.first.head();
    conn.prepare_cached(
        "INSERT INTO runs (run, tenant, project, principal, tool, tool_version, state, epoch, contract_digest, \
         head_count, head_digest, accepted_ms, opened_seq, retain_ms) \
         VALUES (?, ?, ?, ?, ?, ?, 'queued', 0, ?, ?, ?, ?, ?, ?)",
    )?
    .execute(params![
        admission.run.as_str(),
        admission.tenant.as_str(),
        admission.project.as_str(),
        admission.principal.as_str(),
        admission.tool.as_ref().map(|tool| tool.tool.as_str()),
        admission.tool.as_ref().map(|tool| tool.version.to_string()),
        prepared.contract.to_string(),
        int(head.count),
        head.digest.to_string(),
        int(admission.at_unix_ms),
        int(log::head(conn, &admission.tenant)?.count),
        int(prepared.retain_ms),
    ])?;
    Ok(conn.last_insert_rowid())
}

/// The run that the admission's key stands for already.
fn earlier(conn: &Connection, admission: &Admission) -> Result<Option<Admitted>> {
    let Some(Idempotency { key, request }) = &admission.idempotency else {
        return Ok(None);
    };
    match read::earlier(conn, &admission.tenant, key)? {
        None => Ok(None),
        Some((first, row)) if first != *request => Err(StoreError::KeyReused { first: row.run }),
        Some((_, row)) => Ok(Some(Admitted::Earlier(Box::new(row)))),
    }
}

/// See [`crate::seam::Store::grant`].
pub(in crate::sqlite) fn grant(conn: &Connection, lease: &Lease, event: &Written) -> Result<()> {
    let live = Live::read(conn, &lease.run)?;
    if live.state.is_over() {
        return live.wrong_state();
    }
    if live.active_lease(conn)?.is_some() {
        return Err(StoreError::WrongState {
            what: "lease",
            state: "active",
        });
    }
    lease_out(conn, live, lease, event)
}

/// See [`crate::seam::Store::take_over`].
pub(in crate::sqlite) fn take_over(
    conn: &Connection,
    lease: &Lease,
    event: &Written,
) -> Result<()> {
    let live = Live::read(conn, &lease.run)?;
    if live.state == RunState::Sealed {
        return live.wrong_state();
    }
    // Checked first: a refused writer must not end the present lease.
    fence_next(&live, lease)?;
    conn.prepare_cached("UPDATE leases SET state = 'revoked' WHERE run = ? AND state = 'active'")?
        .execute([live.id])?;
    lease_out(conn, live, lease, event)
}

fn fence_next(live: &Live, lease: &Lease) -> Result<()> {
    if lease.state != LeaseState::Active {
        return Err(StoreError::WrongState {
            what: "lease",
            state: rows::lease_word(lease.state),
        });
    }
    if lease.epoch == live.epoch.next() {
        return Ok(());
    }
    Err(StoreError::Fenced {
        given: lease.epoch,
        present: live.epoch,
    })
}

fn lease_out(conn: &Connection, mut live: Live, lease: &Lease, event: &Written) -> Result<()> {
    fence_next(&live, lease)?;
    let taken = conn
        .prepare_cached("SELECT 1 FROM leases WHERE lease = ?")?
        .exists([lease.id.as_str()])?;
    if taken {
        return Err(StoreError::Exists("lease"));
    }
    conn.prepare_cached(
        "INSERT INTO leases (lease, run, worker, epoch, sandbox, expires_ms, state) VALUES (?, ?, ?, ?, ?, ?, 'active')",
    )?
    .execute(params![
        lease.id.as_str(),
        live.id,
        lease.worker.as_str(),
        int(lease.epoch.0),
        lease.sandbox.as_ref().map(|sandbox| sandbox.as_str()),
        int(lease.expires_unix_ms),
    ])?;
    conn.prepare_cached(
        "UPDATE runs SET epoch = ?, state = CASE state WHEN 'queued' THEN 'running' ELSE state END, \
         sandbox = coalesce(?, sandbox) WHERE id = ?",
    )?
    .execute(params![
        int(lease.epoch.0),
        lease.sandbox.as_ref().map(|sandbox| sandbox.as_str()),
        live.id
    ])?;
    live.epoch = lease.epoch;
    live.extend(conn, std::slice::from_ref(event))
}

/// See [`crate::seam::Store::append`].
pub(in crate::sqlite) fn append(
    conn: &Connection,
    run: &RunId,
    epoch: Epoch,
    events: &[Written],
) -> Result<()> {
    let mut live = Live::read(conn, run)?;
    live.fence(epoch)?;
    if live.state == RunState::Sealed {
        return live.wrong_state();
    }
    live.extend(conn, events)
}

/// See [`crate::seam::Store::request_cancel`].
pub(in crate::sqlite) fn request_cancel(conn: &Connection, run: &RunId) -> Result<()> {
    let live = Live::read(conn, run)?;
    if live.state.is_over() {
        return live.wrong_state();
    }
    conn.prepare_cached(
        "UPDATE runs SET cancel_requested = 1 WHERE id = ? AND cancel_requested = 0",
    )?
    .execute([live.id])?;
    Ok(())
}

/// See [`crate::seam::Store::conclude`]. `text` is the canonical form of the outcome.
pub(in crate::sqlite) fn conclude(
    conn: &Connection,
    run: &RunId,
    epoch: Epoch,
    (outcome, text): (&Outcome, &str),
    events: &[Written],
) -> Result<()> {
    let mut live = Live::read(conn, run)?;
    live.fence(epoch)?;
    if live.state.is_over() {
        return live.wrong_state();
    }
    conn.prepare_cached("UPDATE runs SET state = 'ended', outcome = ? WHERE id = ?")?
        .execute(params![text, live.id])?;
    conn.prepare_cached("DELETE FROM sealed_requests WHERE run = ?")?
        .execute([live.id])?;
    live.state = RunState::Ended;
    live.outcome = Some(Digest::of(text.as_bytes()));
    live.extend(conn, events)?;
    objects::name_results(conn, live.id, outcome)
}

/// See [`crate::seam::Store::revoke`].
pub(in crate::sqlite) fn revoke(
    conn: &Connection,
    lease: &LeaseId,
    events: &[Written],
) -> Result<()> {
    let found: Option<(String, String)> = conn
        .prepare_cached(
            "SELECT r.run, l.state FROM leases l JOIN runs r ON r.id = l.run WHERE l.lease = ?",
        )?
        .query_row([lease.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (run, state) = found.ok_or(StoreError::NotFound("lease"))?;
    if state != "active" {
        return Ok(());
    }
    conn.prepare_cached("UPDATE leases SET state = 'revoked' WHERE lease = ?")?
        .execute([lease.as_str()])?;
    let run =
        RunId::parse(&run).map_err(|error| super::super::error::damaged("a run's id", error))?;
    Live::read(conn, &run)?.extend(conn, events)
}

/// See [`crate::seam::Store::seal`].
pub(in crate::sqlite) fn seal(
    conn: &Connection,
    lease: Option<&LeaseId>,
    sealing: &Sealing,
    events: &[Written],
) -> Result<()> {
    let mut live = Live::read(conn, &sealing.run)?;
    live.fence(sealing.epoch)?;
    if live.state != RunState::Ended {
        return live.wrong_state();
    }
    if let Some(lease) = lease {
        let of_run = conn
            .prepare_cached("SELECT 1 FROM leases WHERE lease = ? AND run = ?")?
            .exists(params![lease.as_str(), live.id])?;
        if !of_run {
            return Err(StoreError::NotFound("lease"));
        }
    }
    live.extend(conn, events)?;
    let leased = conn
        .prepare_cached("SELECT 1 FROM leases WHERE run = ?")?
        .exists([live.id])?;
    let nothing_was_there = !leased && sealing.observed.residues.is_empty();
    conn.prepare_cached("UPDATE leases SET state = 'closed' WHERE run = ?")?
        .execute([live.id])?;
    conn.prepare_cached("INSERT INTO seals (run, statement, observed, clean) VALUES (?, ?, ?, ?)")?
        .execute(params![
            live.id,
            sealing.statement,
            rows::text(&sealing.observed)?,
            nothing_was_there || sealing.observed.clean(),
        ])?;
    conn.prepare_cached(
        "UPDATE runs SET state = 'sealed', sealed_ms = ?, sealed_seq = ? WHERE id = ?",
    )?
    .execute(params![
        int(sealing.at_unix_ms),
        int(log::head(conn, &live.tenant)?.count),
        live.id
    ])?;
    let sealed = TenantFact::RunSealed {
        run: sealing.run.clone(),
        head: live.head,
    };
    log::add(conn, &live.tenant, None, sealing.at_unix_ms, sealed)
}
