//! `/v1/policies`: what is allowed where, and what it comes to.
//!
//! A scope has slashes and is therefore named in the query.

use axum::Json;
use axum::extract::State;
use leasehold_control::policies::Named;
use leasehold_core::digest::Digest;
use leasehold_core::name::{Name, ToolRef};
use leasehold_core::policy::Level;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::Api;
use crate::body::{Asked, JsonBody, Parameters};
use crate::caller::Caller;
use crate::error::{ErrorBody, Refusal};

/// One version of a policy.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PolicyView {
    /// Where it holds.
    scope: String,
    /// Its version there; 0 for the one that is built in.
    version: u64,
    /// Digest of its canonical form.
    digest: Digest,
    /// The document.
    document: Value,
}

impl From<Level> for PolicyView {
    fn from(level: Level) -> Self {
        Self {
            scope: level.scope.to_string(),
            version: level.version,
            digest: level.digest,
            document: level.document.to_value(),
        }
    }
}

/// Policies in force.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PolicyList {
    /// Of the platform first, then of the tenant and within it.
    policies: Vec<PolicyView>,
}

/// Which policy.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ScopeQuery {
    /// `platform`, `platform/tenant/T`, `tenant/T`, `tenant/T/project/P`, `tenant/T/principal/N` or
    /// `tenant/T/tool/X`.
    scope: Option<String>,
}

impl Parameters for ScopeQuery {
    const ALLOWED: &'static [(&'static str, &'static str)] = &[(
        "scope",
        "a scope such as platform/tenant/acme or tenant/acme",
    )];
}

/// Lists the policies in force that the caller may see, or the one of a scope.
#[utoipa::path(
    get, path = "/v1/policies", tag = "policies", params(ScopeQuery),
    responses((status = 200, body = PolicyList), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Caller(who): Caller,
    Asked(query): Asked<ScopeQuery>,
) -> Result<Json<PolicyList>, Refusal> {
    let rows = match query.scope {
        Some(scope) => vec![api.control.policy(&who, &scope).await?],
        None => api.control.policies(&who).await?,
    };
    let policies = rows.into_iter().map(PolicyView::from).collect();
    Ok(Json(PolicyList { policies }))
}

/// A policy to come into force.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyRequest {
    /// Where it is to hold. `platform` and `platform/tenant/T` are the operator's.
    scope: String,
    /// The document as text, YAML or JSON.
    document: String,
}

/// Publishes a policy; it holds for every run admitted from then on.
#[utoipa::path(
    put, path = "/v1/policies", tag = "policies", request_body = PolicyRequest,
    responses((status = 200, body = PolicyView), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn publish(
    State(api): State<Api>,
    Caller(who): Caller,
    body: JsonBody,
) -> Result<Json<PolicyView>, Refusal> {
    let PolicyRequest { scope, document } = body.parse()?;
    let row = api.control.put_policy(&who, &scope, &document).await?;
    Ok(Json(row.into()))
}

/// For what it is explained.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExplainQuery {
    /// A tool's version; a bare command if absent.
    tool: Option<ToolRef>,
    /// Another tenant, for operators; the caller's own if absent.
    tenant: Option<Name>,
    /// A project; the caller's own if absent, `default` in another tenant.
    project: Option<Name>,
    /// A principal; the caller if absent.
    principal: Option<Name>,
}

impl Parameters for ExplainQuery {
    const ALLOWED: &'static [(&'static str, &'static str)] = &[
        ("tool", "NAME@VERSION such as text.wordcount@1.0.0"),
        ("tenant", "a name such as acme"),
        ("project", "a name such as web"),
        ("principal", "a name such as somebody"),
    ];
}

/// One value that holds for the caller.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EffectiveValue {
    /// Path of the value.
    field: String,
    /// The value, as a document would have it; `unbounded` where nobody bounds it.
    value: String,
    /// The documents that set it; empty where nobody did.
    set_by: Vec<String>,
}

/// What the policies come to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Effective {
    /// Every value.
    values: Vec<EffectiveValue>,
}

/// Says what the policies come to for the caller or whom the query names, and which one set each value.
#[utoipa::path(
    get, path = "/v1/policies/effective", tag = "policies", params(ExplainQuery),
    responses((status = 200, body = Effective), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn effective(
    State(api): State<Api>,
    Caller(who): Caller,
    Asked(query): Asked<ExplainQuery>,
) -> Result<Json<Effective>, Refusal> {
    let named = Named {
        tenant: query.tenant,
        project: query.project,
        principal: query.principal,
        tool: query.tool.map(|tool| tool.tool),
    };
    let explained = api.control.explain_policy(&who, named).await?;
    let values = explained.into_iter().map(|value| EffectiveValue {
        field: value.field,
        value: value.value,
        set_by: value.set_by,
    });
    Ok(Json(Effective {
        values: values.collect(),
    }))
}
