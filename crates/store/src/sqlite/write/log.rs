//! A tenant's log: the next entry is made from the last one, inside the transaction that it tells of.

use leasehold_core::digest::{Digest, canonical};
use leasehold_core::event::{Head, TenantEntry, TenantFact};
use leasehold_core::id::KeyId;
use leasehold_core::name::Name;
use rusqlite::{Connection, params};

use super::super::rows::{self, int};
use super::Result;

/// End of a tenant's log.
pub(in crate::sqlite) fn head(conn: &Connection, tenant: &Name) -> Result<Head> {
    let mut query = conn
        .prepare_cached("SELECT seq, digest FROM log WHERE tenant = ? ORDER BY seq DESC LIMIT 1")?;
    let mut found = query.query([tenant.as_str()])?;
    let Some(row) = found.next()? else {
        return Ok(Head::EMPTY);
    };
    let last = rows::head(row, 0)?;
    Ok(Head {
        count: last.count + 1,
        digest: last.digest,
    })
}

/// Adds an entry.
pub(super) fn add(
    conn: &Connection,
    tenant: &Name,
    by: Option<&KeyId>,
    at_unix_ms: u64,
    fact: TenantFact,
) -> Result<()> {
    let head = head(conn, tenant)?;
    let entry = TenantEntry {
        tenant: tenant.clone(),
        seq: head.count,
        at_unix_ms,
        by: by.cloned(),
        fact,
        prev: head.digest,
    };
    let bytes = canonical(&entry)?;
    conn.prepare_cached("INSERT INTO log (tenant, seq, digest, entry) VALUES (?, ?, ?, ?)")?
        .execute(params![
            tenant.as_str(),
            int(entry.seq),
            Digest::of(&bytes).to_string(),
            bytes
        ])?;
    Ok(())
}
