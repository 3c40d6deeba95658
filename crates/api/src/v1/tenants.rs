//! `/v1/tenants` and `/v1/keys`: who may ask.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use leasehold_control::control::KeyRow;
use leasehold_control::keys::KeyOrder;
use leasehold_core::id::KeyId;
use leasehold_core::name::Name;
use leasehold_core::tenant::{Role, Tenant};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::Api;
use crate::body::{Asked, At, JsonBody, Parameters};
use crate::caller::Caller;
use crate::error::{ErrorBody, Refusal};

/// Tenants.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TenantList {
    /// By name.
    tenants: Vec<Tenant>,
}

/// Lists tenants: an operator sees all, everybody else their own.
#[utoipa::path(
    get, path = "/v1/tenants", tag = "tenants",
    responses((status = 200, body = TenantList), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Caller(who): Caller,
) -> Result<Json<TenantList>, Refusal> {
    let tenants = api.control.tenants(&who).await?;
    Ok(Json(TenantList { tenants }))
}

/// Reads a tenant.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}", tag = "tenants", params(("tenant" = Name, Path)),
    responses((status = 200, body = Tenant), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn read(
    State(api): State<Api>,
    Caller(who): Caller,
    At(tenant): At<Name>,
) -> Result<Json<Tenant>, Refusal> {
    Ok(Json(api.control.tenant(&who, &tenant).await?))
}

/// A tenant to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantRequest {
    /// Its name; can never be used again.
    name: Name,
}

/// Makes a tenant. For operators.
#[utoipa::path(
    post, path = "/v1/tenants", tag = "tenants", request_body = TenantRequest,
    responses((status = 201, body = Tenant), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn create(
    State(api): State<Api>,
    Caller(who): Caller,
    body: JsonBody,
) -> Result<(StatusCode, Json<Tenant>), Refusal> {
    let TenantRequest { name } = body.parse()?;
    let tenant = api.control.create_tenant(&who, &name).await?;
    Ok((StatusCode::CREATED, Json(tenant)))
}

/// Whether a tenant may start anything.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SuspendRequest {
    /// Whether it may not.
    suspended: bool,
}

/// Suspends a tenant or lets it go on. What runs is left running. For operators.
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}/suspended", tag = "tenants",
    params(("tenant" = Name, Path)), request_body = SuspendRequest,
    responses((status = 200, body = Tenant), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn suspend(
    State(api): State<Api>,
    Caller(who): Caller,
    At(tenant): At<Name>,
    body: JsonBody,
) -> Result<Json<Tenant>, Refusal> {
    let SuspendRequest { suspended } = body.parse()?;
    let tenant = api.control.suspend_tenant(&who, &tenant, suspended).await?;
    Ok(Json(tenant))
}

/// A key; never its secret.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyView {
    /// Which.
    key: KeyId,
    /// Whose tenant.
    tenant: Name,
    /// Which project.
    project: Name,
    /// Which principal.
    principal: Name,
    /// What it may do.
    role: Role,
    /// Its permissions.
    grants: Vec<String>,
    /// When it was made, milliseconds since 1970.
    created_unix_ms: u64,
    /// When it ends by itself.
    expires_unix_ms: Option<u64>,
    /// When it was revoked.
    revoked_unix_ms: Option<u64>,
}

impl From<KeyRow> for KeyView {
    fn from(row: KeyRow) -> Self {
        Self {
            key: row.key,
            tenant: row.tenant,
            project: row.project,
            principal: row.principal,
            role: row.role,
            grants: row.grants,
            created_unix_ms: row.created_unix_ms,
            expires_unix_ms: row.expires_unix_ms,
            revoked_unix_ms: row.revoked_unix_ms,
        }
    }
}

/// Keys of a tenant.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyList {
    /// Newest first.
    keys: Vec<KeyView>,
}

/// Query of a list of keys.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct KeyQuery {
    /// Another tenant than the caller's own. For operators.
    tenant: Option<Name>,
}

impl Parameters for KeyQuery {
    const ALLOWED: &'static [(&'static str, &'static str)] = &[("tenant", "the name of a tenant")];
}

/// Lists keys.
#[utoipa::path(
    get, path = "/v1/keys", tag = "tenants", params(KeyQuery),
    responses((status = 200, body = KeyList), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn keys(
    State(api): State<Api>,
    Caller(who): Caller,
    Asked(query): Asked<KeyQuery>,
) -> Result<Json<KeyList>, Refusal> {
    let rows = api.control.keys(&who, query.tenant).await?;
    let keys = rows.into_iter().map(KeyView::from).collect();
    Ok(Json(KeyList { keys }))
}

/// A key that was just made.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyMade {
    /// The key.
    key: KeyView,
    /// The token. It is told this once and kept nowhere.
    token: String,
}

/// A key to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyRequest {
    /// Whose tenant; the caller's own if absent.
    tenant: Option<Name>,
    /// Which project of it.
    project: Name,
    /// For which person or program.
    principal: Name,
    /// What it may do.
    role: Role,
    /// Its permissions; a tool's are cut down to them.
    #[serde(default)]
    grants: Vec<String>,
    /// How long it is good for, in milliseconds; until it is revoked if absent.
    ttl_ms: Option<u64>,
}

/// Makes a key.
#[utoipa::path(
    post, path = "/v1/keys", tag = "tenants", request_body = KeyRequest,
    responses((status = 201, body = KeyMade), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn create_key(
    State(api): State<Api>,
    Caller(who): Caller,
    body: JsonBody,
) -> Result<(StatusCode, Json<KeyMade>), Refusal> {
    let asked: KeyRequest = body.parse()?;
    let order = KeyOrder {
        tenant: asked.tenant,
        project: asked.project,
        principal: asked.principal,
        role: asked.role,
        grants: asked.grants,
        expires_unix_ms: asked.ttl_ms.map(|ttl| api.control.ends_in(ttl)),
    };
    let (row, token) = api.control.create_key(&who, order).await?;
    let made = KeyMade {
        key: row.into(),
        token: token.reveal().to_owned(),
    };
    Ok((StatusCode::CREATED, Json(made)))
}

/// Revokes a key at once. Idempotent.
#[utoipa::path(
    delete, path = "/v1/keys/{key}", tag = "tenants", params(("key" = KeyId, Path)),
    responses((status = 200, body = KeyView), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn revoke_key(
    State(api): State<Api>,
    Caller(who): Caller,
    At(key): At<KeyId>,
) -> Result<Json<KeyView>, Refusal> {
    Ok(Json(api.control.revoke_key(&who, &key).await?.into()))
}
