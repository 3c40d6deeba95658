//! The one writer: a thread that commits many callers' transactions together.
//!
//! While one commit waits for the disk, further jobs gather; then all of them are run in one transaction of
//! the engine and are answered after the commit. One that is refused does not undo the others: it wrote nothing
//! before it was refused, or all are run again, each in a savepoint of its own. Jobs of class [`Class::Appended`] are committed first and without waiting
//! for the disk; a later durable commit syncs the same file and thereby them. Jobs of one class
//! keep the order they were handed in; between the classes none is promised.
//!
//! The thread is woken only when whoever hands a job in has let everything else of its task go on first.
//! So what is handed in together is committed together, also when the thread is idle.
//!
//! When a commit fails, its jobs are tried alone, so that one cannot take the others along. When the disk is
//! full, jobs that end something get a reserve that was set aside in better times; until it can be set aside
//! again, all others are refused.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use leasehold_core::error::Internal;
use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::error::{classify, is_full};
use super::open::lengthen_last;
use super::reserve::{RESERVE_BYTES, Reserve};
use crate::seam::{Commits, StoreError};

/// Most jobs that wait; further callers wait before they enter.
const QUEUE_MAX: usize = 1_024;
/// Most jobs of one commit.
const BATCH_MAX: usize = 256;
/// How long nothing must come before a checkpoint is taken that is worth it.
const IDLE: Duration = Duration::from_millis(50);
/// Jobs that make it worth it: what they wrote more than once is moved once.
const WORTH_JOBS: usize = 128;
/// How long nothing must come before any is taken.
const LONG_IDLE: Duration = Duration::from_secs(5);
/// Jobs after which a checkpoint is taken although there is no idle moment.
const BUSY_JOBS: usize = 2_048;

/// What a job needs of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Synced before it is answered.
    Durable,
    /// Written before it is answered: survives the end of the process, perhaps not a power cut.
    Appended,
}

/// What kind of write it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Op {
    /// The method's name.
    pub(super) name: &'static str,
    /// What it needs of the disk.
    pub(super) class: Class,
    /// Whether it ends something and may use the reserve of a full disk.
    pub(super) ends: bool,
}

/// Where a fault may be put into a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Before the transaction begins.
    Begin,
    /// After its statements, before the commit.
    Written,
    /// After the commit, before anybody is answered.
    Committed,
}

/// Called at each [`Point`] with the method's name; `true` makes the write fail as a broken disk would
/// (not after a commit). For tests: it may also end the process there.
pub type Faults = Arc<dyn Fn(Point, &'static str) -> bool + Send + Sync>;

trait Job: Send {
    fn op(&self) -> Op;
    /// Runs it, perhaps once more after its transaction was lost.
    fn run(&mut self, conn: &Connection);
    /// Its refusal, if it was refused.
    fn refusal(&self) -> Option<&StoreError>;
    /// Answers its caller; `lost` is the error of the transaction it was in.
    fn answer(self: Box<Self>, lost: Option<StoreError>);
}

struct Typed<T, F> {
    op: Op,
    work: F,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
    _place: OwnedSemaphorePermit,
}

impl<T: Send, F: FnMut(&Connection) -> Result<T, StoreError> + Send> Job for Typed<T, F> {
    fn op(&self) -> Op {
        self.op
    }

    fn run(&mut self, conn: &Connection) {
        self.result = Some((self.work)(conn));
    }

    fn refusal(&self) -> Option<&StoreError> {
        self.result
            .as_ref()
            .and_then(|result| result.as_ref().err())
    }

    fn answer(self: Box<Self>, lost: Option<StoreError>) {
        let Self {
            work,
            result,
            reply,
            ..
        } = *self;
        // What it holds is let go of before anybody hears of its end.
        drop(work);
        let result = match (lost, result) {
            (Some(error), _) => Err(error),
            (None, Some(result)) => result,
            (None, None) => Err(StoreError::Engine(Internal::new("a job was not run"))),
        };
        // A caller that went away needs no answer.
        let _ = reply.send(result);
    }
}

/// Durable writes and the commits they went in.
#[derive(Debug, Default)]
struct Counted {
    writes: AtomicU64,
    commits: AtomicU64,
}

/// Jobs that were handed in and not yet taken.
#[derive(Clone, Default)]
struct Tray(Arc<Mutex<VecDeque<Box<dyn Job>>>>);

impl Tray {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Box<dyn Job>>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the thread, at the latest when it is dropped, so that no job in the tray is forgotten.
struct Bell<'a>(Option<&'a Sender<()>>);

impl Bell<'_> {
    /// Rings once; whether anybody hears it.
    fn ring(&mut self) -> bool {
        self.0.take().is_some_and(|bell| bell.send(()).is_ok())
    }
}

