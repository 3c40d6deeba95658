//! Manifests are read strictly and read back from the form that is kept.

use super::*;

const FULL: &str = r#"
id: text.wordcount
version: 1.4.0
category: text
owner: platform team <platform@example.org>
description: Counts words.
entrypoint: {runtime: python, file: main.py, args: [--fast]}
sandbox: {isolation: process, trust: first_party}
limits: {cpu: 0.5, memory: 64M, pids: 16, timeout: 10s, grace: 500ms, on_output: kill}
network: {egress: ["api.example.org:443"], ingress: [8080]}
filesystem: {upload: true, read_only: [/workspace/in], artifacts: ["out/*.csv"]}
environment:
  set: {LANG: C.UTF-8}
  accept: [DEPTH]
credentials:
  - {name: CI_TOKEN, secretRef: vault/ci-token, way: proxy, ttl: 10m}
input_schema: {type: object, required: [text], properties: {ratio: {minimum: 0.5}}}
output_schema: {type: object}
permissions: [repo.read]
idempotent: true
retry: {attempts: 3}
capabilities: [gpu]
"#;

const LEAST: &str = "id: a\nversion: 1.0.0\nentrypoint: {runtime: command, argv: ['true']}\n";

#[test]
fn a_manifest_reads_back_from_the_form_that_is_kept() {
    for text in [FULL, LEAST] {
        let first = Manifest::parse(text.as_bytes()).unwrap();
        let kept = first.canonical().unwrap();
        let again = Manifest::parse(&kept).unwrap();
        assert_eq!(first, again);
        assert_eq!(again.canonical().unwrap(), kept);
    }
    let full = Manifest::parse(FULL.as_bytes()).unwrap();
    assert_eq!(full.tool().to_string(), "text.wordcount@1.4.0");
    assert_eq!(full.entry_file(), Some("main.py"));
    assert_eq!(full.attempts, 3);
}

#[test]
fn what_a_manifest_does_not_say_it_does_not_get() {
    let least = Manifest::parse(LEAST.as_bytes()).unwrap();
    assert!(least.egress.is_empty() && least.ingress.is_empty());
    assert!(least.credentials.is_empty() && least.permissions.is_empty());
    assert!(!least.idempotent && !least.cacheable && !least.filesystem.upload);
    assert_eq!(least.trust, None);
}

#[test]
fn i9_p43_every_form_of_no_network_is_none_and_what_is_not_understood_is_refused() {
    for form in [
        "",
        "network:\n",
        "network: null\n",
        "network: {}\n",
        "network: {egress: }\n",
        "network: {egress: []}\n",
        "network: {egress: {}}\n",
        "network: {egress: null, ingress: []}\n",
    ] {
        let manifest = Manifest::parse(format!("{LEAST}{form}").as_bytes()).unwrap();
        assert!(
            manifest.egress.is_empty() && manifest.ingress.is_empty(),
            "{form}"
        );
    }
    for (form, told) in [
        (
            "network: all\n",
            "network: \"all\": expected a map of fields",
        ),
        (
            "network: {allow: [a.example.org:443]}\n",
            "network.allow: unknown field",
        ),
        (
            "network: {egress: '*'}\n",
            "network.egress: \"*\": expected a list",
        ),
        (
            "network: {egress: ['*']}\n",
            "network.egress[0]: \"*\": expected a host name and port",
        ),
        (
            "network: {egress: [10.0.0.1:80]}\n",
            "network.egress[0]: \"10.0.0.1:80\": expected",
        ),
        (
            "network: {egress: [::1]}\n",
            "network.egress[0]: \"::1\": expected",
        ),
        (
            "network: {egress: [a.example.org:443\n",
            "it is no valid YAML",
        ),
        (
            "network: {egress: []}\nnetwork: {egress: ['*:443']}\n",
            "line 5: the name \"network\" is there twice",
        ),
    ] {
        let error = Manifest::parse(format!("{LEAST}{form}").as_bytes()).unwrap_err();
        assert!(error.to_string().contains(told), "{form}: {error}");
    }
    // The control: a rule that is understood is there.
    let open = Manifest::parse(format!("{LEAST}network: {{egress: ['*:443']}}\n").as_bytes());
    assert_eq!(open.unwrap().egress, ["*:443"]);
}

