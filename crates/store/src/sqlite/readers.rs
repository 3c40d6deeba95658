//! Connections that only read, apart from the writer's: a read never waits for a commit.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold_core::error::Internal;
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::error::OpenError;
use super::open;
use crate::seam::StoreError;

/// Reads at one time.
const READERS: usize = 4;
/// How long a read waits for a connection of another one, where none can be opened, and how often it looks.
const OTHERS: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The connections. They are made when first needed.
pub(super) struct Readers {
    database: PathBuf,
    places: Arc<Semaphore>,
    held: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    free: Vec<Connection>,
    /// So many are read from.
    used: usize,
}

impl Readers {
    pub(super) fn new(database: PathBuf) -> Self {
        Self {
            database,
            places: Arc::new(Semaphore::new(READERS)),
            held: Arc::default(),
        }
    }

    /// Runs a look-up of a few rows by their keys here and now, where a connection is free: that takes less
    /// time than to hand it to another thread and back, and no reader waits for a commit.
    pub(super) async fn look_up<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let conn = place.is_ok().then(|| lock(&self.held).take()).flatten();
        match conn {
            Some(conn) => used(&self.held, conn, work),
            None => {
                drop(place);
                self.read(work).await
            }
        }
    }

    /// Runs a read on a thread that may block.
    pub(super) async fn read<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let internal = |error: &dyn std::fmt::Display| {
            StoreError::Engine(Internal::new(format!("a read ended early: {error}")))
        };
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.map_err(|error| internal(&error))?;
        let held = Arc::clone(&self.held);
        let database = self.database.clone();
        let task = tokio::task::spawn_blocking(move || {
            let conn = connection(&held, &database)
                .map_err(|error| StoreError::Engine(Internal::new(error.to_string())))?;
            let result = used(&held, conn, work);
            drop(place);
            result
        });
        task.await.map_err(|error| internal(&error))?
    }
}

impl Held {
    /// One that is free.
    fn take(&mut self) -> Option<Connection> {
        let conn = self.free.pop()?;
        self.used += 1;
        Some(conn)
    }
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One that is free, or one more. Where that cannot be had, such as for want of descriptors, one of the others.
fn connection(held: &Mutex<Held>, database: &Path) -> Result<Connection, OpenError> {
    if let Some(conn) = lock(held).take() {
        return Ok(conn);
    }
    let error = match open::reader(database) {
        Ok(conn) => {
            lock(held).used += 1;
            return Ok(conn);
        }
        Err(error) => error,
    };
    let until = Instant::now() + OTHERS;
    loop {
        {
            let mut held = lock(held);
            if let Some(conn) = held.take() {
                return Ok(conn);
            }
            if held.used == 0 || Instant::now() > until {
                return Err(error);
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Counts one as no longer read from, also when its read fell over.
struct Used<'a>(&'a Mutex<Held>);

impl Drop for Used<'_> {
    fn drop(&mut self) {
        lock(self.0).used -= 1;
    }
}

/// Runs a read and gives the connection back; one whose read failed in the engine is not used again.
fn used<T, F>(held: &Mutex<Held>, conn: Connection, work: F) -> Result<T, StoreError>
where
    F: FnOnce(&Connection) -> Result<T, StoreError>,
{
    let _used = Used(held);
    let result = work(&conn);
    if !matches!(result, Err(StoreError::Engine(_) | StoreError::Damaged(_))) {
        lock(held).free.push(conn);
    }
    result
}
