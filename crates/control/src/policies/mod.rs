//! Policy documents in the store: published, read, and brought together for one run.

mod check;

use std::sync::OnceLock;

use leasehold_core::digest::{Digest, canonical};
use leasehold_core::document::Mistakes;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::TenantFact;
use leasehold_core::name::Name;
use leasehold_core::policy::{Document, Effective, Explained, Level, Scope};
use leasehold_core::tenant::{Operation, Principal, Role};
use leasehold_store::seam::{Change, PolicyRow, Store, StoreError};

use crate::access;
use crate::tenants::DEFAULT_PROJECT;
pub use check::check;

/// Name of the tenant that the operator's first key belongs to.
pub const DEFAULT_TENANT: &str = "default";

const PLATFORM: &str = include_str!("platform.yaml");
const DEFAULT: &str = include_str!("default.yaml");

/// The document that holds at a scope until one is published, as people may read it.
#[must_use]
pub fn built_in_text(scope: &Scope) -> Option<&'static str> {
    match scope {
        Scope::Platform => Some(PLATFORM),
        Scope::PlatformTenant(tenant) if tenant.as_str() == DEFAULT_TENANT => Some(DEFAULT),
        Scope::PlatformTenant(_)
        | Scope::Tenant(_)
        | Scope::Project(..)
        | Scope::Principal(..)
        | Scope::Tool(..) => None,
    }
}

fn built_in(scope: &Scope) -> Result<Option<Level>, PublicError> {
    // Each is read once.
    static READ: [OnceLock<Result<Level, PublicError>>; 2] = [const { OnceLock::new() }; 2];
    let Some(text) = built_in_text(scope) else {
        return Ok(None);
    };
    let read = || {
        let document = check(scope, text.as_bytes());
        level(
            scope.clone(),
            0,
            document.map_err(|error| unreadable(scope, 0, &error))?,
        )
    };
    let place = usize::from(*scope != Scope::Platform);
    READ[place].get_or_init(read).clone().map(Some)
}

fn level(scope: Scope, version: u64, document: Document) -> Result<Level, PublicError> {
    let digest = Digest::of_value(&document.to_value()).map_err(|error| {
        unreadable(&scope, version, &Mistakes::one("", None, error.to_string()))
    })?;
    Ok(Level {
        scope,
        version,
        digest,
        document,
    })
}

/// A policy that cannot be read allows nothing.
fn unreadable(scope: &Scope, version: u64, error: &Mistakes) -> PublicError {
    PublicError::new(
        ErrorKind::Internal,
        format!("policy {scope} version {version} cannot be read, so nothing is allowed: {error}"),
    )
}

fn level_of_row(scope: Scope, row: &PolicyRow) -> Result<Level, PublicError> {
    let unreadable = |error: &Mistakes| unreadable(&scope, row.version, error);
    if Digest::of(&row.document) != row.digest {
        let message = "its digest is another";
        return Err(unreadable(&Mistakes::one("", None, message)));
    }
    let document = check::read(&row.document).map_err(|error| unreadable(&error))?;
    Ok(Level {
        digest: row.digest,
        scope,
        version: row.version,
        document,
    })
}

/// The document in force at one scope.
///
/// # Errors
/// When the store fails or the document cannot be read.
pub async fn in_force(store: &dyn Store, scope: Scope) -> Result<Option<Level>, PublicError> {
    let row = store.policy(scope.to_string()).await;
    match row.map_err(|error| error.public())? {
        Some(row) => level_of_row(scope, &row).map(Some),
        None => built_in(&scope),
    }
}

/// What the documents at these scopes come to. Any error denies: it is returned.
///
/// # Errors
/// As [`in_force`].
pub async fn meet(store: &dyn Store, scopes: Vec<Scope>) -> Result<Effective, PublicError> {
    let mut levels = Vec::with_capacity(scopes.len());
    for scope in scopes {
        levels.extend(in_force(store, scope).await?);
    }
    Ok(Effective::meet(levels))
}

/// Whom an explanation is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Whose tenant.
    pub tenant: Name,
    /// Which project.
    pub project: Name,
    /// Which principal.
    pub principal: Name,
    /// Which tool; absent for bare commands.
    pub tool: Option<Name>,
}

/// Whom a caller asks about; what is not named is the caller's own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Named {
    /// Another tenant, whose project is `default` unless named.
    pub tenant: Option<Name>,
    /// A project.
    pub project: Option<Name>,
    /// A principal.
    pub principal: Option<Name>,
    /// A tool; a bare command if absent.
    pub tool: Option<Name>,
}

impl Subject {
    /// The subject that a caller means.
    ///
    /// # Errors
    /// None that a caller could mend.
    pub fn of(who: &Principal, named: Named) -> Result<Self, PublicError> {
        let tenant = named.tenant.unwrap_or_else(|| who.tenant.clone());
        let project = match named.project {
            Some(project) => project,
            None if tenant == who.tenant => who.project.clone(),
            None => Name::parse(DEFAULT_PROJECT)
                .map_err(|error| PublicError::new(ErrorKind::Internal, error.to_string()))?,
        };
        Ok(Self {
            tenant,
            project,
            principal: named.principal.unwrap_or_else(|| who.name.clone()),
            tool: named.tool,
        })
    }
}

