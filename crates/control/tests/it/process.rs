//! The engine over the real worker: the built program as a supervisor.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_backend::conformance::script::{PRINTED, Script};
use leasehold_backend::process::ProcessBackend;
use leasehold_backend::process::client::Client;
use leasehold_backend::process::start::Endpoint;
use leasehold_backend::seam::{Backend, Launch};
use leasehold_control::control::{Control, Cursor, Until, Update};
use leasehold_control::engine::Engine;
use leasehold_control::engine::backends::Backends;
use leasehold_core::end::EndReason;
use leasehold_core::event::RunFact;
use leasehold_core::id::RunId;
use leasehold_core::record::Observed;
use leasehold_store::seam::Store;
use rustix::process::{Pid, Signal, kill_process};

use crate::world::{Draft, World, end, sealed, who};

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// A supervisor of its own, ended with the test.
struct Own {
    endpoint: Endpoint,
    dir: PathBuf,
}

impl Own {
    fn new(test: &str) -> Option<Self> {
        let Some(program) = std::env::var_os("LEASEHOLD_BIN").map(PathBuf::from) else {
            eprintln!("SKIP {test}: LEASEHOLD_BIN does not name the built program");
            return None;
        };
        let dir = std::env::temp_dir().join(format!("leasehold-own-{}-{test}", std::process::id()));
        let (run, state) = (dir.join("run"), dir.join("state"));
        for path in [&dir, &run, &state] {
            std::fs::create_dir_all(path).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
        }
        Some(Self {
            endpoint: Endpoint::new(run, state, program),
            dir,
        })
    }

