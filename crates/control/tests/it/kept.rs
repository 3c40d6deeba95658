//! The third lifetime: what is kept for how long, whose uploads are whose, and what a retry is told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_backend::conformance::script::{PRINTED, Script};
use leasehold_control::archive::{self, Entry, Tree};
use leasehold_control::control::Control;
use leasehold_control::engine::Engine;
use leasehold_control::request::RunRequest;
use leasehold_core::digest::Digest;
use leasehold_core::end::EndReason;
use leasehold_core::error::ErrorKind;
use leasehold_core::run_contract::RetentionTerms;
use leasehold_store::seam::Store;

use crate::world::{Draft, World, end, key, sealed, who};

/// An engine that goes through all objects in a moment and spares none.
async fn sweeping(world: &World) -> Arc<Engine> {
    let mut parts = world.parts(4);
    parts.settings.reconcile_every = Duration::from_millis(1);
    parts.settings.objects_spared = Duration::ZERO;
    Engine::start(parts).await.unwrap()
}

fn keeping(seconds: u64, script: Script) -> Draft {
    let mut exec = script.exec();
    exec.artifacts = vec!["out/*".to_owned()];
    let mut draft = Draft::new("acme", exec);
    draft.contract.retention = RetentionTerms {
        logs_s: seconds,
        artifacts_s: seconds,
        record_s: 600,
    };
    draft
}

