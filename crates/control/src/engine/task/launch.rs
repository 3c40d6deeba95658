//! The message that begins a run, and what becomes of one whose answer was lost.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use leasehold_backend::error::BackendError;
use leasehold_backend::execution::Execution;
use leasehold_backend::seam::Launch;
use leasehold_core::end::{EndReason, LeaseExpiry};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_core::spec::SandboxSpec;
use tokio::time::Instant;

use super::super::live::Note;
use super::super::metrics::count;
use super::super::pen::Stop;
use super::code::Got;
use super::{Task, Unbegun, Went};

/// So often a launch is tried that the backend refuses for want of room, or that never arrived.
const TRIES_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What came of an order.
enum Sent {
    /// It is there.
    Begun(Box<Execution>),
    /// It was not given: this is the end.
    Not(EndReason),
}

/// The end of a run whose allocation is over.
fn overdue() -> EndReason {
    let cause = LeaseExpiry::Deadline;
    EndReason::LeaseExpired { cause }
}

/// What the backend knows of a run.
pub(super) enum Found {
    /// It is there, or its record is.
    There(Box<Execution>),
    /// It was never begun there.
    Never,
    /// The backend cannot be asked, and the allocation is over; or it is not there any more.
    Unreachable,
}

impl Task {
    /// Begins the run under its lease.
    pub(super) async fn launch(&mut self) -> Result<Went, Stop> {
        let begun = Instant::now();
        let mut tries = 0;
        let mut begun_there = false;
        loop {
            tries += 1;
            if self.unwanted() {
                return Ok(Went::Never(self.cancelled().into()));
            }
            let workspace = match self.workspace().await {
                Ok(workspace) => workspace,
                Err(error) => return Ok(never(&error)),
            };
            let error = match self.send(workspace).await {
                Ok(Sent::Begun(execution)) => {
                    self.engine.metrics.launched.add(begun.elapsed());
                    self.fed = execution.fed;
                    return Ok(Went::Follow(Box::new(self.take_up(*execution))));
                }
                Ok(Sent::Not(end)) => return Ok(Went::Never(end.into())),
                Err(error) => error,
            };
            match error {
                BackendError::Refused(error) if error.kind == ErrorKind::Exists => {
                    begun_there = true
                }
                BackendError::Refused(error) => {
                    if !error.kind.retryable() {
                        return Ok(never(&error));
                    }
                    if tries == TRIES_MAX {
                        return Ok(Went::NotNow(unavailable(&error)));
                    }
                    tokio::time::sleep(PAUSE * 10).await;
                    continue;
                }
                BackendError::Unrunnable { end, detail } => {
                    return Ok(Went::Never(Unbegun {
                        end: *end,
                        uncompiled: Some(detail),
                    }));
                }
                BackendError::Lost { .. } => count(&self.engine.metrics.backend_errors),
            }
            // It may have arrived: only the backend can say.
            match self.find(&self.id(), false).await {
                Found::There(execution) => {
                    return Ok(Went::Follow(Box::new(self.take_up(*execution))));
                }
                // It was there, and what it left was pruned before anybody took it.
                Found::Never if begun_there => return Ok(Went::Unknown),
                Found::Never if tries < TRIES_MAX => {}
                Found::Never => {
                    let message = "the worker took no run";
                    let error = PublicError::new(ErrorKind::Unavailable, message);
                    return Ok(Went::NotNow(unavailable(&error)));
                }
                Found::Unreachable => return Ok(Went::Unknown),
            }
        }
    }

    async fn send(&self, workspace: Option<OwnedFd>) -> Result<Sent, BackendError> {
        let mut exec = self.plan.start.exec.clone();
        exec.stdin |= self.plan.start.stdin.is_some();
        let parts = &self.engine.parts;
        let script = parts.script(&self.plan).await?;
        let stdin = self.plan.start.stdin.as_deref();
        let input = stdin.filter(|_| exec.module.is_some()).map(Into::into);
        let mut launch = Launch {
            workspace,
            input,
            module: parts.module(&self.plan),
            script,
            tenant: Some(self.plan.contract.tenant.clone()),
            ..Launch::new(self.id(), self.plan.start.sandbox.clone(), exec)
        };
        let backend = self.backend()?;
        // What was at hand when the lease was granted may be there no more, as after a restart.
        match self.code(self.deadline).await {
            Got::Code(_) => {}
            Got::Unwanted => return Ok(Sent::Not(self.cancelled())),
            Got::Late => return Ok(Sent::Not(overdue())),
            Got::Error(error) => return Err(error),
        }
        let Some(sandbox) = self.spec() else {
            return Ok(Sent::Not(overdue()));
        };
        launch.sandbox = sandbox;
        if let Some(image) = &self.plan.start.image {
            let tenant = self.plan.contract.tenant.clone();
            let mounted = parts.images.mount(tenant, image.clone()).await?;
            let asked = std::mem::replace(&mut launch.exec.env, mounted.env);
            launch.exec.env.extend(asked);
            launch.exec.cwd = launch.exec.cwd.take().or(mounted.cwd);
            launch.sandbox.image = Some(mounted.spec);
            launch.image = Some(mounted.files);
        }
        self.engine.failpoints().before("launch");
        let launched = backend.launch(launch).await;
        self.engine.failpoints().after("launch");
        launched.map(|execution| Sent::Begun(Box::new(execution)))
    }

