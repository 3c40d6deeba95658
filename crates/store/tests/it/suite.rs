//! The suite that every engine must pass, over SQLite.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_core::event::TenantFact;
use leasehold_core::name::Name;
use leasehold_core::outcome::RunState;
use leasehold_core::tenant::Tenant;
use leasehold_store::conformance::{self, Report, World};
use leasehold_store::seam::{Admitted, Change, Store, StoreError};
use leasehold_store::sqlite::{OpenError, Options, SqliteStore};

use crate::scratch::Scratch;

fn suite(together: bool) -> Report {
    let scratch = Scratch::new();
    let number = AtomicU32::new(0);
    let root: PathBuf = scratch.path().to_owned();
    let make = move || -> Result<Arc<dyn Store>, String> {
        let options = Options {
            together,
            ..Options::new(root.join(number.fetch_add(1, Ordering::Relaxed).to_string()))
        };
        let store = SqliteStore::open(options).map_err(|error| error.to_string())?;
        Ok(Arc::new(store))
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .build()
        .unwrap();
    runtime.block_on(conformance::all(&make)).unwrap()
}

#[test]
fn sqlite_passes_the_suite_with_commits_together() {
    let report = suite(true);
    assert!(report.passed(), "{report}");
}

#[test]
fn sqlite_passes_the_suite_with_each_commit_alone() {
    let report = suite(false);
    assert!(report.passed(), "{report}");
}

#[test]
fn two_daemons_never_have_one_store() {
    let scratch = Scratch::new();
    let first = SqliteStore::open(Options::new(scratch.path())).unwrap();
    let second = SqliteStore::open(Options::new(scratch.path()));
    assert!(matches!(second, Err(OpenError::InUse { .. })));
    drop(first);
    SqliteStore::open(Options::new(scratch.path())).unwrap();
}

#[tokio::test]
async fn what_one_task_hands_in_together_is_one_commit() {
    let scratch = Scratch::new();
    let store = SqliteStore::open(Options::new(scratch.path())).unwrap();
    let make = |name: String| {
        let name = Name::parse(&name).unwrap();
        let tenant = Tenant {
            name: name.clone(),
            created_unix_ms: 1,
            suspended: false,
            projects: vec![Name::parse("default").unwrap()],
        };
        let change = (Change::CreateTenant(tenant), TenantFact::TenantCreated);
        store.change(name, None, 1, vec![change])
    };
    for round in 0..20 {
        // The thread that writes has nothing to do and would begin with whatever came first.
        tokio::time::sleep(Duration::from_millis(3)).await;
        let before = store.commits();
        let (one, two) = tokio::join!(biased; make(format!("a{round}")), make(format!("b{round}")));
        one.and(two).unwrap();
        let after = store.commits();
        assert_eq!(after.writes - before.writes, 2);
        assert_eq!(after.commits - before.commits, 1, "round {round}");
    }
}

#[tokio::test]
async fn one_that_is_refused_after_it_wrote_undoes_itself_alone() {
    let scratch = Scratch::new();
    let store = SqliteStore::open(Options::new(scratch.path())).unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let world = World::new(Arc::clone(&store));
    let tenant = world.tenant("acme").await.unwrap();
    let mut life = world.leased(&tenant).await.unwrap();
    let before = store.run(None, life.run.clone()).await.unwrap();
    // The outcome is written before it shows that the events do not tell of it.
    let (outcome, mut events) = life.ending().unwrap();
    events.pop();
    events.push(life.step().unwrap());
    let (first, _) = world.admission(&tenant, 10, None).unwrap();
    let (last, _) = world.admission(&tenant, 10, None).unwrap();
    let runs = [first.run.clone(), last.run.clone()];
    let commits = store.commits().commits;
    let (first, refused, last) = tokio::join!(
        biased;
        store.admit(first),
        store.conclude(life.run.clone(), life.epoch, outcome, events),
        store.admit(last),
    );
    assert!(matches!(refused, Err(StoreError::Fork)), "{refused:?}");
    assert_eq!(
        (first.unwrap(), last.unwrap()),
        (Admitted::New, Admitted::New)
    );
    assert_eq!(store.commits().commits - commits, 1);
    assert_eq!(store.run(None, life.run.clone()).await.unwrap(), before);
    assert_eq!(store.events(life.run, 0).await.unwrap().len(), 2);
    for run in runs {
        assert_eq!(store.run(None, run).await.unwrap().state, RunState::Queued);
    }
}
