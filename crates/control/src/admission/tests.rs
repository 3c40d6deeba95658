//! Decisions over requests, tools, policies and offers; no store and no clock.

use leasehold_core::error::ErrorKind;
use leasehold_core::id::KeyId;
use leasehold_core::name::Name;
use leasehold_core::policy::Level;
use leasehold_core::run_contract::Rootfs;
use leasehold_core::select::Abilities;
use leasehold_core::spec::WorkspaceMode;
use leasehold_core::tenant::Role;

use super::*;
use crate::policies::{built_in_text, check};

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn who(tenant: &str, grants: &[&str]) -> Principal {
    Principal {
        tenant: name(tenant),
        project: name("default"),
        name: name("ann"),
        role: Role::Runner,
        key: KeyId::from_entropy(&[1; 13]),
        grants: grants.iter().map(|grant| (*grant).to_owned()).collect(),
    }
}

fn level(scope: &str, version: u64, text: &str) -> Level {
    let scope = Scope::parse(scope).unwrap();
    let document = check(&scope, text.as_bytes()).unwrap();
    Level {
        digest: Digest::of_value(&document.to_value()).unwrap(),
        scope,
        version,
        document,
    }
}

/// The built-in documents and these.
fn policy(more: &[(&str, &str)]) -> Effective {
    let mut levels = Vec::new();
    for scope in ["platform", "tenant/default"] {
        if more.iter().all(|(each, _)| *each != scope) {
            let text = built_in_text(&Scope::parse(scope).unwrap()).unwrap();
            levels.push(level(scope, 0, text));
        }
    }
    levels.extend(more.iter().map(|(scope, text)| level(scope, 1, text)));
    Effective::meet(levels)
}

/// A document that allows everything the others do, and says this beside.
fn inherit(more: &str) -> String {
    format!(
        "version: 1\nallow: {{tools: inherit, commands: inherit, permissions: inherit, egress: inherit, credentials: inherit, workspaces: inherit, trust: inherit, backends: inherit, placement: inherit}}\n{more}"
    )
}

const TOOL: &str = "id: text.wordcount\nversion: 1.4.0\nentrypoint: {runtime: python, file: main.py}\nsandbox: {trust: first_party}\n";

fn tool(manifest: &str) -> (ToolRow, Manifest) {
    let mut manifest = Manifest::parse(manifest.as_bytes()).unwrap();
    manifest.package = Some(Digest::of(b"package"));
    let canonical = manifest.canonical().unwrap();
    let row = ToolRow {
        tenant: name("default"),
        tool: manifest.tool(),
        digest: Digest::of(&canonical),
        manifest: canonical,
        state: ToolState::Active,
        note: None,
        published_unix_ms: 1,
    };
    (row, manifest)
}

fn process() -> Offer {
    Offer {
        backend: "process".to_owned(),
        isolation: Isolation::Process,
        runtime: Runtime::Command,
        zone: "local".to_owned(),
        cost: 0,
        state: Ok(Abilities {
            host_system: true,
            posture: Some(Digest::of(b"posture")),
            workspaces: vec![WorkspaceMode::Ephemeral, WorkspaceMode::Clone],
            ..Abilities::default()
        }),
    }
}

fn offers() -> Vec<Offer> {
    let mut offers = vec![process()];
    offers.extend(unbuilt(&offers));
    offers
}

fn run() -> RunId {
    RunId::from_entropy(&[9; 13])
}

struct Try {
    who: Principal,
    known: Known,
    offers: Vec<Offer>,
}

impl Try {
    fn new(tool: Option<(ToolRow, Manifest)>, policy: Effective) -> Self {
        Self {
            who: who("default", &["*"]),
            known: Known { tool, policy },
            offers: offers(),
        }
    }

    fn of(&self, request: &str) -> Result<Plan, PublicError> {
        let request = RunRequest::parse(request.as_bytes()).unwrap();
        let case = Case {
            who: &self.who,
            request: &request,
            known: &self.known,
        };
        resolve(case, &self.offers, run())
    }
}

