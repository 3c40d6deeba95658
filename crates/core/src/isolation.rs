//! How strong a boundary is, and how much trust a tool has.

use serde::{Deserialize, Serialize};

/// The ordered strength of a boundary. Later variants are stronger; comparison is the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Isolation {
    /// Linux namespaces, cgroups, seccomp and Landlock around a native process.
    Process,
    /// A WebAssembly instance in a jailed host process.
    Wasm,
    /// An OCI container with its own root file system.
    Container,
    /// A user-space kernel.
    Gvisor,
    /// A virtual machine with its own kernel.
    Microvm,
}

impl Isolation {
    /// Every level, weakest first.
    pub const ALL: [Self; 5] = [
        Self::Process,
        Self::Wasm,
        Self::Container,
        Self::Gvisor,
        Self::Microvm,
    ];

    /// The word used on the command line and in records.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Wasm => "wasm",
            Self::Container => "container",
            Self::Gvisor => "gvisor",
            Self::Microvm => "microvm",
        }
    }
}

/// What is known of a tool's origin. Unknown is untrusted.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TrustClass {
    /// Nobody vouches for it.
    #[default]
    Untrusted,
    /// Reviewed and signed.
    Verified,
    /// The operator's own.
    FirstParty,
}

impl TrustClass {
    /// Every class, least trusted first.
    pub const ALL: [Self; 3] = [Self::Untrusted, Self::Verified, Self::FirstParty];

    /// The word used in manifests, policies and records.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Untrusted => "untrusted",
            Self::Verified => "verified",
            Self::FirstParty => "first_party",
        }
    }

    /// The weakest boundary this class may run behind (invariant I2).
    #[must_use]
    pub fn required(self) -> Isolation {
        match self {
            Self::FirstParty => Isolation::Process,
            Self::Verified => Isolation::Container,
            Self::Untrusted => Isolation::Gvisor,
        }
    }
}

/// Effective isolation: the strongest of what the tool prefers, the policy demands and the trust
/// class requires (invariant I2, never weaker).
#[must_use]
pub fn effective(preference: Isolation, floor: Isolation, trust: TrustClass) -> Isolation {
    preference.max(floor).max(trust.required())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i2_effective_isolation_is_never_weaker_than_any_input() {
        for preference in Isolation::ALL {
            for floor in Isolation::ALL {
                for trust in [
                    TrustClass::Untrusted,
                    TrustClass::Verified,
                    TrustClass::FirstParty,
                ] {
                    let got = effective(preference, floor, trust);
                    assert!(got >= preference && got >= floor && got >= trust.required());
                    assert!([preference, floor, trust.required()].contains(&got));
                }
            }
        }
    }

    #[test]
    fn unknown_trust_is_untrusted() {
        assert_eq!(TrustClass::default(), TrustClass::Untrusted);
    }
}
