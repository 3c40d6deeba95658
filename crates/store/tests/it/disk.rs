//! Disks that are full, databases that are damaged, foreign or newer.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::id::RunId;
use leasehold_core::name::Name;
use leasehold_store::conformance::World;
use leasehold_store::seam::{RunFilter, Store, StoreError};
use leasehold_store::sqlite::{OpenError, Options, Point, SqliteStore};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::child;
use crate::scratch::Scratch;

fn open(dir: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(Options::new(dir)).unwrap())
}

/// Runs that end in each round on a full disk.
const ENDS: usize = 100;

/// Admits until the disk is full; gives the run that was refused.
async fn refused_admission(world: &World, tenant: &Name) -> RunId {
    for _ in 0..5_000 {
        let (admission, life) = world.admission(tenant, 10, None).unwrap();
        match world.store.admit(admission).await {
            Ok(_) => {}
            Err(StoreError::Unwritable(_)) => return life.run,
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("a full disk must refuse");
}

/// The child of the test below, on a disk of 40 MiB. By itself it sees the reserve set aside.
#[tokio::test]
async fn on_a_small_disk() {
    let Some((_, dir)) = child::role() else {
        let scratch = Scratch::new();
        let _store = open(scratch.path());
        let reserve = std::fs::metadata(scratch.path().join("store.reserve")).unwrap();
        assert_eq!(reserve.len(), 8 << 20);
        return;
    };
    let world = World::new(open(&dir));
    let tenant = world.tenant("acme").await.unwrap();
    let mut running = Vec::new();
    for _ in 0..ENDS * 3 {
        running.push(world.leased(&tenant).await.unwrap());
    }
    let ballast = dir.join("ballast");
    let mut refused = 0;
    for round in 0..3 {
        // Others fill the disk to the last byte.
        let file = std::fs::File::create(&ballast).unwrap();
        let mut len = 64 << 20;
        while len > 0 {
            let at = file.metadata().unwrap().len();
            let none = rustix::fs::FallocateFlags::empty();
            match rustix::fs::fallocate(&file, none, at, len) {
                Ok(()) => {}
                Err(_) => len /= 2,
            }
        }
        // New work: taken only as long as there is room in what is allocated already, then refused.
        let last = refused_admission(&world, &tenant).await;
        refused += 1;
        let absent = world.store.run(None, last).await;
        assert!(matches!(absent, Err(StoreError::NotFound("run"))));
        // Reads go on.
        assert_eq!(world.store.tenants().await.unwrap().len(), 1);
        // What runs can still end, and what is given up for that is not for new work.
        for life in running.drain(..ENDS) {
            let life = world.finish(life).await;
            let life = life.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
            world.whole(&life.run).await.unwrap();
            let (admission, _) = world.admission(&tenant, 10, None).unwrap();
            let new = world.store.admit(admission).await;
            assert!(
                matches!(new, Err(StoreError::Unwritable(_))),
                "round {round}: {new:?}"
            );
        }
        drop(file);
        std::fs::remove_file(&ballast).unwrap();
        // Room again: it goes on by itself, soon.
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let (admission, _) = world.admission(&tenant, 10, None).unwrap();
            match world.store.admit(admission).await {
                Ok(_) => break,
                Err(error) => assert!(Instant::now() < until, "round {round}: {error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let life = world.leased(&tenant).await.unwrap();
        world.whole(&life.run).await.unwrap();
        world.whole_log(&tenant).await.unwrap();
    }
    assert_eq!(refused, 3);
    println!("all rounds done");
}

#[test]
fn p87_a_full_disk_refuses_new_work_lets_work_end_and_mends_itself() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP p87_a_full_disk_refuses_new_work: needs root to mount a small disk");
        return;
    }
    let scratch = Scratch::new();
    let mount = "mount -t tmpfs -o size=40m none \"$0\" && exec \"$@\"";
    let dir = scratch.path().display().to_string();
    let before = ["unshare", "-m", "sh", "-c", mount, &dir];
    let child = child::start("disk::on_a_small_disk", "disk", scratch.path(), &before);
    let done = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{text}");
    assert!(text.contains("all rounds done"), "{text}");
}

#[tokio::test]
async fn p71_a_failing_append_is_told_and_nothing_of_it_stays() {
    let scratch = Scratch::new();
    let broken = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&broken);
    let options = Options {
        faults: Some(Arc::new(move |point, name| {
            point == Point::Written && name == "append" && fails.load(Ordering::Relaxed)
        })),
        ..Options::new(scratch.path())
    };
    let world = World::new(Arc::new(SqliteStore::open(options).unwrap()));
    let tenant = world.tenant("acme").await.unwrap();
    let mut life = world.leased(&tenant).await.unwrap();
    let head = world.whole(&life.run).await.unwrap();
    broken.store(true, Ordering::Relaxed);
    let event = life.step().unwrap();
    let append = || {
        world
            .store
            .append(life.run.clone(), life.epoch, vec![event.clone()])
    };
    assert!(matches!(append().await, Err(StoreError::Engine(_))));
    assert_eq!(world.whole(&life.run).await.unwrap(), head);
    // Others are not taken along.
    world.leased(&tenant).await.unwrap();
    broken.store(false, Ordering::Relaxed);
    append().await.unwrap();
    assert_eq!(world.whole(&life.run).await.unwrap(), life.chain.head());
}

#[tokio::test]
async fn p71_a_privileged_change_whose_entry_cannot_be_written_is_not_done() {
    use leasehold_core::event::TenantFact;
    use leasehold_store::seam::Change;
    let scratch = Scratch::new();
    let broken = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&broken);
    let options = Options {
        faults: Some(Arc::new(move |point, name| {
            point == Point::Written && name == "change" && fails.load(Ordering::Relaxed)
        })),
        ..Options::new(scratch.path())
    };
    let world = World::new(Arc::new(SqliteStore::open(options).unwrap()));
    let tenant = world.tenant("acme").await.unwrap();
    let mut suspended = world.store.tenant(tenant.clone()).await.unwrap();
    suspended.suspended = true;
    let change = || {
        let fact = TenantFact::TenantSuspended { suspended: true };
        let changes = vec![(Change::UpdateTenant(suspended.clone()), fact)];
        world.store.change(tenant.clone(), None, 2, changes)
    };
    broken.store(true, Ordering::Relaxed);
    assert!(matches!(change().await, Err(StoreError::Engine(_))));
    assert!(!world.store.tenant(tenant.clone()).await.unwrap().suspended);
    assert_eq!(world.whole_log(&tenant).await.unwrap().count, 1);
    broken.store(false, Ordering::Relaxed);
    change().await.unwrap();
    assert!(world.store.tenant(tenant.clone()).await.unwrap().suspended);
    assert_eq!(world.whole_log(&tenant).await.unwrap().count, 2);
}