impl Drop for Bell<'_> {
    fn drop(&mut self) {
        self.ring();
    }
}

/// The writer as its callers hold it.
pub(super) struct Writer {
    counted: Arc<Counted>,
    tray: Tray,
    bell: Option<Sender<()>>,
    places: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread. `together` commits many jobs at once.
    pub(super) fn start(
        conn: Connection,
        together: bool,
        faults: Option<Faults>,
        room: Room,
    ) -> std::io::Result<Self> {
        let (bell, rings) = channel();
        let tray = Tray::default();
        let counted = Arc::<Counted>::default();
        let desk = Desk {
            counted: Arc::clone(&counted),
            tray: tray.clone(),
            conn,
            batch_max: if together { BATCH_MAX } else { 1 },
            faults,
            room,
            synced: None,
            since_checkpoint: 0,
            suspect: false,
        };
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                // They go in the other order: once the tray is cleared for good, nobody can ring.
                let mut desk = desk;
                let rings = rings;
                desk.serve(&rings);
            })?;
        Ok(Self {
            counted,
            tray,
            bell: Some(bell),
            places: Arc::new(Semaphore::new(QUEUE_MAX)),
            thread: Some(thread),
        })
    }

    /// What was committed durably so far.
    pub(super) fn commits(&self) -> Commits {
        Commits {
            writes: self.counted.writes.load(Ordering::Relaxed),
            commits: self.counted.commits.load(Ordering::Relaxed),
        }
    }

    /// Hands in a write and waits for its answer.
    pub(super) async fn submit<T, F>(&self, op: Op, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let gone = || StoreError::Engine(Internal::new("the store's writer has ended"));
        let place = Arc::clone(&self.places).acquire_owned().await;
        let (reply, answer) = oneshot::channel();
        let job = Typed {
            op,
            work,
            result: None,
            reply,
            _place: place.map_err(|_| gone())?,
        };
        let mut bell = Bell(self.bell.as_ref());
        self.tray.lock().push_back(Box::new(job));
        tokio::task::yield_now().await;
        if !bell.ring() {
            return Err(gone());
        }
        answer.await.map_err(|_| gone())?
    }
}

