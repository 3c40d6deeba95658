//! API keys: made, listed, revoked. The token is shown once, to whoever made the key.

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::TenantFact;
use leasehold_core::id::{Entropy, KeyId};
use leasehold_core::name::Name;
use leasehold_core::policy::AllowList;
use leasehold_core::tenant::{Operation, Principal, Role};
use leasehold_store::seam::{Change, KeyRow, Store, StoreError};

use crate::access;
use crate::auth::Token;
use crate::policies::DEFAULT_TENANT;
use crate::tenants::{self, DEFAULT_PROJECT};

/// Most grants of one key.
pub const GRANTS_MAX: usize = 256;
/// Most keys of one tenant that are neither revoked nor expired.
pub const KEYS_MAX: usize = 1_000;

/// A key as it is ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyOrder {
    /// Whose tenant; absent for the orderer's own.
    pub tenant: Option<Name>,
    /// Which project of it.
    pub project: Name,
    /// For which person or program.
    pub principal: Name,
    /// What it may do.
    pub role: Role,
    /// Its permissions.
    pub grants: Vec<String>,
    /// When it ends by itself, milliseconds since 1970; absent for never.
    pub expires_unix_ms: Option<u64>,
}

/// Entropy for a new key, drawn by the caller.
pub struct KeyEntropy {
    /// For its id.
    pub id: Entropy,
    /// For its secret.
    pub secret: [u8; 32],
}

fn invalid(message: String) -> PublicError {
    PublicError::new(ErrorKind::Invalid, message)
}

fn check(order: &KeyOrder, now_unix_ms: u64) -> Result<(), PublicError> {
    if order.grants.len() > GRANTS_MAX {
        let count = order.grants.len();
        return Err(invalid(format!(
            "grants: {count} items: most is {GRANTS_MAX}"
        )));
    }
    for (at, grant) in order.grants.iter().enumerate() {
        let checked = AllowList::Permissions.check(grant);
        checked.map_err(|error| invalid(format!("grants[{at}]: {error}")))?;
    }
    match order.expires_unix_ms {
        Some(end) if end <= now_unix_ms => Err(invalid(format!("expires: {end} is over already"))),
        _ => Ok(()),
    }
}

fn row(order: KeyOrder, tenant: Name, now_unix_ms: u64, entropy: &KeyEntropy) -> (KeyRow, Token) {
    let key = KeyId::from_entropy(&entropy.id);
    let token = Token::from_entropy(&key, &entropy.secret);
    let row = KeyRow {
        key,
        secret: token.secret_digest(),
        tenant,
        project: order.project,
        principal: order.principal,
        role: order.role,
        grants: order.grants,
        created_unix_ms: now_unix_ms,
        expires_unix_ms: order.expires_unix_ms,
        revoked_unix_ms: None,
    };
    (row, token)
}

fn creation(row: &KeyRow) -> (Change, TenantFact) {
    let fact = TenantFact::KeyCreated {
        key: row.key.clone(),
        principal: row.principal.clone(),
    };
    (Change::CreateKey(row.clone()), fact)
}

/// Makes a key. Its token is in the answer and nowhere else.
///
/// # Errors
/// `forbidden`, also for an operator's key when the orderer is none; `invalid`; `not_found` for another's
/// tenant or a project that is not there; `quota` when there are too many.
pub async fn create(
    store: &dyn Store,
    who: &Principal,
    now_unix_ms: u64,
    order: KeyOrder,
    entropy: &KeyEntropy,
) -> Result<(KeyRow, Token), PublicError> {
    access::allowed(who, Operation::Keys)?;
    if order.role == Role::Operator && who.role != Role::Operator {
        return Err(PublicError::new(
            ErrorKind::Forbidden,
            "role: only an operator makes an operator's key",
        ));
    }
    check(&order, now_unix_ms)?;
    let tenant = access::tenant(who, order.tenant.as_ref())?;
    let there = tenants::get(store, who, &tenant).await?;
    if !there.projects.contains(&order.project) {
        return Err(PublicError::new(
            ErrorKind::NotFound,
            format!("project: the tenant has no project `{}`", order.project),
        ));
    }
    let keys = store.keys(tenant.clone()).await;
    let live = keys
        .map_err(|error| error.public())?
        .iter()
        .filter(|key| crate::auth::is_live(key, now_unix_ms))
        .count();
    if live >= KEYS_MAX {
        return Err(PublicError::new(
            ErrorKind::Quota,
            format!("the tenant has {live} keys: most is {KEYS_MAX}"),
        )
        .hint("revoke keys that are not used"));
    }
    let (row, token) = row(order, tenant.clone(), now_unix_ms, entropy);
    let by = Some(who.key.clone());
    let done = store
        .change(tenant, by, now_unix_ms, vec![creation(&row)])
        .await;
    done.map_err(|error| error.public())?;
    Ok((row, token))
}

