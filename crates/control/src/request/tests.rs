//! Requests are read strictly; what may not be asked for is refused by name.

use super::*;

fn read(text: &str) -> RunRequest {
    RunRequest::parse(text.as_bytes()).unwrap()
}

fn refused(text: &str) -> String {
    RunRequest::parse(text.as_bytes()).unwrap_err().message
}

#[test]
fn every_field_is_told_to_whoever_misspells_one() {
    let said = refused(r#"{"command":["true"],"permission":[]}"#);
    for field in ["command", "limits", "max_wait", "artifacts", "permissions"] {
        assert!(said.contains(&format!(" {field}")), "{field}: {said}");
    }
}

#[test]
fn a_full_request_reaches_its_fields() {
    let request = read(
        r#"{"command":["sh","-c","true"],"env":{"A":"1"},"cwd":"/workspace","stdin":"x",
        "limits":{"cpu":0.5,"memory":"64M","timeout":"3s","on_output":"kill"},
        "lifetimes":{"hard_deadline":"1m"},"retention":{"logs":"1h"},"max_wait":"5s","priority":-3,
        "isolation":"container","workspace":{"mode":"ephemeral"},"artifacts":["out/*"],"permissions":["repo.read"]}"#,
    );
    assert_eq!(
        request.what,
        What::Command {
            argv: vec!["sh".into(), "-c".into(), "true".into()],
            cwd: Some("/workspace".into()),
            stdin: Some(b"x".to_vec()),
            module: None,
        }
    );
    for (number, value) in [
        (Number::Cpu, 500),
        (Number::Memory, 64 << 20),
        (Number::Wall, 3_000),
        (Number::HardDeadline, 60_000),
        (Number::Logs, 3_600_000),
        (Number::MaxWait, 5_000),
    ] {
        assert_eq!(request.asked.get(number), Some(value));
    }
    assert_eq!(
        (request.priority, request.isolation),
        (-3, Some(Isolation::Container))
    );
    assert_eq!(request.permissions, Some(vec!["repo.read".to_owned()]));
    let tool = read(r#"{"tool":"text.wordcount@1.4.0","input":{"b":1,"a":0.5}}"#);
    let What::Tool { tool, input } = tool.what else {
        panic!("no tool");
    };
    assert_eq!(tool.exact.unwrap().to_string(), "text.wordcount@1.4.0");
    assert_eq!(input.unwrap(), r#"{"a":0.5,"b":1}"#);
    let bytes = read(r#"{"command":["cat"],"stdin_base64":"AAEC/w=="}"#);
    assert!(
        matches!(bytes.what, What::Command { stdin: Some(bytes), .. } if bytes == [0, 1, 2, 255])
    );
}

#[test]
fn p68_what_may_not_be_asked_for_is_refused_by_name() {
    for (more, field) in [
        (r#""mounts":[{"source":"/"}]"#, "mounts"),
        (r#""volumes":["/var/run/docker.sock"]"#, "volumes"),
        (r#""workspace":"/srv/work""#, "workspace"),
        (r#""workspace":{"mode":"rw","path":"/"}"#, "workspace.mode"),
        (r#""workspace":{"mode":"clone"}"#, "workspace.mode"),
        (
            r#""workspace":{"mode":"ephemeral","path":"/"}"#,
            "workspace.path",
        ),
        (
            r#""workspace":{"mode":"upload","content":"sha256:.."}"#,
            "workspace.content",
        ),
        (r#""workspace":{"mode":"upload"}"#, "workspace.content"),
        (r#""devices":["/dev/kvm"]"#, "devices"),
        (r#""capabilities":["SYS_ADMIN"]"#, "capabilities"),
        (r#""privileged":true"#, "privileged"),
        (r#""user":"root""#, "user"),
        (r#""user":0"#, "user"),
        (r#""user":-1"#, "user"),
        (r#""user":4294967296"#, "user"),
        (r#""user":"0:0""#, "user"),
        (r#""tenant":"other""#, "tenant"),
        (r#""trust":"first_party""#, "trust"),
        (r#""allow_unenforced":true"#, "allow_unenforced"),
        (r#""env":{"LD_PRELOAD":"/x"}"#, "env.LD_PRELOAD"),
        (
            r#""env":{"LEASEHOLD_STATE_DIR":"/x"}"#,
            "env.LEASEHOLD_STATE_DIR",
        ),
        (r#""env":{"HTTPS_PROXY":"x"}"#, "env.HTTPS_PROXY"),
        (r#""env":{"A=B":"x"}"#, "env.A=B"),
        (r#""env":{"A":"\u0000"}"#, "env.A"),
        (r#""limits":{"memory":-1}"#, "limits.memory"),
        (
            r#""limits":{"memory":9223372036854775808}"#,
            "limits.memory",
        ),
        (r#""limits":{"memory":"NaN"}"#, "limits.memory"),
        (r#""limits":{"pids":1e3}"#, "limits.pids"),
        (r#""limits":{"timeout":"-1s"}"#, "limits.timeout"),
        (r#""cwd":"../x""#, "cwd"),
        (r#""artifacts":["/etc/passwd"]"#, "artifacts[0]"),
        (r#""artifacts":["../x"]"#, "artifacts[0]"),
        (r#""isolation":"none""#, "isolation"),
        (r#""priority":1001"#, "priority"),
        (r#""permissions":["*"]"#, "permissions[0]"),
    ] {
        let told = refused(&format!(r#"{{"command":["true"],{more}}}"#));
        assert!(told.contains(&format!("{field}: ")), "{more}: {told}");
    }
    // The control: without any of these the request is good.
    read(r#"{"command":["true"]}"#);
    let many: Vec<String> = (0..10_000).map(|at| format!(r#""V{at}":"x""#)).collect();
    let told = refused(&format!(
        r#"{{"command":["true"],"env":{{{}}}}}"#,
        many.join(",")
    ));
    assert!(told.contains("env: 10000 entries: most is 256"), "{told}");
}

#[test]
fn a_request_names_one_thing_to_run_and_what_goes_with_it() {
    for (text, told) in [
        ("{}", "nothing to run"),
        (
            r#"{"tool":"a","command":["b"]}"#,
            "command: goes not with `tool`",
        ),
        (
            r#"{"tool":"a","stdin":"x"}"#,
            "stdin: goes with `command` alone",
        ),
        (
            r#"{"command":["a"],"input":{}}"#,
            "input: goes with `tool` alone",
        ),
        (r#"{"command":[]}"#, "command: empty"),
        (r#"{"command":"ls"}"#, "command: \"ls\": expected a list"),
        (r#"{"command":["a\u0000"]}"#, "command[0]: has a NUL byte"),
        (r#"{"tool":"../x"}"#, "tool: \"../x\" is no name"),
        (r#"{"tool":"a@latest"}"#, "tool: \"latest\" is no version"),
        (r#"{"command":["a"],"command":["b"]}"#, "twice"),
        (
            r#"{"command":["a"],"stdin":"x","stdin_base64":"eA=="}"#,
            "stdin_base64: goes not with `stdin`",
        ),
        (
            r#"{"command":["a"],"stdin_base64":"e"}"#,
            "stdin_base64: expected base64",
        ),
        ("[]", "a list of 0: expected a map"),
        ("", "no valid JSON"),
    ] {
        let got = refused(text);
        assert!(got.contains(told), "{text}: {got}");
    }
}

#[test]
fn equal_requests_have_one_digest_and_every_field_is_in_it() {
    let base = r#"{"command":["true"]}"#;
    let digest = |text: &str| read(text).digest().unwrap();
    assert_eq!(
        digest(base),
        digest(r#"{ "command" : ["true"], "env": {} , "cwd": null}"#)
    );
    let mut seen = vec![digest(base)];
    for more in [
        r#""env":{"A":"1"}"#,
        r#""env":{"A":"2"}"#,
        r#""cwd":"/tmp""#,
        r#""stdin":"x""#,
        r#""limits":{"pids":3}"#,
        r#""limits":{"on_output":"kill"}"#,
        r#""priority":1"#,
        r#""max_wait":"1s""#,
        r#""isolation":"gvisor""#,
        r#""artifacts":["a"]"#,
        r#""permissions":[]"#,
        r#""retention":{"logs":"1h"}"#,
        r#""workspace":{"mode":"upload","content":"sha256:0000000000000000000000000000000000000000000000000000000000000000"}"#,
    ] {
        let next = digest(&format!(r#"{{"command":["true"],{more}}}"#));
        assert!(!seen.contains(&next), "{more} does not show");
        seen.push(next);
    }
    assert_ne!(
        digest(r#"{"tool":"a"}"#),
        digest(r#"{"tool":"a","input":null}"#.replace("null", "{}").as_str())
    );
}

#[test]
fn a_module_comes_by_digest_or_as_a_template_with_a_script() {
    let digest = Digest::of(b"wasm");
    let wish = |text: &str| match read(text).what {
        What::Command {
            argv,
            module: Some(module),
            ..
        } => (argv, module),
        other => panic!("{other:?}"),
    };
    let (argv, module) = wish(&format!(
        r#"{{"module":"{digest}","command":["x.wasm","a"],"fuel":9,"deterministic":true}}"#
    ));
    assert_eq!(argv, ["x.wasm", "a"]);
    assert_eq!(module.from, ModuleFrom::Upload(digest));
    let fixed = leasehold_core::spec::Determinism::of_seed(0);
    assert_eq!(
        (module.manner.fuel, module.manner.determinism),
        (Some(9), Some(fixed))
    );
    let (argv, module) = wish(
        r#"{"interpreter":"python","command":["a.py","x"],"script":"print(1)","deterministic":{"seed":7}}"#,
    );
    assert_eq!(argv, ["python", "a.py", "x"]);
    assert_eq!(module.manner.determinism.unwrap().seed, 7);
    let ModuleFrom::Template { name, script } = module.from else {
        panic!("{module:?}");
    };
    assert_eq!(
        (name.as_str(), script.as_deref()),
        ("python", Some("print(1)"))
    );
}

#[test]
fn what_goes_with_no_module_is_told() {
    let digest = Digest::of(b"wasm");
    let long = "x".repeat(leasehold_core::spec::SCRIPT_BYTES_MAX + 1);
    for (text, told) in [
        (
            r#"{"command":["a"],"fuel":1}"#.to_owned(),
            "fuel: goes with `module` or",
        ),
        (
            r#"{"tool":"a.b","fuel":1}"#.to_owned(),
            "fuel: goes with `command` alone",
        ),
        (
            format!(r#"{{"command":["a"],"module":"{digest}","interpreter":"python"}}"#),
            "goes not with `module`",
        ),
        (
            format!(r#"{{"command":["a"],"module":"{digest}","script":"x"}}"#),
            "script: goes with `interpreter` alone",
        ),
        (
            format!(r#"{{"command":["a"],"module":"{digest}","fuel":0}}"#),
            "fuel: 0: expected a whole number from 1",
        ),
        (
            r#"{"command":["a"],"interpreter":"../x"}"#.to_owned(),
            "expected the name of a template",
        ),
        (
            format!(r#"{{"command":["a"],"interpreter":"python","script":"{long}"}}"#),
            "script: 524289 bytes: most is 524288",
        ),
        (format!(r#"{{"module":"{digest}"}}"#), "nothing to run"),
    ] {
        let error = RunRequest::parse(text.as_bytes()).unwrap_err();
        assert!(error.message.contains(told), "{told}: {error}");
    }
}

/// Another module, script, seed or fuel is another request.
#[test]
fn a_module_and_how_it_runs_are_in_the_digest_of_a_request() {
    let mut seen = std::collections::BTreeSet::new();
    for more in [
        "",
        r#","interpreter":"python""#,
        r#","interpreter":"javascript""#,
        r#","interpreter":"python","script":"1""#,
        r#","interpreter":"python","script":"2""#,
        r#","interpreter":"python","fuel":1"#,
        r#","interpreter":"python","deterministic":true"#,
        r#","interpreter":"python","deterministic":{"clock":1}"#,
    ] {
        let digest = read(&format!(r#"{{"command":["a"]{more}}}"#))
            .digest()
            .unwrap();
        assert!(seen.insert(digest), "{more}");
    }
}
