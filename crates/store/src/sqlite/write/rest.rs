//! Signed heads, the cache of pure results, workers, and the end of retention.

use leasehold_core::digest::Digest;
use leasehold_core::id::RunId;
use leasehold_core::name::Name;
use rusqlite::{Connection, OptionalExtension, params};

use super::super::rows::int;
use super::Result;
use super::chain::Live;
use crate::seam::{PAGE_MAX, SignedHead, StoreError, WorkerRow};

/// See [`crate::seam::Store::put_signed_head`].
pub(in crate::sqlite) fn put_signed_head(conn: &Connection, signed: &SignedHead) -> Result<()> {
    let tenant = signed.tenant.as_str();
    let last = int(signed.head.count) - 1;
    let digest: Option<String> = conn
        .prepare_cached("SELECT digest FROM log WHERE tenant = ? AND seq = ?")?
        .query_row(params![tenant, last], |row| row.get(0))
        .optional()?;
    if digest != Some(signed.head.digest.to_string()) {
        return Err(StoreError::Fork);
    }
    let kept: Option<i64> = conn
        .prepare_cached("SELECT count FROM signed_heads WHERE tenant = ?")?
        .query_row([tenant], |row| row.get(0))
        .optional()?;
    if kept.is_some_and(|kept| kept > int(signed.head.count)) {
        return Err(StoreError::WrongState {
            what: "signed head",
            state: "older than the one kept",
        });
    }
    conn.prepare_cached(
        "INSERT INTO signed_heads (tenant, count, digest, envelope) VALUES (?, ?, ?, ?) ON CONFLICT (tenant) \
         DO UPDATE SET count = excluded.count, digest = excluded.digest, envelope = excluded.envelope",
    )?
    .execute(params![
        tenant,
        int(signed.head.count),
        signed.head.digest.to_string(),
        signed.envelope
    ])?;
    Ok(())
}

/// See [`crate::seam::Store::put_cached`].
pub(in crate::sqlite) fn put_cached(
    conn: &Connection,
    tenant: &Name,
    key: &Digest,
    run: &RunId,
) -> Result<()> {
    let live = Live::read(conn, run)?;
    if live.tenant != *tenant {
        return Err(StoreError::NotFound("run"));
    }
    conn.prepare_cached(
        "INSERT INTO cache (tenant, key, run) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
    )?
    .execute(params![tenant.as_str(), key.to_string(), live.id])?;
    Ok(())
}

/// See [`crate::seam::Store::put_worker`].
pub(in crate::sqlite) fn put_worker(conn: &Connection, worker: &WorkerRow) -> Result<()> {
    conn.prepare_cached(
        "INSERT INTO workers (worker, capabilities, seen_ms) VALUES (?, ?, ?) ON CONFLICT (worker) \
         DO UPDATE SET capabilities = excluded.capabilities, seen_ms = max(seen_ms, excluded.seen_ms)",
    )?
    .execute(params![
        worker.worker.as_str(),
        worker.capabilities,
        int(worker.seen_unix_ms)
    ])?;
    Ok(())
}

/// See [`crate::seam::Store::prune`].
pub(in crate::sqlite) fn prune(conn: &Connection, now_unix_ms: u64, limit: u32) -> Result<u32> {
    let gone = conn
        .prepare_cached(
            "DELETE FROM runs WHERE id IN (SELECT id FROM runs WHERE sealed_ms IS NOT NULL \
             AND sealed_ms <= ?1 AND retain_ms <= ?1 - sealed_ms ORDER BY sealed_ms LIMIT ?2)",
        )?
        .execute(params![int(now_unix_ms), limit.min(PAGE_MAX)])?;
    Ok(u32::try_from(gone).unwrap_or(u32::MAX))
}