/// A read that saw what was there before a change, and is told of it only after, leaves nothing behind.
#[tokio::test]
async fn a_change_holds_from_its_answer_on_whatever_was_read_meanwhile() {
    use leasehold_core::event::TenantFact;
    use leasehold_store::seam::Change;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;
    let scratch = Scratch::new();
    let (written, is_written) = channel();
    let (go, gone) = channel();
    let gone = Mutex::new(gone);
    let options = Options {
        faults: Some(Arc::new(move |point, name| {
            if point == Point::Written && name == "change" {
                // Whoever does not listen any more waits for nothing.
                let _ = written.send(());
                let _ = gone.lock().unwrap().recv();
            }
            false
        })),
        ..Options::new(scratch.path())
    };
    let world = World::new(Arc::new(SqliteStore::open(options).unwrap()));
    go.send(()).unwrap();
    let tenant = world.tenant("acme").await.unwrap();
    is_written.recv().unwrap();
    let (store, name) = (Arc::clone(&world.store), tenant.clone());
    let change = tokio::spawn(async move {
        let suspended = leasehold_core::tenant::Tenant {
            name: name.clone(),
            created_unix_ms: 1,
            suspended: true,
            projects: Vec::new(),
        };
        let fact = TenantFact::TenantSuspended { suspended: true };
        let change = vec![(Change::UpdateTenant(suspended), fact)];
        store.change(name, None, 2, change).await
    });
    while is_written.try_recv().is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let mut read = world.store.tenant(tenant.clone());
    let waits = std::future::poll_fn(|task| {
        std::task::Poll::Ready(Future::poll(read.as_mut(), task).is_pending())
    });
    assert!(waits.await, "it must go on on another thread");
    // Long enough for that thread to have read.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    go.send(()).unwrap();
    change.await.unwrap().unwrap();
    assert!(!read.await.unwrap().suspended, "it was read before");
    let now = world.store.tenant(tenant).await.unwrap();
    assert!(now.suspended, "what was there before is remembered");
}