    async fn engine(&self, world: &World) -> (Arc<Engine>, ProcessBackend) {
        let backend = ProcessBackend::new(self.endpoint.clone());
        let mut parts = world.parts(8);
        parts.backends = Backends::of(Arc::new(backend.clone()));
        (Engine::start(parts).await.unwrap(), backend)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // It ends in order, and leaves its socket to nobody.
        if let Ok(client) = Client::connect_or_start(&self.endpoint) {
            let pid = Pid::from_raw(client.supervisor_pid().cast_signed()).unwrap();
            let _ = kill_process(pid, Signal::TERM);
            drop(client);
            let deadline = Instant::now() + Duration::from_secs(20);
            while Client::connect(&self.endpoint).is_ok() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Plain limits, so that a parked sandbox of the default kind fits.
fn draft(script: Script) -> Draft {
    let mut draft = Draft::script("acme", script).at("process");
    draft.start.sandbox = Default::default();
    draft
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_its_way_on_a_real_worker_warm_and_cold() {
    let Some(own) = Own::new("a_run_goes_its_way") else {
        return;
    };
    let world = World::new().await;
    let (engine, backend) = own.engine(&world).await;
    let control = Control::new(Arc::clone(&engine));
    for warm in [false, true] {
        backend
            .keep_warm(Default::default(), u32::from(warm))
            .await
            .unwrap();
        let row = engine
            .submit(draft(Script::Print).plan(), None, None)
            .await
            .unwrap()
            .0;
        let row = sealed(&control, "acme", &row.run).await;
        assert_eq!(end(&row), EndReason::Completed);
        let bytes = control
            .output(&who("acme"), &row.run, "stdout", 0, 100)
            .await;
        assert_eq!(bytes.unwrap(), PRINTED);
        let facts = world.facts(&row.run).await;
        let served = |fact: &RunFact| matches!(fact, RunFact::Allocated { warm: served, computer: Some(_), .. } if *served == warm);
        assert!(facts.iter().any(served), "warm {warm}: {facts:?}");
        let cleaned = facts.iter().filter_map(|fact| match fact {
            RunFact::Cleaned { observed } => Some(observed),
            _ => None,
        });
        assert!(cleaned.map(Observed::clean).eq([true]), "{facts:?}");
    }
    let mut exec = Script::Artifacts.exec();
    exec.artifacts = vec!["out/a".to_owned()];
    let row = engine
        .submit(Draft::new("acme", exec).at("process").plan(), None, None)
        .await
        .unwrap()
        .0;
    sealed(&control, "acme", &row.run).await;
    let bytes = control.artifact(&who("acme"), &row.run, 0, 0, 100).await;
    assert_eq!(bytes.unwrap(), b"mine");
}

/// Waits until a plain run is served by a parked sandbox; gives how many were not.
async fn until_warm(engine: &Arc<Engine>, control: &Control, world: &World) -> u32 {
    for cold in 0..40 {
        let plan = draft(Script::True).plan();
        let (row, _) = engine.submit(plan, None, None).await.unwrap();
        let run = sealed(control, "acme", &row.run).await.run;
        let facts = world.facts(&run).await;
        let warm = |fact: &RunFact| matches!(fact, RunFact::Allocated { warm: true, .. });
        if facts.iter().any(warm) {
            return cold;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    panic!("no run was served by a parked sandbox")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_is_there_again_after_the_worker_was_started_anew() {
    let Some(own) = Own::new("a_pool_is_there_again") else {
        return;
    };
    let world = World::new().await;
    let (engine, backend) = own.engine(&world).await;
    let control = Control::new(Arc::clone(&engine));
    control.keep_warm(1);
    until_warm(&engine, &control, &world).await;
    let pid = Client::connect(&own.endpoint).unwrap().supervisor_pid();
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let cold = until_warm(&engine, &control, &world).await;
    eprintln!("{cold} runs were served by none before the pool was there again");
    drop(backend);
}

/// The worker's own rule, to let go of what was kept for a caller that is away, does not come into it: the link stays.
#[tokio::test(flavor = "multi_thread")]
async fn who_drains_lets_go_of_what_is_kept_parked() {
    let Some(own) = Own::new("who_drains_lets_go") else {
        return;
    };
    let world = World::new().await;
    let (engine, backend) = own.engine(&world).await;
    let control = Control::new(engine);
    control.keep_warm(2);
    let parked = || {
        let entries = std::fs::read_dir(own.dir.join("state/ledger"));
        entries.map_or(0, Iterator::count)
    };
    for wanted in [2, 0] {
        let until = Instant::now() + PATIENCE;
        while parked() != wanted {
            assert!(Instant::now() < until, "not {wanted} parked");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        control.drain(Duration::ZERO).await;
    }
    drop(backend);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tool_says_of_itself_reaches_its_follower_as_such() {
    let Some(own) = Own::new("what_a_tool_says") else {
        return;
    };
    let world = World::new().await;
    let (engine, _backend) = own.engine(&world).await;
    let control = Control::new(Arc::clone(&engine));
    let script = r#"echo 'leasehold:progress {"done":1}' >&2; echo plain >&2
        sleep 0.3; echo 'leasehold:log half way' >&2; echo out"#;
    let exec = leasehold_core::spec::ExecSpec::command(["/bin/sh", "-c", script]);
    let plan = Draft::new("acme", exec).at("process").plan();
    let (row, _) = engine.submit(plan, None, None).await.unwrap();
    // While it runs, and again when it is over.
    for _ in 0..2 {
        let me = who("acme");
        let from = Cursor::default();
        let mut follower = control.follow(&me, &row.run, from).await.unwrap();
        let (mut told, mut stderr, mut stdout) = (Vec::new(), Vec::new(), Vec::new());
        while let Some((update, _)) = follower.next().await {
            match update {
                Update::Progress(value) => told.push(format!("progress {value}")),
                Update::Log(text) => told.push(format!("log {text}")),
                Update::Stderr(bytes) => stderr.extend(bytes),
                Update::Stdout(bytes) => stdout.extend(bytes),
                _ => {}
            }
        }
        assert_eq!(told, [r#"progress {"done":1}"#, "log half way"]);
        assert_eq!((&stderr[..], &stdout[..]), (&b"plain\n"[..], &b"out\n"[..]));
        sealed(&control, "acme", &row.run).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p85_a_real_run_is_taken_up_and_a_dead_supervisor_is_host_lost() {
    let Some(own) = Own::new("p85_a_real_run") else {
        return;
    };
    let world = World::new().await;
    let (engine, backend) = own.engine(&world).await;
    let run = engine
        .submit(draft(Script::Sleep).plan(), None, None)
        .await
        .unwrap()
        .0
        .run;
    let deadline = Instant::now() + Duration::from_secs(20);
    while backend.running().await.unwrap().is_empty() {
        assert!(Instant::now() < deadline, "it never ran");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    engine.drain(Duration::ZERO).await;
    drop(engine);
    let (engine, backend) = own.engine(&world).await;
    let control = Control::new(Arc::clone(&engine));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let facts = world.facts(&run).await;
    assert!(
        facts
            .iter()
            .any(|fact| matches!(fact, RunFact::Adopted { .. })),
        "{facts:?}"
    );
    let supervisor = Client::connect(&own.endpoint).unwrap().supervisor_pid();
    kill_process(
        Pid::from_raw(supervisor.cast_signed()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    let row = sealed(&control, "acme", &run).await;
    assert_eq!(end(&row), EndReason::HostLost);
    assert!(world.store.not_clean(10).await.unwrap().is_empty());
    assert!(backend.running().await.unwrap().is_empty());
    // Its successor serves.
    let row = engine
        .submit(draft(Script::True).plan(), None, None)
        .await
        .unwrap()
        .0;
    assert_eq!(
        end(&sealed(&control, "acme", &row.run).await),
        EndReason::Completed
    );
}

/// Prints what the engine costs over the bare launch. A figure, not a bar: the machine is shared.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_engine_adds_to_a_warm_launch() {
    const RUNS: usize = 60;
    let Some(own) = Own::new("what_the_engine_adds") else {
        return;
    };
    let world = World::new().await;
    let (engine, backend) = own.engine(&world).await;
    let control = Control::new(Arc::clone(&engine));
    backend.keep_warm(Default::default(), 8).await.unwrap();
    let (mut bare, mut whole) = (Vec::new(), Vec::new());
    for at in 0..RUNS {
        tokio::time::sleep(Duration::from_millis(40)).await;
        let mut entropy = [5; 13];
        entropy[0] = u8::try_from(at).unwrap();
        let begun = Instant::now();
        let run = RunId::from_entropy(&entropy);
        let launch = Launch::new(run, Default::default(), Script::True.exec());
        let mut execution = backend.launch(launch).await.unwrap();
        while let Some(event) = execution.next().await {
            if matches!(
                event.unwrap(),
                leasehold_backend::execution::RunEvent::Ended(_)
            ) {
                break;
            }
        }
        bare.push(begun.elapsed());
        execution.cleaned().await.unwrap();
        tokio::time::sleep(Duration::from_millis(40)).await;
        let plan = draft(Script::True).plan();
        let begun = Instant::now();
        let run = engine.submit(plan, None, None).await.unwrap().0.run;
        let patience = Duration::from_secs(20);
        control
            .wait(&who("acme"), &run, Until::Ended, patience)
            .await
            .unwrap();
        whole.push(begun.elapsed());
        sealed(&control, "acme", &run).await;
    }
    for times in [&mut bare, &mut whole] {
        times.sort();
    }
    let row = |times: &[Duration]| (times[RUNS / 2], times[RUNS * 95 / 100]);
    eprintln!(
        "bare launch p50, p95: {:?}; through the engine: {:?}",
        row(&bare),
        row(&whole)
    );
    assert!(
        whole[RUNS / 2] < bare[RUNS / 2] * 50,
        "the engine is unbearable"
    );
}