impl Drop for Writer {
    /// Finishes what was handed in.
    fn drop(&mut self) {
        drop(self.bell.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the disk still has for what ends something.
pub(super) struct Room {
    pub(super) reserve: Reserve,
    /// The engine's log.
    pub(super) log: PathBuf,
}

/// The thread's own things.
struct Desk {
    conn: Connection,
    counted: Arc<Counted>,
    tray: Tray,
    batch_max: usize,
    faults: Option<Faults>,
    room: Room,
    /// How the engine is set now; `None` before the first commit.
    synced: Option<Class>,
    /// Jobs since the last checkpoint.
    since_checkpoint: usize,
    /// An earlier write failed in the disk: what was said to be written may not be there any more.
    suspect: bool,
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.tray.lock().clear();
    }
}

impl Desk {
    fn serve(&mut self, rings: &Receiver<()>) {
        loop {
            let rung = match self.since_checkpoint {
                0 => rings.recv().map_err(|_| RecvTimeoutError::Disconnected),
                1..WORTH_JOBS => rings.recv_timeout(LONG_IDLE),
                _ => rings.recv_timeout(IDLE),
            };
            match rung {
                Ok(()) => {
                    // Whoever rang has put its job into the tray before. A ring that comes after a timeout is
                    // left for the next turn: dropped here, its job would wait until somebody else rings.
                    rings.try_iter().for_each(drop);
                    self.empty_tray();
                }
                Err(RecvTimeoutError::Timeout) => self.checkpoint(),
                Err(RecvTimeoutError::Disconnected) => {
                    self.empty_tray();
                    self.checkpoint();
                    return;
                }
            }
        }
    }

    fn empty_tray(&mut self) {
        loop {
            let batch: Vec<_> = {
                let mut tray = self.tray.lock();
                let most = tray.len().min(self.batch_max);
                tray.drain(..most).collect()
            };
            if batch.is_empty() {
                return;
            }
            self.work(batch);
        }
    }

    fn work(&mut self, batch: Vec<Box<dyn Job>>) {
        let batch = self.turn_away(batch);
        self.since_checkpoint += batch.len();
        let (durable, appended): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .partition(|job| job.op().class == Class::Durable);
        for (class, mut jobs) in [(Class::Appended, appended), (Class::Durable, durable)] {
            match self.commit(class, &mut jobs) {
                Ok(()) => jobs.into_iter().for_each(|job| job.answer(None)),
                Err(_) => jobs.into_iter().for_each(|job| self.alone(class, job)),
            }
        }
        if self.since_checkpoint >= BUSY_JOBS {
            self.checkpoint();
        }
    }

    /// Refuses what begins something while no reserve is set aside; gives the rest.
    fn turn_away(&mut self, batch: Vec<Box<dyn Job>>) -> Vec<Box<dyn Job>> {
        if batch.iter().all(|job| job.op().ends) || self.room.reserve.is_held() {
            return batch;
        }
        let (ends, begins): (Vec<_>, Vec<_>) = batch.into_iter().partition(|job| job.op().ends);
        for job in begins {
            let detail = format!("{RESERVE_BYTES} bytes cannot be set aside");
            job.answer(Some(StoreError::Unwritable(Internal::new(detail))));
        }
        ends
    }

    /// Commits one job by itself, with the reserve's room if it ends something.
    fn alone(&mut self, class: Class, job: Box<dyn Job>) {
        let mut job = [job];
        let mut tried = self.commit(class, &mut job);
        if job[0].op().ends && tried.as_ref().is_err_and(is_full) {
            self.make_room();
            tried = self.commit(class, &mut job);
        }
        let [job] = job;
        job.answer(tried.err().map(|error| classify(&error)));
    }

    /// Gives the reserve up. The log has a part of it at once; the rest is for the database, which the log is
    /// moved into, so that it is written from its start again.
    fn make_room(&mut self) {
        self.room.reserve.release();
        lengthen_last(&self.room.log);
        self.move_log();
    }

    /// One transaction of the engine. An error means that nothing of it was written, or that it is unknown.
    fn commit(&mut self, class: Class, jobs: &mut [Box<dyn Job>]) -> rusqlite::Result<()> {
        if jobs.is_empty() {
            return Ok(());
        }
        let done = self.try_commit(class, jobs);
        if let Err(error) = &done {
            self.suspect |= !is_full(error);
            if !self.conn.is_autocommit() {
                // Nothing more can be done here; the next begin fails and says so.
                let _ = self.conn.execute_batch("ROLLBACK");
            }
        }
        done
    }

    fn try_commit(&mut self, class: Class, jobs: &mut [Box<dyn Job>]) -> rusqlite::Result<()> {
        self.settle(class)?;
        self.faults(Point::Begin, jobs)?;
        cached(&self.conn, "BEGIN IMMEDIATE")?;
        if !self.all(jobs)? {
            cached(&self.conn, "ROLLBACK")?;
            cached(&self.conn, "BEGIN IMMEDIATE")?;
            self.each(jobs)?;
        }
        self.faults(Point::Written, jobs)?;
        cached(&self.conn, "COMMIT")?;
        if class == Class::Durable {
            let writes = &self.counted.writes;
            writes.fetch_add(jobs.len() as u64, Ordering::Relaxed);
            self.counted.commits.fetch_add(1, Ordering::Relaxed);
        }
        self.faults(Point::Committed, jobs)
            .or_else(|_| Ok::<(), rusqlite::Error>(()))
    }

    /// Runs the jobs. `false` when one was refused that had written something, so that all must be undone.
    fn all(&self, jobs: &mut [Box<dyn Job>]) -> rusqlite::Result<bool> {
        for job in jobs {
            let before = self.conn.total_changes();
            self.run(job)?;
            if job.refusal().is_some() && self.conn.total_changes() != before {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs the jobs, each so that it can be undone alone.
    fn each(&self, jobs: &mut [Box<dyn Job>]) -> rusqlite::Result<()> {
        for job in jobs {
            cached(&self.conn, "SAVEPOINT job")?;
            self.run(job)?;
            if job.refusal().is_some() {
                cached(&self.conn, "ROLLBACK TO job")?;
            }
            cached(&self.conn, "RELEASE job")?;
        }
        Ok(())
    }

    /// Runs one. An error means that the transaction is over, or that there is no room.
    fn run(&self, job: &mut Box<dyn Job>) -> rusqlite::Result<()> {
        job.run(&self.conn);
        if self.conn.is_autocommit() || matches!(job.refusal(), Some(StoreError::Unwritable(_))) {
            return Err(full_or_lost(job.refusal()));
        }
        Ok(())
    }

    /// Sets how far a commit goes, and after a failure of the disk first moves all that was written into the
    /// database proper: what the system dropped from its cache would otherwise be missed by the next sync.
    fn settle(&mut self, class: Class) -> rusqlite::Result<()> {
        if self.suspect {
            let (busy, log, moved): (i64, i64, i64) =
                self.conn
                    .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                    })?;
            if busy != 0 || log != moved {
                return Err(broken("a failed write is not mended yet"));
            }
            self.suspect = false;
        }
        if self.synced != Some(class) {
            let word = match class {
                Class::Durable => "full",
                Class::Appended => "normal",
            };
            self.conn.pragma_update(None, "synchronous", word)?;
            self.synced = Some(class);
        }
        Ok(())
    }

    fn faults(&self, point: Point, jobs: &[Box<dyn Job>]) -> rusqlite::Result<()> {
        let Some(faults) = &self.faults else {
            return Ok(());
        };
        let mut fails = false;
        for job in jobs {
            fails |= faults(point, job.op().name);
        }
        if fails {
            return Err(broken("a fault was put in"));
        }
        Ok(())
    }

    /// Moves the log into the database, and sets aside a reserve that was used.
    fn checkpoint(&mut self) {
        self.since_checkpoint = 0;
        self.move_log();
        self.room.reserve.refill();
    }

    /// Moves the log into the database. What fails (a full disk) leaves all of it in the log, where it is safe.
    fn move_log(&self) {
        let _ = self
            .conn
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }
}

fn cached(conn: &Connection, text: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(text)?.execute([]).map(|_| ())
}

/// An error of the disk that the engine did not make itself.
fn broken(text: &str) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(
        rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR),
        Some(text.to_owned()),
    )
}

fn full_or_lost(refusal: Option<&StoreError>) -> rusqlite::Error {
    match refusal {
        Some(StoreError::Unwritable(detail)) => rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL),
            Some(detail.for_log().to_owned()),
        ),
        _ => broken("the engine gave the transaction up"),
    }
}
