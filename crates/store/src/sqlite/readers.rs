//! Connections that only read, apart from the writer's: a read never waits for a commit.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::error::Internal;
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::open;
use crate::seam::StoreError;

/// Reads at one time.
const READERS: usize = 4;

/// The connections that are free. They are made when first needed.
pub(super) struct Readers {
    database: PathBuf,
    places: Arc<Semaphore>,
    free: Arc<Mutex<Vec<Connection>>>,
}

impl Readers {
    pub(super) fn new(database: PathBuf) -> Self {
        Self {
            database,
            places: Arc::new(Semaphore::new(READERS)),
            free: Arc::default(),
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
        let conn = place.is_ok().then(|| lock(&self.free).pop()).flatten();
        match conn {
            Some(conn) => used(&self.free, conn, work),
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
        let free = Arc::clone(&self.free);
        let database = self.database.clone();
        let task = tokio::task::spawn_blocking(move || {
            let kept = lock(&free).pop();
            let conn = match kept {
                Some(conn) => conn,
                None => open::reader(&database)
                    .map_err(|error| StoreError::Engine(Internal::new(error.to_string())))?,
            };
            let result = used(&free, conn, work);
            drop(place);
            result
        });
        task.await.map_err(|error| internal(&error))?
    }
}

fn lock(free: &Mutex<Vec<Connection>>) -> MutexGuard<'_, Vec<Connection>> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads and gives the connection back; one whose read failed in the engine is not used again.
fn used<T, F>(free: &Mutex<Vec<Connection>>, conn: Connection, work: F) -> Result<T, StoreError>
where
    F: FnOnce(&Connection) -> Result<T, StoreError>,
{
    let result = work(&conn);
    if !matches!(result, Err(StoreError::Engine(_) | StoreError::Damaged(_))) {
        lock(free).push(conn);
    }
    result
}
