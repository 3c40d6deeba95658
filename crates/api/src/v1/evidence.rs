//! What proves a run, for machines and in words.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use leasehold_core::id::RunId;

use crate::Api;
use crate::body::At;
use crate::caller::Caller;
use crate::error::{ErrorBody, Refusal};

/// Exports the evidence of a sealed run; `leasehold verify` checks it offline.
#[utoipa::path(
    get, path = "/v1/runs/{run}/evidence", tag = "evidence",
    params(("run" = RunId, Path)),
    responses((status = 200, description = "The bundle", body = serde_json::Value), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn evidence(
    State(api): State<Api>,
    Caller(who): Caller,
    At(run): At<RunId>,
) -> Result<Response, Refusal> {
    let bundle = api.control.evidence(&who, &run).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], bundle).into_response())
}

/// Answers in words: boundary, identity, state, mediation, trusted parts, cleanup.
#[utoipa::path(
    get, path = "/v1/runs/{run}/explain", tag = "evidence",
    params(("run" = RunId, Path)),
    responses((status = 200, content_type = "text/plain", body = String), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn explain(
    State(api): State<Api>,
    Caller(who): Caller,
    At(run): At<RunId>,
) -> Result<String, Refusal> {
    Ok(api.control.explain(&who, &run).await?)
}
