//! The image of a run.
//!
//! It is waited for before anything is allocated, as the code of a module is: so no lease is granted and no deadline
//! of the run passes meanwhile, and neither a wish for its end nor a daemon that goes away leaves half a computer.

use std::time::Duration;

use leasehold_core::end::EndReason;
use leasehold_core::error::PublicError;
use leasehold_core::event::RunFact;
use tokio::time::Instant;

use super::super::live::Note;
use super::super::pen::{Stop, Write};
use super::{Task, Unbegun};

/// Longest that an image is waited for. The bounds on one download and on unpacking are the store's.
const PULL_MAX: Duration = Duration::from_secs(7_200);

impl Task {
    /// Has the image of its run here; gives the end of a run that never begins.
    pub(super) async fn pulled(&mut self) -> Result<Option<Unbegun>, Stop> {
        let Some(start) = self.plan.start.image.clone() else {
            return Ok(None);
        };
        let images = std::sync::Arc::clone(&self.engine.parts.images);
        let tenant = self.plan.contract.tenant.clone();
        let unable = |error: &PublicError| {
            let mend = error.hint.as_deref();
            let mend = mend.map_or_else(String::new, |hint| format!("; {hint}"));
            let detail = format!(
                "its image {} cannot be had: {}{mend}",
                start.name, error.message
            );
            Ok(Some(EndReason::SandboxUnavailable { detail }.into()))
        };
        match images.here(tenant.clone(), start.digest).await {
            Ok(true) => return Ok(None),
            Ok(false) => {}
            Err(error) => return unable(&error),
        }
        let image = start.digest;
        self.live.note(Note::Pulling { image });
        let fact = RunFact::Pulling { image };
        self.pen.write(Write::Append, vec![fact]).await?;
        let begun = Instant::now();
        let mut wish = self.live.cancel.subscribe();
        let brought = tokio::select! {
            biased;
            _ = wish.wait_for(Option::is_some) => None,
            brought = images.bring(tenant, start.clone()) => Some(brought),
            () = tokio::time::sleep(PULL_MAX) => {
                let detail = format!(
                    "waited {} s, the longest it may, for its image {}",
                    PULL_MAX.as_secs(), start.name
                );
                return Ok(Some(EndReason::SandboxUnavailable { detail }.into()));
            }
        };
        match brought {
            None => Ok(Some(self.cancelled().into())),
            Some(Err(error)) => unable(&error),
            Some(Ok(())) => {
                let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.live.note(Note::Pulled { image, micros });
                let fact = RunFact::Pulled { image, micros };
                self.pen.write(Write::Append, vec![fact]).await?;
                Ok(None)
            }
        }
    }
}
