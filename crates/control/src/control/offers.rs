//! What the backends offer on this host, as they last said.
//!
//! Each is tried by itself, and not before somebody could have it: what is tried makes computers. One that could be
//! used is believed for a while and then tried again beside the run that asks; one that could not is tried again
//! for every run of the kind that it would be for, so that what was mended is used without a restart. No run waits
//! for a backend that it could not have.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_backend::seam::Backend;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::select::{Offer, Runtime};
use serde_json::{Value, json};

use crate::admission;
use crate::clock::Clock;
use crate::engine::backends::Backends;

/// How long what a backend said of this host is believed.
const BELIEVED: Duration = Duration::from_secs(30);

/// What a backend said.
#[derive(Debug, Clone)]
struct Answer {
    offer: Offer,
    /// It cannot be used for now, and that may pass by itself.
    passing: bool,
    at: Duration,
}

struct Entry {
    backend: Arc<dyn Backend>,
    answer: Mutex<Option<Answer>>,
    /// Whoever tries it out.
    trying: tokio::sync::Mutex<()>,
}

/// What all of them offer.
#[derive(Debug, Default)]
pub(super) struct Offered {
    /// One for each backend, and one for each isolation that none has.
    pub(super) list: Vec<Offer>,
    /// Kinds of program whose backend cannot be asked for now.
    passing: Vec<Runtime>,
}

impl Offered {
    /// What to say of a refusal that is the fault of a backend which may be there again soon. What is wrong
    /// with it is for the log alone.
    pub(super) fn excuse(&self, refused: PublicError, runtime: Runtime) -> PublicError {
        if refused.kind != ErrorKind::Unsupported || !self.passing.contains(&runtime) {
            return refused;
        }
        let message = "the worker of this daemon cannot be reached just now";
        PublicError::new(ErrorKind::Unavailable, message).hint(
            "try again; what is wrong is in the daemon's log, and at /v1/workers for an operator",
        )
    }
}

/// The backends and what they said.
#[derive(Clone)]
pub(super) struct Offers {
    entries: Arc<[Arc<Entry>]>,
    whole: Arc<Mutex<Arc<Offered>>>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Offers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Offers").finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Entry {
    fn runtime(&self) -> Runtime {
        admission::runtime(self.backend.isolation())
    }

    fn answer(&self) -> Option<Answer> {
        locked(&self.answer).clone()
    }

    /// What it offers as far as anybody knows.
    fn offer(&self) -> Offer {
        let untried = || {
            let why = "it was not tried out yet: nobody asked for a program of its kind";
            let untried = PublicError::new(ErrorKind::Unavailable, why);
            let (name, isolation) = (self.backend.name(), self.backend.isolation());
            admission::offer(name, isolation, Err(untried))
        };
        self.answer().map_or_else(untried, |answer| answer.offer)
    }
}

impl Offers {
    pub(super) fn new(backends: &Backends, clock: Arc<dyn Clock>) -> Self {
        let entry = |backend: &Arc<dyn Backend>| {
            Arc::new(Entry {
                backend: Arc::clone(backend),
                answer: Mutex::new(None),
                trying: tokio::sync::Mutex::default(),
            })
        };
        Self {
            entries: backends.iter().map(entry).collect(),
            whole: Arc::default(),
            clock,
        }
    }

    /// What there is for a program of a kind.
    pub(super) async fn get(&self, runtime: Runtime) -> Arc<Offered> {
        let since = self.clock.elapsed();
        let could_be_had = |entry: &&Arc<Entry>| entry.runtime() == runtime;
        for entry in self.entries.iter().filter(could_be_had) {
            let answer = entry.answer();
            let good = answer
                .as_ref()
                .is_some_and(|answer| answer.offer.state.is_ok());
            let fresh = answer.is_some_and(|answer| since.saturating_sub(answer.at) < BELIEVED);
            if good && (fresh || entry.trying.try_lock().is_err()) {
                continue;
            }
            let (offers, entry) = (self.clone(), Arc::clone(entry));
            // By itself: a caller that goes away leaves nothing half made.
            let trying = tokio::spawn(async move { offers.try_out(&entry, since).await });
            if !good {
                // Where it fell over, the offer says that it was not tried.
                let _ = trying.await;
            }
        }
        Arc::clone(&locked(&self.whole))
    }

    /// What each backend is and whether it can be used, for people: `null` in `why_not` where it can.
    pub(super) fn told(&self) -> Value {
        let told = |entry: &Arc<Entry>| {
            let offer = entry.offer();
            json!({
                "backend": offer.backend,
                "isolation": offer.isolation.word(),
                "zone": offer.zone,
                "why_not": offer.state.err(),
            })
        };
        json!({ "backends": self.entries.iter().map(told).collect::<Vec<_>>() })
    }

