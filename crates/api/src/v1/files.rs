//! Bytes of a run: its output streams, its artifacts, and the content a workspace starts with.
//!
//! What a guest named or wrote is served as an attachment that no browser interprets; an artifact is
//! addressed by its place in the list, so that no guest's name is ever part of a path.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use leasehold_control::archive::ARCHIVE_MAX;
use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_core::record::Artifact;
use leasehold_core::tenant::Principal;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::Api;
use crate::body::{Asked, At, Parameters, not_found, whole};
use crate::caller::Caller;
use crate::error::{ErrorBody, Refusal};

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;
/// Most bytes of an uploaded archive.
const UPLOAD_MAX: usize = ARCHIVE_MAX;
/// How long an archive may take to come.
const UPLOAD_PATIENCE: Duration = Duration::from_secs(600);

/// Where a read begins.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OffsetQuery {
    /// First byte; 0 if absent.
    #[serde(default)]
    offset: u64,
}

impl Parameters for OffsetQuery {
    const ALLOWED: &'static [(&'static str, &'static str)] = &[("offset", "a whole number from 0")];
}

/// What is read piece by piece.
enum Source {
    Log(String),
    Artifact(usize),
}

async fn piece(
    api: &Api,
    who: &Principal,
    run: &RunId,
    source: &Source,
    offset: u64,
) -> Result<Vec<u8>, PublicError> {
    match source {
        Source::Log(stream) => api.control.output(who, run, stream, offset, PIECE).await,
        Source::Artifact(index) => api.control.artifact(who, run, *index, offset, PIECE).await,
    }
}

/// Pieces until one is empty. The first is read before the answer begins, so that it can be refused.
fn pieces(
    api: Api,
    who: Principal,
    run: RunId,
    source: Source,
    first: Vec<u8>,
    offset: u64,
) -> impl Stream<Item = Result<Bytes, PublicError>> {
    async_stream::try_stream! {
        let mut offset = offset;
        let mut bytes = first;
        while !bytes.is_empty() {
            offset += bytes.len() as u64;
            yield Bytes::from(bytes);
            bytes = piece(&api, &who, &run, &source, offset).await?;
        }
    }
}

async fn download(
    api: Api,
    who: Principal,
    run: RunId,
    source: Source,
    offset: u64,
) -> Result<Response, Refusal> {
    let first = piece(&api, &who, &run, &source, offset).await?;
    let body = Body::from_stream(pieces(api, who, run, source, first, offset));
    let mut response = body.into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "sandbox"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// Reads an output stream, as far as it is there.
#[utoipa::path(
    get, path = "/v1/runs/{run}/logs/{stream}", tag = "runs",
    params(("run" = RunId, Path), ("stream" = String, Path, description = "stdout or stderr"), OffsetQuery),
    responses((status = 200, content_type = "application/octet-stream", body = String), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn log(
    State(api): State<Api>,
    Caller(who): Caller,
    At((run, stream)): At<(RunId, String)>,
    Asked(query): Asked<OffsetQuery>,
) -> Result<Response, Refusal> {
    if !matches!(stream.as_str(), "stdout" | "stderr") {
        return Err(not_found());
    }
    download(api, who, run, Source::Log(stream), query.offset).await
}

/// Collected files of a run.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ArtifactList {
    /// In the order in which they were collected; a file's place is its address.
    artifacts: Vec<Artifact>,
}

/// Lists what was collected, and what was asked for and not taken, with the reason.
#[utoipa::path(
    get, path = "/v1/runs/{run}/artifacts", tag = "runs",
    params(("run" = RunId, Path)),
    responses((status = 200, body = ArtifactList), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn artifacts(
    State(api): State<Api>,
    Caller(who): Caller,
    At(run): At<RunId>,
) -> Result<Json<ArtifactList>, Refusal> {
    let artifacts = api.control.artifacts(&who, &run).await?;
    Ok(Json(ArtifactList { artifacts }))
}

/// Reads one collected file.
#[utoipa::path(
    get, path = "/v1/runs/{run}/artifacts/{index}", tag = "runs",
    params(("run" = RunId, Path), ("index" = usize, Path, description = "place in the list, from 0"), OffsetQuery),
    responses((status = 200, content_type = "application/octet-stream", body = String), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn artifact(
    State(api): State<Api>,
    Caller(who): Caller,
    At((run, index)): At<(RunId, usize)>,
    Asked(query): Asked<OffsetQuery>,
) -> Result<Response, Refusal> {
    download(api, who, run, Source::Artifact(index), query.offset).await
}

/// An archive or module that was taken.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Uploaded {
    /// Name it by this in a request for a run.
    digest: Digest,
    /// Its length.
    bytes: u64,
}

/// Takes what a later run starts with: a tar archive for its workspace, or, as `application/wasm`, the WebAssembly
/// module that it runs. The same bytes give the same digest.
#[utoipa::path(
    post, path = "/v1/uploads", tag = "runs",
    request_body(content((String = "application/x-tar"), (String = "application/wasm"))),
    responses((status = 201, body = Uploaded), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn upload(
    State(api): State<Api>,
    Caller(who): Caller,
    headers: HeaderMap,
    request: Request,
) -> Result<(StatusCode, Json<Uploaded>), Refusal> {
    let invalid = |message: String| Refusal::from(PublicError::new(ErrorKind::Invalid, message));
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let what = match kind {
        Some(b"application/x-tar") => "archive",
        Some(b"application/wasm") => "module",
        _ => {
            let message = "`content-type` must be application/x-tar or application/wasm";
            return Err(invalid(message.to_owned()));
        }
    };
    let body = request.into_body();
    let bytes = whole(body, what, UPLOAD_MAX, UPLOAD_PATIENCE).await?;
    let length = bytes.len() as u64;
    let digest = match what {
        "module" => api.control.upload_module(&who, bytes.to_vec()).await?,
        _ => api.control.upload(&who, bytes.to_vec()).await?,
    };
    let uploaded = Uploaded {
        digest,
        bytes: length,
    };
    Ok((StatusCode::CREATED, Json(uploaded)))
}
