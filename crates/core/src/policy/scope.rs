//! Where a policy holds.

use std::fmt;

use crate::name::Name;

/// Where a policy holds, outermost first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Everywhere.
    Platform,
    /// One tenant, as the operator says: no role of that tenant writes it.
    PlatformTenant(Name),
    /// One tenant, as it says itself.
    Tenant(Name),
    /// One project of a tenant.
    Project(Name, Name),
    /// One principal of a tenant.
    Principal(Name, Name),
    /// One tool of a tenant, every version.
    Tool(Name, Name),
}

/// A text that is no scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "scope {0:?}: expected `platform`, `platform/tenant/T`, `tenant/T`, `tenant/T/project/P`, `tenant/T/principal/N` or `tenant/T/tool/X`"
)]
pub struct ScopeError(pub String);

impl Scope {
    /// Reads a scope.
    ///
    /// # Errors
    /// When the text is none.
    pub fn parse(text: &str) -> Result<Self, ScopeError> {
        let wrong = || ScopeError(text.chars().take(80).collect());
        let name = |part: &str| Name::parse(part).map_err(|_| wrong());
        let parts: Vec<&str> = text.splitn(5, '/').collect();
        match parts.as_slice() {
            ["platform"] => Ok(Self::Platform),
            ["platform", "tenant", tenant] => Ok(Self::PlatformTenant(name(tenant)?)),
            ["tenant", tenant] => Ok(Self::Tenant(name(tenant)?)),
            ["tenant", tenant, "project", project] => {
                Ok(Self::Project(name(tenant)?, name(project)?))
            }
            ["tenant", tenant, "principal", principal] => {
                Ok(Self::Principal(name(tenant)?, name(principal)?))
            }
            ["tenant", tenant, "tool", tool] => Ok(Self::Tool(name(tenant)?, name(tool)?)),
            _ => Err(wrong()),
        }
    }

    /// Whether the operator alone publishes there. What such a document says may give; any other only narrows.
    #[must_use]
    pub fn of_operator(&self) -> bool {
        match self {
            Self::Platform | Self::PlatformTenant(_) => true,
            Self::Tenant(_) | Self::Project(..) | Self::Principal(..) | Self::Tool(..) => false,
        }
    }

    /// Whom it is about; the platform's is about everybody.
    #[must_use]
    pub fn tenant(&self) -> Option<&Name> {
        match self {
            Self::Platform => None,
            Self::PlatformTenant(tenant)
            | Self::Tenant(tenant)
            | Self::Project(tenant, _)
            | Self::Principal(tenant, _)
            | Self::Tool(tenant, _) => Some(tenant),
        }
    }

    /// Every scope that has a say in a run, outermost first.
    #[must_use]
    pub fn of_run(
        tenant: &Name,
        project: &Name,
        principal: &Name,
        tool: Option<&Name>,
    ) -> Vec<Self> {
        let mut scopes = vec![
            Self::Platform,
            Self::PlatformTenant(tenant.clone()),
            Self::Tenant(tenant.clone()),
            Self::Project(tenant.clone(), project.clone()),
            Self::Principal(tenant.clone(), principal.clone()),
        ];
        scopes.extend(tool.map(|tool| Self::Tool(tenant.clone(), tool.clone())));
        scopes
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Platform => out.write_str("platform"),
            Self::PlatformTenant(tenant) => write!(out, "platform/tenant/{tenant}"),
            Self::Tenant(tenant) => write!(out, "tenant/{tenant}"),
            Self::Project(tenant, project) => write!(out, "tenant/{tenant}/project/{project}"),
            Self::Principal(tenant, name) => write!(out, "tenant/{tenant}/principal/{name}"),
            Self::Tool(tenant, tool) => write!(out, "tenant/{tenant}/tool/{tool}"),
        }
    }
}