    /// Tries one out, unless somebody did since.
    async fn try_out(&self, entry: &Entry, since: Duration) {
        let _trying = entry.trying.lock().await;
        if entry.answer().is_some_and(|answer| answer.at > since) {
            return;
        }
        let probed = entry.backend.probe().await;
        let (name, isolation) = (entry.backend.name(), entry.backend.isolation());
        if let Err(error) = &probed {
            tracing::warn!(backend = name, %error, "it cannot be used");
        }
        let passing = probed.as_ref().is_err_and(|error| error.kind.retryable());
        *locked(&entry.answer) = Some(Answer {
            offer: admission::offer(name, isolation, probed),
            passing,
            at: self.clock.elapsed(),
        });
        self.put_together();
    }

    fn put_together(&self) {
        // Whoever comes later has seen the later answers.
        let mut whole = locked(&self.whole);
        let mut list: Vec<Offer> = self.entries.iter().map(|entry| entry.offer()).collect();
        list.extend(admission::unbuilt(&list));
        let passing = |entry: &&Arc<Entry>| entry.answer().is_some_and(|answer| answer.passing);
        let passing = self.entries.iter().filter(passing);
        let passing = passing.map(|entry| entry.runtime()).collect();
        *whole = Arc::new(Offered { list, passing });
    }
}

#[cfg(test)]
mod tests {
    use leasehold_backend::fake::FakeBackend;
    use leasehold_core::isolation::Isolation;

    use super::*;
    use crate::clock::SystemClock;

    fn refuse(kind: ErrorKind) -> PublicError {
        PublicError::new(kind, "a test said so")
    }

    struct Both {
        process: FakeBackend,
        wasm: FakeBackend,
        offers: Offers,
    }

    impl Both {
        fn new() -> Self {
            let process = FakeBackend::called("process", Isolation::Process);
            let wasm = FakeBackend::called("wasm", Isolation::Wasm);
            let backends = Backends::of(Arc::new(process.clone())).with(Arc::new(wasm.clone()));
            Self {
                offers: Offers::new(&backends, Arc::new(SystemClock::new())),
                process,
                wasm,
            }
        }

        async fn state(&self, runtime: Runtime, backend: &str) -> Result<(), String> {
            let offered = self.offers.get(runtime).await;
            let found = offered.list.iter().find(|offer| offer.backend == backend);
            found.unwrap().state.clone().map(drop)
        }
    }

    #[tokio::test]
    async fn a_backend_that_could_not_be_used_is_tried_again_for_whoever_could_have_it() {
        let both = Both::new();
        let unusable = |error| both.wasm.faults(|faults| faults.unusable = error);
        unusable(Some(refuse(ErrorKind::Unsupported)));
        assert_eq!(both.state(Runtime::Command, "process").await, Ok(()));
        let told = both.state(Runtime::Wasm, "wasm").await;
        assert_eq!(told, Err("a test said so".to_owned()));
        // Nobody said that anything was mended.
        unusable(None);
        assert_eq!(both.state(Runtime::Wasm, "wasm").await, Ok(()));
        // What is good is believed for a while.
        unusable(Some(refuse(ErrorKind::Unsupported)));
        assert_eq!(both.state(Runtime::Wasm, "wasm").await, Ok(()));
    }

    #[tokio::test]
    async fn a_backend_is_not_tried_before_somebody_could_have_it() {
        let both = Both::new();
        let tried = |backend: &FakeBackend| backend.probes();
        for _ in 0..3 {
            assert_eq!(both.state(Runtime::Command, "process").await, Ok(()));
            tokio::task::yield_now().await;
        }
        assert_eq!((tried(&both.process), tried(&both.wasm)), (1, 0));
        let told = both.state(Runtime::Command, "wasm").await.unwrap_err();
        assert!(told.contains("nobody asked"), "{told}");
        assert_eq!(both.state(Runtime::Wasm, "wasm").await, Ok(()));
        assert_eq!((tried(&both.process), tried(&both.wasm)), (1, 1));
    }

    #[tokio::test]
    async fn a_refusal_that_may_pass_is_told_as_such_to_whom_it_concerns() {
        let both = Both::new();
        let gone = Some(refuse(ErrorKind::Unavailable));
        both.process.faults(|faults| faults.unusable = gone);
        let refused = || refuse(ErrorKind::Unsupported);
        let offered = both.offers.get(Runtime::Command).await;
        let excuse = offered.excuse(refused(), Runtime::Command);
        assert!(excuse.kind.retryable() && excuse.hint.is_some(), "{excuse}");
        let forbidden = refuse(ErrorKind::Forbidden);
        assert_eq!(
            offered.excuse(forbidden.clone(), Runtime::Command),
            forbidden
        );
        let offered = both.offers.get(Runtime::Wasm).await;
        assert_eq!(offered.excuse(refused(), Runtime::Wasm), refused());
    }

    #[tokio::test]
    async fn there_is_an_offer_for_every_isolation_and_an_instance_costs_least() {
        let both = Both::new();
        let offered = both.offers.get(Runtime::Wasm).await;
        let both_told = both.offers.get(Runtime::Command).await;
        for list in [&offered.list, &both_told.list] {
            for level in Isolation::ALL {
                assert!(
                    list.iter().any(|offer| offer.isolation == level),
                    "{level:?}"
                );
            }
        }
        let least = both_told.list.iter().min_by_key(|offer| offer.cost);
        assert_eq!(least.unwrap().backend, "wasm");
    }
}
