//! A run that shares a host with others of its tenant.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::name::Name;
use leasehold_core::quantity::write_bytes;
use leasehold_core::spec::WorkspaceMode;

use super::code::Code;
use super::room::{Full, Taken};
use super::run::{Beginning, SharedRun};
use super::runs::{Placed, Reserve, exists};
use super::{Asked, Inner, limits};
use crate::error::BackendError;
use crate::execution::{EVENTS_MAX, Events, Execution};
use crate::seam::Launch;

/// Most bytes of standard input of a shared run.
const INPUT_MAX: usize = 1 << 20;
/// The processor's share of a shared host, in thousandths of a core: all that one thread can use.
const SHARE_MILLI: u32 = 1_000;

/// When a launch came so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) launched: Instant,
    pub(super) coded: Instant,
}

/// Whether a run wants nothing that a shared host has not: files, artifacts, input that is not there yet, less of
/// the processor than its host has.
pub(super) fn suits(launch: &Launch) -> bool {
    let sandbox = &launch.sandbox;
    let exec = &launch.exec;
    let share = sandbox.limits.cpu_milli;
    let input = launch.input.as_ref();
    sandbox.workspace == WorkspaceMode::Ephemeral
        && launch.workspace.is_none()
        && exec.artifacts.is_empty()
        && exec.cwd.is_none()
        && exec.tty.is_none()
        && (!exec.stdin || input.is_some())
        && input.is_none_or(|input| input.len() <= INPUT_MAX)
        && (share.value >= SHARE_MILLI || !share.is_asked())
        && sandbox.limits.check().is_ok()
}

impl Inner {
    /// Room for so many bytes of a tenant's output. What is kept of runs that are over gives way to it, of its own
    /// where it is at its own bound.
    fn room_for_output(&self, tenant: &Name, most: u64) -> Option<Taken> {
        loop {
            let full = match self.output.take(tenant, most) {
                Ok(taken) => return Some(taken),
                Err(full) => full,
            };
            let made = match full {
                Full::Never => false,
                Full::Tenant { .. } => self.runs.forget_oldest(Some(tenant)),
                Full::All => self.runs.forget_oldest(None),
            };
            if made {
                continue;
            }
            if let Full::Tenant { has, most } = full {
                self.counts.trouble(format!(
                    "runs of tenant `{tenant}` get sandboxes of their own: those that share a host may print {}, and at most {} are kept in memory",
                    write_bytes(has),
                    write_bytes(most)
                ));
            }
            return None;
        }
    }

    /// Begins it in a shared host; `None` where there is no room for it.
    pub(super) async fn share(
        &self,
        launch: &Launch,
        tenant: &Name,
        asked: Asked<'_>,
        code: &Arc<Code>,
        times: Times,
    ) -> Result<Option<Execution>, BackendError> {
        let bounds = &launch.sandbox.limits;
        let most = bounds.output_bytes.value.saturating_mul(2);
        let Some(output) = self.room_for_output(tenant, most) else {
            return Ok(None);
        };
        let memory = bounds.memory_bytes.value;
        let Some(given) = self.hosts.seat(tenant, code, memory).await else {
            return Ok(None);
        };
        let seat = given.seat;
        let mut start = limits::start(asked, bounds);
        let input = launch.input.clone().filter(|_| launch.exec.stdin);
        let frames = seat.frames(&mut start, input.as_deref()).map_err(|error| {
            let message = format!("arguments and environment are too long for a host: {error}");
            PublicError::new(ErrorKind::Invalid, message)
        })?;
        let host = Arc::clone(seat.host());
        let beginning = Beginning {
            run: launch.run.clone(),
            sandbox: host.sandbox.clone(),
            contract: limits::contract(&host.contract, &host.posture, bounds, &launch.exec),
            limits: start.limits,
            output,
            launched: times.launched,
            coded: times.coded,
            warm: given.warm,
        };
        let lacking = |error: std::io::Error| {
            let message = format!("a run has no place for its output: {error}");
            PublicError::new(ErrorKind::NoCapacity, message)
        };
        let run = Arc::new(SharedRun::new(beginning).map_err(lacking)?);
        let (sender, events) = tokio::sync::mpsc::channel(EVENTS_MAX);
        run.kept.follow(sender);
        let mut execution = run
            .kept
            .execution(None, Events::Channel(events))
            .map_err(lacking)?;
        execution.fed = input.as_ref().map(|input| input.len() as u64);
        execution.hold(run.clone());
        match self.runs.reserve(&launch.run) {
            Ok(()) => {}
            Err(Reserve::Exists) => return Err(exists(&launch.run).into()),
            // Another process has shared runs here, or the disk takes nothing.
            Err(Reserve::Unable(error)) => {
                self.counts.trouble(format!("no run is shared: {error}"));
                return Ok(None);
            }
        }
        let placed = Placed {
            tenant: tenant.clone(),
            run: Arc::clone(&run),
            sandbox: host.sandbox.clone(),
            host: Arc::downgrade(&host),
            number: seat.number(),
        };
        self.runs.place(launch.run.clone(), placed);
        let wall = Duration::from_millis(bounds.wall_ms.value);
        seat.begin(launch.run.clone(), &run, frames, input, wall);
        Ok(Some(execution))
    }
}
