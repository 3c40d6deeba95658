//! Which objects are named: by runs that begin with them or left them, by uploads, by the packages of tools.

use leasehold_core::digest::Digest;
use leasehold_core::name::Name;
use leasehold_core::outcome::Outcome;
use rusqlite::{Connection, OptionalExtension, params};

use super::super::rows::{self, int};
use super::Result;
use crate::seam::{PAGE_MAX, StoreError, UploadBounds, UploadRow};

const NAME: &str = "INSERT INTO names (digest, run, kind, until_ms) VALUES (?, ?, ?, ?) \
                    ON CONFLICT DO NOTHING";

/// See [`crate::seam::Store::room_for_upload`].
pub(in crate::sqlite) fn room(
    conn: &Connection,
    upload: &UploadRow,
    bounds: UploadBounds,
) -> Result<()> {
    let (tenant, digest) = (upload.tenant.as_str(), upload.digest.to_string());
    let (count, bytes): (i64, i64) = conn
        .prepare_cached(
            "SELECT count(*), coalesce(sum(bytes), 0) FROM uploads WHERE tenant = ? AND digest <> ?",
        )?
        .query_row(params![tenant, digest], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    for (what, would_be, most) in [
        (
            "uploads of a tenant",
            count.saturating_add(1),
            bounds.count_max,
        ),
        (
            "bytes of a tenant's uploads",
            bytes.saturating_add(int(upload.bytes)),
            bounds.bytes_max,
        ),
    ] {
        if would_be > int(most) {
            return Err(StoreError::Quota { what, most });
        }
    }
    Ok(())
}

/// See [`crate::seam::Store::put_upload`].
pub(in crate::sqlite) fn put_upload(
    conn: &Connection,
    upload: &UploadRow,
    bounds: UploadBounds,
) -> Result<()> {
    let (tenant, digest) = (upload.tenant.as_str(), upload.digest.to_string());
    let there = conn
        .prepare_cached("SELECT 1 FROM tenants WHERE name = ?")?
        .exists([tenant])?;
    if !there {
        return Err(StoreError::NotFound("tenant"));
    }
    room(conn, upload, bounds)?;
    conn.prepare_cached(
        "INSERT INTO uploads (tenant, digest, bytes, at_ms) VALUES (?, ?, ?, ?) ON CONFLICT (tenant, digest) \
         DO UPDATE SET at_ms = max(at_ms, excluded.at_ms)",
    )?
    .execute(params![
        tenant,
        digest,
        int(upload.bytes),
        int(upload.at_unix_ms)
    ])?;
    Ok(())
}

/// See [`crate::seam::Store::upload`].
pub(in crate::sqlite) fn upload(
    conn: &Connection,
    tenant: &Name,
    digest: &Digest,
) -> Result<UploadRow> {
    let mut query =
        conn.prepare_cached("SELECT bytes, at_ms FROM uploads WHERE tenant = ? AND digest = ?")?;
    let mut found = query.query(params![tenant.as_str(), digest.to_string()])?;
    let row = found.next()?.ok_or(StoreError::NotFound("upload"))?;
    Ok(UploadRow {
        tenant: tenant.clone(),
        digest: *digest,
        bytes: rows::count(row, 0)?,
        at_unix_ms: rows::count(row, 1)?,
    })
}

/// A run that is admitted names what its workspace begins with.
pub(super) fn name_content(
    conn: &Connection,
    tenant: &Name,
    run: i64,
    content: &Digest,
) -> Result<()> {
    upload(conn, tenant, content)?;
    let none: Option<i64> = None;
    conn.prepare_cached(NAME)?
        .execute(params![content.to_string(), run, "content", none])?;
    Ok(())
}

/// A run that is admitted names the module it runs, if that was uploaded: any other is kept otherwise.
pub(super) fn name_module(
    conn: &Connection,
    tenant: &Name,
    run: i64,
    module: &Digest,
) -> Result<()> {
    match name_content(conn, tenant, run, module) {
        Err(StoreError::NotFound(_)) => Ok(()),
        named => named,
    }
}

/// A run that ended names what it left, each for its time, and what it began with no more.
pub(super) fn name_results(conn: &Connection, id: i64, outcome: &Outcome) -> Result<()> {
    conn.prepare_cached("DELETE FROM names WHERE run = ? AND kind = 'content'")?
        .execute([id])?;
    let streams = [outcome.stdout, outcome.stderr].into_iter().flatten();
    let streams = streams.filter(|stored| stored.stream.kept > 0);
    let logs = streams.filter_map(|stored| stored.digest);
    let logs: Vec<String> = logs.map(|digest| digest.to_string()).collect();
    let files = outcome.artifacts.iter();
    let files: Vec<String> = files
        .filter_map(|file| Some(format!("sha256:{}", file.sha256.as_ref()?)))
        .collect();
    if logs.is_empty() && files.is_empty() {
        return Ok(());
    }
    let terms: Option<(Option<i64>, Option<i64>)> = conn
        .prepare_cached(
            "SELECT json_extract(CAST(contract AS TEXT), '$.retention.logs_s'), \
             json_extract(CAST(contract AS TEXT), '$.retention.artifacts_s') FROM contracts WHERE run = ?",
        )?
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (logs_s, files_s) = terms.unwrap_or_default();
    let until = |seconds: Option<i64>| {
        let kept = seconds?.saturating_mul(1_000);
        Some(int(outcome.ended_unix_ms).saturating_add(kept))
    };
    let mut insert = conn.prepare_cached(NAME)?;
    for digest in logs {
        insert.execute(params![digest, id, "log", until(logs_s)])?;
    }
    for digest in files {
        insert.execute(params![digest, id, "artifact", until(files_s)])?;
    }
    Ok(())
}

/// See [`crate::seam::Store::named`].
pub(in crate::sqlite) fn named(
    conn: &Connection,
    digests: &[Digest],
    at_unix_ms: u64,
) -> Result<Vec<Digest>> {
    let mut query = conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM names WHERE digest = ?1 AND (until_ms IS NULL OR until_ms > ?2)) \
         OR EXISTS (SELECT 1 FROM uploads WHERE digest = ?1) \
         OR EXISTS (SELECT 1 FROM tools WHERE CASE WHEN json_valid(CAST(manifest AS TEXT)) \
         THEN json_extract(CAST(manifest AS TEXT), '$.package') END = ?1)",
    )?;
    let mut found = Vec::new();
    for digest in digests.iter().take(PAGE_MAX as usize) {
        let given = params![digest.to_string(), int(at_unix_ms)];
        if query.query_row(given, |row| row.get(0))? {
            found.push(*digest);
        }
    }
    Ok(found)
}

/// See [`crate::seam::Store::prune_names`].
pub(in crate::sqlite) fn prune(
    conn: &Connection,
    now_unix_ms: u64,
    uploaded_before_unix_ms: u64,
    limit: u32,
) -> Result<u32> {
    let limit = limit.min(PAGE_MAX);
    let names = conn
        .prepare_cached(
            "DELETE FROM names WHERE (digest, run, kind) IN (SELECT digest, run, kind FROM names \
             WHERE until_ms IS NOT NULL AND until_ms <= ? LIMIT ?)",
        )?
        .execute(params![int(now_unix_ms), limit])?;
    let uploads = conn
        .prepare_cached(
            "DELETE FROM uploads WHERE (tenant, digest) IN (SELECT tenant, digest FROM uploads u \
             WHERE at_ms < ? AND NOT EXISTS (SELECT 1 FROM names n JOIN runs r ON r.id = n.run \
             WHERE n.digest = u.digest AND n.kind = 'content' AND r.tenant = u.tenant) LIMIT ?)",
        )?
        .execute(params![int(uploaded_before_unix_ms), limit])?;
    Ok(u32::try_from(names + uploads).unwrap_or(u32::MAX))
}
