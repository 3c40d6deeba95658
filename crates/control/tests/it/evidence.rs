//! Evidence of runs that an engine really carried, from the store through the façade to an offline check.

use std::sync::Arc;

use leasehold_backend::conformance::script::Script;
use leasehold_control::control::Control;
use leasehold_control::evidence::verify::{verify, verify_log};
use leasehold_control::evidence::{Bundle, LogBundle, Trust};
use leasehold_core::error::ErrorKind;
use leasehold_core::event::Head;
use leasehold_core::tenant::Role;

use crate::world::{Draft, World, sealed, who};

fn trust(world: &World) -> Trust {
    let signer = world.parts(1).sealer.keys().signer();
    Trust::Pinned(signer.into_iter().collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_proven_and_told_from_its_rows_alone() {
    let world = World::new().await;
    let engine = world.engine(4).await;
    let control = Control::new(Arc::clone(&engine));
    let plan = Draft::script("acme", Script::Print).plan();
    let (row, _) = engine.submit(plan, None, None).await.unwrap();
    sealed(&control, "acme", &row.run).await;
    let text = control.evidence(&who("acme"), &row.run).await.unwrap();
    let verdict = verify(text.as_bytes(), &trust(&world));
    assert!(verdict.holds(), "{verdict}");
    let mut bundle = Bundle::read(text.as_bytes()).unwrap();
    let last = bundle.events.len() - 1;
    bundle.events.remove(last);
    let verdict = verify(bundle.text().unwrap().as_bytes(), &trust(&world));
    assert!(verdict.to_string().contains("missing tail"), "{verdict}");
    let told = control.explain(&who("acme"), &row.run).await.unwrap();
    assert!(told.contains("6. How was cleanup proven?"), "{told}");
    assert!(told.contains("authority was revoked first"), "{told}");
    // Another's is not there; who may not read evidence is told so.
    let other = control
        .evidence(&who("globex"), &row.run)
        .await
        .unwrap_err();
    assert_eq!(other.kind, ErrorKind::NotFound);
    let mut runner = who("acme");
    runner.role = Role::Runner;
    let refused = control.evidence(&runner, &row.run).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Forbidden);
}

#[tokio::test(flavor = "multi_thread")]
async fn p71_a_tenants_log_shows_an_older_copy_of_itself() {
    let world = World::new().await;
    let engine = world.engine(4).await;
    let control = Control::new(Arc::clone(&engine));
    let older = control.log_evidence(&who("acme")).await.unwrap();
    let plan = Draft::script("acme", Script::Print).plan();
    let (row, _) = engine.submit(plan, None, None).await.unwrap();
    sealed(&control, "acme", &row.run).await;
    let newer = control.log_evidence(&who("acme")).await.unwrap();
    let log = LogBundle::read(newer.as_bytes()).unwrap();
    let last = log.entries.last().unwrap();
    let published = Head {
        count: last.seq + 1,
        digest: last.digest().unwrap(),
    };
    let trust = trust(&world);
    for text in [&older, &newer] {
        let verdict = verify_log(text.as_bytes(), &trust, &[]);
        assert!(verdict.holds(), "{verdict}");
    }
    let verdict = verify_log(older.as_bytes(), &trust, &[published]);
    assert!(verdict.to_string().contains("truncated"), "{verdict}");
}
