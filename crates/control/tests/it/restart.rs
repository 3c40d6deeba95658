//! What a restart makes of runs at every point of their lives, and what becomes of a lost host.

use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::conformance::script::Script;
use leasehold_backend::seam::{Backend, Launch};
use leasehold_control::control::Control;
use leasehold_control::engine::Engine;
use leasehold_control::engine::backends::Backends;
use leasehold_control::engine::failpoint::Failpoints;
use leasehold_core::end::EndReason;
use leasehold_core::event::RunFact;
use leasehold_core::id::RunId;
use leasehold_core::outcome::RunState;
use leasehold_core::spec::SandboxSpec;
use leasehold_store::seam::Store;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::remote::Remote;
use crate::world::{Draft, World, end, key, sealed, who};

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

type Doing = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Lets a daemon do something up to the point where its process would end, then ends it with all its tasks.
/// Says whether it came to that point.
fn until_it_dies(
    world: &World,
    host: &Handle,
    running_max: u32,
    point: &str,
    what: impl FnOnce(Arc<Engine>) -> Doing + Send + 'static,
) -> bool {
    let own = runtime();
    let mut parts = world.parts(running_max);
    let remote = Remote::new(world.backend.clone(), host.clone());
    parts.backends = Backends::of(Arc::new(remote));
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let point = point.to_owned();
    parts.failpoints = Failpoints::hooked(Arc::new(move |here| {
        if here == point {
            let _ = tell.send(());
            panic!("the process ends at {here}");
        }
    }));
    own.spawn(async move {
        let engine = Engine::start(parts).await.unwrap();
        what(Arc::clone(&engine)).await;
        std::future::pending::<()>().await;
    });
    let died = told.recv_timeout(Duration::from_secs(3)).is_ok();
    own.shutdown_timeout(Duration::from_secs(5));
    died
}

/// A client that asks for one run under one key, as often as need be.
fn ask_once(engine: Arc<Engine>) -> Doing {
    Box::pin(async move {
        let plan = Draft::script("acme", Script::Print).plan();
        let _ = engine.submit(plan, Some(key("once")), None).await;
    })
}

/// After the last restart: the client tries again, and all of it is as if nothing had been.
async fn carried_once(world: &World, point: &str) {
    let engine = world.engine(4).await;
    let control = Control::new(Arc::clone(&engine));
    let plan = Draft::script("acme", Script::Print).plan();
    let (row, _) = engine.submit(plan, Some(key("once")), None).await.unwrap();
    let row = sealed(&control, "acme", &row.run).await;
    assert_eq!(end(&row), EndReason::Completed, "{point}");
    assert_eq!(
        world.backend.begun(),
        std::slice::from_ref(&row.run),
        "{point}"
    );
    assert_eq!(world.rows().await.len(), 1, "{point}");
    let facts = world.facts(&row.run).await;
    let count = |which: fn(&RunFact) -> bool| facts.iter().filter(|fact| which(fact)).count();
    assert_eq!(
        count(|fact| matches!(fact, RunFact::Concluded { .. })),
        1,
        "{point}"
    );
    assert_eq!(
        count(|fact| matches!(fact, RunFact::Cleaned { .. })),
        1,
        "{point}"
    );
    // What it came to is told once, wherever the one before was killed.
    let told: [fn(&RunFact) -> bool; 2] = [
        |fact| matches!(fact, RunFact::Ended { .. }),
        |fact| matches!(fact, RunFact::Allocated { .. }),
    ];
    for which in told {
        assert_eq!(count(which), 1, "{point}: {facts:?}");
    }
    let revoked = count(|fact| matches!(fact, RunFact::AuthorityRevoked { .. }));
    assert!(revoked >= 1, "{point}: {facts:?}");
    assert!(
        world
            .store
            .statement(row.run.clone())
            .await
            .unwrap()
            .is_some()
    );
    world.assert_nothing_left().await;
    engine.drain(Duration::ZERO).await;
}

fn both_sides(points: &[&str]) -> Vec<String> {
    let sides = |point: &&str| [format!("before-{point}"), format!("after-{point}")];
    points.iter().flat_map(sides).collect()
}

