//! The reads. Each is one statement, so that it sees one moment.

use leasehold_core::digest::Digest;
use leasehold_core::event::{Event, TenantEntry};
use leasehold_core::id::{KeyId, RunId};
use leasehold_core::lease::Lease;
use leasehold_core::name::{Name, ToolRef};
use leasehold_core::outcome::RunState;
use leasehold_core::record::Observed;
use leasehold_core::tenant::Tenant;
use rusqlite::types::Value;
use rusqlite::{Connection, Params, Row, params, params_from_iter};

use super::rows::{self, int};
use crate::seam::{
    KeyRow, PAGE_MAX, PolicyRow, RunFilter, RunRow, SignedHead, StoreError, ToolRow, WorkerRow,
};

type Result<T> = std::result::Result<T, StoreError>;

fn all<T>(
    conn: &Connection,
    text: &str,
    given: impl Params,
    read: impl Fn(&Row<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut query = conn.prepare_cached(text)?;
    let mut found = query.query(given)?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        rows.push(read(row)?);
    }
    Ok(rows)
}

fn one<T>(
    conn: &Connection,
    text: &str,
    given: impl Params,
    read: impl Fn(&Row<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let mut query = conn.prepare_cached(text)?;
    let mut found = query.query(given)?;
    found.next()?.map(read).transpose()
}

pub(super) fn tenant(conn: &Connection, tenant: &Name) -> Result<Tenant> {
    one(
        conn,
        "SELECT row FROM tenants WHERE name = ?",
        [tenant.as_str()],
        |row| rows::json(row, 0),
    )?
    .ok_or(StoreError::NotFound("tenant"))
}

pub(super) fn tenants(conn: &Connection) -> Result<Vec<Tenant>> {
    all(conn, "SELECT row FROM tenants ORDER BY name", [], |row| {
        rows::json(row, 0)
    })
}

pub(super) fn run(conn: &Connection, tenant: Option<&Name>, run: &RunId) -> Result<RunRow> {
    let text = format!(
        "SELECT {} FROM runs WHERE run = ?1 AND (?2 IS NULL OR tenant = ?2)",
        rows::RUN
    );
    let given = params![run.as_str(), tenant.map(Name::as_str)];
    one(conn, &text, given, rows::run)?.ok_or(StoreError::NotFound("run"))
}

pub(super) fn runs(conn: &Connection, filter: &RunFilter) -> Result<Vec<RunRow>> {
    let mut terms = vec!["1".to_owned()];
    let mut given: Vec<Value> = Vec::new();
    for (column, wanted) in [
        ("tenant", &filter.tenant),
        ("project", &filter.project),
        ("tool", &filter.tool),
    ] {
        if let Some(wanted) = wanted {
            terms.push(format!("{column} = ?"));
            given.push(wanted.as_str().to_owned().into());
        }
    }
    let mut table = "runs";
    if !filter.states.is_empty() {
        if !filter.states.contains(&RunState::Sealed) {
            // There are few of them, however many runs are kept.
            table = "runs INDEXED BY runs_not_sealed";
            terms.push("sealed_ms IS NULL".to_owned());
        }
        // Words of a closed enum.
        let words: Vec<String> = filter
            .states
            .iter()
            .map(|state| format!("'{}'", state.word()))
            .collect();
        terms.push(format!("state IN ({})", words.join(", ")));
    }
    if let Some((at, run)) = &filter.before {
        terms.push("(accepted_ms, run) < (?, ?)".to_owned());
        given.push(int(*at).into());
        given.push(run.as_str().to_owned().into());
    }
    given.push(i64::from(filter.limit.min(PAGE_MAX)).into());
    let text = format!(
        "SELECT {} FROM {table} WHERE {} ORDER BY accepted_ms DESC, run DESC LIMIT ?",
        rows::RUN,
        terms.join(" AND ")
    );
    all(conn, &text, params_from_iter(given), rows::run)
}

pub(super) fn earlier(
    conn: &Connection,
    tenant: &Name,
    key: &str,
) -> Result<Option<(Digest, RunRow)>> {
    let columns: Vec<String> = rows::RUN
        .split(',')
        .map(|column| format!("r.{}", column.trim()))
        .collect();
    let text = format!(
        "SELECT {}, i.request FROM idempotency i JOIN runs r ON r.id = i.run WHERE i.tenant = ? AND i.key = ?",
        columns.join(", ")
    );
    let last = columns.len();
    let given = params![tenant.as_str(), key];
    one(conn, &text, given, |row| {
        Ok((rows::digest(row, last)?, rows::run(row)?))
    })
}

pub(super) fn unsealed(
    conn: &Connection,
    after: Option<&(u64, RunId)>,
    limit: u32,
) -> Result<Vec<RunRow>> {
    let text = format!(
        "SELECT {} FROM runs INDEXED BY runs_not_sealed WHERE sealed_ms IS NULL AND (accepted_ms, run) > (?, ?) \
         ORDER BY accepted_ms, run LIMIT ?",
        rows::RUN
    );
    let (at, run) = match after {
        Some((at, run)) => (int(*at), run.as_str()),
        None => (-1, ""),
    };
    let given = params![at, run, limit.min(PAGE_MAX)];
    all(conn, &text, given, rows::run)
}

fn of_run<T>(
    conn: &Connection,
    run: &RunId,
    join: &str,
    column: &str,
    read: impl Fn(&Row<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let text =
        format!("SELECT {column} FROM runs r LEFT JOIN {join} x ON x.run = r.id WHERE r.run = ?");
    one(conn, &text, [run.as_str()], |row| match row.get_ref(0)? {
        rusqlite::types::ValueRef::Null => Ok(None),
        _ => read(row).map(Some),
    })?
    .ok_or(StoreError::NotFound("run"))
}

pub(super) fn contract(conn: &Connection, run: &RunId) -> Result<Vec<u8>> {
    of_run(conn, run, "contracts", "x.contract", |row| Ok(row.get(0)?))?
        .ok_or(StoreError::NotFound("contract"))
}

pub(super) fn sealed_request(conn: &Connection, run: &RunId) -> Result<Option<Vec<u8>>> {
    of_run(conn, run, "sealed_requests", "x.request", |row| {
        Ok(row.get(0)?)
    })
}

pub(super) fn statement(conn: &Connection, run: &RunId) -> Result<Option<String>> {
    of_run(conn, run, "seals", "x.statement", |row| Ok(row.get(0)?))
}

pub(super) fn events(conn: &Connection, run: &RunId, from: u64) -> Result<Vec<Event>> {
    let id: i64 = one(
        conn,
        "SELECT id FROM runs WHERE run = ?",
        [run.as_str()],
        |row| Ok(row.get(0)?),
    )?
    .ok_or(StoreError::NotFound("run"))?;
    all(
        conn,
        "SELECT event FROM events WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
        params![
            rows::event_id(id, from.min(rows::EVENTS_MAX)),
            rows::event_id(id, rows::EVENTS_MAX),
            PAGE_MAX
        ],
        |row| rows::json(row, 0),
    )
}

pub(super) fn open_leases(conn: &Connection) -> Result<Vec<Lease>> {
    let text = format!(
        "SELECT {} FROM runs r INDEXED BY runs_not_sealed CROSS JOIN leases l ON l.run = r.id \
         WHERE r.sealed_ms IS NULL AND l.state <> 'closed' ORDER BY l.lease",
        rows::LEASE
    );
    all(conn, &text, [], rows::lease)
}

pub(super) fn not_clean(conn: &Connection, limit: u32) -> Result<Vec<(RunId, Observed)>> {
    all(
        conn,
        "SELECT r.run, s.observed FROM seals s JOIN runs r ON r.id = s.run WHERE s.clean = 0 \
         ORDER BY s.run DESC LIMIT ?",
        [limit.min(PAGE_MAX)],
        |row| Ok((rows::run_id(row, 0)?, rows::json(row, 1)?)),
    )
}

pub(super) fn log(conn: &Connection, tenant: &Name, from: u64) -> Result<Vec<TenantEntry>> {
    all(
        conn,
        "SELECT entry FROM log WHERE tenant = ? AND seq >= ? ORDER BY seq LIMIT ?",
        params![tenant.as_str(), int(from), PAGE_MAX],
        |row| rows::json(row, 0),
    )
}

pub(super) fn log_of(conn: &Connection, run: &RunId) -> Result<Vec<TenantEntry>> {
    let found = all(
        conn,
        "SELECT l.entry FROM runs r JOIN log l ON l.tenant = r.tenant AND l.seq IN (r.opened_seq, r.sealed_seq) \
         WHERE r.run = ? ORDER BY l.seq",
        [run.as_str()],
        |row| rows::json(row, 0),
    )?;
    match found.is_empty() {
        true => Err(StoreError::NotFound("run")),
        false => Ok(found),
    }
}

pub(super) fn signed_head(conn: &Connection, tenant: &Name) -> Result<Option<SignedHead>> {
    one(
        conn,
        "SELECT tenant, count, digest, envelope FROM signed_heads WHERE tenant = ?",
        [tenant.as_str()],
        |row| {
            Ok(SignedHead {
                tenant: rows::name(row, 0)?,
                head: rows::head(row, 1)?,
                envelope: row.get(3)?,
            })
        },
    )
}

pub(super) fn key(conn: &Connection, key: &KeyId) -> Result<KeyRow> {
    let text = format!("SELECT {} FROM keys WHERE key = ?", rows::KEY);
    one(conn, &text, [key.as_str()], rows::key)?.ok_or(StoreError::NotFound("key"))
}

pub(super) fn keys(conn: &Connection, tenant: &Name) -> Result<Vec<KeyRow>> {
    let text = format!(
        "SELECT {} FROM keys WHERE tenant = ? ORDER BY created_ms DESC, key",
        rows::KEY
    );
    all(conn, &text, [tenant.as_str()], rows::key)
}

pub(super) fn tool(conn: &Connection, tenant: &Name, tool: &ToolRef) -> Result<ToolRow> {
    let text = format!(
        "SELECT {} FROM tools WHERE tenant = ? AND tool = ? AND version = ?",
        rows::TOOL
    );
    let given = params![
        tenant.as_str(),
        tool.tool.as_str(),
        tool.version.to_string()
    ];
    one(conn, &text, given, rows::tool)?.ok_or(StoreError::NotFound("tool"))
}

pub(super) fn tools(conn: &Connection, tenant: &Name, tool: Option<&Name>) -> Result<Vec<ToolRow>> {
    let text = format!(
        "SELECT {} FROM tools WHERE tenant = ?1 AND (?2 IS NULL OR tool = ?2)",
        rows::TOOL
    );
    let given = params![tenant.as_str(), tool.map(Name::as_str)];
    let mut found = all(conn, &text, given, rows::tool)?;
    found.sort_by(|left, right| {
        let names = left.tool.tool.cmp(&right.tool.tool);
        names.then_with(|| right.tool.version.cmp(&left.tool.version))
    });
    Ok(found)
}

pub(super) fn policy(conn: &Connection, scope: &str) -> Result<Option<PolicyRow>> {
    let text = format!(
        "SELECT {} FROM policies WHERE scope = ? ORDER BY version DESC LIMIT 1",
        rows::POLICY
    );
    one(conn, &text, [scope], rows::policy)
}

pub(super) fn policy_version(conn: &Connection, scope: &str, version: u64) -> Result<PolicyRow> {
    let text = format!(
        "SELECT {} FROM policies WHERE scope = ? AND version = ?",
        rows::POLICY
    );
    one(conn, &text, params![scope, int(version)], rows::policy)?
        .ok_or(StoreError::NotFound("policy"))
}

pub(super) fn policies(conn: &Connection, tenant: Option<&Name>) -> Result<Vec<PolicyRow>> {
    let text = format!(
        "SELECT {} FROM policies p WHERE version = (SELECT max(version) FROM policies q WHERE q.scope = p.scope) \
         ORDER BY scope",
        rows::POLICY
    );
    let mut found = all(conn, &text, [], rows::policy)?;
    if let Some(tenant) = tenant {
        let own = format!("tenant/{tenant}");
        let within = format!("{own}/");
        let of_operator = format!("platform/{own}");
        found.retain(|row| {
            row.scope == own || row.scope == of_operator || row.scope.starts_with(&within)
        });
    }
    Ok(found)
}

pub(super) fn cached(conn: &Connection, tenant: &Name, key: &Digest) -> Result<Option<RunId>> {
    one(
        conn,
        "SELECT r.run FROM cache c JOIN runs r ON r.id = c.run WHERE c.tenant = ? AND c.key = ?",
        params![tenant.as_str(), key.to_string()],
        |row| rows::run_id(row, 0),
    )
}

pub(super) fn workers(conn: &Connection) -> Result<Vec<WorkerRow>> {
    all(
        conn,
        "SELECT worker, capabilities, seen_ms FROM workers ORDER BY worker",
        [],
        rows::worker,
    )
}