fn trusted() -> Effective {
    policy(&[(
        "tenant/default/tool/text.wordcount",
        &inherit("trust: {tools: {text.wordcount: first_party}}"),
    )])
}

#[test]
fn a_command_gets_a_contract_with_everything_resolved() {
    let attempt = Try::new(None, policy(&[]));
    let plan = attempt
        .of(r#"{"command":["sh","-c","true"],"env":{"TOKEN":"s3cret"},"stdin":"in","limits":{"memory":"64M"}}"#)
        .unwrap();
    let contract = &plan.contract;
    assert_eq!(contract.selected.backend, "process");
    assert_eq!(contract.selected.rootfs, Rootfs::HostSystem);
    assert!(contract.selected.reason.contains("first_party"));
    assert_eq!(contract.posture, Digest::of(b"posture"));
    assert_eq!(contract.input, Some(Digest::of(b"in")));
    assert_eq!(contract.limits.memory_bytes.value, 64 << 20);
    assert_eq!(contract.limits.disk_bytes.value, 32 << 20);
    assert_eq!(
        contract
            .policies
            .iter()
            .map(|used| used.scope.as_str())
            .collect::<Vec<_>>(),
        ["platform", "tenant/default"]
    );
    assert_eq!(plan.digest, contract.digest().unwrap());
    assert_eq!(
        plan.start.exec.env.get("TOKEN").map(String::as_str),
        Some("s3cret")
    );
    assert_eq!(
        plan.start.exec.env.get("HOME").map(String::as_str),
        Some("/home/user")
    );
    // I8: names are in the contract, values are not.
    let text = String::from_utf8(plan.canonical.clone()).unwrap();
    assert!(text.contains("TOKEN") && !text.contains("s3cret"), "{text}");
    assert_eq!(
        (contract.network.clone(), contract.credentials.len()),
        (NetworkTerms::default(), 0)
    );
    assert!(contract.permissions.is_empty());
}

#[test]
fn three_lifetimes_are_kept_apart_and_leave_room_for_each_other() {
    let attempt = Try::new(None, policy(&[]));
    let of = |text: &str| attempt.of(&format!(r#"{{"command":["true"]{text}}}"#));
    let plan =
        of(r#","limits":{"timeout":"10s","grace":"1s"},"retention":{"logs":"1h","record":"48h"}"#)
            .unwrap();
    let contract = plan.contract;
    assert_eq!(contract.allocation.hard_deadline_ms, 71_000);
    assert_eq!(contract.authority.lease_ms, 71_000);
    assert_eq!(
        (contract.retention.logs_s, contract.retention.record_s),
        (3_600, 172_800)
    );
    let refused =
        of(r#","limits":{"timeout":"10s"},"lifetimes":{"hard_deadline":"5s"}"#).unwrap_err();
    assert!(
        refused
            .message
            .starts_with("lifetimes.hard_deadline: 5s: it must leave room"),
        "{refused}"
    );
    // A policy's hard deadline shortens a wall limit that nobody asked for, never one that was asked for.
    let strict = Try::new(
        None,
        policy(&[(
            "tenant/default",
            &inherit("lifetimes: {hard_deadline: 20s}\ntrust: {commands: first_party}"),
        )]),
    );
    let plan = strict.of(r#"{"command":["true"]}"#).unwrap();
    assert_eq!(
        plan.contract.limits.wall_ms.value + plan.contract.limits.grace_ms,
        20_000
    );
    assert!(
        strict
            .of(r#"{"command":["true"],"limits":{"timeout":"1m"}}"#)
            .is_err()
    );
}

#[test]
fn a_caller_who_asks_for_more_than_allowed_is_refused_and_told_by_whom() {
    let attempt = Try::new(None, policy(&[]));
    for (more, told) in [
        (
            r#""limits":{"memory":"8G"}"#,
            "limits.memory: 8G: policy platform (built in) allows at most 4G",
        ),
        (
            r#""limits":{"timeout":"2h"}"#,
            "limits.timeout: 2h: policy platform (built in) allows at most 1h",
        ),
        (
            r#""max_wait":"2h""#,
            "share.max_wait: 2h: policy platform (built in) allows at most 1h",
        ),
        (
            r#""priority":101"#,
            "priority: 101: policy platform (built in) allows at most 100",
        ),
        (
            r#""retention":{"logs":"1000h"}"#,
            "retention.logs: 1000h: policy platform (built in) allows at most 720h",
        ),
    ] {
        let error = attempt
            .of(&format!(r#"{{"command":["true"],{more}}}"#))
            .unwrap_err();
        assert_eq!(
            (error.kind, error.message.as_str()),
            (ErrorKind::Invalid, told)
        );
    }
    let limited = Try::new(
        Some(tool(&format!("{TOOL}limits: {{memory: 64M, pids: 8}}\n"))),
        trusted(),
    );
    let error = limited
        .of(r#"{"tool":"text.wordcount","limits":{"memory":"65M"}}"#)
        .unwrap_err();
    assert_eq!(
        error.message,
        "limits.memory: 65M: the tool allows at most 64M"
    );
    let plan = limited
        .of(r#"{"tool":"text.wordcount","limits":{"memory":"32M"}}"#)
        .unwrap();
    assert_eq!(plan.contract.limits.memory_bytes.value, 32 << 20);
    assert_eq!(plan.contract.limits.pids.value, 8);
}

#[test]
fn what_a_tool_says_is_lowered_to_policy_with_a_warning() {
    let lowered = policy(&[(
        "tenant/default",
        &inherit("limits: {memory: 32M}\ntrust: {tools: {'*': first_party}}"),
    )]);
    let attempt = Try::new(
        Some(tool(&format!("{TOOL}limits: {{memory: 64M}}\n"))),
        lowered,
    );
    let plan = attempt.of(r#"{"tool":"text.wordcount"}"#).unwrap();
    assert_eq!(plan.contract.limits.memory_bytes.value, 32 << 20);
    assert_eq!(
        plan.warnings,
        ["limits.memory: the tool asks for 64M; policy tenant/default (version 1) allows 32M"]
    );
}

#[test]
fn i6_a_promise_that_no_backend_holds_is_a_refusal_and_a_default_is_not() {
    let mut attempt = Try::new(None, policy(&[]));
    if let Ok(abilities) = &mut attempt.offers[0].state {
        abilities.unenforced = vec![Resource::Memory, Resource::Pids];
    }
    // Nobody asked: the built-in policy is a default of ours.
    assert!(attempt.of(r#"{"command":["true"]}"#).is_ok());
    let error = attempt
        .of(r#"{"command":["true"],"limits":{"memory":"64M"}}"#)
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(
        error
            .message
            .contains("backend `process`: this host cannot hold the asked limits memory"),
        "{error}"
    );
    // A published policy that bounds it makes it a promise.
    attempt.known.policy = policy(&[(
        "tenant/default",
        &inherit("limits: {pids: 64}\ntrust: {commands: first_party}"),
    )]);
    let error = attempt.of(r#"{"command":["true"]}"#).unwrap_err();
    assert!(
        error.message.contains("cannot hold the asked limits pids"),
        "{error}"
    );
}

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
            "tenant/default/tool/text.wordcount",
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
            "tenant/default",
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
                "tenant/default",
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
            "tenant/default",
            &inherit("trust: {tools: {'*': first_party}}"),
        ),
    ]);
    let manifest = format!("{TOOL}credentials: [{{name: T, secretRef: vault/x, way: env}}]\n");
    let error = Try::new(Some(tool(&manifest)), open).of(asked).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
}

#[test]
fn tools_and_commands_outside_the_allow_lists_are_refused() {
    let lists = |text: &str| policy(&[("tenant/default", text)]);
    let only = inherit("trust: {commands: first_party, tools: {'*': first_party}}")
        .replace("tools: inherit", "tools: [pdf.*]")
        .replace("commands: inherit", "commands: [python3]");
    let error = Try::new(Some(tool(TOOL)), lists(&only))
        .of(r#"{"tool":"text.wordcount"}"#)
        .unwrap_err();
    assert_eq!(
        error.message,
        "policy does not allow tools \"text.wordcount\": it is not in `allow.tools` of tenant/default (version 1)"
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

#[test]
fn a_tool_gets_its_input_checked_and_its_own_files() {
    let manifest = format!(
        "{TOOL}input_schema: {{type: object, required: [text], properties: {{text: {{type: string}}}}}}\noutput_schema: {{type: object}}\ncacheable: true\nenvironment: {{set: {{MODE: fast}}, accept: [DEPTH]}}\n"
    );
    let attempt = Try::new(Some(tool(&manifest)), trusted());
    let of = |more: &str| attempt.of(&format!(r#"{{"tool":"text.wordcount"{more}}}"#));
    assert_eq!(
        of("").unwrap_err().message,
        "input: missing: text.wordcount@1.4.0 demands one"
    );
    let error = of(r#","input":{"text":3}"#).unwrap_err().message;
    assert!(error.starts_with("input: /text: "), "{error}");
    let plan = of(r#","input":{"text":"a b"},"env":{"DEPTH":"2"}"#).unwrap();
    assert_eq!(
        plan.start.exec.argv,
        ["python3", "/workspace/.tool/main.py"]
    );
    assert_eq!(
        plan.start.stdin.as_deref(),
        Some(br#"{"text":"a b"}"#.as_slice())
    );
    assert_eq!(plan.start.workspace, [Digest::of(b"package")]);
    assert_eq!(plan.start.sandbox.workspace, WorkspaceMode::Clone);
    assert_eq!(
        plan.start.exec.env.get("MODE").map(String::as_str),
        Some("fast")
    );
    assert!(plan.output.is_some());
    let again = of(r#","input":{"text":"a b"},"env":{"DEPTH":"2"}"#).unwrap();
    let other = of(r#","input":{"text":"a c"},"env":{"DEPTH":"2"}"#).unwrap();
    assert!(plan.cache.is_some() && plan.cache == again.cache && plan.cache != other.cache);
    let error = of(r#","input":{"text":""},"env":{"MODE":"x"}"#)
        .unwrap_err()
        .message;
    assert_eq!(error, "env.MODE: the tool accepts DEPTH alone");
    let zero = Digest::ZERO;
    let error = of(&format!(
        r#","input":{{"text":""}},"workspace":{{"mode":"upload","content":"{zero}"}}"#
    ));
    assert!(error.unwrap_err().message.contains("filesystem.upload"));
    assert!(of(r#","input":{"text":""},"artifacts":["x"]"#).is_err());
}

#[test]
fn a_quarantined_tool_is_refused_and_a_deprecated_one_is_warned_about() {
    let (mut row, manifest) = tool(TOOL);
    row.note = Some("use 2.0.0".to_owned());
    row.state = ToolState::Deprecated;
    let plan = Try::new(Some((row.clone(), manifest.clone())), trusted())
        .of(r#"{"tool":"text.wordcount"}"#);
    assert_eq!(
        plan.unwrap().warnings,
        ["text.wordcount@1.4.0 is deprecated: use 2.0.0"]
    );
    row.state = ToolState::Quarantined;
    let error = Try::new(Some((row, manifest)), trusted())
        .of(r#"{"tool":"text.wordcount"}"#)
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Forbidden);
}

#[test]
fn shares_come_from_policy() {
    let shared = policy(&[
        (
            "tenant/default",
            &inherit(
                "share: {weight: 3, running: 5, queued: 7, per_minute: 11}\ntrust: {tools: {'*': first_party}}",
            ),
        ),
        (
            "tenant/default/tool/text.wordcount",
            &inherit("share: {tool_running: 2, max_wait: 3s}"),
        ),
    ]);
    let plan = Try::new(Some(tool(TOOL)), shared)
        .of(r#"{"tool":"text.wordcount"}"#)
        .unwrap();
    let share = plan.share;
    assert_eq!(
        (
            share.weight,
            share.tenant_running_max,
            share.tenant_queued_max,
            share.per_minute_max
        ),
        (3, 5, 7, 11)
    );
    assert_eq!(share.tool_running_max, Some((name("text.wordcount"), 2)));
    assert_eq!(plan.contract.max_wait_ms, 3_000);
}
