//! `/v1/runs`: start, read, list, cancel.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold_control::control::{RunFilter, RunRow, Submitted, Until};
use leasehold_control::request::{RunRequest, WorkspaceWish};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::Event;
use leasehold_core::id::RunId;
use leasehold_core::name::Name;
use leasehold_core::outcome::RunState;
use leasehold_core::run_contract::RunContract;
use leasehold_core::tenant::Principal;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::view::{INLINE_MAX, Inline, RunView};
use crate::Api;
use crate::body::{Asked, At, JsonBody, Parameters};
use crate::caller::Caller;
use crate::error::{ErrorBody, Refusal, of_end};
use crate::page;

/// Longest that a request waits for its run.
const PATIENCE_MAX: Duration = Duration::from_secs(3_600);
/// Names the run in every answer about one, so that a refused run is found again.
pub(crate) const RUN_HEADER: HeaderName = HeaderName::from_static("leasehold-run");

/// How long the answer is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Wait {
    /// It is answered as soon as it is admitted.
    None,
    /// Until its outcome is committed.
    #[default]
    Outcome,
    /// Until its removal was observed and its evidence signed.
    Cleanup,
}

/// Query of a start.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StartQuery {
    /// What the answer waits for: `none`, `outcome` (default) or `cleanup`.
    #[serde(default)]
    wait: Wait,
    /// Longest wait in milliseconds, at most an hour; then the run is answered as it is, with 202.
    wait_ms: Option<u64>,
}

impl Parameters for StartQuery {
    const ALLOWED: &'static [(&'static str, &'static str)] = &[
        ("wait", "none, outcome or cleanup"),
        ("wait_ms", "milliseconds, a whole number from 0"),
    ];
}

fn idempotency(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let wrong = || {
        Refusal::from(PublicError::new(
            ErrorKind::Invalid,
            "`Idempotency-Key` must be one header of 1 to 255 printable ASCII characters",
        ))
    };
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let text = value.to_str().map_err(|_| wrong())?;
    let printable = text.bytes().all(|byte| (0x21..0x7f).contains(&byte));
    if values.next().is_some() || !(1..=255).contains(&text.len()) || !printable {
        return Err(wrong());
    }
    Ok(Some(text.to_owned()))
}

/// Starts a run.
///
/// It is committed before anything is allocated. With an `Idempotency-Key` the same request gives the
/// same run, and another request with that key is a conflict. Who goes away before the answer leaves
/// the run running.
#[utoipa::path(
    post, path = "/v1/runs", tag = "runs",
    params(StartQuery, ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters, unique within the tenant")),
    request_body(content = serde_json::Value, description = "What to run: `tool` with `input`, or `command`, alone, in an `image`, or as the arguments of a WebAssembly `module` or `interpreter`"),
    responses(
        (status = 200, description = "It is over", body = RunView),
        (status = 202, description = "It goes on", body = RunView),
        (status = "4XX", description = "Refused, or the run ended badly: then the body is the run", body = ErrorBody),
        (status = "5XX", description = "No capacity, or the host failed", body = ErrorBody),
    ),
)]
pub(crate) async fn start(
    State(api): State<Api>,
    Caller(who): Caller,
    Asked(query): Asked<StartQuery>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, Refusal> {
    let key = idempotency(&headers)?;
    let mut request = RunRequest::parse(&body.0)?;
    let passed = api.directories.take(&headers)?;
    let directory = match passed {
        None => None,
        Some((directory, mode)) if request.workspace == WorkspaceWish::Ephemeral => {
            request.workspace = WorkspaceWish::Directory(mode);
            Some(directory)
        }
        Some(_) => {
            return Err(PublicError::new(
                ErrorKind::Invalid,
                "`workspace` names content, and a directory was passed too: one of them",
            )
            .into());
        }
    };
    let submitted = api.control.submit(&who, request, key, directory).await?;
    let Submitted { row, warnings, .. } = submitted;
    let patience = query
        .wait_ms
        .map_or(PATIENCE_MAX, Duration::from_millis)
        .min(PATIENCE_MAX);
    let until = match query.wait {
        Wait::None => None,
        Wait::Outcome => Some(Until::Ended),
        Wait::Cleanup => Some(Until::Sealed),
    };
    let row = match until {
        Some(until) => api.control.wait(&who, &row.run, until, patience).await?,
        None => row,
    };
    let mut view = RunView::from(row);
    view.warnings = warnings;
    if until.is_some() && view.state.is_over() {
        inline(&api, &who, &mut view).await;
    }
    Ok(answer(view, until.is_none()))
}

/// Repeats the beginning of the output in the answer. An output that cannot be read is left out: it is
/// at its link.
async fn inline(api: &Api, who: &Principal, view: &mut RunView) {
    let Some(outcome) = &view.outcome else {
        return;
    };
    let [out, err] = [&outcome.stdout, &outcome.stderr].map(|stream| stream.map(|s| s.stream.kept));
    for (name, kept) in [("stdout", out), ("stderr", err)] {
        let Some(kept) = kept else { continue };
        let bytes = match kept {
            0 => Ok(Vec::new()),
            _ => {
                api.control
                    .output(who, &view.run, name, 0, INLINE_MAX)
                    .await
            }
        };
        let shown = bytes.ok().map(|bytes| Inline::of(&bytes, kept));
        match name {
            "stdout" => view.stdout = shown,
            _ => view.stderr = shown,
        }
    }
}

/// The answer about a run: its status says how it ended, once it has.
fn answer(view: RunView, asynchronous: bool) -> Response {
    let status = match &view.outcome {
        Some(outcome) if !asynchronous => {
            of_end(&outcome.end, view.is_tool()).map_or(StatusCode::OK, |(status, _)| status)
        }
        _ => StatusCode::ACCEPTED,
    };
    let run = view.run.to_string();
    let mut response = (status, Json(view)).into_response();
    if let Ok(value) = HeaderValue::from_str(&run) {
        response.headers_mut().insert(RUN_HEADER, value);
    }
    if let Ok(value) = HeaderValue::from_str(&format!("/v1/runs/{run}")) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}

/// A run, and whether it was set aside.
fn viewed(api: &Api, row: RunRow) -> RunView {
    let mut view = RunView::from(row);
    view.stuck = api.control.is_stuck(&view.run);
    view
}

/// Reads a run.
#[utoipa::path(
    get, path = "/v1/runs/{run}", tag = "runs",
    params(("run" = RunId, Path)),
    responses((status = 200, body = RunView), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn read(
    State(api): State<Api>,
    Caller(who): Caller,
    At(run): At<RunId>,
) -> Result<Json<RunView>, Refusal> {
    let row = api.control.run(&who, &run).await?;
    Ok(Json(viewed(&api, row)))
}

/// Query of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Of one project.
    project: Option<Name>,
    /// Of one tool, any version.
    tool: Option<Name>,
    /// In one state: `queued`, `running`, `ended` or `sealed`.
    state: Option<RunState>,
    /// `next` of the page before.
    cursor: Option<String>,
    /// 1 to 500; 50 if absent.
    limit: Option<u32>,
}

impl Parameters for ListQuery {
    const ALLOWED: &'static [(&'static str, &'static str)] = &[
        ("project", "the name of a project"),
        ("tool", "the name of a tool, without a version"),
        ("state", "queued, running, ended or sealed"),
        ("cursor", "`next` of the page before"),
        ("limit", "a whole number from 1 to 500"),
    ];
}

