//! From a directory to connections: the lock, the settings, the migrations.
//!
//! Settings: WAL, foreign keys, checked cell sizes. A migration is one file and one transaction; its
//! number is the database's `user_version`. A database of a newer program is refused and left alone.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use rustix::fs::FlockOperation;

use super::error::OpenError;

/// Each migration, in order: name and text.
const MIGRATIONS: [(&str, &str); 3] = [
    (
        "0001-planes",
        include_str!("../../migrations/0001-planes.sql"),
    ),
    (
        "0002-objects",
        include_str!("../../migrations/0002-objects.sql"),
    ),
    (
        "0003-fewer-pages",
        include_str!("../../migrations/0003-fewer-pages.sql"),
    ),
];

/// What comes after [`MIGRATIONS`] in the next version, as far as a test can have it now.
#[cfg(debug_assertions)]
const NEXT: (&str, &str) = (
    "next",
    "CREATE TABLE next (number INTEGER PRIMARY KEY) STRICT",
);

/// `LEASEHOLD_NEWER=store`, in builds with debug assertions alone: this program is the next version, whose format
/// has one step more.
#[cfg(debug_assertions)]
const NEWER_VARIABLE: &str = "LEASEHOLD_NEWER";

/// Each migration of this program, in order.
fn migrations() -> impl Iterator<Item = (&'static str, &'static str)> {
    #[cfg(debug_assertions)]
    let next = std::env::var_os(NEWER_VARIABLE)
        .is_some_and(|word| word == "store")
        .then_some(NEXT);
    #[cfg(not(debug_assertions))]
    let next = None;
    MIGRATIONS.into_iter().chain(next)
}

/// `LHLD`: tells our database from any other.
const APPLICATION_ID: u32 = 0x4c48_4c44;

/// How long a reader waits for a checkpoint or recovery of another connection.
const BUSY: Duration = Duration::from_secs(5);

/// Prepared statements kept by each connection.
const STATEMENTS: usize = 128;

/// Most memory that the connection that writes keeps pages in.
const CACHE_KIB: i64 = 8_192;

/// How long the log is from the start.
const LOG_BYTES: u64 = 4 << 20;
/// How long it is made of the reserve: what is in the log is nobody else's.
const LOG_LAST_BYTES: u64 = LOG_BYTES + (3 << 20);

/// Where a store's files are.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    pub(super) database: PathBuf,
    pub(super) lock: PathBuf,
    pub(super) reserve: PathBuf,
    /// The log that the engine keeps beside the database.
    pub(super) log: PathBuf,
}

impl Paths {
    pub(super) fn of(dir: &Path) -> Self {
        Self {
            database: dir.join("store.db"),
            lock: dir.join("store.lock"),
            reserve: dir.join("store.reserve"),
            log: dir.join("store.db-wal"),
        }
    }
}

/// Takes the one lock of a store; it is held as long as the file is open, and goes with the process.
pub(super) fn lock(path: &Path) -> Result<File, OpenError> {
    let io = |action, source| OpenError::Io {
        action,
        path: path.to_owned(),
        source,
    };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| io("open", source))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse {
            path: path.parent().unwrap_or(path).to_owned(),
        }),
        Err(errno) => Err(io("lock", errno.into())),
    }
}

/// Opens the connection that writes, and brings the database to this program's format.
pub(super) fn writer(paths: &Paths) -> Result<Connection, OpenError> {
    let path = paths.database.as_path();
    // Made here and not by the engine, so that nobody else can read it for a moment.
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| OpenError::Io {
            action: "open",
            path: path.to_owned(),
            source,
        })?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags).map_err(|error| told(path, error))?;
    migrate(&mut conn, path)?;
    settle(&conn).map_err(|error| told(path, error))?;
    // Checkpoints are taken in idle moments, not by whoever happens to commit.
    conn.pragma_update(None, "wal_autocheckpoint", 0)
        .and_then(|()| conn.pragma_update(None, "journal_size_limit", 64 << 20))
        // What undoes a part of a transaction needs no file, and what is written again and again no read.
        .and_then(|()| conn.pragma_update(None, "temp_store", "memory"))
        .and_then(|()| conn.pragma_update(None, "cache_size", -CACHE_KIB))
        .map_err(|error| told(path, error))?;
    lengthen(&paths.log, LOG_BYTES);
    Ok(conn)
}

/// Gives the log room of the reserve that was given up, before others of the disk have it.
pub(super) fn lengthen_last(log: &Path) {
    lengthen(log, LOG_LAST_BYTES);
}

/// Fills the log with zeros to a length that it seldom outgrows: a sync of what is written over need not write where
/// the file ends as well. The engine reads a log up to the first piece that is no part of it. Where there is no room,
/// it grows as it is written.
fn lengthen(log: &Path, bytes: u64) {
    let Ok(mut file) = OpenOptions::new().append(true).open(log) else {
        return;
    };
    let long = file.metadata().map_or(u64::MAX, |found| found.len());
    let zeros = vec![0; usize::try_from(bytes.saturating_sub(long)).unwrap_or_default()];
    let _ = file.write_all(&zeros).and_then(|()| file.sync_all());
}

/// Opens a connection that only reads.
pub(super) fn reader(path: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(|error| told(path, error))?;
    settle(&conn)
        .and_then(|()| conn.pragma_update(None, "query_only", true))
        // No read needs a file more.
        .and_then(|()| conn.pragma_update(None, "temp_store", "memory"))
        .map_err(|error| told(path, error))?;
    Ok(conn)
}

fn settle(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(BUSY)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "cell_size_check", true)?;
    conn.pragma_update(None, "trusted_schema", false)
}

fn told(path: &Path, source: rusqlite::Error) -> OpenError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    match source.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => OpenError::Damaged {
            path: path.to_owned(),
            detail: source.to_string(),
        },
        _ => OpenError::Engine {
            path: path.to_owned(),
            source,
        },
    }
}

/// The format this program writes.
fn known() -> u32 {
    u32::try_from(migrations().count()).unwrap_or(u32::MAX)
}

fn migrate(conn: &mut Connection, path: &Path) -> Result<(), OpenError> {
    let engine = |error| told(path, error);
    let number = |conn: &Connection, name: &str| -> Result<u32, OpenError> {
        conn.pragma_query_value(None, name, |row| row.get(0))
            .map_err(engine)
    };
    let found = number(conn, "user_version")?;
    let owner = number(conn, "application_id")?;
    let tables: u32 = conn
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(engine)?;
    if owner != APPLICATION_ID && (tables > 0 || found > 0) {
        return Err(OpenError::Damaged {
            path: path.to_owned(),
            detail: "it is a database of another program".to_owned(),
        });
    }
    if found > known() {
        return Err(OpenError::Newer {
            path: path.to_owned(),
            found,
            known: known(),
        });
    }
    conn.pragma_update(None, "journal_mode", "wal")
        .and_then(|()| conn.pragma_update(None, "synchronous", "full"))
        .map_err(engine)?;
    for (number, (_, text)) in (1_u32..).zip(migrations()).skip(found as usize) {
        let step = conn.transaction().map_err(engine)?;
        step.execute_batch(text)
            .and_then(|()| step.pragma_update(None, "application_id", APPLICATION_ID))
            .and_then(|()| step.pragma_update(None, "user_version", number))
            .and_then(|()| step.commit())
            .map_err(engine)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_without_a_gap_and_all_embedded() {
        for (at, (name, _)) in MIGRATIONS.iter().enumerate() {
            assert!(name.starts_with(&format!("{:04}-", at + 1)), "{name}");
        }
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), MIGRATIONS.len());
    }
}
