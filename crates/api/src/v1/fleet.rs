//! `/v1/workers` and `/v1/log`: what the daemon runs on, and what it remembers of a tenant.

use axum::Json;
use axum::extract::State;
use leasehold_control::control::WorkerRow;
use leasehold_core::event::{Head, TenantEntry};
use leasehold_core::id::{RunId, WorkerId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::Api;
use crate::body::{Asked, Parameters};
use crate::caller::Caller;
use crate::error::{ErrorBody, Refusal};

/// A worker.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerView {
    /// Which.
    worker: WorkerId,
    /// What it can do.
    capabilities: Value,
    /// When it was last heard of, milliseconds since 1970.
    seen_unix_ms: u64,
}

impl From<WorkerRow> for WorkerView {
    fn from(row: WorkerRow) -> Self {
        Self {
            worker: row.worker,
            capabilities: serde_json::from_str(&row.capabilities).unwrap_or(Value::Null),
            seen_unix_ms: row.seen_unix_ms,
        }
    }
}

/// A run that nobody carries any more.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StuckView {
    /// Which.
    run: RunId,
    /// Why, in the daemon's own words.
    why: String,
}

/// Workers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerList {
    /// Every one heard of.
    workers: Vec<WorkerView>,
    /// Runs that this daemon set aside, since they cannot be carried on; they are not tried again before its
    /// next start.
    stuck: Vec<StuckView>,
}

/// Lists workers, and the runs that were set aside. For operators.
#[utoipa::path(
    get, path = "/v1/workers", tag = "platform",
    responses((status = 200, body = WorkerList), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn workers(
    State(api): State<Api>,
    Caller(who): Caller,
) -> Result<Json<WorkerList>, Refusal> {
    let rows = api.control.workers(&who).await?;
    let workers = rows.into_iter().map(WorkerView::from).collect();
    let stuck = api.control.stuck(&who)?.into_iter();
    let stuck = stuck.map(|(run, why)| StuckView { run, why }).collect();
    Ok(Json(WorkerList { workers, stuck }))
}

/// Where a page of the log begins.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogQuery {
    /// First entry; 0 if absent.
    #[serde(default)]
    from: u64,
}

impl Parameters for LogQuery {
    const ALLOWED: &'static [(&'static str, &'static str)] = &[("from", "a whole number from 0")];
}

/// Some entries of a tenant's log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LogPage {
    /// In order, at most 500.
    entries: Vec<TenantEntry>,
    /// End of the whole log.
    head: Head,
    /// The newest signed head: keep it elsewhere, and a cut log shows.
    signed: Option<Value>,
}

/// Reads the hash-chained log of the caller's tenant.
#[utoipa::path(
    get, path = "/v1/log", tag = "evidence", params(LogQuery),
    responses((status = 200, body = LogPage), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn log(
    State(api): State<Api>,
    Caller(who): Caller,
    Asked(query): Asked<LogQuery>,
) -> Result<Json<LogPage>, Refusal> {
    let (entries, head, signed) = api.control.log(&who, query.from).await?;
    let signed = signed.and_then(|text| serde_json::from_str(&text).ok());
    Ok(Json(LogPage {
        entries,
        head,
        signed,
    }))
}
