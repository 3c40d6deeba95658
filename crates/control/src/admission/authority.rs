//! What a run may do: permissions, network, credentials. Each is the tool's wish cut down, or refused.

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::policy::{AllowList, covers};
use leasehold_core::run_contract::NetworkTerms;

use super::{Case, denied, forbidden};

/// What a run may do.
#[derive(Debug, Clone, Default)]
pub(super) struct Authority {
    pub(super) permissions: Vec<String>,
    pub(super) network: NetworkTerms,
}

pub(super) fn resolve(
    case: Case<'_>,
    warnings: &mut Vec<String>,
) -> Result<Authority, PublicError> {
    credentials(case)?;
    Ok(Authority {
        permissions: permissions(case, warnings)?,
        network: network(case)?,
    })
}

/// The caller's grants, cut down to the tool's permissions, within policy. What was asked for by name
/// and may not be had is refused.
fn permissions(case: Case<'_>, warnings: &mut Vec<String>) -> Result<Vec<String>, PublicError> {
    let of_tool = case
        .manifest()
        .map(|manifest| manifest.permissions.as_slice());
    let mut wanted: Vec<String> = match (&case.request.permissions, of_tool) {
        (Some(asked), _) => asked.clone(),
        (None, Some(of_tool)) => of_tool.to_vec(),
        (None, None) => Vec::new(),
    };
    wanted.sort();
    wanted.dedup();
    let mut given = Vec::new();
    for permission in wanted {
        match why_not(case, of_tool, &permission) {
            None => given.push(permission),
            Some(why) if case.request.permissions.is_some() => {
                return Err(forbidden(format!("permissions: {permission:?}: {why}")));
            }
            Some(why) => warnings.push(format!(
                "it runs without the permission {permission:?}: {why}"
            )),
        }
    }
    Ok(given)
}

fn why_not(case: Case<'_>, of_tool: Option<&[String]>, permission: &str) -> Option<String> {
    if of_tool.is_some_and(|of_tool| of_tool.iter().all(|each| each != permission)) {
        return Some("the tool does not use it".to_owned());
    }
    if !case
        .who
        .grants
        .iter()
        .any(|grant| covers(grant, permission))
    {
        return Some("the key was not granted it".to_owned());
    }
    let allowed = case.policy().allows(AllowList::Permissions, permission);
    allowed.err().map(|denied| denied.to_string())
}

fn network(case: Case<'_>) -> Result<NetworkTerms, PublicError> {
    let Some(manifest) = case.manifest() else {
        return Ok(NetworkTerms::default());
    };
    for rule in &manifest.egress {
        case.policy()
            .allows(AllowList::Egress, rule)
            .map_err(denied)?;
    }
    if !manifest.ingress.is_empty() {
        return Err(forbidden(
            "network.ingress: no policy can allow ports to be reached from outside yet",
        ));
    }
    Ok(NetworkTerms {
        ingress: Vec::new(),
        egress: manifest.egress.clone(),
    })
}

fn credentials(case: Case<'_>) -> Result<(), PublicError> {
    let Some(manifest) = case.manifest() else {
        return Ok(());
    };
    for wish in &manifest.credentials {
        case.policy()
            .allows(AllowList::Credentials, &wish.secret_ref)
            .map_err(denied)?;
    }
    if manifest.credentials.is_empty() {
        return Ok(());
    }
    Err(PublicError::new(
        ErrorKind::Unsupported,
        "sandbox unavailable: the tool needs credentials, and this build hands none out yet",
    ))
}
