//! Strength, trust, permissions, network, credentials: what policy gives and what nothing gives.

use super::*;

#[test]
fn p23_a_stronger_boundary_is_never_replaced_by_a_weaker_one() {
    let attempt = Try::new(None, policy(&[]));
    // The control: what is there is given.
    assert!(
        attempt
            .of(r#"{"command":["true"],"isolation":"process"}"#)
            .is_ok()
    );
    for wanted in ["container", "gvisor", "microvm"] {
        let error = attempt
            .of(&format!(r#"{{"command":["true"],"isolation":"{wanted}"}}"#))
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported);
        let told = format!(
            "isolation `{wanted}` is needed (it was asked for), and nothing weaker is used instead"
        );
        assert!(error.message.contains(&told), "{error}");
        assert!(error.message.contains(&format!(
            "backend `{wanted}`: this build has no such backend yet"
        )));
        assert!(!error.message.contains("backend `process`"));
    }
    // The floor of any level, and the trust of the tool, cannot be asked away.
    for scope in [
        "platform",
        "platform/tenant/default",
        "tenant/default",
        "tenant/default/project/default",
        "tenant/default/principal/ann",
    ] {
        let floored = match scope {
            "platform" => built_in_text(&Scope::Platform)
                .unwrap()
                .replace("isolation_floor: process", "isolation_floor: gvisor"),
            _ => inherit("isolation_floor: gvisor\ntrust: {commands: first_party}"),
        };
        let attempt = Try::new(None, policy(&[(scope, &floored)]));
        let error = attempt
            .of(r#"{"command":["true"],"isolation":"process"}"#)
            .unwrap_err();
        assert!(
            error.message.contains("isolation `gvisor` is needed"),
            "{scope}: {error}"
        );
    }
}

#[test]
fn trust_is_policys_word_and_a_manifests_is_a_wish() {
    let asked = r#"{"tool":"text.wordcount"}"#;
    // Nobody vouches: it is untrusted whatever it says of itself, and needs gVisor.
    let alone = Try::new(Some(tool(TOOL)), policy(&[]));
    let error = alone.of(asked).unwrap_err();
    assert!(
        error
            .message
            .contains("isolation `gvisor` is needed (trust class `untrusted` demands it)"),
        "{error}"
    );
    assert!(
        error
            .hint
            .unwrap()
            .contains("trust.tools.text.wordcount: first_party")
    );
    let vouched = Try::new(Some(tool(TOOL)), trusted());
    let plan = vouched.of(asked).unwrap();
    assert_eq!(plan.contract.selected.why.trust, TrustClass::FirstParty);
    // A wish for less is granted.
    let humble = TOOL.replace("first_party", "untrusted");
    assert!(Try::new(Some(tool(&humble)), trusted()).of(asked).is_err());
    // A policy that bars the class bars it.
    let barred = policy(&[
        (
            "platform/tenant/default",
            &inherit("trust: {tools: {'*': first_party}}"),
        ),
        (
            "tenant/default",
            &inherit("").replace("trust: inherit", "trust: [untrusted, verified]"),
        ),
    ]);
    let error = Try::new(Some(tool(TOOL)), barred).of(asked).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Forbidden);
    assert!(
        error
            .message
            .contains("policy does not allow trust \"first_party\""),
        "{error}"
    );
    // Commands of a tenant nobody vouched for.
    let mut other = Try::new(
        None,
        Effective::meet(vec![level(
            "platform",
            0,
            built_in_text(&Scope::Platform).unwrap(),
        )]),
    );
    other.who = who("acme", &[]);
    assert!(
        other
            .of(r#"{"command":["true"]}"#)
            .unwrap_err()
            .message
            .contains("untrusted")
    );
}

#[test]
fn permissions_are_grants_cut_down_to_the_tool_within_policy() {
    let manifest = format!("{TOOL}permissions: [repo.read, repo.write]\n");
    let open = policy(&[
        (
            "platform",
            &built_in_text(&Scope::Platform)
                .unwrap()
                .replace("permissions: []", "permissions: [repo.*]"),
        ),
        (
            "platform/tenant/default",
            &inherit("trust: {tools: {'*': first_party}}"),
        ),
    ]);
    let mut attempt = Try::new(Some(tool(&manifest)), open);
    attempt.who = who("default", &["repo.read", "mail.send"]);
    let plan = attempt.of(r#"{"tool":"text.wordcount"}"#).unwrap();
    assert_eq!(plan.contract.permissions, ["repo.read"]);
    assert!(
        plan.warnings[0].contains("\"repo.write\": the key was not granted it"),
        "{:?}",
        plan.warnings
    );
    for (asked, told) in [
        ("repo.write", "the key was not granted it"),
        ("mail.send", "the tool does not use it"),
    ] {
        let error = attempt
            .of(&format!(
                r#"{{"tool":"text.wordcount","permissions":["{asked}"]}}"#
            ))
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Forbidden);
        assert!(error.message.contains(told), "{error}");
    }
    let none = attempt
        .of(r#"{"tool":"text.wordcount","permissions":[]}"#)
        .unwrap();
    assert!(none.contract.permissions.is_empty() && none.warnings.is_empty());
    // Policy alone decides the rest: the built-in one allows none.
    attempt.known.policy = trusted();
    assert!(
        attempt
            .of(r#"{"tool":"text.wordcount"}"#)
            .unwrap()
            .contract
            .permissions
            .is_empty()
    );
}

#[test]
fn p43_a_network_that_policy_does_not_allow_or_nothing_carries_is_refused() {
    let manifest = format!("{TOOL}network: {{egress: ['api.example.org:443']}}\n");
    let asked = r#"{"tool":"text.wordcount"}"#;
    let error = Try::new(Some(tool(&manifest)), trusted())
        .of(asked)
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Forbidden);
    assert!(
        error
            .message
            .contains("policy does not allow egress \"api.example.org:443\""),
        "{error}"
    );
    let open = |egress: &str| {
        policy(&[
            (
                "platform",
                &built_in_text(&Scope::Platform)
                    .unwrap()
                    .replace("egress: []", "egress: ['*:443']"),
            ),
            (
                "platform/tenant/default",
                &inherit("trust: {tools: {'*': first_party}}").replace("egress: inherit", egress),
            ),
        ])
    };
    for form in ["egress: ", "egress: null", "egress: []", "egress: {}"] {
        let error = Try::new(Some(tool(&manifest)), open(form))
            .of(asked)
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Forbidden, "{form}");
    }
    // Allowed, and there is nothing that carries it: refused, not run without.
    let mut allowed = Try::new(Some(tool(&manifest)), open("egress: inherit"));
    let error = allowed.of(asked).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(
        error.message.contains("no way to carry network rules"),
        "{error}"
    );
    // The control: allowed and carried, the rule is in the contract.
    if let Ok(abilities) = &mut allowed.offers[0].state {
        abilities.network = true;
    }
    assert_eq!(
        allowed.of(asked).unwrap().contract.network.egress,
        ["api.example.org:443"]
    );
    let inward = format!("{TOOL}network: {{ingress: [80]}}\n");
    let mut inward = Try::new(Some(tool(&inward)), trusted());
    inward.offers = allowed.offers;
    assert_eq!(inward.of(asked).unwrap_err().kind, ErrorKind::Forbidden);
}

#[test]
fn credentials_path_rules_and_capabilities_that_nothing_gives_are_refused() {
    let asked = r#"{"tool":"text.wordcount"}"#;
    for (more, told) in [
        (
            "credentials: [{name: T, secretRef: vault/x, way: env}]\n",
            "policy does not allow credentials \"vault/x\"",
        ),
        (
            "filesystem: {read_only: [/workspace/in]}\n",
            "cannot hold rules on single paths",
        ),
        ("capabilities: [gpu]\n", "no capability \"gpu\""),
    ] {
        let error = Try::new(Some(tool(&format!("{TOOL}{more}"))), trusted())
            .of(asked)
            .unwrap_err();
        assert!(error.message.contains(told), "{error}");
    }
    let open = policy(&[
        (
            "platform",
            &built_in_text(&Scope::Platform)
                .unwrap()
                .replace("credentials: []", "credentials: [vault/*]"),
        ),
        (
            "platform/tenant/default",
            &inherit("trust: {tools: {'*': first_party}}"),
        ),
    ]);
    let manifest = format!("{TOOL}credentials: [{{name: T, secretRef: vault/x, way: env}}]\n");
    let error = Try::new(Some(tool(&manifest)), open).of(asked).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
}

#[test]
fn tools_and_commands_outside_the_allow_lists_are_refused() {
    let lists = |text: &str| policy(&[("platform/tenant/default", text)]);
    let only = inherit("trust: {commands: first_party, tools: {'*': first_party}}")
        .replace("tools: inherit", "tools: [pdf.*]")
        .replace("commands: inherit", "commands: [python3]");
    let error = Try::new(Some(tool(TOOL)), lists(&only))
        .of(r#"{"tool":"text.wordcount"}"#)
        .unwrap_err();
    assert_eq!(
        error.message,
        "policy does not allow tools \"text.wordcount\": it is not in `allow.tools` of platform/tenant/default (version 1)"
    );
    let commands = Try::new(None, lists(&only));
    assert!(commands.of(r#"{"command":["python3","x.py"]}"#).is_ok());
    assert_eq!(
        commands.of(r#"{"command":["sh"]}"#).unwrap_err().kind,
        ErrorKind::Forbidden
    );
    // A document that says nothing of its lists allows nothing.
    let empty = Try::new(None, lists("version: 1\n"));
    assert!(
        empty
            .of(r#"{"command":["true"]}"#)
            .unwrap_err()
            .message
            .contains("is empty")
    );
}
