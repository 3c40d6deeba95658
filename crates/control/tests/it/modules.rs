//! Tools and requests in WebAssembly through the whole control plane, at a backend that notes what it was given.

use std::fs::File;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_backend::fake::FakeBackend;
use leasehold_control::archive::{self, Entry};
use leasehold_control::control::{Control, Readiness};
use leasehold_control::engine::Engine;
use leasehold_control::engine::modules::Templates;
use leasehold_control::engine::parts::Doing;
use leasehold_control::request::RunRequest;
use leasehold_core::digest::Digest;
use leasehold_core::end::{CancelledBy, EndReason, LeaseExpiry, LimitHit};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::{RunFact, TenantFact};
use leasehold_core::isolation::Isolation;
use leasehold_core::limits::Resource;
use leasehold_core::tenant::{Principal, Role, Tenant};
use leasehold_store::seam::{Change, RunRow, Store};

use crate::world::{World, end, name, sealed, who};

const CORE: &[u8] = b"\0asm\x01\0\0\0rest";
const TEMPLATE: &[u8] = b"\0asm\x0d\0\x01\0template";

/// One template, `python`.
struct Python;

impl Templates for Python {
    fn find(&self, name: String) -> Doing<'_, Option<Digest>> {
        let found = (name == "python").then(|| Digest::of(TEMPLATE));
        Box::pin(std::future::ready(Ok(found)))
    }

    fn open(&self, _: String) -> Doing<'_, File> {
        Box::pin(async {
            let file = rustix::fs::memfd_create("template", rustix::fs::MemfdFlags::CLOEXEC);
            let mut file = File::from(file.unwrap());
            std::io::Write::write_all(&mut file, TEMPLATE).unwrap();
            Ok(file)
        })
    }
}

struct Rig {
    world: World,
    wasm: FakeBackend,
    control: Control,
    code: Mutex<Option<Readiness>>,
}

fn operator() -> Principal {
    Principal {
        role: Role::Operator,
        ..who("default")
    }
}

impl Rig {
    async fn new() -> Self {
        let world = World::new().await;
        let row = Tenant {
            name: name("default"),
            created_unix_ms: 1,
            suspended: false,
            projects: vec![name("default")],
        };
        let change = (Change::CreateTenant(row), TenantFact::TenantCreated);
        let changed = world.store.change(name("default"), None, 1, vec![change]);
        changed.await.unwrap();
        let wasm = FakeBackend::called("wasm", Isolation::Wasm);
        let mut parts = world.parts(4);
        parts.backends = parts.backends.with(Arc::new(wasm.clone()));
        parts.templates = Arc::new(Python);
        let control = Control::new(Engine::start(parts).await.unwrap());
        let policy = "version: 1\nallow: {tools: inherit, commands: inherit, permissions: inherit, egress: inherit, \
                      credentials: inherit, workspaces: inherit, trust: inherit, backends: inherit, placement: inherit}\n\
                      trust: {commands: first_party, tools: {t.one: first_party}}\n";
        let scope = "platform/tenant/default";
        let put = control.put_policy(&operator(), scope, policy).await;
        put.unwrap();
        Self {
            world,
            wasm,
            control,
            code: Mutex::default(),
        }
    }

    async fn publish(
        &self,
        version: &str,
        entry: &str,
        files: &[(&str, &[u8])],
    ) -> Result<Vec<String>, PublicError> {
        let tree = files.iter().map(|(name, content)| {
            let entry = Entry::File {
                executable: false,
                content: content.to_vec(),
            };
            (format!(".tool/{name}"), entry)
        });
        let mut tree: archive::Tree = tree.collect();
        tree.insert(".tool".to_owned(), Entry::Folder);
        let package = archive::pack(&tree).unwrap();
        let manifest = format!(
            "id: t.one\nversion: {version}\nsandbox: {{trust: first_party}}\nentrypoint: {{runtime: wasm, {entry}}}\n"
        );
        let me = who("default");
        let published = self
            .control
            .publish_tool(&me, manifest.as_bytes(), Some(&package));
        let published = published.await?;
        *self.code.lock().unwrap() = published.code;
        Ok(published.warnings)
    }