async fn until_gone(world: &World, digest: &Digest) {
    let until = Instant::now() + Duration::from_secs(20);
    while world.objects.size(digest).await.is_ok() {
        assert!(Instant::now() < until, "{digest} is there still");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn text(bytes: &[u8]) -> Tree {
    let file = Entry::File {
        executable: false,
        content: bytes.to_vec(),
    };
    Tree::from([("a".to_owned(), file)])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_run_left_goes_when_its_time_is_over_and_never_what_a_younger_one_names() {
    let world = World::new().await;
    let engine = sweeping(&world).await;
    let control = Control::new(Arc::clone(&engine));
    let mut rows = Vec::new();
    for (seconds, script) in [
        (1, Script::Print),
        (60, Script::Print),
        (1, Script::Artifacts),
    ] {
        let plan = keeping(seconds, script).plan();
        let (row, _) = engine.submit(plan, None, None).await.unwrap();
        rows.push(sealed(&control, "acme", &row.run).await);
    }
    let me = who("acme");
    let file = &rows[2].outcome.as_ref().unwrap().artifacts[0];
    let file = Digest::parse(&format!("sha256:{}", file.sha256.as_ref().unwrap())).unwrap();
    until_gone(&world, &file).await;
    let gone = control.artifact(&me, &rows[2].run, 0, 0, 10).await;
    let gone = gone.unwrap_err();
    assert_eq!(gone.kind, ErrorKind::NotFound);
    assert!(gone.message.contains("retention is over"), "{gone}");
    // The record stays and says what was there.
    let listed = control.artifacts(&me, &rows[2].run).await.unwrap();
    assert_eq!(listed, rows[2].outcome.as_ref().unwrap().artifacts);
    // The same bytes: the older run gives them no more, the younger one does.
    let gone = control.output(&me, &rows[0].run, "stdout", 0, 10).await;
    let gone = gone.unwrap_err();
    assert!(
        gone.message.contains("stdout is not kept any more"),
        "{gone}"
    );
    tokio::time::sleep(Duration::from_millis(700)).await;
    let there = control.output(&me, &rows[1].run, "stdout", 0, 10).await;
    assert_eq!(there.unwrap(), PRINTED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_that_was_broken_off_is_gone_on_with() {
    let world = World::new().await;
    let engine = world.engine(4).await;
    let control = Control::new(Arc::clone(&engine));
    let plan = keeping(1, Script::Print).plan();
    let (row, _) = engine.submit(plan, None, None).await.unwrap();
    let outcome = sealed(&control, "acme", &row.run).await.outcome.unwrap();
    let [stdout, stderr] = [outcome.stdout.unwrap(), outcome.stderr.unwrap()];
    let stray = world
        .objects
        .put(b"put for a row that never came")
        .await
        .unwrap();
    engine.drain(Duration::ZERO).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    // Killed after its names were forgotten and the first object went.
    let now = stdout.stream.kept + outcome.ended_unix_ms + 60_000;
    assert_eq!(world.store.prune_names(now, 0, 500).await.unwrap(), 2);
    let [stdout_is, stderr_is] = [stdout, stderr].map(|stored| stored.digest.unwrap());
    let gone = world.objects.delete(&stdout_is, Duration::ZERO).await;
    assert!(gone.unwrap());
    let _next = sweeping(&world).await;
    until_gone(&world, &stderr_is).await;
    until_gone(&world, &stray.digest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_is_used_by_its_tenant_alone_and_one_that_is_not_there_is_refused_at_once() {
    let world = World::new().await;
    let control = Control::new(world.engine(4).await);
    let bytes = archive::pack(&text(b"1")).unwrap();
    let digest = control.upload(&who("acme"), bytes).await.unwrap();
    let request = |digest: &Digest| {
        let body = format!(
            r#"{{"command":["true"],"workspace":{{"mode":"upload","content":"{digest}"}}}}"#
        );
        RunRequest::parse(body.as_bytes()).unwrap()
    };
    let mut refusals = Vec::new();
    for (tenant, digest) in [("globex", digest), ("acme", Digest::of(b"never uploaded"))] {
        let asking = who(tenant);
        let refused = control.submit(&asking, request(&digest), None, None);
        let refused = refused.await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Invalid);
        let shown = refused.message.replace(&digest.to_string(), "D");
        refusals.push((shown, refused.hint));
    }
    assert_eq!(refusals[0], refusals[1], "another's is like none");
    assert!(
        refusals[0].0.starts_with("workspace.content: D"),
        "{refusals:?}"
    );
    assert!(world.rows().await.is_empty());
    // Control: its own tenant gets as far as the choice of a computer.
    let own = control
        .submit(&who("acme"), request(&digest), None, None)
        .await;
    let refused = own.map(|submitted| submitted.row.run).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unsupported, "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_gets_its_run_while_the_queue_is_full_and_costs_no_rate() {
    let world = World::new().await;
    let engine = world.engine(1).await;
    let control = Control::new(Arc::clone(&engine));
    let draft = || {
        let mut draft = Draft::script("acme", Script::Sleep);
        draft.share.tenant_queued_max = 1;
        draft.share.per_minute_max = 3;
        draft
    };
    let first = key("first");
    let holding = engine
        .submit(draft().plan(), Some(first.clone()), None)
        .await;
    let (holding, _) = holding.unwrap();
    let waiting = engine
        .submit(draft().plan(), Some(key("second")), None)
        .await;
    let (waiting, _) = waiting.unwrap();
    let full = engine
        .submit(draft().plan(), Some(key("third")), None)
        .await;
    assert_eq!(full.unwrap_err().kind, ErrorKind::Quota);
    for _ in 0..20 {
        for (key, run) in [(first.clone(), &holding.run), (key("second"), &waiting.run)] {
            let again = engine.submit(draft().plan(), Some(key), None).await;
            let (row, new) = again.unwrap();
            assert!(!new && row.run == *run);
        }
    }
    let mut other = first;
    other.request = Digest::of(b"another request");
    let reused = engine.submit(draft().plan(), Some(other), None).await;
    assert_eq!(reused.unwrap_err().kind, ErrorKind::Exists);
    for run in [&holding.run, &waiting.run] {
        control.cancel(&who("acme"), run).await.unwrap();
        sealed(&control, "acme", run).await;
    }
    // Of three in a minute two were used.
    let third = engine
        .submit(draft().plan(), Some(key("fourth")), None)
        .await;
    let (third, _) = third.unwrap();
    control.cancel(&who("acme"), &third.run).await.unwrap();
    let row = sealed(&control, "acme", &third.run).await;
    assert!(matches!(end(&row), EndReason::Cancelled { .. }));
}
