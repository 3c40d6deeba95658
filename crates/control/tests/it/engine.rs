//! Runs from their admission to their seal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_backend::conformance::script::{COMPLAINED, PRINTED, Script};
use leasehold_control::control::{Control, Cursor, Until, Update};
use leasehold_control::plan::OutputCheck;
use leasehold_core::digest::Digest;
use leasehold_core::end::{CancelledBy, EndReason, ExitStatus, LeaseExpiry};
use leasehold_core::error::ErrorKind;
use leasehold_core::event::RunFact;
use leasehold_core::outcome::RunState;
use leasehold_core::spec::ExecSpec;
use leasehold_store::seam::Store;
use tokio::task::JoinSet;

use crate::world::{Draft, World, end, key, name, sealed, who};

fn place(facts: &[RunFact], which: impl Fn(&RunFact) -> bool) -> usize {
    facts
        .iter()
        .position(which)
        .unwrap_or_else(|| panic!("it is not in {facts:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_i3_i4_a_run_goes_its_way_and_every_step_is_in_its_chain_in_order() {
    let world = World::new().await;
    let engine = world.engine(4).await;
    let control = Control::new(Arc::clone(&engine));
    let plan = Draft::script("acme", Script::Print).plan();
    let (row, new) = engine.submit(plan, None, None).await.unwrap();
    assert!(new && row.state == RunState::Queued);
    let row = sealed(&control, "acme", &row.run).await;
    assert_eq!(end(&row), EndReason::Completed);
    let facts = world.facts(&row.run).await;
    let order = [
        place(&facts, |fact| matches!(fact, RunFact::Accepted { .. })),
        place(&facts, |fact| matches!(fact, RunFact::Leased { .. })),
        place(&facts, |fact| matches!(fact, RunFact::Allocated { .. })),
        place(&facts, |fact| matches!(fact, RunFact::Stage { .. })),
        place(&facts, |fact| matches!(fact, RunFact::OutputStored { .. })),
        place(&facts, |fact| {
            matches!(fact, RunFact::AuthorityRevoked { .. })
        }),
        place(&facts, |fact| matches!(fact, RunFact::Ended { .. })),
        place(&facts, |fact| matches!(fact, RunFact::Concluded { .. })),
        place(&facts, |fact| matches!(fact, RunFact::Cleaned { .. })),
    ];
    assert!(
        order.is_sorted() && order[8] == facts.len() - 1,
        "{facts:?}"
    );
    let stages = facts
        .iter()
        .filter(|fact| matches!(fact, RunFact::Stage { .. }));
    assert_eq!(stages.count(), 7);
    assert!(
        world
            .store
            .statement(row.run.clone())
            .await
            .unwrap()
            .is_some()
    );
    let read = async |stream| control.output(&who("acme"), &row.run, stream, 0, 100).await;
    assert_eq!(read("stdout").await.unwrap(), PRINTED);
    assert_eq!(read("stderr").await.unwrap(), COMPLAINED);
    let other = control.run(&who("globex"), &row.run).await.unwrap_err();
    assert_eq!(other.kind, ErrorKind::NotFound);
    world.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p69_two_hundred_creates_under_one_key_are_one_run() {
    let world = World::new().await;
    let engine = world.engine(8).await;
    let control = Control::new(Arc::clone(&engine));
    let mut creates = JoinSet::new();
    for at in 0..200 {
        let engine = Arc::clone(&engine);
        let tenant = if at % 2 == 0 { "acme" } else { "globex" };
        creates.spawn(async move {
            // A narrow tenant: requests for a run that is there already take no place.
            let mut draft = Draft::script(tenant, Script::True);
            draft.share.per_minute_max = 2;
            engine.submit(draft.plan(), Some(key("once")), None).await
        });
    }
    let mut news = 0;
    let mut runs = std::collections::BTreeSet::new();
    while let Some(done) = creates.join_next().await {
        let (row, new) = done.unwrap().unwrap();
        news += u32::from(new);
        runs.insert((row.tenant.clone(), row.run.clone()));
    }
    assert_eq!((news, runs.len()), (2, 2));
    let mut other = key("once");
    other.request = Digest::of(b"another body");
    let plan = Draft::script("acme", Script::True).plan();
    let refused = engine.submit(plan, Some(other), None).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Exists);
    for (tenant, run) in &runs {
        sealed(&control, tenant.as_str(), run).await;
    }
    assert_eq!(world.backend.begun().len(), 2);
    assert_eq!(world.rows().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_cancelled_while_it_runs_and_while_it_waits() {
    let world = World::new().await;
    let engine = world.engine(1).await;
    let control = Control::new(Arc::clone(&engine));
    let begin = async |script| {
        let plan = Draft::script("acme", script).plan();
        engine.submit(plan, None, None).await.unwrap().0.run
    };
    let running = begin(Script::Sleep).await;
    let waiting = begin(Script::True).await;
    let mut follower = control
        .follow(&who("acme"), &running, Cursor::default())
        .await
        .unwrap();
    while !matches!(follower.next().await.unwrap().0, Update::Stdout(_)) {}
    let foreign = control.cancel(&who("globex"), &waiting).await.unwrap_err();
    assert_eq!(foreign.kind, ErrorKind::NotFound);
    control.cancel(&who("acme"), &waiting).await.unwrap();
    let by = CancelledBy::Caller;
    assert_eq!(
        end(&sealed(&control, "acme", &waiting).await),
        EndReason::Cancelled { by }
    );
    for _ in 0..3 {
        control.cancel(&who("acme"), &running).await.unwrap();
    }
    let row = sealed(&control, "acme", &running).await;
    assert_eq!(end(&row), EndReason::Cancelled { by });
    assert_eq!(
        row.outcome.unwrap().exit,
        Some(ExitStatus::Signal { number: 15 })
    );
    let facts = world.facts(&running).await;
    let asked = facts
        .iter()
        .filter(|fact| matches!(fact, RunFact::CancelRequested { key: Some(_), .. }));
    assert_eq!(asked.count(), 1);
    let again = control.cancel(&who("acme"), &running).await.unwrap();
    assert_eq!(again.state, RunState::Sealed);
    assert_eq!(world.backend.begun(), [running]);
    world.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_its_run_to_the_second() {
    let world = World::new().await;
    let engine = world.engine(1).await;
    let control = Control::new(Arc::clone(&engine));
    let mut draft = Draft::script("acme", Script::Stubborn);
    draft.contract.allocation.hard_deadline_ms = 1_500;
    draft.start.sandbox.limits.grace_ms = 100;
    draft.start.sandbox.limits.wall_ms.value = 600_000;
    // What this machine makes of short sleeps meanwhile: a lease is no later than they are and a second.
    let late = Arc::new(std::sync::Mutex::new(Duration::ZERO));
    let measured = Arc::clone(&late);
    let ticking = tokio::spawn(async move {
        let tick = Duration::from_millis(10);
        loop {
            let begun = Instant::now();
            tokio::time::sleep(tick).await;
            *measured.lock().unwrap() += begun.elapsed().saturating_sub(tick);
        }
    });
    let begun = Instant::now();
    let (row, _) = engine.submit(draft.plan(), None, None).await.unwrap();
    let row = sealed(&control, "acme", &row.run).await;
    let took = begun.elapsed();
    ticking.abort();
    let cause = LeaseExpiry::Deadline;
    assert_eq!(end(&row), EndReason::LeaseExpired { cause });
    let late = *late.lock().unwrap();
    assert!(
        took >= Duration::from_millis(1_300) && took < Duration::from_millis(2_600) + late,
        "{took:?}, of it {late:?} the machine's"
    );
    world.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_too_long_is_told_what_for() {
    let world = World::new().await;
    let engine = world.engine(1).await;
    let control = Control::new(Arc::clone(&engine));
    let holder = Draft::script("globex", Script::Sleep).plan();
    let holder = engine.submit(holder, None, None).await.unwrap().0.run;
    let mut draft = Draft::script("acme", Script::True);
    draft.contract.max_wait_ms = 300;
    let (row, _) = engine.submit(draft.plan(), None, None).await.unwrap();
    let row = sealed(&control, "acme", &row.run).await;
    match end(&row) {
        EndReason::SandboxUnavailable { detail } => {
            assert!(detail.contains("one of the 1 computers"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    control.cancel(&who("globex"), &holder).await.unwrap();
    sealed(&control, "globex", &holder).await;
    assert_eq!(world.backend.begun(), [holder]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_may_leave_and_come_back_and_misses_nothing() {
    let world = World::new().await;
    let engine = world.engine(1).await;
    let control = Control::new(Arc::clone(&engine));
    let plan = Draft::script("acme", Script::Flood).plan();
    let run = engine.submit(plan, None, None).await.unwrap().0.run;
    // One that never reads holds up nobody.
    let _idle = control
        .follow(&who("acme"), &run, Cursor::default())
        .await
        .unwrap();
    let mut cursor = Cursor::default();
    let (mut bytes, mut stages, mut starts, mut overs) = (0, 0, 0, 0);
    while overs == 0 {
        let mut follower = control.follow(&who("acme"), &run, cursor).await.unwrap();
        // Leaves after each update, also once the run is over and sealed.
        let Some((update, next)) = follower.next().await else {
            break;
        };
        cursor = next.to_string().parse().unwrap();
        match update {
            Update::Stdout(piece) => bytes += piece.len(),
            Update::Stage(_) => stages += 1,
            Update::Start { .. } => starts += 1,
            Update::Over(row) => {
                overs += 1;
                assert_eq!(row.outcome.unwrap().end, EndReason::Completed);
            }
            _ => {}
        }
        if bytes == 0 {
            continue;
        }
        control
            .wait(&who("acme"), &run, Until::Sealed, Duration::from_secs(10))
            .await
            .unwrap();
    }
    assert_eq!((bytes, starts, overs), (100_000, 1, 1));
    assert!((5..=7).contains(&stages), "{stages}");
}

/// Takes any output that begins with `out`.
struct BeginsWithOut;

impl OutputCheck for BeginsWithOut {
    fn check(&self, stdout: &[u8]) -> Result<String, String> {
        match stdout.starts_with(b"out") {
            true => Ok("{\"good\":true}".to_owned()),
            false => Err("`/`: expected `out`".to_owned()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn structured_output_is_checked_and_a_pure_result_is_given_again() {
    let world = World::new().await;
    let engine = world.engine(2).await;
    let control = Control::new(Arc::clone(&engine));
    let run = async |script, tenant: &str| {
        let mut draft = Draft::script(tenant, script);
        draft.output = Some(Arc::new(BeginsWithOut));
        draft.cache = Some(Digest::of(format!("{script:?}").as_bytes()));
        let row = engine.submit(draft.plan(), None, None).await.unwrap().0;
        sealed(&control, tenant, &row.run).await
    };
    let wrong = run(Script::True, "acme").await;
    assert!(
        matches!(end(&wrong), EndReason::InvalidOutput { .. }),
        "{wrong:?}"
    );
    let first = run(Script::Print, "acme").await;
    let outcome = first.outcome.clone().unwrap();
    assert_eq!(outcome.output.as_deref(), Some("{\"good\":true}"));
    let again = run(Script::Print, "acme").await;
    assert_eq!(again.outcome.unwrap().stdout, outcome.stdout);
    let facts = world.facts(&again.run).await;
    assert!(
        facts.contains(&RunFact::Cached {
            from: first.run.clone()
        }),
        "{facts:?}"
    );
    assert!(
        !facts
            .iter()
            .any(|fact| matches!(fact, RunFact::Leased { .. }))
    );
    let bytes = control
        .output(&who("acme"), &again.run, "stdout", 0, 100)
        .await;
    assert_eq!(bytes.unwrap(), PRINTED);
    // Another tenant, and a result that was none, run.
    run(Script::Print, "globex").await;
    run(Script::True, "acme").await;
    assert_eq!(world.backend.begun().len(), 4);
    world.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_kept_by_their_digest() {
    let world = World::new().await;
    let engine = world.engine(1).await;
    let control = Control::new(Arc::clone(&engine));
    let mut exec = Script::Artifacts.exec();
    exec.artifacts = vec!["out/*".to_owned()];
    let row = engine
        .submit(Draft::new("acme", exec).plan(), None, None)
        .await
        .unwrap()
        .0;
    sealed(&control, "acme", &row.run).await;
    let files = control.artifacts(&who("acme"), &row.run).await.unwrap();
    for (at, file) in files.iter().enumerate() {
        let bytes = control.artifact(&who("acme"), &row.run, at, 0, 100).await;
        match &file.sha256 {
            Some(_) => assert_eq!(bytes.unwrap(), b"mine"),
            None => assert_eq!(bytes.unwrap_err().kind, ErrorKind::NotFound),
        }
    }
    assert!(files.iter().any(|file| file.sha256.is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn input_is_given_whole_and_said_so() {
    let world = World::new().await;
    let engine = world.engine(1).await;
    let control = Control::new(Arc::clone(&engine));
    let mut draft = Draft::new(
        "acme",
        ExecSpec {
            stdin: true,
            ..Script::Echo.exec()
        },
    );
    let input = vec![b'x'; 300_000];
    draft.start.stdin = Some(input.clone());
    let row = engine.submit(draft.plan(), None, None).await.unwrap().0;
    let row = sealed(&control, "acme", &row.run).await;
    let got = control
        .output(&who("acme"), &row.run, "stdout", 0, 1 << 20)
        .await
        .unwrap();
    assert_eq!(got.len(), input.len());
    let given = RunFact::InputGiven { bytes: 300_000 };
    assert!(world.facts(&row.run).await.contains(&given));
}

#[tokio::test(flavor = "multi_thread")]
async fn p34_a_noisy_tenant_does_not_move_anothers_wait() {
    let world = World::new().await;
    world
        .backend
        .faults(|faults| faults.start_takes = Duration::from_millis(10));
    let engine = world.engine(4).await;
    let control = Control::new(Arc::clone(&engine));
    let quiet = async |runs: usize| {
        let mut took = Vec::new();
        for _ in 0..runs {
            let begun = Instant::now();
            let plan = Draft::script("globex", Script::True).plan();
            let run = engine.submit(plan, None, None).await.unwrap().0.run;
            let patience = Duration::from_secs(30);
            control
                .wait(&who("globex"), &run, Until::Ended, patience)
                .await
                .unwrap();
            took.push(begun.elapsed());
        }
        took.sort();
        took[runs * 95 / 100]
    };
    let alone = quiet(20).await;
    let mut noise = JoinSet::new();
    for _ in 0..1_000 {
        let engine = Arc::clone(&engine);
        let plan = Draft::script("acme", Script::True).plan();
        noise.spawn(async move { engine.submit(plan, None, None).await.unwrap().0.run });
    }
    let mut last = None;
    while let Some(run) = noise.join_next().await {
        last = Some(run.unwrap());
    }
    let beside = quiet(20).await;
    let row = control.run(&who("acme"), &last.unwrap()).await.unwrap();
    assert_eq!(
        row.state,
        RunState::Queued,
        "the noise was over too soon to say anything"
    );
    // In order of arrival it would wait for a thousand runs; the bound is the length of one, and what a busy
    // machine adds.
    assert!(
        beside < alone * 5 + Duration::from_millis(200),
        "{alone:?} alone, {beside:?} beside"
    );
    engine.drain(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_left_something_is_said() {
    let world = World::new().await;
    world.backend.faults(|faults| faults.dirty = 1);
    let engine = world.engine(1).await;
    let control = Control::new(Arc::clone(&engine));
    let plan = Draft::script("acme", Script::True).plan();
    let row = engine.submit(plan, None, None).await.unwrap().0;
    sealed(&control, "acme", &row.run).await;
    let not_clean = world.store.not_clean(10).await.unwrap();
    assert_eq!(not_clean.len(), 1);
    assert_eq!(not_clean[0].0, row.run);
    let _ = name("acme");
}