/// Makes the tenant `default` and the operator's first key in it, if there is no tenant yet. Its token is
/// handed to `keep` before anything is committed: who ends in between leaves a token of no key, and the next
/// start draws another; the other way round nobody would ever have had the token of the only key.
///
/// # Errors
/// What `keep` says, or when the store fails.
pub async fn first<E: From<PublicError>>(
    store: &dyn Store,
    now_unix_ms: u64,
    entropy: &KeyEntropy,
    keep: impl FnOnce(&Token) -> Result<(), E>,
) -> Result<Option<(KeyRow, Token)>, E> {
    let there = store.tenants().await.map_err(|error| error.public())?;
    if !there.is_empty() {
        return Ok(None);
    }
    let name = |text: &str| Name::parse(text).map_err(|error| invalid(error.to_string()));
    let order = KeyOrder {
        tenant: None,
        project: name(DEFAULT_PROJECT)?,
        principal: name("operator")?,
        role: Role::Operator,
        grants: vec!["*".to_owned()],
        expires_unix_ms: None,
    };
    let tenant = tenants::new(name(DEFAULT_TENANT)?, Vec::new(), now_unix_ms)?;
    let name = tenant.name.clone();
    let (row, token) = row(order, name.clone(), now_unix_ms, entropy);
    keep(&token)?;
    let changes = vec![
        (Change::CreateTenant(tenant), TenantFact::TenantCreated),
        creation(&row),
    ];
    let done = store.change(name, None, now_unix_ms, changes).await;
    done.map_err(|error| error.public())?;
    Ok(Some((row, token)))
}

/// Keys of a tenant, newest first, revoked ones among them.
///
/// # Errors
/// `forbidden`; `not_found` for another's tenant.
pub async fn list(
    store: &dyn Store,
    who: &Principal,
    tenant: Option<&Name>,
) -> Result<Vec<KeyRow>, PublicError> {
    access::allowed(who, Operation::Keys)?;
    let tenant = access::tenant(who, tenant)?;
    store.keys(tenant).await.map_err(|error| error.public())
}

/// Revokes a key. Idempotent.
///
/// # Errors
/// `forbidden`; `not_found`, also for another's.
pub async fn revoke(
    store: &dyn Store,
    who: &Principal,
    now_unix_ms: u64,
    key: &KeyId,
) -> Result<KeyRow, PublicError> {
    access::allowed(who, Operation::Keys)?;
    let not_found = || PublicError::new(ErrorKind::NotFound, "no such key");
    let mut row = match store.key(key.clone()).await {
        Ok(row) => row,
        Err(StoreError::NotFound(_)) => return Err(not_found()),
        Err(error) => return Err(error.public()),
    };
    access::tenant(who, Some(&row.tenant)).map_err(|_| not_found())?;
    if row.role == Role::Operator && who.role != Role::Operator {
        return Err(not_found());
    }
    if row.revoked_unix_ms.is_some() {
        return Ok(row);
    }
    let change = vec![(
        Change::RevokeKey(key.clone(), now_unix_ms),
        TenantFact::KeyRevoked { key: key.clone() },
    )];
    let by = Some(who.key.clone());
    let done = store
        .change(row.tenant.clone(), by, now_unix_ms, change)
        .await;
    done.map_err(|error| error.public())?;
    row.revoked_unix_ms = Some(now_unix_ms);
    Ok(row)
}
