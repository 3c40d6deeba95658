//! Carries runs: who goes next, the lease, the computer, the result, the proof; and picks all of it up again
//! after a restart.
//!
//! Start with [`task`]: one run from its turn to its seal, and the order of what is durable. [`queue`] decides
//! who goes next, [`recover`] moves rows and host together again, [`live`] is what everybody may look at
//! meanwhile. Everything outside is behind a seam of [`parts`].

pub mod backends;
pub mod descriptors;
pub mod failpoint;
mod floor;
mod live;
mod metrics;
pub mod modules;
mod outputs;
pub mod parts;
mod pen;
pub mod queue;
mod recover;
mod retention;
mod submit;
mod task;
mod warm;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_core::name::Name;
use leasehold_store::seam::StoreError;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use self::failpoint::Failpoints;
use self::floor::Floor;
pub(crate) use self::live::{Cancel, Live, Note, Seen};
use self::metrics::Metrics;
use self::parts::Parts;
pub(crate) use self::retention::pruned;
pub(crate) use self::warm::Slot;

/// Pause between two looks at what is still running while draining.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Lets one through at a time.
type Gate = Arc<tokio::sync::Mutex<()>>;

/// So often the task of one run may fall over.
const FALLS_MAX: u32 = 3;

/// The engine of one daemon.
pub struct Engine {
    pub(crate) parts: Parts,
    floor: Floor,
    pub(crate) metrics: Metrics,
    live: Mutex<HashMap<RunId, Arc<Live>>>,
    tasks: Mutex<HashMap<RunId, AbortHandle>>,
    /// Runs that nobody carries because trying again would not help, and why.
    stuck: Mutex<BTreeMap<RunId, String>>,
    /// How often the task of a run fell over.
    falls: Mutex<HashMap<RunId, u32>>,
    /// Requests under one idempotency key go one after another.
    keys: Mutex<HashMap<(Name, String), Gate>>,
    draining: watch::Sender<bool>,
    leaving: watch::Sender<bool>,
    /// Runs that were let go of before their seal, to be looked at in the next round.
    dropped: Mutex<HashSet<RunId>>,
    /// How far the walk through rows that are not sealed has come.
    walked: Mutex<Option<(u64, RunId)>>,
    /// Which objects are looked at next, by the first byte of their digest.
    swept: AtomicU8,
    /// One upload at a time, so that what is over the bound is never written.
    pub(crate) uploading: tokio::sync::Mutex<()>,
    /// What is kept parked.
    pub(crate) warm: warm::Warm,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Engine").finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Starts: takes up what an earlier process left, then compares rows and host every so often. What was
    /// admitted before goes on; what cannot be asked yet is asked again.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn start(parts: Parts) -> Result<Arc<Self>, StoreError> {
        let engine = Arc::new(Self {
            floor: Floor::new(parts.settings.bounds, Arc::clone(&parts.descriptors)),
            parts,
            metrics: Metrics::default(),
            live: Mutex::default(),
            tasks: Mutex::default(),
            stuck: Mutex::default(),
            falls: Mutex::default(),
            keys: Mutex::default(),
            draining: watch::Sender::new(false),
            leaving: watch::Sender::new(false),
            dropped: Mutex::default(),
            walked: Mutex::default(),
            swept: AtomicU8::new(0),
            uploading: tokio::sync::Mutex::default(),
            warm: warm::Warm::default(),
        });
        let tenants = engine.parts.store.tenants().await?;
        engine.floor.set_alone(tenants.len() <= 1);
        engine.take_up_all().await?;
        tokio::spawn(recover::keep_together(Arc::downgrade(&engine)));
        Ok(engine)
    }

    /// The run, if this process carries it.
    pub(crate) fn live(&self, run: &RunId) -> Option<Arc<Live>> {
        locked(&self.live).get(run).cloned()
    }

    /// How many runs this process carries: those that wait, run, or whose removal is not seen yet.
    #[must_use]
    pub fn carried(&self) -> usize {
        locked(&self.live).len()
    }

    fn forget(&self, run: &RunId) {
        locked(&self.live).remove(run);
        locked(&self.tasks).remove(run);
    }

    /// Has a run looked at in the next round: nobody carries it, and it may not be sealed.
    fn drop_run(&self, run: &RunId) {
        locked(&self.dropped).insert(run.clone());
    }

    /// The task of a run fell over: a bug of ours. It is taken up again, but not for ever.
    fn fell(&self, run: &RunId) {
        metrics::count(&self.metrics.fell);
        let falls = {
            let mut all = locked(&self.falls);
            let falls = all.entry(run.clone()).or_default();
            *falls += 1;
            *falls
        };
        if falls == FALLS_MAX {
            locked(&self.falls).remove(run);
            self.quarantine(run.clone(), "its task fell over again and again".to_owned());
        }
    }

    fn quarantine(&self, run: RunId, why: String) {
        metrics::count(&self.metrics.quarantined);
        locked(&self.stuck).insert(run, why);
    }

    /// The test hooks of this process.
    pub(crate) fn failpoints(&self) -> &Failpoints {
        &self.parts.failpoints
    }

    /// Whether it can serve.
    pub(crate) async fn ready(&self) -> Result<(), PublicError> {
        if self.draining() {
            return Err(about_to_end());
        }
        let tenants = self.parts.store.tenants().await;
        tenants.map_err(|error| error.public())?;
        match self.parts.backends.running().await.failures.first() {
            None => Ok(()),
            Some((backend, error)) => {
                tracing::warn!(backend, %error, "the worker cannot be asked");
                let message = "the worker cannot be asked";
                Err(PublicError::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// There is a tenant more: places are kept for those that hold none from now on.
    pub(crate) fn tenant_came(&self) {
        self.floor.set_alone(false);
    }

    /// Runs that are stuck and why. They are shown, never tried again by themselves.
    pub fn stuck(&self) -> Vec<(RunId, String)> {
        let stuck = locked(&self.stuck);
        stuck
            .iter()
            .map(|(run, why)| (run.clone(), why.clone()))
            .collect()
    }

    /// Whether it takes new runs.
    pub(crate) fn draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Tells when it takes new runs no more.
    pub(crate) fn drains(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// Ends it for now: nothing new is admitted and nobody gets a turn; what runs may end within `bound`,
    /// what does not is left to the worker and what waits is left in its rows. The next start takes both up.
    pub async fn drain(&self, bound: Duration) {
        self.draining.send_replace(true);
        self.floor.close();
        let until = Instant::now() + bound;
        while self.floor.running() > 0 && Instant::now() < until {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        for (_, task) in locked(&self.tasks).drain() {
            task.abort();
        }
        for (_, live) in locked(&self.live).drain() {
            live.see(|seen| seen.left = true);
        }
    }

    /// Tells whoever waits for a run or follows one that this process goes; the run goes on.
    pub fn leave(&self) {
        self.leaving.send_replace(true);
    }

    /// Whether it goes.
    pub(crate) fn leaving(&self) -> watch::Receiver<bool> {
        self.leaving.subscribe()
    }

    /// Counters in the text form that Prometheus reads.
    pub(crate) fn print_metrics(&self) -> String {
        let depths = self.floor.depths();
        let depths: Vec<(u32, u32)> = depths
            .into_iter()
            .map(|(_, queued, running)| (queued, running))
            .collect();
        self.metrics.print(&depths, self.parts.store.commits())
    }
}

/// The refusal of a daemon that is about to end.
fn about_to_end() -> PublicError {
    PublicError::new(ErrorKind::Unavailable, "the daemon is about to end")
        .hint("try again once it has been started again")
        .retry_after_ms(1_000)
}