#[test]
fn every_mistake_is_told_at_once_with_line_path_value_and_what_is_allowed() {
    let text = "\
id: Text
version: 1.4
entrypoint:
  runtime: python
  file: ../main.py
limits:
  memory: 12X
  swap: 1G
environment:
  set: {LD_PRELOAD: x, OK: 1}
credentials:
  - {name: T, secretRef: vault/x, way: argv}
input_schema: {type: thing}
cacheable: 'yes'
retry: {attempts: 2}
";
    let error = Manifest::parse(text.as_bytes()).unwrap_err();
    let told: Vec<String> = error.0.iter().map(ToString::to_string).collect();
    let starts = [
        "line 1: id: \"Text\" is no name",
        "line 2: version: 1.4: expected a text: write it in quotes",
        "line 5: entrypoint.file: the name \"../main.py\" is not allowed",
        "line 7: limits.memory: \"12X\": expected a size such as 512M (8M to 1024T)",
        "line 8: limits.swap: unknown field: known here are cpu, memory, disk, inodes, pids, files, timeout, cpu_time, grace, output, on_output, on_denied",
        "line 10: environment.set.LD_PRELOAD: \"LD_PRELOAD\" may not be set",
        "line 10: environment.set.OK: expected a text",
        "line 12: credentials[0].way: \"argv\": expected one of proxy, broker, file, env",
        "line 13: input_schema: no valid schema",
        "line 14: cacheable: \"yes\": expected true or false",
        "line 15: retry.attempts: only a tool that says `idempotent: true` is begun again",
    ];
    assert_eq!(told.len(), starts.len(), "{told:#?}");
    for (told, start) in told.iter().zip(starts) {
        assert!(told.starts_with(start), "{told}\n  is not {start}");
    }
}

#[test]
fn p68_what_a_tool_may_not_ask_for_is_refused_by_name() {
    for (form, field) in [
        ("mounts: [{source: /, target: /host}]\n", "mounts"),
        ("devices: [/dev/kvm]\n", "devices"),
        ("privileged: true\n", "privileged"),
        ("sandbox: {user: root}\n", "sandbox.user"),
        ("sandbox: {user: 0}\n", "sandbox.user"),
        (
            "filesystem: {allow: ['/proc/../etc']}\n",
            "filesystem.allow[0]",
        ),
        ("filesystem: {allow: [etc]}\n", "filesystem.allow[0]"),
        (
            "filesystem: {artifacts: [/etc/passwd]}\n",
            "filesystem.artifacts[0]",
        ),
        (
            "filesystem: {artifacts: [../x]}\n",
            "filesystem.artifacts[0]",
        ),
        (
            "environment: {set: {http_proxy: x}}\n",
            "environment.set.http_proxy",
        ),
        (
            "environment: {accept: [LEASEHOLD_STATE_DIR]}\n",
            "environment.accept[0]",
        ),
        ("limits: {memory: -1}\n", "limits.memory"),
        ("limits: {memory: .nan}\n", "limits.memory"),
        ("limits: {pids: 9223372036854775808}\n", "limits.pids"),
        ("limits: {pids: 0}\n", "limits.pids"),
        ("permissions: ['*']\n", "permissions[0]"),
        (
            "credentials: [{name: T, secretRef: '*', way: env}]\n",
            "credentials[0].secretRef",
        ),
        (
            "credentials: [{name: T, value: s3cret, secretRef: a, way: env}]\n",
            "credentials[0].value",
        ),
        ("capabilities: [../x]\n", "capabilities[0]"),
    ] {
        let error = Manifest::parse(format!("{LEAST}{form}").as_bytes()).unwrap_err();
        let named = error.0.iter().any(|mistake| mistake.path == field);
        assert!(named, "{form}: {error}");
    }
    let many: String = (0..10_000).map(|at| format!("V{at}: x, ")).collect();
    let error = Manifest::parse(format!("{LEAST}environment: {{set: {{{many}}}}}\n").as_bytes());
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("environment.set: 10000 entries: most is 256")
    );
}

