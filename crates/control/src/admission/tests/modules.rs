//! Runs of WebAssembly: which module, with what, where, and what is kept of it.

use leasehold_core::spec::Determinism;

use super::*;
use crate::module::{ModulePlace, ScriptPlace, ToolFile};

const WASM: &str =
    "id: text.wordcount\nversion: 1.4.0\nsandbox: {trust: first_party}\ncacheable: true\n";

fn wasm() -> Offer {
    Offer {
        backend: "wasm".to_owned(),
        isolation: Isolation::Wasm,
        runtime: Runtime::Wasm,
        ..process()
    }
}

/// A tool whose entrypoint is this, with what publication fills in.
fn wasm_tool(entry: &str, content: &[u8], tree: bool) -> (ToolRow, Manifest) {
    let digest = Digest::of(content);
    let manifest = format!(
        "{WASM}entrypoint: {{runtime: wasm, {entry}, content: \"{digest}\", tree: {tree}}}\n"
    );
    tool(&manifest)
}

fn attempt(tool: Option<(ToolRow, Manifest)>, policy: Effective) -> Try {
    let mut attempt = Try::new(tool, policy);
    attempt.offers = vec![process(), wasm()];
    attempt.offers.extend(unbuilt(&attempt.offers));
    attempt.known.template = Some(Digest::of(b"template"));
    attempt
}

const RUN: &str = r#"{"tool":"text.wordcount","input":{"a":1}}"#;

fn file(file: &str) -> ToolFile {
    ToolFile {
        package: Digest::of(b"package"),
        file: file.to_owned(),
    }
}

#[test]
fn a_module_of_a_tool_needs_no_tree_and_is_read_from_where_it_is_kept() {
    let tool = wasm_tool("file: x.wasm, args: [a], fuel: 5", b"module", false);
    let plan = attempt(Some(tool), trusted()).of(RUN).unwrap();
    let contract = &plan.contract;
    assert_eq!(contract.selected.backend, "wasm");
    assert_eq!(contract.selected.isolation, Isolation::Wasm);
    assert_eq!(contract.selected.rootfs, Rootfs::None);
    let spec = contract.program.as_ref().unwrap();
    assert_eq!((spec.digest, spec.fuel), (Digest::of(b"module"), Some(5)));
    assert_eq!(plan.start.exec.argv, ["x.wasm", "a"]);
    assert!(plan.start.workspace.is_empty() && plan.start.exec.env.is_empty());
    assert_eq!(plan.start.sandbox.workspace, WorkspaceMode::Ephemeral);
    assert_eq!(
        plan.start.module.as_ref().unwrap().place,
        ModulePlace::Tool(file("x.wasm"))
    );
}

#[test]
fn a_script_goes_as_text_and_with_other_files_as_a_file_of_the_tree() {
    let entry = "file: tool.py, interpreter: python, args: [a]";
    let plan = attempt(Some(wasm_tool(entry, b"print(1)", false)), trusted())
        .of(RUN)
        .unwrap();
    let spec = plan.contract.program.as_ref().unwrap();
    assert_eq!(
        (spec.digest, spec.name.as_str()),
        (Digest::of(b"template"), "python")
    );
    assert_eq!(spec.script, Some(Digest::of(b"print(1)")));
    assert_eq!(plan.contract.argv, ["python", "tool.py", "a"]);
    let start = plan.start.module.as_ref().unwrap();
    assert_eq!(start.place, ModulePlace::Template("python".to_owned()));
    assert_eq!(start.script, Some(ScriptPlace::Tool(file("tool.py"))));
    let plan = attempt(Some(wasm_tool(entry, b"print(1)", true)), trusted())
        .of(RUN)
        .unwrap();
    assert_eq!(
        plan.contract.argv,
        ["python", "/workspace/.tool/tool.py", "a"]
    );
    assert_eq!(plan.start.workspace, [Digest::of(b"package")]);
    assert_eq!(plan.start.module.as_ref().unwrap().script, None);
    assert_eq!(plan.contract.program.unwrap().script, None);
}

#[test]
fn a_floor_above_wasm_and_a_tool_nobody_trusts_are_refused_with_the_reason() {
    let of = |policy| attempt(Some(wasm_tool("file: x.wasm", b"module", false)), policy).of(RUN);
    let floor =
        inherit("isolation_floor: container\ntrust: {tools: {text.wordcount: first_party}}");
    let error = of(policy(&[("platform/tenant/default", &floor)])).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.message.contains("`container` is needed"), "{error}");
    assert!(!error.message.contains("backend `wasm`"), "{error}");
    let error = of(policy(&[])).unwrap_err();
    assert!(error.message.contains("trust class `untrusted`"), "{error}");
    assert!(of(trusted()).is_ok());
    // A backend that cannot be used says why.
    let mut broken = attempt(Some(wasm_tool("file: x.wasm", b"module", false)), trusted());
    broken.offers[1].state = Err("its programs are not there".to_owned());
    let error = broken.of(RUN).unwrap_err();
    assert!(
        error.message.contains("its programs are not there"),
        "{error}"
    );
}

