//! What a durable admission costs, beside a plain insert of the same bytes by the same engine.
//!
//! `cargo run -p leasehold-store --example commit [DIRECTORY]`: prints a table. Every row is measured
//! in this one run, since disks differ more than programs do.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement on the terminal"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_store::conformance::World;
use leasehold_store::sqlite::{Options, SqliteStore};

/// Writes of each row.
const WRITES: usize = 400;
/// Callers at one time in the rows of many.
const CALLERS: usize = 16;

fn main() {
    let root = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let root = root.join(format!("leasehold-commit-{}", std::process::id()));
    std::fs::create_dir_all(&root).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let plain = row("plain insert, synced", plain(&root), None);
    let alone = runtime.block_on(admissions(&root.join("alone"), true, 1));
    row("admit, 1 caller", alone, Some(plain));
    let apart = runtime.block_on(admissions(&root.join("apart"), false, CALLERS));
    row("admit, 16 callers, each commit alone", apart, Some(plain));
    let together = runtime.block_on(admissions(&root.join("together"), true, CALLERS));
    row("admit, 16 callers, commits together", together, Some(plain));
    let appended = runtime.block_on(appends(&root.join("appends")));
    row("append, 1 caller", appended, Some(plain));
    std::fs::remove_dir_all(&root).unwrap();
}

/// Times of the writes and of all of them together.
type Times = (Vec<Duration>, Duration);

fn row(name: &str, (mut times, all): Times, plain: Option<Duration>) -> Duration {
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    let (p50, p95) = (at(50), at(95));
    let per_second = times.len() as f64 / all.as_secs_f64();
    let ratio = plain.map_or(1.0, |plain| p50.as_secs_f64() / plain.as_secs_f64());
    println!(
        "{name:<40} p50 {p50:>9.1?}  p95 {p95:>9.1?}  {per_second:>8.0}/s  {ratio:>6.2} x plain"
    );
    p50
}

fn plain(root: &Path) -> Times {
    let conn = rusqlite::Connection::open(root.join("plain.db")).unwrap();
    conn.pragma_update(None, "journal_mode", "wal").unwrap();
    conn.pragma_update(None, "synchronous", "full").unwrap();
    conn.execute_batch("CREATE TABLE rows (id INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT")
        .unwrap();
    let bytes = vec![7_u8; 1_024];
    let begun = Instant::now();
    let times = (0..WRITES).map(|_| {
        let begun = Instant::now();
        conn.prepare_cached("INSERT INTO rows (bytes) VALUES (?)")
            .unwrap()
            .execute([&bytes])
            .unwrap();
        begun.elapsed()
    });
    (times.collect(), begun.elapsed())
}

async fn open(dir: &Path, together: bool) -> Arc<World> {
    let options = Options {
        together,
        ..Options::new(dir)
    };
    Arc::new(World::new(Arc::new(SqliteStore::open(options).unwrap())))
}

async fn admissions(dir: &Path, together: bool, callers: usize) -> Times {
    let world = open(dir, together).await;
    let tenant = world.tenant("acme").await.unwrap();
    let begun = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (world, tenant) = (Arc::clone(&world), tenant.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                for _ in 0..WRITES / callers {
                    let (admission, _) = world.admission(&tenant, 10, Some("key")).unwrap();
                    let mut admission = admission;
                    if let Some(key) = &mut admission.idempotency {
                        key.key = admission.run.to_string();
                    }
                    let begun = Instant::now();
                    world.store.admit(admission).await.unwrap();
                    times.push(begun.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    (times, begun.elapsed())
}

async fn appends(dir: &Path) -> Times {
    let world = open(dir, true).await;
    let tenant = world.tenant("acme").await.unwrap();
    let mut life = world.leased(&tenant).await.unwrap();
    let begun = Instant::now();
    let mut times = Vec::new();
    for _ in 0..WRITES {
        let event = life.step().unwrap();
        let begun = Instant::now();
        let append = world
            .store
            .append(life.run.clone(), life.epoch, vec![event]);
        append.await.unwrap();
        times.push(begun.elapsed());
    }
    (times, begun.elapsed())
}
