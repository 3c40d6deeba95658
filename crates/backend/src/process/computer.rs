//! One sandbox of the supervisor's, and the runs in it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::contract::Contract;
use leasehold_core::end::CancelledBy;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::record::{Observed, Usage};
use leasehold_core::spec::ExecSpec;
use leasehold_protocol::supervisor::{Event, Request, Target};

use super::client::ClientError;
use super::link::OpenCall;
use super::{DESTROY, QUICK, Shared, Supply, no_modules, ordered};
use crate::error::BackendError;
use crate::execution::{Events, Execution, RunEvent};
use crate::seam::{Computer, Doing};
use crate::wasm::Module;

/// A sandbox that the supervisor parents.
#[derive(Debug)]
pub(crate) struct ProcessComputer {
    shared: Arc<Shared>,
    sandbox: SandboxId,
    contract: Contract,
    /// The run it was claimed for.
    run: Mutex<Option<RunId>>,
}

impl ProcessComputer {
    pub(super) fn new(shared: Arc<Shared>, sandbox: SandboxId, contract: Contract) -> Self {
        Self {
            shared,
            sandbox,
            contract,
            run: Mutex::new(None),
        }
    }

    pub(super) async fn end(&self) -> Result<Observed, ClientError> {
        destroy(&self.shared, &self.sandbox).await
    }

    /// Claims it for a run, whose program may come with it.
    pub(crate) async fn claim(
        &self,
        run: RunId,
        exec: ExecSpec,
        program: Option<Supply<'_>>,
    ) -> Result<Execution, ClientError> {
        let link = self.shared.link().await?;
        let target = Target::Parked(self.sandbox.clone());
        let (request, fds) = ordered(run.clone(), target, exec, program);
        let execution = follow(link.call(request, &fds).await?, QUICK).await?;
        *self.claimed() = Some(run);
        Ok(execution)
    }

    fn claimed(&self) -> std::sync::MutexGuard<'_, Option<RunId>> {
        // Nothing panics while it holds this lock.
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn end_run(&self, by: CancelledBy, at_once: bool) -> Result<(), ClientError> {
        let claimed = self.claimed().clone();
        let Some(run) = claimed else {
            let message = format!("sandbox `{}` has no run to end", self.sandbox);
            return Err(PublicError::new(ErrorKind::WrongState, message).into());
        };
        let request = Request::Cancel { run, by, at_once };
        match self.shared.ask(request, &[], QUICK).await? {
            (Event::Done, _) => Ok(()),
            _ => Err(ClientError::Unexpected { request: "cancel" }),
        }
    }

    async fn agent(&self) -> Result<OwnedFd, ClientError> {
        let request = Request::Agent {
            sandbox: self.sandbox.clone(),
        };
        let program = self.shared.agent()?;
        match self.shared.ask(request, &[program], QUICK).await? {
            (Event::Channel, mut fds) if fds.len() == 1 => fds.pop().ok_or(ClientError::Gone),
            _ => Err(ClientError::Unexpected { request: "agent" }),
        }
    }

    async fn used(&self) -> Result<Usage, ClientError> {
        let request = Request::Usage {
            sandbox: self.sandbox.clone(),
        };
        match self.shared.ask(request, &[], QUICK).await? {
            (Event::Usage(usage), _) => Ok(usage),
            _ => Err(ClientError::Unexpected { request: "usage" }),
        }
    }
}

/// Ends a sandbox. Asked again when the supervisor went away meanwhile: its successor has swept, and
/// says what it found.
pub(super) async fn destroy(shared: &Shared, sandbox: &SandboxId) -> Result<Observed, ClientError> {
    let request = || Request::Destroy {
        sandbox: sandbox.clone(),
    };
    let answer = match shared.ask(request(), &[], DESTROY).await {
        Err(ClientError::Gone) => shared.ask(request(), &[], DESTROY).await?,
        other => other?,
    };
    match answer {
        (Event::Destroyed(observed), _) => Ok(observed),
        _ => Err(ClientError::Unexpected { request: "destroy" }),
    }
}

/// Waits until a run is accepted; what happens in it then is read from the call.
pub(super) async fn follow(
    mut call: OpenCall,
    patience: Duration,
) -> Result<Execution, ClientError> {
    let first = tokio::time::timeout(patience, call.next()).await;
    let (event, mut fds) = first.map_err(|_| ClientError::Silent { waited: patience })??;
    let Event::Accepted {
        run,
        sandbox,
        input,
        warm,
    } = event
    else {
        return Err(ClientError::Unexpected { request: "run" });
    };
    let got = fds.len();
    let input = if input { fds.pop() } else { None };
    let spools: [OwnedFd; 2] = fds
        .try_into()
        .map_err(|_| ClientError::Descriptors { want: 2, got })?;
    let events = Events::Notices(Notices { call: Some(call) });
    let mut execution = Execution::new(run, sandbox, spools, input, events);
    execution.warm = warm;
    Ok(execution)
}

/// What the supervisor tells of one run. Ends with the run or with the supervisor.
#[derive(Debug)]
pub(crate) struct Notices {
    call: Option<OpenCall>,
}

impl Notices {
    pub(crate) async fn next(&mut self) -> Option<Result<RunEvent, BackendError>> {
        loop {
            let heard = self.call.as_mut()?.next().await;
            let event = match heard {
                Ok((Event::Stage(time), _)) => RunEvent::Stage(time),
                Ok((Event::Output { stdout, stderr }, _)) => RunEvent::Output { stdout, stderr },
                Ok((Event::Ended(record), _)) => RunEvent::Ended(record),
                Ok((Event::Cleaned(record), _)) => {
                    self.call = None;
                    RunEvent::Cleaned(record)
                }
                Ok(_) => continue,
                Err(error) => {
                    self.call = None;
                    return Some(Err(error.into()));
                }
            };
            return Some(Ok(event));
        }
    }
}

impl Computer for ProcessComputer {
    fn id(&self) -> &SandboxId {
        &self.sandbox
    }

    fn contract(&self) -> &Contract {
        &self.contract
    }

    fn run(
        &self,
        run: RunId,
        exec: ExecSpec,
        _: Option<Module>,
    ) -> Doing<'_, Result<Execution, BackendError>> {
        Box::pin(async {
            if exec.module.is_some() {
                return Err(no_modules().into());
            }
            Ok(self.claim(run, exec, None).await?)
        })
    }

    fn cancel(&self, by: CancelledBy, at_once: bool) -> Doing<'_, Result<(), BackendError>> {
        Box::pin(async move { Ok(self.end_run(by, at_once).await?) })
    }

    fn channel(&self) -> Doing<'_, Result<OwnedFd, BackendError>> {
        Box::pin(async { Ok(self.agent().await?) })
    }

    fn usage(&self) -> Doing<'_, Result<Usage, BackendError>> {
        Box::pin(async { Ok(self.used().await?) })
    }

    fn destroy(&self) -> Doing<'_, Result<Observed, BackendError>> {
        Box::pin(async { Ok(self.end().await?) })
    }
}
