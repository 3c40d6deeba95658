//! Who asks: tenants, principals, roles, and what each role may do.

use serde::{Deserialize, Serialize};

use crate::id::KeyId;
use crate::name::Name;

/// What somebody may be asked to be allowed. Closed: a new operation must be placed in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Operation {
    /// Start a run.
    Run,
    /// Read runs, their output and artifacts.
    ReadRuns,
    /// End a run of the tenant.
    Cancel,
    /// Read evidence and the tenant's log.
    ReadEvidence,
    /// Read published tools.
    ReadTools,
    /// Publish, deprecate or quarantine a tool of the tenant.
    WriteTools,
    /// Read policies and what they come to.
    ReadPolicies,
    /// Write the policies of the tenant, its projects, principals and tools.
    WritePolicies,
    /// Make, list and revoke keys of the tenant.
    Keys,
    /// Read the tenant's own row.
    ReadTenant,
    /// Make and change tenants, the platform's policy, workers; see every tenant.
    Platform,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 11] = [
        Self::Run,
        Self::ReadRuns,
        Self::Cancel,
        Self::ReadEvidence,
        Self::ReadTools,
        Self::WriteTools,
        Self::ReadPolicies,
        Self::WritePolicies,
        Self::Keys,
        Self::ReadTenant,
        Self::Platform,
    ];
}

/// What a principal is. Weakest first; no order is meant between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Role {
    /// Reads runs, evidence, tools and policies; starts nothing.
    Auditor,
    /// Starts and ends runs, reads tools.
    Runner,
    /// A runner who also publishes tools.
    Developer,
    /// Everything within its tenant.
    Admin,
    /// Everything, in every tenant.
    Operator,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 5] = [
        Self::Auditor,
        Self::Runner,
        Self::Developer,
        Self::Admin,
        Self::Operator,
    ];

    /// Whether a principal of this role may do it within its own tenant (an operator: in any).
    #[must_use]
    pub fn allows(self, operation: Operation) -> bool {
        use Operation as Op;
        match operation {
            Op::ReadTenant | Op::ReadRuns | Op::ReadTools => true,
            Op::ReadEvidence | Op::ReadPolicies => self != Self::Runner,
            Op::Run | Op::Cancel => self != Self::Auditor,
            Op::WriteTools => matches!(self, Self::Developer | Self::Admin | Self::Operator),
            Op::WritePolicies | Op::Keys => matches!(self, Self::Admin | Self::Operator),
            Op::Platform => self == Self::Operator,
        }
    }

    /// The word used in keys, records and flags.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Auditor => "auditor",
            Self::Runner => "runner",
            Self::Developer => "developer",
            Self::Admin => "admin",
            Self::Operator => "operator",
        }
    }
}

/// Who asks, as proven by a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Principal {
    /// Whose tenant.
    pub tenant: Name,
    /// Which project of it.
    pub project: Name,
    /// Which person or program.
    pub name: Name,
    /// What it may do.
    pub role: Role,
    /// The key that proved it.
    pub key: KeyId,
    /// Permissions given to this key; a tool's permissions are cut down to them. Empty gives none.
    #[serde(default)]
    pub grants: Vec<String>,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tenant {
    /// Its name; never given to another one, even after it is gone.
    pub name: Name,
    /// When it was made, milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Whether it may start nothing for now.
    #[serde(default)]
    pub suspended: bool,
    /// Its projects. A new tenant has `default`.
    pub projects: Vec<Name>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_role_may_do() {
        use Operation as Op;
        let allowed =
            |role: Role| -> Vec<Op> { Op::ALL.into_iter().filter(|op| role.allows(*op)).collect() };
        assert_eq!(
            allowed(Role::Auditor),
            [
                Op::ReadRuns,
                Op::ReadEvidence,
                Op::ReadTools,
                Op::ReadPolicies,
                Op::ReadTenant
            ]
        );
        assert_eq!(
            allowed(Role::Runner),
            [
                Op::Run,
                Op::ReadRuns,
                Op::Cancel,
                Op::ReadTools,
                Op::ReadTenant
            ]
        );
        assert!(Role::Developer.allows(Op::WriteTools) && !Role::Developer.allows(Op::Keys));
        assert!(Role::Admin.allows(Op::WritePolicies) && !Role::Admin.allows(Op::Platform));
        assert_eq!(allowed(Role::Operator), Op::ALL);
    }
}
