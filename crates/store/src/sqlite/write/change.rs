//! What people with rights do: each change with the entry that tells of it.

use leasehold_core::event::TenantFact;
use leasehold_core::id::KeyId;
use leasehold_core::name::Name;
use leasehold_core::tenant::Tenant;
use rusqlite::{Connection, OptionalExtension, params};

use super::super::{read, rows, rows::int};
use super::{Result, log};
use crate::seam::{
    Change, KEYS_KEPT_MAX, KeyRow, POLICY_VERSIONS_MAX, PolicyRow, StoreError, TOOL_VERSIONS_MAX,
    ToolRow,
};

/// See [`crate::seam::Store::change`].
pub(in crate::sqlite) fn apply(
    conn: &Connection,
    tenant: &Name,
    by: Option<&KeyId>,
    at_unix_ms: u64,
    changes: &[(Change, TenantFact)],
) -> Result<()> {
    for (change, fact) in changes {
        if !tells_of(change, fact) {
            return Err(StoreError::WrongState {
                what: "log entry",
                state: "not of its change",
            });
        }
        one(conn, tenant, change)?;
        log::add(conn, tenant, by, at_unix_ms, fact.clone())?;
    }
    Ok(())
}

/// Whether an entry says what the change does.
fn tells_of(change: &Change, fact: &TenantFact) -> bool {
    match (change, fact) {
        (Change::CreateTenant(_), TenantFact::TenantCreated) => true,
        (Change::UpdateTenant(tenant), TenantFact::TenantSuspended { suspended }) => {
            tenant.suspended == *suspended
        }
        (Change::CreateKey(row), TenantFact::KeyCreated { key, principal }) => {
            row.key == *key && row.principal == *principal
        }
        (Change::RevokeKey(row, _), TenantFact::KeyRevoked { key }) => row == key,
        (Change::PublishTool(row), TenantFact::ToolPublished { tool, manifest }) => {
            row.tool == *tool && row.digest == *manifest
        }
        (Change::SetToolState(row, to, _), TenantFact::ToolState { tool, state }) => {
            row == tool && to.word() == state
        }
        (
            Change::PublishPolicy(row),
            TenantFact::PolicyPublished {
                scope,
                version,
                digest,
            },
        ) => row.scope == *scope && row.version == *version && row.digest == *digest,
        _ => false,
    }
}

fn one(conn: &Connection, tenant: &Name, change: &Change) -> Result<()> {
    if let Change::CreateTenant(row) = change {
        return create_tenant(conn, tenant, row);
    }
    let before = read::tenant(conn, tenant)?;
    match change {
        Change::CreateTenant(_) => Ok(()),
        Change::UpdateTenant(row) => {
            same(&row.name, tenant, "tenant")?;
            let kept = Tenant {
                created_unix_ms: before.created_unix_ms,
                ..row.clone()
            };
            conn.prepare_cached("UPDATE tenants SET row = ? WHERE name = ?")?
                .execute(params![rows::text(&kept)?, tenant.as_str()])?;
            Ok(())
        }
        Change::CreateKey(row) => create_key(conn, tenant, row),
        Change::RevokeKey(key, at) => revoke_key(conn, tenant, key, *at),
        Change::PublishTool(row) => publish_tool(conn, tenant, row),
        Change::SetToolState(tool, state, note) => {
            let changed = conn
                .prepare_cached(
                    "UPDATE tools SET state = ?, note = ? WHERE tenant = ? AND tool = ? AND version = ?",
                )?
                .execute(params![
                    state.word(),
                    note,
                    tenant.as_str(),
                    tool.tool.as_str(),
                    tool.version.to_string()
                ])?;
            found(changed, "tool")
        }
        Change::PublishPolicy(row) => publish_policy(conn, tenant, row),
    }
}

fn same(given: &Name, tenant: &Name, what: &'static str) -> Result<()> {
    if given == tenant {
        return Ok(());
    }
    Err(StoreError::NotFound(what))
}

fn found(changed: usize, what: &'static str) -> Result<()> {
    if changed == 1 {
        return Ok(());
    }
    Err(StoreError::NotFound(what))
}

/// Inserts a row; one that is there is `Exists`.
fn fresh(inserted: rusqlite::Result<usize>, what: &'static str) -> Result<()> {
    match inserted {
        Ok(1) => Ok(()),
        Ok(_) => Err(StoreError::Exists(what)),
        Err(error) => Err(error.into()),
    }
}

fn create_tenant(conn: &Connection, tenant: &Name, row: &Tenant) -> Result<()> {
    same(&row.name, tenant, "tenant")?;
    let inserted = conn
        .prepare_cached("INSERT INTO tenants (name, row) VALUES (?, ?) ON CONFLICT DO NOTHING")?
        .execute(params![row.name.as_str(), rows::text(row)?]);
    fresh(inserted, "tenant")
}