/// One page of runs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunPage {
    /// Newest first.
    runs: Vec<RunView>,
    /// Cursor of the next page; null on the last.
    next: Option<String>,
}

/// Lists runs of the caller's tenant, newest first.
#[utoipa::path(
    get, path = "/v1/runs", tag = "runs", params(ListQuery),
    responses((status = 200, body = RunPage), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Caller(who): Caller,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<RunPage>, Refusal> {
    let limit = page::limit(query.limit)?;
    let filter = RunFilter {
        tenant: None,
        project: query.project,
        tool: query.tool,
        states: query.state.into_iter().collect(),
        before: query.cursor.as_deref().map(page::read).transpose()?,
        limit,
    };
    let rows = api.control.runs(&who, filter).await?;
    let full = u32::try_from(rows.len()).is_ok_and(|count| count >= limit);
    let next = rows
        .last()
        .filter(|_| full)
        .map(|row| page::write(row.accepted_unix_ms, &row.run));
    Ok(Json(RunPage {
        runs: rows.into_iter().map(|row| viewed(&api, row)).collect(),
        next,
    }))
}

/// Asks for the end of a run: TERM, grace, KILL. Idempotent; what is over stays as it ended.
#[utoipa::path(
    post, path = "/v1/runs/{run}/cancel", tag = "runs",
    params(("run" = RunId, Path)),
    responses((status = 202, body = RunView), (status = 200, description = "It was over", body = RunView), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn cancel(
    State(api): State<Api>,
    Caller(who): Caller,
    At(run): At<RunId>,
) -> Result<(StatusCode, Json<RunView>), Refusal> {
    let view = RunView::from(api.control.cancel(&who, &run).await?);
    let status = match view.state.is_over() {
        true => StatusCode::OK,
        false => StatusCode::ACCEPTED,
    };
    Ok((status, Json(view)))
}

/// Reads the contract: what was fixed at admission.
#[utoipa::path(
    get, path = "/v1/runs/{run}/contract", tag = "runs",
    params(("run" = RunId, Path)),
    responses((status = 200, body = RunContract), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn contract(
    State(api): State<Api>,
    Caller(who): Caller,
    At(run): At<RunId>,
) -> Result<Json<RunContract>, Refusal> {
    Ok(Json(api.control.contract(&who, &run).await?))
}

/// Query of an audit page.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    /// First event; 0 if absent.
    #[serde(default)]
    from: u64,
}

impl Parameters for AuditQuery {
    const ALLOWED: &'static [(&'static str, &'static str)] = &[("from", "a whole number from 0")];
}

/// Some events of a run's chain.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditPage {
    /// In order.
    events: Vec<Event>,
}

/// Reads the hash-chained events of a run, at most 500 at once.
#[utoipa::path(
    get, path = "/v1/runs/{run}/audit", tag = "evidence",
    params(("run" = RunId, Path), AuditQuery),
    responses((status = 200, body = AuditPage), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn audit(
    State(api): State<Api>,
    Caller(who): Caller,
    At(run): At<RunId>,
    Asked(query): Asked<AuditQuery>,
) -> Result<Json<AuditPage>, Refusal> {
    let events = api.control.audit(&who, &run, query.from).await?;
    Ok(Json(AuditPage { events }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_plain_header() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("idempotency-key", value.parse().unwrap());
            }
            idempotency(&headers)
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&["a-1"]), Ok(Some("a-1".to_owned())));
        for bad in [
            vec![""],
            vec!["a b"],
            vec!["a", "a"],
            vec!["é"],
            vec![&"x".repeat(256)],
        ] {
            assert!(of(&bad).is_err(), "{bad:?}");
        }
    }
}
