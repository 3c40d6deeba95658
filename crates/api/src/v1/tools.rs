//! `/v1/tools`: publish, read, and set the state of versions that can never change.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use leasehold_control::control::{Readiness, ToolRow, ToolState};
use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::name::{Name, ToolRef, Version};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::Api;
use crate::body::{At, JsonBody};
use crate::caller::Caller;
use crate::error::{Code, ErrorBody, Refusal};

/// One version of a tool.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolView {
    /// Which version of which.
    tool: ToolRef,
    /// Digest of the manifest's canonical form.
    digest: Digest,
    /// `active`, `deprecated` or `quarantined`.
    state: &'static str,
    /// Why it is deprecated or quarantined.
    note: Option<String>,
    /// When it was published, milliseconds since 1970.
    published_unix_ms: u64,
    /// The manifest.
    manifest: Value,
    /// What its publisher should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// Where the code of its WebAssembly module stands: in the answers about one version of a tool that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<CodeView>,
}

/// Where the code of a WebAssembly module stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CodeView {
    /// `compiled`; `compiling`, ask again; `failed`; or `none`: its first run waits for it.
    state: &'static str,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl From<Readiness> for CodeView {
    fn from(readiness: Readiness) -> Self {
        let (state, why) = match readiness {
            Readiness::Ready | Readiness::Kept => ("compiled", None),
            Readiness::Compiling => ("compiling", None),
            Readiness::Refused(why) => ("failed", Some(why)),
            Readiness::Absent => ("none", None),
        };
        Self { state, why }
    }
}

impl From<ToolRow> for ToolView {
    fn from(row: ToolRow) -> Self {
        Self {
            tool: row.tool,
            digest: row.digest,
            state: row.state.word(),
            note: row.note,
            published_unix_ms: row.published_unix_ms,
            manifest: serde_json::from_slice(&row.manifest).unwrap_or(Value::Null),
            warnings: Vec::new(),
            code: None,
        }
    }
}

/// Tools of a tenant.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolList {
    /// By name, newest version first.
    tools: Vec<ToolView>,
}

fn missing(error: PublicError) -> Refusal {
    let not_found = error.kind == ErrorKind::NotFound;
    let refusal = Refusal::from(error);
    match not_found {
        true => refusal.with_code(Code::ToolNotFound),
        false => refusal,
    }
}

/// Lists published tools.
#[utoipa::path(
    get, path = "/v1/tools", tag = "tools",
    responses((status = 200, body = ToolList), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Caller(who): Caller,
) -> Result<Json<ToolList>, Refusal> {
    let rows = api.control.tools(&who, None).await?;
    let tools = rows.into_iter().map(ToolView::from).collect();
    Ok(Json(ToolList { tools }))
}

/// Lists the versions of one tool.
#[utoipa::path(
    get, path = "/v1/tools/{tool}", tag = "tools", params(("tool" = Name, Path)),
    responses((status = 200, body = ToolList), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn versions(
    State(api): State<Api>,
    Caller(who): Caller,
    At(tool): At<Name>,
) -> Result<Json<ToolList>, Refusal> {
    let rows = api.control.tools(&who, Some(tool)).await?;
    if rows.is_empty() {
        let error = PublicError::new(ErrorKind::NotFound, "there is no such tool here");
        return Err(missing(error));
    }
    let tools = rows.into_iter().map(ToolView::from).collect();
    Ok(Json(ToolList { tools }))
}

/// Reads one version.
#[utoipa::path(
    get, path = "/v1/tools/{tool}/{version}", tag = "tools",
    params(("tool" = Name, Path), ("version" = Version, Path)),
    responses((status = 200, body = ToolView), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn read(
    State(api): State<Api>,
    Caller(who): Caller,
    At((tool, version)): At<(Name, Version)>,
) -> Result<Json<ToolView>, Refusal> {
    let tool = ToolRef { tool, version };
    let row = api.control.tool(&who, &tool).await.map_err(missing)?;
    let code = api.control.tool_code(&row).await;
    let mut view = ToolView::from(row);
    view.code = code.map(CodeView::from);
    Ok(Json(view))
}

/// A version to be published.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishRequest {
    /// The manifest as text, YAML or JSON.
    manifest: String,
    /// The tool's own files as a tar archive, in base 64.
    package: Option<String>,
}

/// Publishes a version. It is checked whole, and immutable from then on. A WebAssembly module, or the interpreter
/// of a script, is compiled before its first run: `code` in the answer says whether it is.
#[utoipa::path(
    post, path = "/v1/tools", tag = "tools", request_body = PublishRequest,
    responses((status = 201, body = ToolView), (status = 409, description = "This version is there", body = ErrorBody), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn publish(
    State(api): State<Api>,
    Caller(who): Caller,
    body: JsonBody,
) -> Result<(StatusCode, Json<ToolView>), Refusal> {
    let PublishRequest { manifest, package } = body.parse()?;
    let package = package.map(|text| BASE64.decode(text)).transpose();
    let package = package.map_err(|error| {
        PublicError::new(
            ErrorKind::Invalid,
            format!("`package` is no base 64: {error}"),
        )
    })?;
    let published = api
        .control
        .publish_tool(&who, manifest.as_bytes(), package.as_deref());
    let published = published.await?;
    let mut view = ToolView::from(published.row);
    view.warnings = published.warnings;
    view.code = published.code.map(CodeView::from);
    Ok((StatusCode::CREATED, Json(view)))
}

/// A state for a version.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateRequest {
    /// `active`, `deprecated` or `quarantined`.
    state: String,
    /// Why; shown to whoever asks for the version.
    note: Option<String>,
}

/// Deprecates, quarantines or reactivates a version.
#[utoipa::path(
    put, path = "/v1/tools/{tool}/{version}/state", tag = "tools",
    params(("tool" = Name, Path), ("version" = Version, Path)), request_body = StateRequest,
    responses((status = 200, body = ToolView), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn set_state(
    State(api): State<Api>,
    Caller(who): Caller,
    At((tool, version)): At<(Name, Version)>,
    body: JsonBody,
) -> Result<Json<ToolView>, Refusal> {
    let StateRequest { state, note } = body.parse()?;
    let state = ToolState::ALL
        .into_iter()
        .find(|known| known.word() == state)
        .ok_or_else(|| {
            let shown: String = state.chars().take(64).collect();
            PublicError::new(
                ErrorKind::Invalid,
                format!("`state` is {shown:?}: one of active, deprecated, quarantined"),
            )
        })?;
    let tool = ToolRef { tool, version };
    let changed = api.control.set_tool_state(&who, &tool, state, note).await;
    Ok(Json(changed.map_err(missing)?.into()))
}
