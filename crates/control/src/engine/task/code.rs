//! The code of a run's WebAssembly module.
//!
//! It is waited for before anything is allocated: compiling has bounds of its own, the compiler's, and an end of its
//! own, `compile_limit`, so no lease is granted and no deadline of the run passes meanwhile. A daemon that goes away in
//! the middle leaves a run that waits. The launch asks once more, within the lease: mostly the code is there still.

use std::time::Duration;

use leasehold_backend::error::BackendError;
use leasehold_backend::seam::Readiness;
use leasehold_backend::wasm::Origin;
use leasehold_core::digest::Digest;
use leasehold_core::end::EndReason;
use leasehold_core::error::PublicError;
use leasehold_core::event::RunFact;
use tokio::time::Instant;

use super::super::live::Note;
use super::super::pen::{Stop, Write};
use super::{Task, Unbegun};

/// Longest that code is waited for; the bounds on compiling one module are below it.
const CODE_MAX: Duration = Duration::from_secs(900);
/// Pause before a compiler that has no room is asked again.
const AGAIN: Duration = Duration::from_millis(500);

/// What came of waiting.
pub(super) enum Got {
    /// It is at hand, or the run needs none.
    Code(Origin),
    /// There is none, and why.
    Error(BackendError),
    /// The end of the run was asked for meanwhile.
    Unwanted,
    /// It took longer than it was waited for.
    Late,
}

impl Task {
    /// Has the code of its module at hand; gives the end of a run that never begins.
    pub(super) async fn compiled(&mut self) -> Result<Option<Unbegun>, Stop> {
        let parts = &self.engine.parts;
        if parts.code_at_hand(&self.plan) {
            return Ok(None);
        }
        let Some((spec, _)) = self.plan.module() else {
            return Ok(None);
        };
        let spec = spec.clone();
        let readiness = match self.backend() {
            Ok(backend) => backend.readiness(spec.clone()).await,
            // The launch says so.
            Err(_) => return Ok(None),
        };
        let compiles = matches!(readiness, Readiness::Absent | Readiness::Compiling);
        if compiles {
            let module = spec.digest;
            self.live.note(Note::Compiling { module });
            let fact = RunFact::Compiling { module };
            self.pen.write(Write::Append, vec![fact]).await?;
        }
        let begun = Instant::now();
        let room_until = self.longest_wait();
        loop {
            let unable = |error: PublicError| EndReason::SandboxUnavailable {
                detail: error.message,
            };
            let error = match self.code(begun + CODE_MAX).await {
                Got::Code(Origin::Compiler) if compiles => {
                    self.tell_compiled(spec.digest, begun.elapsed()).await?;
                    return Ok(None);
                }
                Got::Code(_) => return Ok(None),
                Got::Unwanted => return Ok(Some(self.cancelled().into())),
                Got::Late => {
                    let detail = format!(
                        "waited {} s, the longest it may, for the code of its module",
                        CODE_MAX.as_secs()
                    );
                    return Ok(Some(EndReason::SandboxUnavailable { detail }.into()));
                }
                Got::Error(error) => error,
            };
            match error {
                BackendError::Unrunnable { end, detail } => {
                    return Ok(Some(Unbegun {
                        end: *end,
                        uncompiled: Some(detail),
                    }));
                }
                BackendError::Refused(error) => {
                    if !error.kind.retryable() || Instant::now() > room_until {
                        return Ok(Some(unable(error).into()));
                    }
                }
                BackendError::Lost { .. } if Instant::now() > room_until => return Ok(None),
                BackendError::Lost { .. } => {}
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn tell_compiled(&mut self, module: Digest, took: Duration) -> Result<(), Stop> {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.live.note(Note::Compiled { module, micros });
        let fact = RunFact::Compiled { module, micros };
        self.pen.write(Write::Append, vec![fact]).await
    }

    /// Waits for code until then, unless the end of the run is asked for.
    pub(super) async fn code(&self, until: Instant) -> Got {
        let parts = &self.engine.parts;
        let (Some(module), Some((spec, _)), Ok(backend)) =
            (parts.module(&self.plan), self.plan.module(), self.backend())
        else {
            return Got::Code(Origin::Memory);
        };
        let tenant = Some(self.plan.contract.tenant.clone());
        let mut wish = self.live.cancel.subscribe();
        tokio::select! {
            biased;
            _ = wish.wait_for(Option::is_some) => Got::Unwanted,
            made = backend.make_ready(spec.clone(), module, tenant) => {
                made.map_or_else(Got::Error, Got::Code)
            }
            () = tokio::time::sleep_until(until) => Got::Late,
        }
    }
}