/// Every effective value for a subject, and the documents that set it.
///
/// # Errors
/// `forbidden`, `not_found` for another's tenant, or as [`in_force`].
pub async fn explain(
    store: &dyn Store,
    who: &Principal,
    subject: &Subject,
) -> Result<Vec<Explained>, PublicError> {
    access::allowed(who, Operation::ReadPolicies)?;
    access::tenant(who, Some(&subject.tenant))?;
    let tool = subject.tool.as_ref();
    let scopes = Scope::of_run(&subject.tenant, &subject.project, &subject.principal, tool);
    let effective = meet(store, scopes).await?;
    Ok(effective.explain(tool.map(Name::as_str)))
}

fn may_read(who: &Principal, scope: &Scope) -> Result<(), PublicError> {
    access::allowed(who, Operation::ReadPolicies)?;
    if let Some(tenant) = scope.tenant() {
        access::tenant(who, Some(tenant)).map_err(|_| not_found())?;
    }
    Ok(())
}

fn not_found() -> PublicError {
    PublicError::new(ErrorKind::NotFound, "no such policy")
}

/// One version of a policy, or what is in force; the built-in ones are version 0.
///
/// # Errors
/// `forbidden`, `not_found`.
pub async fn get(
    store: &dyn Store,
    who: &Principal,
    scope: Scope,
    version: Option<u64>,
) -> Result<Level, PublicError> {
    may_read(who, &scope)?;
    match version {
        None => in_force(store, scope).await?.ok_or_else(not_found),
        Some(0) => built_in(&scope)?.ok_or_else(not_found),
        Some(version) => match store.policy_version(scope.to_string(), version).await {
            Ok(row) => level_of_row(scope, &row),
            Err(StoreError::NotFound(_)) => Err(not_found()),
            Err(error) => Err(error.public()),
        },
    }
}

/// Every policy in force that the principal may read, the built-in ones among them.
///
/// # Errors
/// `forbidden`, or as [`in_force`].
pub async fn list(store: &dyn Store, who: &Principal) -> Result<Vec<Level>, PublicError> {
    access::allowed(who, Operation::ReadPolicies)?;
    let tenant = (who.role != Role::Operator).then(|| who.tenant.clone());
    let rows = store
        .policies(tenant)
        .await
        .map_err(|error| error.public())?;
    let mut levels: Vec<Level> = Vec::with_capacity(rows.len() + 2);
    for row in rows {
        let scope = Scope::parse(&row.scope)
            .map_err(|error| PublicError::new(ErrorKind::Internal, error.to_string()))?;
        levels.push(level_of_row(scope, &row)?);
    }
    for scope in [Scope::Platform, Scope::PlatformTenant(who.tenant.clone())] {
        if levels.iter().all(|level| level.scope != scope) {
            levels.extend(in_force(store, scope).await?);
        }
    }
    levels.sort_by(|left, right| left.scope.cmp(&right.scope));
    Ok(levels)
}

/// Checks that a document of a tenant names no trust that the operator does not give: it would say what it
/// cannot do.
async fn lowers(store: &dyn Store, tenant: &Name, document: &Document) -> Result<(), PublicError> {
    let scope = Scope::PlatformTenant(tenant.clone());
    let hint = format!("trust is given by the operator, at `platform` or `{scope}`");
    let operator = meet(store, vec![Scope::Platform, scope]).await?;
    let mistakes = check::beyond(document, &operator);
    if mistakes.is_empty() {
        return Ok(());
    }
    Err(Mistakes(mistakes).public("policy").hint(hint))
}

/// Publishes a document at a scope; it is in force when this answers, for every run admitted later.
///
/// # Errors
/// `forbidden`; `invalid` with everything that is wrong with the document; `conflict` when somebody else
/// published at the same moment.
pub async fn publish(
    store: &dyn Store,
    who: &Principal,
    now_unix_ms: u64,
    scope: Scope,
    text: &[u8],
) -> Result<Level, PublicError> {
    let operation = match scope.of_operator() {
        true => Operation::Platform,
        false => Operation::WritePolicies,
    };
    access::allowed(who, operation)?;
    let tenant = access::tenant(who, scope.tenant())?;
    let document = check(&scope, text).map_err(|mistakes| mistakes.public("policy"))?;
    if !scope.of_operator() {
        lowers(store, &tenant, &document).await?;
    }
    let earlier = store.policy(scope.to_string()).await;
    let earlier = earlier.map_err(|error| error.public())?;
    let version = earlier.map_or(0, |row| row.version) + 1;
    let level = level(scope, version, document)?;
    let kept = canonical(&level.document.to_value())
        .map_err(|error| PublicError::new(ErrorKind::Internal, error.to_string()))?;
    let row = PolicyRow {
        scope: level.scope.to_string(),
        version,
        document: kept,
        digest: level.digest,
        published_unix_ms: now_unix_ms,
    };
    let fact = TenantFact::PolicyPublished {
        scope: row.scope.clone(),
        version,
        digest: row.digest,
    };
    let change = vec![(Change::PublishPolicy(row), fact)];
    store
        .change(tenant, Some(who.key.clone()), now_unix_ms, change)
        .await
        .map_err(|error| match error {
            StoreError::Fork => {
                PublicError::new(ErrorKind::Conflict, "another version was just published")
            }
            error => error.public(),
        })?;
    Ok(level)
}
