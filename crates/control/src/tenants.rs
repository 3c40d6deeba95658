//! Tenants and their projects.

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::TenantFact;
use leasehold_core::name::Name;
use leasehold_core::tenant::{Operation, Principal, Role, Tenant};
use leasehold_store::seam::{Change, Store, StoreError};

use crate::access;

/// Name of the project that every tenant has.
pub const DEFAULT_PROJECT: &str = "default";
/// Most projects of one tenant.
pub const PROJECTS_MAX: usize = 1_000;

fn public(error: &StoreError) -> PublicError {
    match error {
        StoreError::NotFound(_) => PublicError::new(ErrorKind::NotFound, "no such tenant"),
        error => error.public(),
    }
}

/// A new tenant's row. Its projects are `default` and those named.
///
/// # Errors
/// `invalid` for too many projects.
pub fn new(name: Name, projects: Vec<Name>, now_unix_ms: u64) -> Result<Tenant, PublicError> {
    let mut all: Vec<Name> = Name::parse(DEFAULT_PROJECT).into_iter().collect();
    all.extend(projects);
    all.sort();
    all.dedup();
    if all.len() > PROJECTS_MAX {
        return Err(PublicError::new(
            ErrorKind::Invalid,
            format!("projects: {}: most is {PROJECTS_MAX}", all.len()),
        ));
    }
    Ok(Tenant {
        name,
        created_unix_ms: now_unix_ms,
        suspended: false,
        projects: all,
    })
}

/// Makes a tenant.
///
/// # Errors
/// `forbidden` but for an operator; `exists` when the name was ever used.
pub async fn create(
    store: &dyn Store,
    who: &Principal,
    now_unix_ms: u64,
    name: Name,
    projects: Vec<Name>,
) -> Result<Tenant, PublicError> {
    access::allowed(who, Operation::Platform)?;
    let tenant = new(name.clone(), projects, now_unix_ms)?;
    let change = vec![(
        Change::CreateTenant(tenant.clone()),
        TenantFact::TenantCreated,
    )];
    let by = Some(who.key.clone());
    let done = store.change(name, by, now_unix_ms, change).await;
    done.map_err(|error| public(&error))?;
    Ok(tenant)
}

/// One tenant.
///
/// # Errors
/// `not_found`, also for another's.
pub async fn get(store: &dyn Store, who: &Principal, name: &Name) -> Result<Tenant, PublicError> {
    access::allowed(who, Operation::ReadTenant)?;
    let name = access::tenant(who, Some(name))?;
    let tenant = store.tenant(name).await;
    tenant.map_err(|error| public(&error))
}

/// Every tenant for an operator, one's own for anybody else.
///
/// # Errors
/// When the store fails.
pub async fn list(store: &dyn Store, who: &Principal) -> Result<Vec<Tenant>, PublicError> {
    access::allowed(who, Operation::ReadTenant)?;
    if who.role == Role::Operator {
        return store.tenants().await.map_err(|error| public(&error));
    }
    Ok(vec![get(store, who, &who.tenant).await?])
}

/// Lets a tenant start nothing, or start again. Runs that are going on are not touched.
///
/// # Errors
/// `forbidden` but for an operator; `not_found`.
pub async fn suspend(
    store: &dyn Store,
    who: &Principal,
    now_unix_ms: u64,
    name: &Name,
    suspended: bool,
) -> Result<Tenant, PublicError> {
    access::allowed(who, Operation::Platform)?;
    let mut tenant = get(store, who, name).await?;
    if tenant.suspended == suspended {
        return Ok(tenant);
    }
    tenant.suspended = suspended;
    let change = vec![(
        Change::UpdateTenant(tenant.clone()),
        TenantFact::TenantSuspended { suspended },
    )];
    let by = Some(who.key.clone());
    let done = store.change(name.clone(), by, now_unix_ms, change).await;
    done.map_err(|error| public(&error))?;
    Ok(tenant)
}