/// What a result hangs on is in its key, one thing after another.
#[test]
fn a_kept_result_is_that_of_the_same_module_arguments_input_seed_clock_and_limits() {
    let key = |entry: &str, content: &[u8], template: &[u8], request: &str| {
        let mut attempt = attempt(Some(wasm_tool(entry, content, false)), trusted());
        attempt.known.template = Some(Digest::of(template));
        attempt.of(request).unwrap().cache.unwrap()
    };
    let script = "file: tool.py, interpreter: python, deterministic: {seed: 1, clock: 2}";
    let same = || key(script, b"print(1)", b"template", RUN);
    let others = [
        key(script, b"print(2)", b"template", RUN),
        key(script, b"print(1)", b"another", RUN),
        key(
            script,
            b"print(1)",
            b"template",
            r#"{"tool":"text.wordcount","input":{"a":2}}"#,
        ),
        key(
            script,
            b"print(1)",
            b"template",
            r#"{"tool":"text.wordcount","input":{"a":1},"limits":{"memory":"64M"}}"#,
        ),
        key(
            &script.replace("seed: 1", "seed: 9"),
            b"print(1)",
            b"template",
            RUN,
        ),
        key(
            &script.replace("clock: 2", "clock: 9"),
            b"print(1)",
            b"template",
            RUN,
        ),
        key(
            &format!("{script}, args: [x]"),
            b"print(1)",
            b"template",
            RUN,
        ),
        key(&format!("{script}, fuel: 7"), b"print(1)", b"template", RUN),
    ];
    assert_eq!(same(), same());
    let distinct: std::collections::BTreeSet<Digest> = others.into_iter().collect();
    assert_eq!(distinct.len(), others.len());
    assert!(!distinct.contains(&same()));
}

#[test]
fn a_module_of_a_bare_command_is_known_to_policy_by_what_it_is_and_not_by_its_name() {
    let digest = Digest::of(b"uploaded");
    let request =
        format!(r#"{{"module":"{digest}","command":["python3"],"deterministic":{{"seed":4}}}}"#);
    let with = |commands: &str| {
        let text = inherit("trust: {commands: first_party}")
            .replace("commands: inherit", &format!("commands: [{commands}]"));
        attempt(None, policy(&[("platform/tenant/default", &text)])).of(&request)
    };
    let plan = with("\"*\"").unwrap();
    let spec = plan.contract.program.unwrap();
    assert_eq!((spec.digest, spec.name.as_str()), (digest, "python3"));
    assert_eq!(spec.determinism, Some(Determinism::of_seed(4)));
    assert_eq!(plan.start.module.unwrap().place, ModulePlace::Object);
    // Its first argument is the caller's own word.
    let error = with("python3").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Forbidden, "{error}");
    assert!(with(&format!("\"wasm:{digest}\"")).is_ok());
    let python = r#"{"interpreter":"python","command":["a.py"],"script":"1"}"#;
    let plan = attempt(None, policy(&[])).of(python).unwrap();
    let Some(ScriptPlace::Given(script)) = plan.start.module.clone().unwrap().script else {
        panic!("{:?}", plan.start.module);
    };
    assert_eq!(
        script.argv(&plan.start.exec.argv),
        ["python", "--script", "a.py", "1"]
    );
    let text = String::from_utf8(plan.canonical).unwrap();
    assert!(text.contains(&script.digest().to_string()) && !text.contains("--script"));
    // Its text is not named, so that its name must be there.
    let cwd = r#"{"interpreter":"python","command":["-c","1"],"cwd":"/tmp"}"#;
    let error = attempt(None, policy(&[])).of(cwd).unwrap_err();
    assert!(error.message.starts_with("cwd: "), "{error}");
}

#[test]
fn a_list_that_allows_a_module_lets_no_native_program_of_its_name_in() {
    let text = inherit("trust: {commands: first_party}")
        .replace("commands: inherit", "commands: [\"wasm:python\"]");
    let case = || attempt(None, policy(&[("platform/tenant/default", &text)]));
    let module = r#"{"interpreter":"python","command":["-c","1"]}"#;
    assert!(case().of(module).is_ok());
    let native = r#"{"command":["wasm:python"],"env":{"PATH":"/workspace"}}"#;
    let error = case().of(native).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
    assert!(error.message.starts_with("command[0]: "), "{error}");
}
