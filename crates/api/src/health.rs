//! Whether the daemon lives, can serve, and what it counts.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::Api;
use crate::caller::Caller;
use crate::error::{ErrorBody, Refusal};

/// Says that the process answers. Needs no key and tells nothing else.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, body = String)), security(()))]
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// Says whether runs can be admitted: the store writes and a worker is there. Needs no key.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses((status = 200, body = String), (status = 503, body = ErrorBody)),
    security(()),
)]
pub(crate) async fn readyz(State(api): State<Api>) -> Result<&'static str, Refusal> {
    api.control.ready().await?;
    Ok("ready\n")
}

/// Counters as Prometheus reads them. For operators.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses((status = 200, content_type = "text/plain", body = String), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn metrics(
    State(api): State<Api>,
    Caller(who): Caller,
) -> Result<Response, Refusal> {
    let text = api.control.metrics(&who).await?;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    Ok((kind, text).into_response())
}