#[test]
fn p84_killed_at_every_point_a_run_is_carried_once_and_its_audit_is_complete() {
    let host = runtime();
    let passed = [
        "admit",
        "grant",
        "launch",
        "objects",
        "revoke",
        "conclude",
        "statement",
        "seal",
    ];
    for point in both_sides(&passed) {
        let world = host.block_on(World::new());
        assert!(
            until_it_dies(&world, host.handle(), 4, &point, ask_once),
            "{point}"
        );
        host.block_on(carried_once(&world, &point));
    }
}

#[test]
fn p84_killed_again_while_taking_up_a_run_it_is_carried_once() {
    let host = runtime();
    for point in both_sides(&["attach", "take_over"]) {
        for first in ["after-grant", "after-launch"] {
            let world = host.block_on(World::new());
            assert!(until_it_dies(&world, host.handle(), 4, first, ask_once));
            let died = until_it_dies(&world, host.handle(), 4, &point, ask_once);
            // Where nothing was launched there is nothing to be found.
            assert!(died || (first, point.as_str()) == ("after-grant", "after-attach"));
            host.block_on(carried_once(&world, &point));
        }
    }
}

#[test]
fn p84_killed_while_a_run_waits_it_waits_on() {
    let host = runtime();
    for point in both_sides(&["append"]) {
        let world = host.block_on(World::new());
        let died = until_it_dies(&world, host.handle(), 1, &point, |engine| {
            Box::pin(async move {
                let holder = Draft::script("globex", Script::Sleep).plan();
                engine.submit(holder, None, None).await.unwrap();
                ask_once(engine).await;
            })
        });
        assert!(died, "{point}");
        host.block_on(async {
            let engine = world.engine(2).await;
            let control = Control::new(Arc::clone(&engine));
            for row in world.rows().await {
                if row.tenant.as_str() == "globex" {
                    control.cancel(&who("globex"), &row.run).await.unwrap();
                }
                sealed(&control, row.tenant.as_str(), &row.run).await;
            }
            assert_eq!(world.backend.begun().len(), 2, "{point}");
            world.assert_nothing_left().await;
        });
    }
}

#[test]
fn p84_killed_while_a_run_is_cancelled_it_ends_as_it_was_wished() {
    let host = runtime();
    for point in both_sides(&["cancel"]) {
        let world = host.block_on(World::new());
        let died = until_it_dies(&world, host.handle(), 1, &point, |engine| {
            Box::pin(async move {
                let plan = Draft::script("acme", Script::Sleep).plan();
                let run = engine.submit(plan, None, None).await.unwrap().0.run;
                tokio::time::sleep(Duration::from_millis(100)).await;
                let _ = Control::new(engine).cancel(&who("acme"), &run).await;
            })
        });
        assert!(died, "{point}");
        host.block_on(async {
            let control = Control::new(world.engine(1).await);
            let run = world.rows().await[0].run.clone();
            if point == "before-cancel" {
                control.cancel(&who("acme"), &run).await.unwrap();
            }
            let row = sealed(&control, "acme", &run).await;
            assert!(
                matches!(end(&row), EndReason::Cancelled { .. }),
                "{point}: {row:?}"
            );
            assert_eq!(world.backend.begun(), [run], "{point}");
            world.assert_nothing_left().await;
        });
    }
}

