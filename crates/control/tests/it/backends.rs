//! Several backends in one engine: each run goes to the one that its contract names, from its launch to its
//! removal, and through a restart.

use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::conformance::script::Script;
use leasehold_backend::fake::FakeBackend;
use leasehold_backend::seam::{Backend, Launch};
use leasehold_control::control::Control;
use leasehold_control::engine::Engine;
use leasehold_control::engine::backends::Backends;
use leasehold_control::engine::parts::Parts;
use leasehold_core::end::{EndReason, ExitStatus, LimitHit};
use leasehold_core::event::RunFact;
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::isolation::Isolation;
use leasehold_core::limits::Resource;
use leasehold_core::outcome::RunState;
use leasehold_core::sandbox::state::State;
use leasehold_core::spec::SandboxSpec;

use crate::world::{Draft, World, end, sealed, who};

/// A world whose worker has two backends.
struct Two {
    world: World,
    other: FakeBackend,
}

impl Two {
    async fn new() -> Self {
        Self {
            world: World::new().await,
            other: FakeBackend::called("other", Isolation::Wasm),
        }
    }

    fn parts(&self) -> Parts {
        let mut parts = self.world.parts(4);
        parts.backends = parts.backends.with(Arc::new(self.other.clone()));
        parts
    }

    async fn engine(&self) -> Arc<Engine> {
        Engine::start(self.parts()).await.unwrap()
    }

    fn of(&self, name: &str) -> &FakeBackend {
        match name {
            "other" => &self.other,
            _ => &self.world.backend,
        }
    }

    /// Nothing is left at either.
    async fn assert_nothing_left(&self) {
        assert_eq!(self.other.present(), []);
        self.world.assert_nothing_left().await;
    }
}

