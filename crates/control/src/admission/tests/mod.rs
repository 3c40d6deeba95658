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

mod authority;
mod modules;
mod numbers;

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
    for scope in ["platform", "platform/tenant/default"] {
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
            known: Known {
                tool,
                policy,
                template: None,
                image: None,
            },
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
        "platform/tenant/default",
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
        ["platform", "platform/tenant/default"]
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

/// What a lent directory holds is not in the key, so its result is neither kept nor taken.
#[test]
fn a_pure_tool_with_a_lent_directory_is_not_cached() {
    let manifest = TOOL.replace(
        "{runtime: python, file: main.py}",
        "{runtime: command, argv: [wc]}",
    );
    let manifest = format!("{manifest}cacheable: true\nfilesystem: {{upload: true}}\n");
    let (row, mut manifest) = tool(&manifest);
    manifest.package = None;
    let attempt = Try::new(Some((row, manifest)), trusted());
    let of = |workspace: WorkspaceWish| {
        let mut request = RunRequest::parse(br#"{"tool":"text.wordcount"}"#).unwrap();
        request.workspace = workspace;
        let case = Case {
            who: &attempt.who,
            request: &request,
            known: &attempt.known,
        };
        resolve(case, &attempt.offers, run()).unwrap()
    };
    let lent = of(WorkspaceWish::Directory(WorkspaceMode::Clone));
    assert!(lent.cache.is_none() && !lent.contract.cacheable);
    // The control: without one it is, and what was uploaded is in the key.
    let alone = of(WorkspaceWish::Ephemeral);
    let [first, again, other] = [b"a", b"a", b"b"].map(|content| {
        of(WorkspaceWish::Upload(Digest::of(content)))
            .cache
            .unwrap()
    });
    assert!(first == again && first != other);
    assert!(alone.contract.cacheable && alone.cache.is_some_and(|key| key != first));
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
