//! What a document must be at the scope where it is to hold. Pure; also used without a daemon.

use leasehold_core::document::{Mistake, Mistakes};
use leasehold_core::isolation::TrustClass;
use leasehold_core::policy::{Document, Effective, Number, Scope};

use crate::yaml;

/// Numbers that count over a whole tenant, so that a narrower document cannot hold them.
const OF_TENANTS: [Number; 4] = [
    Number::Running,
    Number::Queued,
    Number::RequestBytes,
    Number::PerMinute,
];

/// Why a number cannot stand at a scope, and where it can.
fn misplaced(scope: &Scope, number: Number) -> Option<&'static str> {
    if number.between_tenants() && !scope.of_operator() {
        return Some(
            "says how tenants stand to each other; only the operator writes it, at `platform` or `platform/tenant/T`",
        );
    }
    let narrow = match scope {
        Scope::Platform | Scope::PlatformTenant(_) | Scope::Tenant(_) => return None,
        Scope::Project(..) | Scope::Principal(..) => true,
        Scope::Tool(..) => false,
    };
    if OF_TENANTS.contains(&number) {
        return Some(
            "counts over a tenant; write it at `platform`, `platform/tenant/T` or `tenant/T`",
        );
    }
    (narrow && number == Number::ToolRunning).then_some(
        "counts over a tenant; write it at `platform`, `platform/tenant/T`, `tenant/T` or `tenant/T/tool/X`",
    )
}

/// Reads a document, YAML or JSON, wherever it is to hold.
///
/// # Errors
/// Everything that is wrong with it.
pub(super) fn read(text: &[u8]) -> Result<Document, Mistakes> {
    Document::read(&yaml::parse(text)?)
}

/// What a document of a tenant says of trust beyond what the operator gives: it would have no effect.
pub(super) fn beyond(document: &Document, operator: &Effective) -> Vec<Mistake> {
    let told = |path: String, class: TrustClass, given: TrustClass| {
        (class > given).then(|| Mistake {
            path,
            line: None,
            message: format!(
                "{}: a document of a tenant can only lower trust, and the operator gives `{}` here",
                class.word(),
                given.word()
            ),
        })
    };
    let trust = &document.trust;
    let commands = trust.commands.and_then(|class| {
        let given = operator.trust_of_commands().0;
        told("trust.commands".to_owned(), class, given)
    });
    let tools = trust.tools.iter().filter_map(|(pattern, class)| {
        let given = operator.most_trust(pattern);
        told(format!("trust.tools.{pattern}"), *class, given)
    });
    commands.into_iter().chain(tools).collect()
}

/// Reads a document, YAML or JSON, for a scope.
///
/// # Errors
/// Everything that is wrong with it.
pub fn check(scope: &Scope, text: &[u8]) -> Result<Document, Mistakes> {
    let document = read(text)?;
    let misplaced: Vec<Mistake> = document
        .numbers
        .iter()
        .filter_map(|(number, value)| {
            Some(Mistake {
                path: number.path(),
                line: None,
                message: format!("{}: {}", number.show(*value), misplaced(scope, *number)?),
            })
        })
        .collect();
    if misplaced.is_empty() {
        return Ok(document);
    }
    Err(Mistakes(misplaced))
}

#[cfg(test)]
mod tests {
    use super::super::{DEFAULT, PLATFORM};
    use super::*;
    use leasehold_core::policy::{AllowList, Level};

    fn level(scope: &str, text: &str) -> Level {
        let scope = Scope::parse(scope).unwrap();
        let document = check(&scope, text.as_bytes()).unwrap();
        Level {
            digest: leasehold_core::digest::Digest::of_value(&document.to_value()).unwrap(),
            scope,
            version: 0,
            document,
        }
    }

    #[test]
    fn the_built_in_policies_allow_work_and_neither_network_nor_credentials() {
        let effective = Effective::meet(vec![
            level("platform", PLATFORM),
            level("platform/tenant/default", DEFAULT),
        ]);
        for (list, thing) in [
            (AllowList::Tools, "text.wordcount"),
            (AllowList::Commands, "python3"),
            (AllowList::Workspaces, "ephemeral"),
            (AllowList::Trust, "first_party"),
            (AllowList::Backends, "process"),
            (AllowList::Placement, "local"),
        ] {
            assert_eq!(effective.allows(list, thing), Ok(()), "{thing}");
        }
        for (list, thing) in [
            (AllowList::Egress, "example.org:443"),
            (AllowList::Credentials, "vault/x"),
            (AllowList::Permissions, "repo.read"),
            (AllowList::Placement, "abroad"),
        ] {
            assert!(effective.allows(list, thing).is_err(), "{thing}");
        }
        let trust = effective.trust_of_commands().0;
        assert_eq!(trust.word(), "first_party");
        let other = Effective::meet(vec![level("platform", PLATFORM)]);
        assert_eq!(other.trust_of_commands().0.word(), "untrusted");
        for number in Number::of_section("limits").filter(|number| *number != Number::CpuTime) {
            assert!(effective.cap(number).is_some(), "{number:?} is not bounded");
        }
    }

    #[test]
    fn what_counts_over_a_tenant_is_refused_in_a_narrower_document() {
        let check = |scope: &str, text: &str| check(&Scope::parse(scope).unwrap(), text.as_bytes());
        let text = "version: 1\nshare: {running: 3}\n";
        assert!(check("tenant/t", text).is_ok());
        let error = check("tenant/t/principal/p", text).unwrap_err().to_string();
        assert!(
            error.starts_with("share.running: 3: counts over a tenant"),
            "{error}"
        );
        let text = "version: 1\nshare: {weight: 3}\n";
        assert!(check("platform/tenant/t", text).is_ok());
        for scope in ["tenant/t", "tenant/t/tool/x", "tenant/t/principal/p"] {
            let error = check(scope, text).unwrap_err().to_string();
            assert!(
                error.starts_with(
                    "share.weight: 3: says how tenants stand to each other; only the operator"
                ),
                "{scope}: {error}"
            );
        }
        let text = "version: 1\nshare: {tool_running: 3}\n";
        assert!(check("tenant/t/tool/x", text).is_ok());
        assert!(check("tenant/t/project/x", text).is_err());
    }
}