async fn until(backend: &FakeBackend, there: impl Fn(&[(SandboxId, State)]) -> bool) {
    for _ in 0..4_000 {
        if there(&backend.present()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{:?}", backend.present());
}

/// Waits until a backend has one run.
async fn until_running(backend: &FakeBackend) {
    let running = |present: &[(SandboxId, State)]| matches!(present, [(_, State::Running)]);
    until(backend, running).await;
}

/// Waits until a backend has so many computers.
async fn until_present(backend: &FakeBackend, count: usize) {
    until(backend, |present| present.len() == count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_launched_where_its_contract_says_and_its_files_come_from_there() {
    let two = Two::new().await;
    let engine = two.engine().await;
    let control = Control::new(Arc::clone(&engine));
    let mut begun = Vec::new();
    for name in ["fake", "other", "other"] {
        let mut exec = Script::Artifacts.exec();
        exec.artifacts = vec!["out/a".to_owned()];
        let plan = Draft::new("acme", exec).at(name).plan();
        let run = engine.submit(plan, None, None).await.unwrap().0.run;
        let row = sealed(&control, "acme", &run).await;
        assert_eq!(end(&row), EndReason::Completed);
        let bytes = control.artifact(&who("acme"), &run, 0, 0, 100).await;
        assert_eq!(bytes.unwrap(), b"mine");
        let made = |fact: &RunFact| match fact {
            RunFact::Allocated { computer, .. } => {
                computer.as_ref().map(|computer| computer.backend.clone())
            }
            _ => None,
        };
        let facts = two.world.facts(&run).await;
        assert_eq!(facts.iter().find_map(made).as_deref(), Some(name));
        begun.push((name, run));
    }
    for name in ["fake", "other"] {
        let mut here: Vec<RunId> = begun
            .iter()
            .filter(|(at, _)| *at == name)
            .map(|(_, run)| run.clone())
            .collect();
        here.sort();
        assert_eq!(two.of(name).begun(), here, "{name}");
    }
    two.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wish_for_the_end_goes_where_the_run_is() {
    let two = Two::new().await;
    let engine = two.engine().await;
    let control = Control::new(Arc::clone(&engine));
    for name in ["fake", "other"] {
        let plan = Draft::script("acme", Script::Sleep).at(name).plan();
        let run = engine.submit(plan, None, None).await.unwrap().0.run;
        until_running(two.of(name)).await;
        control.cancel(&who("acme"), &run).await.unwrap();
        let row = sealed(&control, "acme", &run).await;
        assert!(matches!(end(&row), EndReason::Cancelled { .. }), "{row:?}");
    }
    two.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p85_each_run_is_taken_up_where_it_was_begun() {
    let two = Two::new().await;
    let first = two.engine().await;
    let mut runs = Vec::new();
    for name in ["fake", "other"] {
        let plan = Draft::script("acme", Script::Sleep).at(name).plan();
        runs.push(first.submit(plan, None, None).await.unwrap().0.run);
        until_running(two.of(name)).await;
    }
    first.drain(Duration::ZERO).await;
    drop(first);
    let second = two.engine().await;
    let control = Control::new(Arc::clone(&second));
    for run in &runs {
        control.cancel(&who("acme"), run).await.unwrap();
        let row = sealed(&control, "acme", run).await;
        assert!(matches!(end(&row), EndReason::Cancelled { .. }), "{row:?}");
        let facts = two.world.facts(run).await;
        let adopted = |fact: &RunFact| matches!(fact, RunFact::Adopted { .. });
        assert!(facts.iter().any(adopted), "{facts:?}");
    }
    assert_eq!(two.world.backend.begun(), runs[..1]);
    assert_eq!(two.other.begun(), runs[1..]);
    two.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_knows_is_ended_at_every_backend_though_one_cannot_be_asked() {
    let two = Two::new().await;
    let third = FakeBackend::called("third", Isolation::Container);
    third.faults(|faults| faults.deaf = true);
    let spec = SandboxSpec::default;
    for (at, backend) in [&two.world.backend, &third, &two.other]
        .into_iter()
        .enumerate()
    {
        let run = RunId::from_entropy(&[u8::try_from(at).unwrap(); 13]);
        let launch = Launch::new(run, spec(), Script::Sleep.exec());
        drop(backend.launch(launch).await.unwrap());
        drop(backend.provision(spec(), None).await.unwrap());
    }
    let mut parts = two.parts();
    // Between the two.
    parts.backends = Backends::of(Arc::new(two.world.backend.clone()))
        .with(Arc::new(third.clone()))
        .with(Arc::new(two.other.clone()));
    let engine = Engine::start(parts).await.unwrap();
    until_present(&two.world.backend, 0).await;
    until_present(&two.other, 0).await;
    // What it has parked is ended; what it runs cannot be known.
    until_present(&third, 1).await;
    let control = Control::new(engine);
    let error = control.ready().await.unwrap_err();
    assert!(error.kind.retryable(), "{error}");
    third.faults(|faults| faults.deaf = false);
    control.ready().await.unwrap();
    until_present(&third, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_not_there_any_more_is_told_and_nothing_runs_elsewhere() {
    let two = Two::new().await;
    let first = two.engine().await;
    let plan = Draft::script("acme", Script::Sleep).at("other").plan();
    let running = first.submit(plan, None, None).await.unwrap().0.run;
    until_running(&two.other).await;
    first.drain(Duration::ZERO).await;
    drop(first);
    // The next one is without it.
    let second = two.world.engine(4).await;
    let control = Control::new(Arc::clone(&second));
    let row = sealed(&control, "acme", &running).await;
    assert_eq!(end(&row), EndReason::HostLost);
    let plan = Draft::script("acme", Script::True).at("other").plan();
    let never = second.submit(plan, None, None).await.unwrap().0.run;
    match end(&sealed(&control, "acme", &never).await) {
        EndReason::SandboxUnavailable { detail } => {
            assert_eq!(detail, "this daemon has no backend `other`");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(two.world.backend.begun(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_run_ends_as_its_backend_says_and_is_not_tried_again() {
    let two = Two::new().await;
    let hit = LimitHit {
        which: Resource::Compile,
        limit: 120_000,
        observed: 120_000,
    };
    let ends = [
        (EndReason::ResourceExceeded { hit, exit: None }, "too long"),
        (
            EndReason::ToolError {
                exit: ExitStatus::NotExecutable,
            },
            "no module",
        ),
    ];
    two.other.faults(|faults| {
        let all = ends
            .iter()
            .map(|(end, why)| (end.clone(), (*why).to_owned()));
        faults.unrunnable = all.collect();
    });
    let engine = two.engine().await;
    let control = Control::new(Arc::clone(&engine));
    for (want, why) in ends {
        let mut draft = Draft::script("acme", Script::True).at("other");
        draft.contract.idempotent = true;
        draft.contract.attempts = 3;
        let run = engine.submit(draft.plan(), None, None).await.unwrap().0.run;
        let row = sealed(&control, "acme", &run).await;
        assert_eq!((end(&row), row.state), (want.clone(), RunState::Sealed));
        let outcome = row.outcome.unwrap();
        let detail = outcome.module.and_then(|module| module.uncompiled);
        assert_eq!(detail.as_deref(), Some(why));
        assert_eq!(outcome.limits_hit.contains(&hit), why == "too long");
        assert_eq!(outcome.exit.is_some(), why == "no module");
    }
    assert_eq!(two.other.begun(), []);
    two.assert_nothing_left().await;
}