    /// Where the code of the last publication stood.
    fn code(&self) -> Option<Readiness> {
        self.code.lock().unwrap().clone()
    }

    async fn run(&self, request: &str) -> Result<RunRow, PublicError> {
        let me = who("default");
        let request = RunRequest::parse(request.as_bytes())?;
        let submitted = self.control.submit(&me, request, None, None).await?;
        Ok(sealed(&self.control, "default", &submitted.row.run).await)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_module_is_no_tool() {
    let rig = Rig::new().await;
    let bad: &[(&str, &[u8], &str)] = &[
        ("file: x.wasm", b"#!/bin/sh", "magic number"),
        ("file: x.wasm", b"\0asm", "magic number"),
        ("file: x.wasm", b"", "magic number"),
        ("file: x.py, interpreter: python", b"\xff", "not UTF-8"),
        (
            "file: x.py, interpreter: python",
            &[b'x'; 600 << 10],
            "most is 524288",
        ),
    ];
    for (entry, content, told) in bad {
        let file = entry.split([' ', ',']).nth(1).unwrap();
        let error = rig.publish("1.0.0", entry, &[(file, content)]).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(error.message.contains(told), "{error}");
    }
    let other = format!("file: x.wasm, content: \"{}\"", Digest::of(b"other"));
    let error = rig.publish("1.0.0", &other, &[("x.wasm", CORE)]).await;
    assert!(error.unwrap_err().message.contains("entrypoint.content"));
    rig.publish("1.0.0", "file: x.wasm", &[("x.wasm", CORE)])
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_of_a_tools_module_reach_its_backend_and_its_input_with_them() {
    let rig = Rig::new().await;
    rig.publish("1.0.0", "file: x.wasm, args: [a]", &[("x.wasm", CORE)])
        .await
        .unwrap();
    let row = rig
        .run(r#"{"tool":"t.one","input":{"a":1}}"#)
        .await
        .unwrap();
    assert_eq!(end(&row), EndReason::Completed);
    let taken = rig.wasm.taken();
    assert_eq!(
        (&taken[0].run, taken[0].digest),
        (&row.run, Digest::of(CORE))
    );
    assert_eq!(taken[0].input.as_deref(), Some(br#"{"a":1}"#.as_slice()));
    assert_eq!(rig.world.backend.begun(), []);
    let contract = rig.control.contract(&who("default"), &row.run).await;
    let contract = contract.unwrap();
    assert_eq!(contract.program.unwrap().digest, Digest::of(CORE));
    assert_eq!(contract.selected.backend, "wasm");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_reaches_its_template_and_a_missing_template_is_told_with_the_mend() {
    let rig = Rig::new().await;
    let script = b"print(1)".as_slice();
    let entry = "file: tool.py, interpreter: python";
    rig.publish("1.0.0", entry, &[("tool.py", script)])
        .await
        .unwrap();
    // The second time it is not read from the archive.
    for _ in 0..2 {
        rig.run(r#"{"tool":"t.one"}"#).await.unwrap();
    }
    for taken in rig.wasm.taken() {
        assert_eq!(taken.digest, Digest::of(TEMPLATE));
        assert_eq!(taken.script.unwrap().text, "print(1)");
    }
    let entry = "file: tool.rb, interpreter: ruby";
    rig.publish("2.0.0", entry, &[("tool.rb", script)])
        .await
        .unwrap();
    let error = rig.run(r#"{"tool":"t.one"}"#).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert_eq!(error.message, "there is no template `ruby` on this host");
    let hint = error.hint.unwrap();
    assert!(
        hint.ends_with("leasehold template build --wasm ruby"),
        "{hint}"
    );
    let request = r#"{"interpreter":"python","command":["a.py","x"],"script":"print(2)"}"#;
    let row = rig.run(request).await.unwrap();
    let taken = rig.wasm.taken();
    let script = taken.last().unwrap().script.clone().unwrap();
    let contract = rig.control.contract(&who("default"), &row.run).await;
    let contract = contract.unwrap();
    assert_eq!(contract.argv, ["python", "a.py", "x"]);
    assert_eq!(
        script.argv(&contract.argv),
        ["python", "--script", "a.py", "print(2)", "x"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uploaded_module_is_its_tenants_alone() {
    let rig = Rig::new().await;
    let me = who("default");
    let refused = rig.control.upload_module(&me, b"#!/bin/sh".to_vec()).await;
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Invalid);
    let request = |digest: &Digest| format!(r#"{{"module":"{digest}","command":["x"]}}"#);
    let theirs = [CORE, b"theirs"].concat();
    let theirs = rig
        .control
        .upload_module(&who("acme"), theirs)
        .await
        .unwrap();
    let error = rig.run(&request(&theirs)).await.unwrap_err();
    assert!(error.message.contains("no such upload"), "{error}");
    let mine = rig.control.upload_module(&me, CORE.to_vec()).await.unwrap();
    let row = rig.run(&request(&mine)).await.unwrap();
    assert_eq!(end(&row), EndReason::Completed);
    assert_eq!(rig.wasm.taken().last().unwrap().digest, mine);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deterministic_pure_tool_is_answered_from_what_is_kept() {
    let rig = Rig::new().await;
    let manifest = "file: x.wasm, deterministic: true}\ncacheable: true\nretry: {attempts: 1";
    rig.publish("1.0.0", manifest, &[("x.wasm", CORE)])
        .await
        .unwrap();
    let first = rig.run(r#"{"tool":"t.one","input":1}"#).await.unwrap();
    let again = rig.run(r#"{"tool":"t.one","input":1}"#).await.unwrap();
    rig.run(r#"{"tool":"t.one","input":2}"#).await.unwrap();
    assert_eq!(rig.wasm.begun().len(), 2);
    let stdout = |row: &RunRow| row.outcome.as_ref().unwrap().stdout.unwrap().digest;
    assert_eq!(stdout(&first), stdout(&again));
    // Another version has another module.
    let other = [CORE, b"2"].concat();
    let manifest = "file: x.wasm, deterministic: true}\ncacheable: true\nretry: {attempts: 1";
    rig.publish("1.0.1", manifest, &[("x.wasm", &other)])
        .await
        .unwrap();
    rig.run(r#"{"tool":"t.one","input":1}"#).await.unwrap();
    assert_eq!(rig.wasm.begun().len(), 3);
}

fn too_much_to_compile() -> (EndReason, String) {
    let hit = LimitHit {
        which: Resource::Compile,
        limit: 7,
        observed: 7,
    };
    let end = EndReason::ResourceExceeded { hit, exit: None };
    (end, "compile_limit: it is a bomb".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_is_compiled_when_its_tool_is_published() {
    let rig = Rig::new().await;
    rig.wasm
        .faults(|faults| faults.compile_takes = Duration::from_millis(20));
    rig.publish("1.0.0", "file: x.wasm", &[("x.wasm", CORE)])
        .await
        .unwrap();
    assert_eq!(rig.code(), Some(Readiness::Ready));
    // So its first run waits for nothing, and nothing in its events tells of a compiler.
    let row = rig.run(r#"{"tool":"t.one"}"#).await.unwrap();
    let facts = rig.world.facts(&row.run).await;
    assert!(
        !facts
            .iter()
            .any(|fact| matches!(fact, RunFact::Compiling { .. })),
        "{facts:?}"
    );
    // What takes longer than a publication waits goes on.
    rig.wasm
        .faults(|faults| faults.compile_takes = Duration::from_millis(2_500));
    let slow = [CORE, b"slow"].concat();
    rig.publish("1.0.1", "file: x.wasm", &[("x.wasm", &slow)])
        .await
        .unwrap();
    assert_eq!(rig.code(), Some(Readiness::Compiling));
    let tools = rig.control.tools(&who("default"), None).await.unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while rig.control.tool_code(&tools[0]).await != Some(Readiness::Ready) {
        assert!(Instant::now() < until, "it is never compiled");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A script's interpreter is compiled too, and one that is missing is told at once.
    let script = b"print(1)".as_slice();
    rig.wasm
        .faults(|faults| faults.compile_takes = Duration::from_millis(20));
    let entry = "file: tool.py, interpreter: python";
    rig.publish("1.0.2", entry, &[("tool.py", script)])
        .await
        .unwrap();
    assert_eq!(rig.code(), Some(Readiness::Ready));
    let entry = "file: tool.rb, interpreter: ruby";
    let warnings = rig.publish("1.0.3", entry, &[("tool.rb", script)]).await;
    let warnings = warnings.unwrap().join("; ");
    assert!(
        warnings.contains("no template `ruby`") && warnings.contains("template build"),
        "{warnings}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_cannot_be_compiled_is_no_tool() {
    let rig = Rig::new().await;
    rig.wasm
        .faults(|faults| faults.uncompilable = Some(too_much_to_compile()));
    let error = rig.publish("1.0.0", "file: x.wasm", &[("x.wasm", CORE)]);
    let error = error.await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert!(
        error.message.contains("compile_limit: it is a bomb"),
        "{error}"
    );
    let tools = rig.control.tools(&who("default"), None).await.unwrap();
    assert!(tools.is_empty(), "{tools:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn time_at_the_compiler_is_no_time_of_the_run() {
    let rig = Rig::new().await;
    let me = who("default");
    let module = rig.control.upload_module(&me, CORE.to_vec()).await.unwrap();
    rig.wasm
        .faults(|faults| faults.compile_takes = Duration::from_millis(1_500));
    // All of it has less time than the compiler takes.
    let limits =
        r#""limits":{"timeout":"500ms","grace":"100ms"},"lifetimes":{"hard_deadline":"1s"}"#;
    let request = format!(r#"{{"module":"{module}","command":["x"],{limits}}}"#);
    let row = rig.run(&request).await.unwrap();
    assert_eq!(end(&row), EndReason::Completed);
    let facts = rig.world.facts(&row.run).await;
    let place = |which: fn(&RunFact) -> bool| facts.iter().position(which).unwrap();
    let compiling = place(|fact| matches!(fact, RunFact::Compiling { .. }));
    let compiled =
        place(|fact| matches!(fact, RunFact::Compiled { micros, .. } if *micros >= 1_500_000));
    let leased = place(|fact| matches!(fact, RunFact::Leased { .. }));
    assert!(compiling < compiled && compiled < leased, "{facts:?}");
    let again = rig.run(&request).await.unwrap();
    let facts = rig.world.facts(&again.run).await;
    let compiles = |fact: &RunFact| matches!(fact, RunFact::Compiling { .. });
    assert!(!facts.iter().any(compiles), "{facts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_for_the_compiler_can_be_ended_and_a_bomb_is_its_end() {
    let rig = Rig::new().await;
    let me = who("default");
    let module = rig.control.upload_module(&me, CORE.to_vec()).await.unwrap();
    rig.wasm
        .faults(|faults| faults.compile_takes = Duration::from_secs(600));
    let request = format!(r#"{{"module":"{module}","command":["x"]}}"#);
    let request = RunRequest::parse(request.as_bytes()).unwrap();
    let submitted = rig.control.submit(&me, request, None, None).await.unwrap();
    let run = submitted.row.run;
    let compiles = |fact: &RunFact| matches!(fact, RunFact::Compiling { .. });
    while !rig.world.facts(&run).await.iter().any(compiles) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    rig.control.cancel(&me, &run).await.unwrap();
    let row = sealed(&rig.control, "default", &run).await;
    let by = CancelledBy::Caller;
    assert_eq!(end(&row), EndReason::Cancelled { by });

    let other = [CORE, b"bomb"].concat();
    let module = rig.control.upload_module(&me, other).await.unwrap();
    rig.wasm.faults(|faults| {
        faults.compile_takes = Duration::from_millis(10);
        faults.uncompilable = Some(too_much_to_compile());
    });
    let request = format!(r#"{{"module":"{module}","command":["x"]}}"#);
    let row = rig.run(&request).await.unwrap();
    let (bomb, said) = too_much_to_compile();
    assert_eq!(end(&row), bomb);
    let report = row
        .outcome
        .as_ref()
        .and_then(|outcome| outcome.module.clone());
    assert_eq!(report.and_then(|report| report.uncompiled), Some(said));
    let facts = rig.world.facts(&row.run).await;
    let leased = |fact: &RunFact| matches!(fact, RunFact::Leased { .. });
    assert!(!facts.iter().any(leased), "{facts:?}");
    assert_eq!(rig.wasm.begun(), []);
}

/// The code was at hand when the lease was granted and is not when the run is launched.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_for_its_code_is_ended_by_its_caller_and_by_its_deadline() {
    let rig = Rig::new().await;
    let me = who("default");
    let module = rig.control.upload_module(&me, CORE.to_vec()).await.unwrap();
    rig.wasm.faults(|faults| faults.never_ready = true);
    let submit = async |more: &str| {
        let request = format!(r#"{{"module":"{module}","command":["x"]{more}}}"#);
        let request = RunRequest::parse(request.as_bytes()).unwrap();
        let submitted = rig.control.submit(&me, request, None, None).await;
        submitted.unwrap().row.run
    };
    let run = submit("").await;
    let late = submit(
        r#","limits":{"timeout":"100ms","grace":"100ms"},"lifetimes":{"hard_deadline":"1s"}"#,
    )
    .await;
    let row = sealed(&rig.control, "default", &late).await;
    let cause = LeaseExpiry::Deadline;
    assert_eq!(end(&row), EndReason::LeaseExpired { cause });
    // Neither waited before its lease.
    for run in [&run, &late] {
        let facts = rig.world.facts(run).await;
        let leased = |fact: &RunFact| matches!(fact, RunFact::Leased { .. });
        let compiling = |fact: &RunFact| matches!(fact, RunFact::Compiling { .. });
        assert!(facts.iter().any(leased), "{facts:?}");
        assert!(!facts.iter().any(compiling), "{facts:?}");
    }
    rig.control.cancel(&me, &run).await.unwrap();
    let row = sealed(&rig.control, "default", &run).await;
    let by = CancelledBy::Caller;
    assert_eq!(end(&row), EndReason::Cancelled { by });
    assert_eq!(rig.wasm.begun(), []);
    assert_eq!(rig.wasm.present(), []);
    rig.world.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_bind_nothing_of_a_module_are_told() {
    let rig = Rig::new().await;
    let warnings = async |more: &str| {
        let request = format!(
            r#"{{"interpreter":"python","command":["a.py"],"script":"1"{more},
                "limits":{{"pids":9,"disk":"1M","grace":"1s","memory":"128M"}}}}"#
        );
        let request = RunRequest::parse(request.as_bytes()).unwrap();
        let me = who("default");
        let submitted = rig.control.submit(&me, request, None, None).await;
        submitted.unwrap().warnings.join("; ")
    };
    let shared = warnings("").await;
    for limit in ["limits.pids", "limits.disk", "limits.grace"] {
        assert!(shared.contains(limit), "{shared}");
    }
    assert!(!shared.contains("limits.memory"), "{shared}");
    // With a directory there is something to bound.
    let own = warnings(r#","cwd":"/workspace""#).await;
    assert!(
        own.contains("limits.pids") && !own.contains("limits.disk"),
        "{own}"
    );
}