fn create_key(conn: &Connection, tenant: &Name, row: &KeyRow) -> Result<()> {
    same(&row.tenant, tenant, "tenant")?;
    let inserted = conn
        .prepare_cached(
            "INSERT INTO keys (key, secret, tenant, project, principal, role, grants, created_ms, expires_ms, \
             revoked_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        )?
        .execute(params![
            row.key.as_str(),
            row.secret.to_string(),
            row.tenant.as_str(),
            row.project.as_str(),
            row.principal.as_str(),
            row.role.word(),
            rows::text(&row.grants)?,
            int(row.created_unix_ms),
            row.expires_unix_ms.map(int),
            row.revoked_unix_ms.map(int),
        ]);
    fresh(inserted, "key")?;
    // What ended opens nothing: a key that is not there and one that ended get the same answer.
    conn.prepare_cached(
        "DELETE FROM keys WHERE key IN (SELECT key FROM keys WHERE tenant = ?1 \
         AND (revoked_ms IS NOT NULL OR expires_ms <= ?2) ORDER BY created_ms, key \
         LIMIT max(0, (SELECT count(*) FROM keys WHERE tenant = ?1) - ?3))",
    )?
    .execute(params![
        tenant.as_str(),
        int(row.created_unix_ms),
        int(KEYS_KEPT_MAX)
    ])?;
    Ok(())
}

/// Refuses what was just written when there is more than is allowed; it is undone with its transaction.
fn bounded(count: i64, most: u64, what: &'static str) -> Result<()> {
    match count > int(most) {
        true => Err(StoreError::Quota { what, most }),
        false => Ok(()),
    }
}

fn revoke_key(conn: &Connection, tenant: &Name, key: &KeyId, at: u64) -> Result<()> {
    let known = conn
        .prepare_cached("SELECT revoked_ms IS NOT NULL FROM keys WHERE key = ? AND tenant = ?")?
        .query_row(params![key.as_str(), tenant.as_str()], |row| {
            row.get::<_, bool>(0)
        })
        .optional()?;
    if known.ok_or(StoreError::NotFound("key"))? {
        return Err(StoreError::WrongState {
            what: "key",
            state: "revoked",
        });
    }
    conn.prepare_cached("UPDATE keys SET revoked_ms = ? WHERE key = ?")?
        .execute(params![int(at), key.as_str()])?;
    Ok(())
}

fn publish_tool(conn: &Connection, tenant: &Name, row: &ToolRow) -> Result<()> {
    same(&row.tenant, tenant, "tenant")?;
    let inserted = conn
        .prepare_cached(
            "INSERT INTO tools (tenant, tool, version, manifest, digest, state, note, published_ms) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        )?
        .execute(params![
            row.tenant.as_str(),
            row.tool.tool.as_str(),
            row.tool.version.to_string(),
            row.manifest,
            row.digest.to_string(),
            row.state.word(),
            row.note,
            int(row.published_unix_ms),
        ]);
    fresh(inserted, "tool")?;
    let count = conn
        .prepare_cached("SELECT count(*) FROM tools WHERE tenant = ?")?
        .query_row([tenant.as_str()], |found| found.get(0))?;
    bounded(count, TOOL_VERSIONS_MAX, "tool versions of the tenant")
}

fn publish_policy(conn: &Connection, tenant: &Name, row: &PolicyRow) -> Result<()> {
    let own = format!("tenant/{tenant}");
    let within = row.scope == "platform"
        || row.scope == format!("platform/{own}")
        || row
            .scope
            .strip_prefix(&own)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if !within {
        return Err(StoreError::NotFound("policy"));
    }
    let present: i64 = conn
        .prepare_cached("SELECT coalesce(max(version), 0) FROM policies WHERE scope = ?")?
        .query_row([&row.scope], |found| found.get(0))?;
    if int(row.version) != present + 1 {
        return Err(StoreError::Fork);
    }
    conn.prepare_cached(
        "INSERT INTO policies (scope, version, document, digest, published_ms) VALUES (?, ?, ?, ?, ?)",
    )?
    .execute(params![
        row.scope,
        int(row.version),
        row.document,
        row.digest.to_string(),
        int(row.published_unix_ms)
    ])?;
    if row.scope == "platform" || row.scope.starts_with("platform/") {
        return Ok(());
    }
    // From `tenant/T/` up to the character after the slash: the scopes within it.
    let count = conn
        .prepare_cached(
            "SELECT count(*) FROM policies WHERE scope = ?1 OR (scope > ?1 || '/' AND scope < ?1 || '0')",
        )?
        .query_row([&own], |found| found.get(0))?;
    bounded(count, POLICY_VERSIONS_MAX, "policy versions of the tenant")
}