#[test]
fn what_is_no_database_of_ours_is_refused_and_left_alone() {
    let scratch = Scratch::new();
    let path = scratch.path().join("store.db");
    let noise: Vec<u8> = (0..20_000_u32).map(|at| (at * 7 % 253) as u8).collect();
    std::fs::write(&path, &noise).unwrap();
    let opened = SqliteStore::open(Options::new(scratch.path()));
    assert!(matches!(opened, Err(OpenError::Damaged { .. })));
    assert!(std::fs::read(&path).unwrap() == noise, "it was changed");

    std::fs::remove_file(&path).unwrap();
    let foreign = rusqlite::Connection::open(&path).unwrap();
    foreign.execute_batch("CREATE TABLE theirs (x)").unwrap();
    drop(foreign);
    let opened = SqliteStore::open(Options::new(scratch.path()));
    assert!(matches!(opened, Err(OpenError::Damaged { .. })));
}

#[test]
fn a_newer_format_is_refused_with_both_numbers() {
    let scratch = Scratch::new();
    drop(SqliteStore::open(Options::new(scratch.path())).unwrap());
    let path = scratch.path().join("store.db");
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.pragma_update(None, "user_version", 99).unwrap();
    drop(conn);
    let text = match SqliteStore::open(Options::new(scratch.path())) {
        Err(error @ OpenError::Newer { found: 99, .. }) => error.to_string(),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was opened"),
    };
    assert!(
        text.contains("format 99") && text.contains("up to 3"),
        "{text}"
    );
}

#[tokio::test]
async fn damage_is_told_and_never_read_as_something_else() {
    let scratch = Scratch::new();
    let world = World::new(open(scratch.path()));
    let tenant = world.tenant("acme").await.unwrap();
    let life = world.leased(&tenant).await.unwrap();
    drop(world);
    // By hand, past the triggers that refuse it.
    let conn = rusqlite::Connection::open(scratch.path().join("store.db")).unwrap();
    let refused = conn.execute("UPDATE events SET event = x'7b7d'", []);
    assert!(
        refused.is_err(),
        "an event was changed in spite of its trigger"
    );
    conn.execute_batch(
        "DROP TRIGGER events_stay; UPDATE events SET event = x'7b7d' WHERE id % 1048576 = 1;",
    )
    .unwrap();
    drop(conn);
    let store = open(scratch.path());
    let events = store.events(life.run.clone(), 0).await;
    assert!(matches!(events, Err(StoreError::Damaged(_))), "{events:?}");
    let rows = store.runs(RunFilter {
        limit: 5,
        ..RunFilter::default()
    });
    assert_eq!(rows.await.unwrap().len(), 1);
}

#[test]
fn its_files_are_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let dir = scratch.path().join("state");
    let _store = open(&dir);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
    }
}

/// The rows of a store of today, as the format before the last one held them.
fn as_format_2(today: &Path, before: &Path) {
    let conn = rusqlite::Connection::open(before).unwrap();
    conn.execute_batch(include_str!("../../migrations/0001-planes.sql"))
        .unwrap();
    conn.execute_batch(include_str!("../../migrations/0002-objects.sql"))
        .unwrap();
    let id: i64 = {
        let today = rusqlite::Connection::open(today).unwrap();
        today
            .pragma_query_value(None, "application_id", |row| row.get(0))
            .unwrap()
    };
    conn.pragma_update(None, "application_id", id).unwrap();
    conn.pragma_update(None, "user_version", 2).unwrap();
    conn.execute("ATTACH ? AS today", [today.to_str().unwrap()])
        .unwrap();
    for table in [
        "tenants",
        "log",
        "runs",
        "contracts",
        "sealed_requests",
        "leases",
        "seals",
    ] {
        conn.execute(
            &format!("INSERT INTO {table} SELECT * FROM today.{table}"),
            [],
        )
        .unwrap();
    }
    conn.execute(
        "INSERT INTO events (run, seq, event) SELECT id >> 20, id & 1048575, event FROM today.events",
        [],
    )
    .unwrap();
}