#[test]
fn p84_a_run_that_may_have_read_half_its_input_is_never_called_completed() {
    let host = runtime();
    for (point, idempotent) in [
        ("before-input", false),
        ("before-input", true),
        ("after-input", false),
    ] {
        let world = host.block_on(World::new());
        let died = until_it_dies(&world, host.handle(), 1, point, move |engine| {
            Box::pin(async move {
                let mut draft = Draft::script("acme", Script::Echo);
                draft.start.exec.stdin = true;
                draft.start.stdin = Some(b"all of it".to_vec());
                draft.contract.idempotent = idempotent;
                draft.contract.attempts = 1 + u32::from(idempotent);
                let _ = engine.submit(draft.plan(), None, None).await;
            })
        });
        assert!(died, "{point}");
        host.block_on(async {
            let control = Control::new(world.engine(1).await);
            let run = world.rows().await[0].run.clone();
            let row = sealed(&control, "acme", &run).await;
            let output = control
                .output(&who("acme"), &run, "stdout", 0, 100)
                .await
                .unwrap();
            let whole = idempotent || point == "after-input";
            let want = if whole {
                EndReason::Completed
            } else {
                EndReason::HostLost
            };
            assert_eq!(end(&row), want, "{point}");
            assert_eq!(output == b"all of it", whole, "{point}: {output:?}");
            world.assert_nothing_left().await;
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p85_what_runs_and_what_waits_is_taken_up_by_the_next_daemon() {
    let world = World::new().await;
    let first = world.engine(1).await;
    let plan = Draft::script("acme", Script::Sleep).plan();
    let running = first.submit(plan, None, None).await.unwrap().0.run;
    let plan = Draft::script("globex", Script::Print).plan();
    let waiting = first.submit(plan, None, None).await.unwrap().0.run;
    while world.backend.present().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.drain(Duration::from_millis(50)).await;
    let refused = first
        .submit(Draft::script("acme", Script::True).plan(), None, None)
        .await;
    assert!(refused.unwrap_err().kind.retryable());
    drop(first);
    let second = world.engine(1).await;
    let control = Control::new(Arc::clone(&second));
    let row = control.run(&who("acme"), &running).await.unwrap();
    assert_eq!(row.state, RunState::Running);
    control.cancel(&who("acme"), &running).await.unwrap();
    assert!(matches!(
        end(&sealed(&control, "acme", &running).await),
        EndReason::Cancelled { .. }
    ));
    assert_eq!(
        end(&sealed(&control, "globex", &waiting).await),
        EndReason::Completed
    );
    let facts = world.facts(&running).await;
    assert!(
        facts
            .iter()
            .any(|fact| matches!(fact, RunFact::Adopted { .. })),
        "{facts:?}"
    );
    let begun = world.backend.begun();
    assert!(begun.len() == 2 && begun.contains(&running) && begun.contains(&waiting));
    world.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wish_for_the_end_holds_through_a_restart() {
    let world = World::new().await;
    let first = world.engine(1).await;
    let plan = Draft::script("acme", Script::Sleep).plan();
    let run = first.submit(plan, None, None).await.unwrap().0.run;
    while world.backend.present().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.drain(Duration::ZERO).await;
    drop(first);
    // Asked for while nobody carries it.
    world.store.request_cancel(run.clone()).await.unwrap();
    let control = Control::new(world.engine(1).await);
    assert!(matches!(
        end(&sealed(&control, "acme", &run).await),
        EndReason::Cancelled { .. }
    ));
    world.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_lost_is_asked_for_and_nothing_runs_twice() {
    for (before, after) in [(1, 0), (0, 1), (2, 0)] {
        let world = World::new().await;
        world.backend.faults(|faults| {
            faults.lost_before = before;
            faults.lost_after = after;
        });
        let engine = world.engine(1).await;
        let control = Control::new(Arc::clone(&engine));
        let plan = Draft::script("acme", Script::Print).plan();
        let run = engine.submit(plan, None, None).await.unwrap().0.run;
        assert_eq!(
            end(&sealed(&control, "acme", &run).await),
            EndReason::Completed
        );
        assert_eq!(world.backend.begun(), [run]);
        world.assert_nothing_left().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_host_ends_a_run_and_only_an_idempotent_one_is_launched_again() {
    for idempotent in [false, true] {
        let world = World::new().await;
        let engine = world.engine(1).await;
        let control = Control::new(Arc::clone(&engine));
        let mut draft = Draft::script("acme", Script::Sleep);
        draft.contract.idempotent = idempotent;
        draft.contract.attempts = 1 + u32::from(idempotent);
        let run = engine.submit(draft.plan(), None, None).await.unwrap().0.run;
        let running = |want: usize| {
            let backend = world.backend.clone();
            async move {
                while backend.begun().len() < want || backend.running().await.unwrap().is_empty() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        running(1).await;
        world.backend.lose();
        if idempotent {
            running(2).await;
            let facts = world.facts(&run).await;
            let leases = facts
                .iter()
                .filter(|fact| matches!(fact, RunFact::Leased { .. }));
            assert_eq!(leases.count(), 2, "{facts:?}");
            // The second loss is the end.
            world.backend.lose();
        }
        assert_eq!(
            end(&sealed(&control, "acme", &run).await),
            EndReason::HostLost
        );
        assert_eq!(world.backend.begun().len(), 1 + usize::from(idempotent));
        world.assert_nothing_left().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_knows_is_ended() {
    let world = World::new().await;
    let parked = world
        .backend
        .provision(SandboxSpec::default(), None)
        .await
        .unwrap();
    let run = RunId::from_entropy(&[9; 13]);
    let launch = Launch::new(run, SandboxSpec::default(), Script::Sleep.exec());
    let stray = world.backend.launch(launch).await.unwrap();
    drop((parked, stray));
    assert_eq!(world.backend.present().len(), 2);
    let _engine = world.engine(1).await;
    for _ in 0..400 {
        if world.backend.present().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("still there after 2 s: {:?}", world.backend.present());
}

#[tokio::test(flavor = "multi_thread")]
async fn p70_a_holder_whose_right_has_passed_on_ends_its_computer_and_writes_nothing() {
    let world = World::new().await;
    let engine = world.engine(1).await;
    let mut draft = Draft::script("acme", Script::Sleep);
    draft.contract.authority.lease_ms = 3_000;
    let run = engine.submit(draft.plan(), None, None).await.unwrap().0.run;
    while world.backend.present().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Somebody else takes the run over: the next epoch.
    let row = world.store.run(None, run.clone()).await.unwrap();
    let mut chain = leasehold_core::event::Chain::new(run.clone(), row.contract, row.head);
    let worker = leasehold_core::id::WorkerId::from_entropy(&[8; 13]);
    let lease = leasehold_core::lease::Lease {
        id: leasehold_core::id::LeaseId::from_entropy(&[8; 13]),
        run: run.clone(),
        worker: worker.clone(),
        epoch: row.epoch.next(),
        sandbox: None,
        expires_unix_ms: u64::MAX >> 1,
        state: leasehold_core::lease::LeaseState::Active,
    };
    let event = chain
        .next(lease.epoch, 5, RunFact::Adopted { worker })
        .unwrap();
    // It is carried by this process, so nothing but the beat tells.
    world.store.take_over(lease, event).await.unwrap();
    let begun = std::time::Instant::now();
    while !world.backend.present().is_empty() {
        assert!(
            begun.elapsed() < Duration::from_secs(4),
            "its computer is still there"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let row = world.store.run(None, run.clone()).await.unwrap();
    let facts = world.facts(&run).await;
    // Nor is it taken up again while the other's lease holds.
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(row.outcome.is_none() && row.epoch.0 == 2, "{row:?}");
    assert_eq!(world.store.run(None, run.clone()).await.unwrap().epoch.0, 2);
    let wrote = facts
        .iter()
        .position(|fact| matches!(fact, RunFact::Adopted { .. }))
        .unwrap();
    assert!(
        !facts[..wrote]
            .iter()
            .any(|fact| matches!(fact, RunFact::Ended { .. }))
    );
}

/// Every write fails twice before it is done: the disk was away for a moment.
#[tokio::test(flavor = "multi_thread")]
async fn p87_a_store_that_fails_for_a_moment_loses_nothing() {
    let failures = Arc::new(std::sync::Mutex::new(std::collections::HashMap::new()));
    let counted = Arc::clone(&failures);
    let faults = Arc::new(move |point, name: &'static str| {
        let ours = ["grant", "revoke", "conclude", "seal"].contains(&name);
        if point != leasehold_store::sqlite::Point::Written || !ours {
            return false;
        }
        let mut counted = counted.lock().unwrap();
        let count: &mut u32 = counted.entry(name).or_default();
        *count += 1;
        *count <= 2
    });
    let world = World::with_faults(Some(faults)).await;
    let engine = world.engine(1).await;
    let control = Control::new(Arc::clone(&engine));
    let plan = Draft::script("acme", Script::Print).plan();
    let run = engine.submit(plan, None, None).await.unwrap().0.run;
    assert_eq!(
        end(&sealed(&control, "acme", &run).await),
        EndReason::Completed
    );
    assert_eq!(world.backend.begun(), std::slice::from_ref(&run));
    let counted = failures.lock().unwrap().clone();
    assert!(
        counted.len() == 4 && counted.values().all(|count| *count > 2),
        "{counted:?}"
    );
    let facts = world.facts(&run).await;
    let concluded = facts
        .iter()
        .filter(|fact| matches!(fact, RunFact::Concluded { .. }));
    assert_eq!(concluded.count(), 1);
    world.assert_nothing_left().await;
}