#[test]
fn a_pure_tool_has_no_way_out() {
    for form in [
        "network: {egress: [a.example.org:443]}\n",
        "credentials: [{name: T, secretRef: a, way: env}]\n",
    ] {
        let text = format!("{LEAST}{form}cacheable: true\n");
        let error = Manifest::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("not pure"), "{error}");
    }
    assert!(
        Manifest::parse(format!("{LEAST}cacheable: true\n").as_bytes())
            .unwrap()
            .cacheable
    );
}

#[test]
fn what_is_worth_a_second_look_is_told() {
    let least = Manifest::parse(LEAST.as_bytes())
        .unwrap()
        .warnings()
        .join("\n");
    for word in [
        "description",
        "owner",
        "limits.timeout",
        "output_schema",
        "sandbox.trust",
    ] {
        assert!(least.contains(word), "{word}: {least}");
    }
    let text = format!("{LEAST}environment: {{set: {{API_TOKEN: x}}}}\n");
    let loud = Manifest::parse(text.as_bytes())
        .unwrap()
        .warnings()
        .join("\n");
    assert!(loud.contains("environment.set.API_TOKEN"));
}

#[test]
fn a_module_and_a_script_read_and_are_written_back() {
    let of = |entry: &str| {
        let text = format!("id: a.b\nversion: 1.0.0\nentrypoint: {entry}\ncacheable: true\n");
        Manifest::parse(text.as_bytes())
    };
    for entry in [
        "{runtime: wasm, file: x.wasm, args: [a], fuel: 5, deterministic: true}",
        "{runtime: wasm, file: x.wasm, deterministic: {seed: 3, clock: 9}}",
        "{runtime: wasm, file: tool.py, interpreter: python, tree: true}",
    ] {
        let manifest = of(entry).unwrap();
        let again = Manifest::parse(&manifest.canonical().unwrap()).unwrap();
        assert_eq!(again, manifest, "{entry}");
    }
    for (entry, told) in [
        ("{runtime: wasm, file: x.py}", "ends in .wasm"),
        ("{runtime: wasm, file: x.wasm, fuel: 0}", "entrypoint.fuel"),
        (
            "{runtime: wasm, file: x.wasm, deterministic: 3}",
            "entrypoint.deterministic",
        ),
        (
            "{runtime: wasm, file: x.py, interpreter: Python}",
            "the name of a template",
        ),
        ("{runtime: python, file: x.py, fuel: 3}", "fuel"),
    ] {
        let error = of(entry).unwrap_err().to_string();
        assert!(error.contains(told), "{entry}: {error}");
    }
}

#[test]
fn limits_that_mean_nothing_for_a_module_are_told() {
    let of = |more: &str| {
        let text =
            format!("id: a.b\nversion: 1.0.0\nentrypoint: {{runtime: wasm, file: x.wasm}}\n{more}");
        Manifest::parse(text.as_bytes())
            .unwrap()
            .warnings()
            .join("\n")
    };
    let all = of("limits: {pids: 3, disk: 1M, grace: 1s}\ncacheable: true\n");
    for word in [
        "limits.pids",
        "limits.disk",
        "limits.grace",
        "cacheable: it sees",
    ] {
        assert!(all.contains(word), "{word}: {all}");
        assert!(!of("").contains(word), "{word}");
    }
    let upload = of("limits: {disk: 1M}\nfilesystem: {upload: true}\n");
    assert!(!upload.contains("limits.disk"), "{upload}");
}
