//! The process ends at any moment: what was answered is there, what is there is whole.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_core::event::RunFact;
use leasehold_core::id::RunId;
use leasehold_core::lease::LeaseState;
use leasehold_core::name::Name;
use leasehold_core::outcome::RunState;
use leasehold_core::record::Observed;
use leasehold_store::conformance::{Failed, Life, World};
use leasehold_store::seam::{Admitted, RunFilter, Store};
use leasehold_store::sqlite::{Faults, Options, Point, SqliteStore};

use crate::child;
use crate::scratch::Scratch;

/// Every write of a run's life in the order of [`script`].
const STEPS: [&str; 9] = [
    "change",
    "admit",
    "grant",
    "append",
    "take_over",
    "request_cancel",
    "conclude",
    "revoke",
    "seal",
];

fn open(dir: &Path, faults: Option<Faults>) -> Arc<dyn Store> {
    let options = Options {
        faults,
        ..Options::new(dir)
    };
    Arc::new(SqliteStore::open(options).unwrap())
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(work)
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// One life of a run, each write once.
async fn script(world: &World) -> Result<(), Failed> {
    let tenant = world.tenant("acme").await?;
    let (admission, life) = world.admission(&tenant, 10, Some("key"))?;
    world.store.admit(admission).await?;
    let (lease, event, mut life) = world.lease(&life)?;
    world.store.grant(lease, event).await?;
    let allocated = RunFact::Allocated {
        sandbox: world.sandbox(),
        warm: false,
        computer: None,
    };
    let event = life.chain.next(life.epoch, 25, allocated)?;
    world
        .store
        .append(life.run.clone(), life.epoch, vec![event])
        .await?;
    let (lease, event, life) = world.lease(&life)?;
    world.store.take_over(lease, event).await?;
    world.store.request_cancel(life.run.clone()).await?;
    world.finish(life).await?;
    Ok(())
}

/// Whether the effect of a step is there.
async fn shows(store: &Arc<dyn Store>, step: &str) -> bool {
    let tenants = store.tenants().await.unwrap();
    let all = RunFilter {
        limit: 10,
        ..RunFilter::default()
    };
    let rows = store.runs(all).await.unwrap();
    let row = rows.first();
    let is = |test: fn(&leasehold_store::seam::RunRow) -> bool| row.is_some_and(test);
    match step {
        "change" => tenants.len() == 1,
        "admit" => rows.len() == 1,
        "grant" => is(|row| row.epoch.0 >= 1),
        "append" => is(|row| row.sandbox.is_some()),
        "take_over" => is(|row| row.epoch.0 >= 2),
        "request_cancel" => is(|row| row.cancel_requested),
        "conclude" => is(|row| row.outcome.is_some()),
        "revoke" => {
            let open = store.open_leases().await.unwrap();
            let active = |lease: &leasehold_core::lease::Lease| lease.state == LeaseState::Active;
            is(|row| row.epoch.0 >= 2) && !open.iter().any(active)
        }
        "seal" => is(|row| row.state == RunState::Sealed),
        other => panic!("no step {other}"),
    }
}

/// Ends this process at a point of the first write of that name.
fn ends_at(point: Point, step: String) -> Faults {
    Arc::new(move |at, name| {
        if at == point && name == step {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        false
    })
}

const POINTS: [(&str, Point); 3] = [
    ("begin", Point::Begin),
    ("written", Point::Written),
    ("committed", Point::Committed),
];

/// The child of the test below; by itself it leads one life to its end.
#[test]
fn one_life_of_a_run() {
    let scratch = Scratch::new();
    let (role, dir) =
        child::role().unwrap_or_else(|| ("none:none".to_owned(), scratch.path().to_owned()));
    let (word, step) = role.split_once(':').unwrap();
    let point = POINTS.iter().find(|(name, _)| *name == word);
    let store = open(
        &dir,
        point.map(|(_, point)| ends_at(*point, step.to_owned())),
    );
    run(async {
        script(&World::new(Arc::clone(&store))).await.unwrap();
        for step in STEPS {
            assert!(shows(&store, step).await, "{step} is not there");
        }
    });
}

#[test]
fn i1_p84_a_kill_before_a_commit_leaves_nothing_and_after_it_all() {
    for step in STEPS {
        for (word, point) in POINTS {
            let scratch = Scratch::new();
            let role = format!("{word}:{step}");
            let mut child = child::start("crash::one_life_of_a_run", &role, scratch.path(), &[]);
            let ended = child.wait().unwrap();
            assert!(!ended.success(), "{role}: the child was not ended");
            let store = open(scratch.path(), None);
            run(async {
                let there = shows(&store, step).await;
                assert_eq!(there, point == Point::Committed, "{role}");
                let at = STEPS.iter().position(|other| *other == step).unwrap();
                for earlier in &STEPS[..at] {
                    assert!(shows(&store, earlier).await, "{role}: {earlier} was lost");
                }
                whole(&store).await;
                retry_converges(store, &role).await;
            });
        }
    }
}

/// Every chain and log links to its head; gives the runs.
async fn whole(store: &Arc<dyn Store>) -> BTreeMap<RunId, u64> {
    let world = World::from(Arc::clone(store), 1 << 60);
    let mut found = BTreeMap::new();
    for tenant in store.tenants().await.unwrap() {
        world.whole_log(&tenant.name).await.unwrap();
        let mut before = None;
        loop {
            let filter = RunFilter {
                tenant: Some(tenant.name.clone()),
                before,
                limit: 500,
                ..RunFilter::default()
            };
            let rows = store.runs(filter).await.unwrap();
            let Some(last) = rows.last() else { break };
            before = Some((last.accepted_unix_ms, last.run.clone()));
            for row in rows {
                let head = world.whole(&row.run).await.unwrap();
                found.insert(row.run, head.count);
            }
        }
    }
    found
}

/// A caller that never got its answer asks again with the same key: there is one run in the end.
async fn retry_converges(store: Arc<dyn Store>, role: &str) {
    let world = World::from(Arc::clone(&store), 1 << 40);
    let acme = Name::parse("acme").unwrap();
    if store.tenants().await.unwrap().is_empty() {
        world.tenant("acme").await.unwrap();
    }
    for _ in 0..2 {
        let (admission, _) = world.admission(&acme, 10, Some("key")).unwrap();
        store.admit(admission).await.unwrap();
    }
    let all = RunFilter {
        limit: 10,
        ..RunFilter::default()
    };
    assert_eq!(store.runs(all).await.unwrap().len(), 1, "{role}");
}

/// The child of the test below: eight callers that say what was answered, until it is ended. By itself it
/// does a few lives and ends.
#[test]
fn callers_that_say_what_was_answered() {
    let scratch = Scratch::new();
    let (dir, lives) = match child::role() {
        Some((_, dir)) => (dir, u64::MAX),
        None => (scratch.path().to_owned(), 3),
    };
    let store = open(&dir, None);
    let done = Arc::new(AtomicUsize::new(0));
    run(async {
        let first = World::from(Arc::clone(&store), 1 << 50);
        let tenant = match store.tenants().await.unwrap().pop() {
            Some(tenant) => tenant.name,
            None => first.tenant("acme").await.unwrap(),
        };
        let mut callers = tokio::task::JoinSet::new();
        let seed = u64::from(std::process::id());
        for caller in 0..8_u64 {
            let world = World::from(Arc::clone(&store), (seed << 32) | (caller << 24));
            let (tenant, done) = (tenant.clone(), Arc::clone(&done));
            callers.spawn(async move {
                for _ in 0..lives {
                    told_life(&world, &tenant).await.unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while let Some(ended) = callers.join_next().await {
            ended.unwrap();
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), 24);
}

async fn told_life(world: &World, tenant: &Name) -> Result<(), Failed> {
    let (admission, life) = world.admission(tenant, 10, None)?;
    match world.store.admit(admission).await? {
        Admitted::New => say(&format!("admit {} 1", life.run)),
        Admitted::Earlier(_) => return Err(Failed("not new".into())),
    }
    let (lease, event, mut life) = world.lease(&life)?;
    world.store.grant(lease, event).await?;
    told("grant", &life);
    for _ in 0..3 {
        let event = life.step()?;
        world
            .store
            .append(life.run.clone(), life.epoch, vec![event])
            .await?;
        told("append", &life);
    }
    let (outcome, events) = life.ending()?;
    world
        .store
        .conclude(life.run.clone(), life.epoch, outcome, events)
        .await?;
    told("conclude", &life);
    let sealing = life.sealing(Observed::default())?;
    world.store.seal(None, sealing).await?;
    told("seal", &life);
    Ok(())
}

fn told(what: &str, life: &Life) {
    say(&format!("{what} {} {}", life.run, life.chain.head().count));
}

#[test]
fn p84_what_was_answered_is_there_after_a_kill_at_any_moment() {
    let scratch = Scratch::new();
    let mut answered: BTreeMap<RunId, (String, u64)> = BTreeMap::new();
    for round in 0..12_u64 {
        let mut child = child::start(
            "crash::callers_that_say_what_was_answered",
            "callers",
            scratch.path(),
            &[],
        );
        let mut said = child.stdout.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            said.read_to_end(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        });
        std::thread::sleep(Duration::from_millis(60 + round * 37 % 200));
        child.kill().unwrap();
        child.wait().unwrap();
        for line in reader.join().unwrap().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            // The last line may be cut; the runner's own lines have no run in them.
            if let [what, run, count] = words[..]
                && let (Ok(run), Ok(count)) = (RunId::parse(run), count.parse())
            {
                answered.insert(run, (what.to_owned(), count));
            }
        }
        let store = open(scratch.path(), None);
        run(async {
            let found = whole(&store).await;
            for (run, (what, count)) in &answered {
                let there = found.get(run).copied().unwrap_or(0);
                assert!(
                    there >= *count,
                    "{what} of {run}: {there} of {count} events"
                );
            }
        });
    }
    assert!(
        answered.len() > 20,
        "only {} runs were made",
        answered.len()
    );
    let sealed = answered.values().filter(|(what, _)| what == "seal").count();
    assert!(sealed > 5, "only {sealed} runs came to their seal");
}