    /// The computer as asked, its wall limit cut so that the worker ends it in time although nobody here
    /// does. `None` when no time is left.
    fn spec(&self) -> Option<SandboxSpec> {
        let mut sandbox = self.plan.start.sandbox.clone();
        let left = self.deadline.saturating_duration_since(Instant::now());
        let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let left = left.checked_sub(sandbox.limits.grace_ms)?;
        let wall = &mut sandbox.limits.wall_ms;
        wall.value = wall.value.min(left);
        (wall.value > 0).then_some(sandbox)
    }

    async fn workspace(&self) -> Result<Option<OwnedFd>, PublicError> {
        let broken = |error: io::Error| {
            let message = format!("the workspace directory cannot be passed on: {error}");
            PublicError::new(ErrorKind::Unavailable, message)
        };
        if let Some(directory) = &self.directory {
            return directory.try_clone().map(Some).map_err(broken);
        }
        if !self.plan.start.workspace.is_empty() {
            let archives = self.plan.start.workspace.clone();
            let run = self.live.run.clone();
            return self
                .engine
                .parts
                .workspaces
                .unpack(run, archives)
                .await
                .map(Some);
        }
        if self.plan.start.sandbox.workspace.needs_directory() {
            let message =
                "the workspace directory was passed by a caller that is gone since a restart";
            return Err(PublicError::new(ErrorKind::Unavailable, message));
        }
        Ok(None)
    }

    /// Notes that it is there and where its output is.
    pub(super) fn take_up(&self, execution: Execution) -> Execution {
        let (sandbox, warm) = (execution.sandbox.clone(), execution.warm);
        let spools = (execution.stdout.try_clone(), execution.stderr.try_clone());
        if let (Ok(stdout), Ok(stderr)) = spools {
            self.live.set_spools([stdout, stderr]);
        }
        self.live.see(|seen| {
            let known = seen.row.sandbox.replace(sandbox.clone());
            if known.as_ref() != Some(&sandbox) {
                seen.notes.push(Note::Start { sandbox, warm });
            }
        });
        execution
    }

    /// Asks the backend for a run, again while it cannot be asked and the allocation lasts. A wish for its end is
    /// passed on meanwhile. `ends` says that it takes no more descriptors than it gives back, so that it may
    /// have what is set aside for ends.
    pub(super) async fn find(&self, run: &RunId, ends: bool) -> Found {
        let Ok(backend) = self.backend() else {
            return Found::Unreachable;
        };
        let descriptors = &self.engine.parts.descriptors;
        let mut pause = PAUSE;
        let mut wished = false;
        let mut given_up = None;
        loop {
            self.engine.failpoints().before("attach");
            match backend.attach(run.clone()).await {
                Ok(execution) => {
                    self.engine.failpoints().after("attach");
                    return Found::There(Box::new(execution));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => return Found::Never,
                Err(_) => count(&self.engine.metrics.backend_errors),
            }
            drop(given_up.take());
            if self.unwanted() && !wished {
                let by = self.wished_by();
                wished = backend.cancel(run.clone(), by, false).await.is_ok();
            }
            if Instant::now() > self.deadline + self.engine.parts.settings.removal_max {
                return Found::Unreachable;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            if ends {
                given_up = descriptors.for_an_end().await;
            }
        }
    }
}

fn unavailable(error: &PublicError) -> EndReason {
    let detail = error.message.clone();
    EndReason::SandboxUnavailable { detail }
}

fn never(error: &PublicError) -> Went {
    Went::Never(unavailable(error).into())
}