#[tokio::test]
async fn a_database_of_before_is_brought_along() {
    let scratch = Scratch::new();
    let (today, before) = (scratch.path().join("today"), scratch.path().join("before"));
    let world = World::new(open(&today));
    let tenant = world.tenant("acme").await.unwrap();
    let lives = [
        world.leased(&tenant).await.unwrap(),
        world.admit(&tenant).await.unwrap(),
    ];
    let done = world.leased(&tenant).await.unwrap();
    let done = world.finish(done).await.unwrap();
    let told = async |store: Arc<dyn Store>| {
        let mut told = format!("{:?}", store.unsealed(None, 10).await.unwrap());
        for run in [&lives[0].run, &lives[1].run, &done.run] {
            let events = store.events(run.clone(), 0).await.unwrap();
            assert!(!events.is_empty());
            told += &format!("{events:?} {:?}", store.statement(run.clone()).await);
        }
        told += &format!("{:?}", store.open_leases().await.unwrap());
        told + &format!(
            "{:?}",
            store
                .runs(RunFilter {
                    limit: 9,
                    ..RunFilter::default()
                })
                .await
        )
    };
    drop(world);
    let wanted = told(open(&today)).await;
    std::fs::create_dir(&before).unwrap();
    as_format_2(&today.join("store.db"), &before.join("store.db"));
    let conn = rusqlite::Connection::open(before.join("store.db")).unwrap();
    conn.execute_batch(
        "INSERT INTO policies (scope, version, document, digest, published_ms)
         VALUES ('tenant/default', 1, x'01', 'sha256:' || hex(zeroblob(32)), 7),
                ('tenant/default', 2, x'02', 'sha256:' || hex(zeroblob(32)), 8),
                ('tenant/acme', 1, x'03', 'sha256:' || hex(zeroblob(32)), 9);",
    )
    .unwrap();
    drop(conn);
    assert_eq!(told(open(&before)).await, wanted);
    // What stood in the place of the built-in policy is the operator's word; nobody else's becomes it.
    let store = open(&before);
    let of = async |scope: &str| store.policy(scope.to_owned()).await.unwrap();
    let policy = of("platform/tenant/default").await.unwrap();
    assert_eq!(
        (policy.version, policy.document, policy.published_unix_ms),
        (1, vec![2], 8)
    );
    assert!(of("tenant/default").await.is_some());
    assert_eq!(of("platform/tenant/acme").await, None);
    drop(store);
    // It goes on from there.
    let world = World::new(open(&before));
    world.finish(lives[0].clone()).await.unwrap();
    let pruned = world.store.prune(u64::MAX, 10).await.unwrap();
    assert_eq!(pruned, 2);
    let conn = rusqlite::Connection::open(before.join("store.db")).unwrap();
    let left: i64 = conn
        .query_row("SELECT count(*) FROM events", [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 1, "events outlived their runs");
}

/// What is in the way is found by the last statement but a few: all before it is undone.
#[tokio::test]
async fn a_step_to_a_newer_format_is_whole_or_not_at_all() {
    let scratch = Scratch::new();
    let (today, before) = (scratch.path().join("today"), scratch.path().join("before"));
    let world = World::new(open(&today));
    let tenant = world.tenant("acme").await.unwrap();
    let life = world.leased(&tenant).await.unwrap();
    let wanted = world.store.events(life.run.clone(), 0).await.unwrap();
    drop(world);
    std::fs::create_dir(&before).unwrap();
    let path = before.join("store.db");
    as_format_2(&today.join("store.db"), &path);
    let conn = || rusqlite::Connection::open(&path).unwrap();
    conn()
        .execute_batch("CREATE TRIGGER events_go AFTER DELETE ON runs BEGIN SELECT 1; END;")
        .unwrap();
    let refused = SqliteStore::open(Options::new(&before));
    assert!(matches!(refused, Err(OpenError::Engine { .. })));
    let format: u32 = conn()
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap();
    let there: i64 = conn()
        .query_row("SELECT count(*) FROM events WHERE seq >= 0", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!((format, there), (2, wanted.len() as i64));
    conn().execute_batch("DROP TRIGGER events_go").unwrap();
    let events = open(&before).events(life.run, 0).await.unwrap();
    assert_eq!(events, wanted);
}
