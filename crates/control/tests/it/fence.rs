//! Who may carry a run: another worker's lease, a store that is away, a host that lost what it had, a task that
//! falls over, a removal nobody sees.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_backend::conformance::script::Script;
use leasehold_backend::fake::FakeBackend;
use leasehold_backend::seam::Backend;
use leasehold_control::control::Control;
use leasehold_control::engine::Engine;
use leasehold_control::engine::backends::Backends;
use leasehold_control::engine::failpoint::Failpoints;
use leasehold_core::end::{EndReason, LeaseExpiry};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::RunFact;
use leasehold_core::id::{RunId, WorkerId};
use leasehold_core::outcome::RunState;
use leasehold_core::tenant::{Principal, Role};
use leasehold_store::seam::Store;
use leasehold_store::sqlite::Point;

use crate::world::{Draft, World, end, sealed, who};

async fn until(what: &str, patience: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(
            begun.elapsed() < patience,
            "not within {patience:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn running(world: &World, engine: &Arc<Engine>, draft: Draft) -> RunId {
    let run = engine.submit(draft.plan(), None, None).await.unwrap().0.run;
    until("it runs", Duration::from_secs(5), async || {
        !world.backend.running().await.unwrap().is_empty()
    })
    .await;
    run
}

async fn metric(control: &Control, name: &str) -> u64 {
    let mut operator = who("acme");
    operator.role = Role::Operator;
    let text = control.metrics(&operator).await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn p70_a_run_of_another_workers_live_lease_is_left_alone_until_it_is_over() {
    for idempotent in [false, true] {
        let world = World::new().await;
        let engine = world.engine(1).await;
        let mut draft = Draft::script("acme", Script::Sleep);
        draft.contract.allocation.hard_deadline_ms = 2_500;
        draft.contract.idempotent = idempotent;
        draft.contract.attempts = 1 + u32::from(idempotent);
        let run = running(&world, &engine, draft).await;
        engine.drain(Duration::ZERO).await;
        let mut parts = world.parts(1);
        let second = FakeBackend::new();
        parts.worker = WorkerId::from_entropy(&[9; 13]);
        parts.backends = Backends::of(Arc::new(second.clone()));
        let engine = Engine::start(parts).await.unwrap();
        let control = Control::new(Arc::clone(&engine));
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        let row = world.store.run(None, run.clone()).await.unwrap();
        assert_eq!((row.state, row.epoch.0), (RunState::Running, 1));
        assert!(second.begun().is_empty());
        // Its allocation is over with its lease, so nobody begins it again.
        let row = sealed(&control, "acme", &run).await;
        assert_eq!(end(&row), EndReason::HostLost);
        assert_eq!(row.epoch.0, 2);
        assert!(second.begun().is_empty(), "its time is over");
        let left = world.store.not_clean(10).await.unwrap();
        assert_eq!(left.len(), 1, "nobody saw its removal: {left:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_output_was_pruned_before_it_was_taken_up_is_host_lost() {
    let world = World::new().await;
    let engine = world.engine(1).await;
    let run = running(&world, &engine, Draft::script("acme", Script::Sleep)).await;
    engine.drain(Duration::ZERO).await;
    world.backend.faults(|faults| faults.pruned = true);
    let control = Control::new(world.engine(1).await);
    let row = sealed(&control, "acme", &run).await;
    assert_eq!(end(&row), EndReason::HostLost);
    assert!(row.outcome.unwrap().stdout.is_none(), "its output is lost");
    assert_eq!(world.backend.begun().len(), 1, "it is not begun twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_run_is_begun_so_often_as_its_manifest_says_each_under_its_own_epoch() {
    let crash = Duration::from_millis(30);
    for (idempotent, attempts, begun) in [(true, 3, 3), (true, 2, 2), (true, 1, 1), (false, 3, 1)] {
        let world = World::new().await;
        world
            .backend
            .faults(|faults| faults.crash = [crash; 5].into());
        let engine = world.engine(1).await;
        let control = Control::new(Arc::clone(&engine));
        let mut draft = Draft::script("acme", Script::Sleep);
        draft.contract.idempotent = idempotent;
        draft.contract.attempts = attempts;
        let run = engine.submit(draft.plan(), None, None).await.unwrap().0.run;
        let row = sealed(&control, "acme", &run).await;
        let facts = world.facts(&run).await;
        let leased = facts
            .iter()
            .filter(|fact| matches!(fact, RunFact::Leased { .. }));
        assert!(
            matches!(end(&row), EndReason::SandboxCrashed { .. }),
            "{row:?}"
        );
        assert_eq!(
            (leased.count(), row.epoch.0),
            (begun, begun as u64),
            "{facts:?}"
        );
        assert_eq!(world.backend.begun().len(), begun);
        world.assert_nothing_left().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_run_is_tried_again_when_no_computer_could_be_made() {
    for (attempts, completes) in [(2, true), (1, false)] {
        let world = World::new().await;
        let full = || PublicError::new(ErrorKind::NoCapacity, "no room");
        // One launch asks three times.
        world
            .backend
            .faults(|faults| faults.provision = [full(), full(), full()].into());
        let engine = world.engine(1).await;
        let control = Control::new(Arc::clone(&engine));
        let mut draft = Draft::script("acme", Script::True);
        draft.contract.idempotent = true;
        draft.contract.attempts = attempts;
        let run = engine.submit(draft.plan(), None, None).await.unwrap().0.run;
        let row = sealed(&control, "acme", &run).await;
        assert_eq!(end(&row) == EndReason::Completed, completes, "{row:?}");
        assert_eq!(row.epoch.0, u64::from(attempts));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_cannot_see_its_lease_for_as_long_as_it_lasts_ends_its_computer() {
    let away = Arc::new(AtomicBool::new(false));
    let disk = Arc::clone(&away);
    let faults = move |_, _: &'static str| disk.load(Ordering::Relaxed);
    let world = World::with_faults(Some(Arc::new(faults))).await;
    let engine = world.engine(1).await;
    let control = Control::new(Arc::clone(&engine));
    let mut draft = Draft::script("acme", Script::Sleep);
    draft.contract.authority.lease_ms = 3_000;
    let run = running(&world, &engine, draft).await;
    // Control: with the store there it runs for longer than a lease.
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    assert!(!world.backend.present().is_empty());
    away.store(true, Ordering::Relaxed);
    until(
        "its computer is ended",
        Duration::from_secs(6),
        async || world.backend.present().is_empty(),
    )
    .await;
    away.store(false, Ordering::Relaxed);
    let cause = LeaseExpiry::Deadline;
    let row = sealed(&control, "acme", &run).await;
    assert_eq!(end(&row), EndReason::LeaseExpired { cause });
    world.assert_nothing_left().await;
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_falls_over_three_times_is_set_aside_and_shown() {
    let world = World::new().await;
    let falls = Arc::new(AtomicU32::new(0));
    let fallen = Arc::clone(&falls);
    let mut parts = world.parts(1);
    let worker = parts.worker.clone();
    parts.failpoints = Failpoints::hooked(Arc::new(move |point| {
        if point == "before-launch" {
            fallen.fetch_add(1, Ordering::Relaxed);
            panic!("a test lets the task fall over");
        }
    }));
    let engine = Engine::start(parts).await.unwrap();
    let control = Control::new(Arc::clone(&engine));
    let plan = Draft::script("acme", Script::True).plan();
    let run = engine.submit(plan, None, None).await.unwrap().0.run;
    until("it is set aside", Duration::from_secs(10), async || {
        !engine.stuck().is_empty()
    })
    .await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(falls.load(Ordering::Relaxed), 3, "it is tried no more");
    assert_eq!(engine.stuck()[0].0, run);
    // An operator sees it and why, with the workers; who has the run sees that it is.
    let operator = Principal {
        role: Role::Operator,
        ..who("platform")
    };
    let told = control.stuck(&operator).unwrap();
    assert_eq!(
        told,
        [(run.clone(), "its task fell over again and again".to_owned())]
    );
    let refused = control.stuck(&who("acme")).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Forbidden);
    let workers = control.workers(&operator).await.unwrap();
    assert_eq!(workers.len(), 1);
    assert_eq!(workers[0].worker, worker);
    assert!(
        workers[0].capabilities.contains(r#""isolation":"process""#),
        "{workers:?}"
    );
    let refused = control.workers(&who("acme")).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Forbidden);
    assert!(control.is_stuck(&run));
    assert_eq!(metric(&control, "leasehold_quarantined_total ").await, 1);
    assert!(world.backend.present().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_is_not_seen_in_its_bound_is_told_and_counted() {
    let world = World::new().await;
    world
        .backend
        .faults(|faults| faults.destroy_takes = Duration::from_secs(3_600));
    let mut parts = world.parts(1);
    parts.settings.removal_max = Duration::from_millis(300);
    let engine = Engine::start(parts).await.unwrap();
    let control = Control::new(Arc::clone(&engine));
    let plan = Draft::script("acme", Script::True).plan();
    let run = engine.submit(plan, None, None).await.unwrap().0.run;
    let row = sealed(&control, "acme", &run).await;
    assert_eq!(end(&row), EndReason::Completed);
    let left = world.store.not_clean(10).await.unwrap();
    let residue = &left[0].1.residues[0];
    assert!(left[0].0 == run && !residue.clean);
    assert!(residue.detail.contains("not seen within"), "{residue:?}");
    assert_eq!(metric(&control, "leasehold_not_clean_total ").await, 1);
    assert_eq!(metric(&control, "leasehold_quarantined_total ").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_reads_few_rows_however_many_wait() {
    let world = World::new().await;
    let mut parts = world.parts(1);
    parts.settings.reconcile_every = Duration::from_millis(50);
    let engine = Engine::start(parts).await.unwrap();
    let control = Control::new(Arc::clone(&engine));
    let first = running(&world, &engine, Draft::script("acme", Script::Sleep)).await;
    let mut waiting = vec![first];
    for _ in 0..600 {
        let plan = Draft::script("acme", Script::True).plan();
        waiting.push(engine.submit(plan, None, None).await.unwrap().0.run);
    }
    let (before, begun) = (
        metric(&control, "leasehold_rows_compared_total ").await,
        Instant::now(),
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    let rows = metric(&control, "leasehold_rows_compared_total ").await - before;
    let rounds = begun.elapsed().as_millis() as u64 / 50 + 1;
    eprintln!("{rows} rows read in at most {rounds} rounds while 601 are not sealed");
    assert!(
        rows > 0 && rows <= 200 * rounds,
        "{rows} rows in {rounds} rounds"
    );
    engine.drain(Duration::ZERO).await;
}

/// A disk that takes no lease: whoever waits for it may be cancelled, and waits no longer than it may.
#[tokio::test(flavor = "multi_thread")]
async fn p87_a_run_that_waits_for_room_is_cancelled_or_gives_up_and_is_begun_when_there_is_some() {
    let full = Arc::new(AtomicBool::new(true));
    let is_full = Arc::clone(&full);
    let faults = Arc::new(move |point, name: &'static str| {
        point == Point::Written && name == "grant" && is_full.load(Ordering::Relaxed)
    });
    let world = World::with_faults(Some(faults)).await;
    let engine = world.engine(4).await;
    let control = Control::new(Arc::clone(&engine));
    let begin = async |max_wait_ms| {
        let mut draft = Draft::script("acme", Script::True);
        draft.contract.max_wait_ms = max_wait_ms;
        engine.submit(draft.plan(), None, None).await.unwrap().0.run
    };
    let (unwanted, impatient, patient) = (
        begin(600_000).await,
        begin(1_000).await,
        begin(600_000).await,
    );
    control.cancel(&who("acme"), &unwanted).await.unwrap();
    assert!(matches!(
        end(&sealed(&control, "acme", &unwanted).await),
        EndReason::Cancelled { .. }
    ));
    match end(&sealed(&control, "acme", &impatient).await) {
        EndReason::SandboxUnavailable { detail } => assert!(detail.contains("room"), "{detail}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.backend.begun(), []);
    full.store(false, Ordering::Relaxed);
    let row = sealed(&control, "acme", &patient).await;
    assert_eq!(end(&row), EndReason::Completed);
    assert_eq!(world.backend.begun(), [patient]);
    world.assert_nothing_left().await;
}
