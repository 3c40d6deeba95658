//! Sandboxes of Linux namespaces, made by the supervisor; here is its client.
//!
//! Nothing here makes a namespace, a mount or a cgroup: the supervisor parents every sandbox and
//! outlives whoever asked for it. [`client`] is blocking and free of any runtime, for the command
//! line's short path; [`ProcessBackend`] is the same conversation behind the seam.

pub mod client;
mod computer;
mod link;
pub mod start;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::contract::Contract;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::isolation::Isolation;
use leasehold_core::limits::{Limit, Limits};
use leasehold_core::sandbox::state::State;
use leasehold_core::spec::{SandboxSpec, WorkspaceMode};
use leasehold_protocol::supervisor::{Event, Request};

use self::client::ClientError;
use self::computer::ProcessComputer;
use self::link::Link;
use self::start::Endpoint;
use crate::error::BackendError;
use crate::execution::Execution;
use crate::seam::{Backend, Capabilities, Computer, Doing, Known, Swept};

/// Name of this backend.
pub const NAME: &str = "process";

/// How long an answer may take that the supervisor has at hand.
const QUICK: Duration = Duration::from_secs(10);
/// How long a sandbox may take to be made.
const PROVISION: Duration = Duration::from_secs(60);
/// How long a removal may take, quarantine included.
const DESTROY: Duration = Duration::from_secs(120);

/// The backend. Cheap to clone; clones share one connection.
#[derive(Debug, Clone)]
pub struct ProcessBackend {
    shared: Arc<Shared>,
}

/// The one connection, made again after it broke.
#[derive(Debug)]
struct Shared {
    endpoint: Endpoint,
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
}

impl Shared {
    async fn link(&self) -> Result<Arc<Link>, ClientError> {
        let mut held = self.link.lock().await;
        if let Some(link) = held.as_ref().filter(|link| !link.over()) {
            return Ok(Arc::clone(link));
        }
        let link = Link::open(self.endpoint.clone()).await?;
        *held = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Asks for one answer. A question that changes nothing twice may be asked again by the caller.
    async fn ask(
        &self,
        request: Request,
        fds: &[OwnedFd],
        patience: Duration,
    ) -> Result<(Event, Vec<OwnedFd>), ClientError> {
        self.link().await?.ask(request, fds, patience).await
    }
}

impl From<ClientError> for BackendError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(error) => Self::Refused(error),
            error => Self::Lost {
                backend: NAME,
                kind: error.kind(),
                source: Box::new(error),
            },
        }
    }
}

impl ProcessBackend {
    /// A backend whose supervisor is at this endpoint, started when it is first needed.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            shared: Arc::new(Shared {
                endpoint,
                link: tokio::sync::Mutex::new(None),
            }),
        }
    }

    async fn made(
        &self,
        spec: SandboxSpec,
        workspace: Option<OwnedFd>,
    ) -> Result<ProcessComputer, ClientError> {
        let request = Request::Provision { sandbox: spec };
        let fds: Vec<OwnedFd> = workspace.into_iter().collect();
        match self.shared.ask(request, &fds, PROVISION).await? {
            (Event::Provisioned { sandbox, contract }, _) => Ok(self.computer(sandbox, *contract)),
            _ => Err(ClientError::Unexpected {
                request: "provision",
            }),
        }
    }

    fn computer(&self, sandbox: SandboxId, contract: Contract) -> ProcessComputer {
        ProcessComputer::new(Arc::clone(&self.shared), sandbox, contract)
    }

    /// What the supervisor knows: id, state, and whether a run is in it.
    async fn known(&self) -> Result<Vec<(SandboxId, State, bool)>, ClientError> {
        match self.shared.ask(Request::Status, &[], QUICK).await? {
            (Event::Status { sandboxes }, _) => Ok(sandboxes
                .into_iter()
                .map(|status| (status.sandbox, status.state, status.run.is_some()))
                .collect()),
            _ => Err(ClientError::Unexpected { request: "status" }),
        }
    }

    /// Host process id of a sandbox's init; `None` when the sandbox is not there. For tests that end
    /// it from outside.
    ///
    /// # Errors
    /// When the supervisor cannot be asked.
    pub async fn init_pid(&self, sandbox: &SandboxId) -> Result<Option<u32>, BackendError> {
        match self.shared.ask(Request::Status, &[], QUICK).await? {
            (Event::Status { sandboxes }, _) => Ok(sandboxes
                .into_iter()
                .find(|status| status.sandbox == *sandbox && status.init_pid != 0)
                .map(|status| status.init_pid)),
            _ => Err(ClientError::Unexpected { request: "status" }.into()),
        }
    }

    async fn try_out(&self) -> Result<Capabilities, ClientError> {
        // Limits that only some sandboxes have are asked about too.
        let spec = SandboxSpec {
            limits: Limits {
                cpu_time_ms: Some(Limit::defaulted(60_000)),
                ..Limits::default()
            },
            allow_unenforced: true,
            ..SandboxSpec::default()
        };
        let computer = self.made(spec, None).await?;
        let contract = computer.contract().clone();
        computer.end().await?;
        Ok(Capabilities {
            enforcement: contract.enforcement,
            posture: contract.posture,
            workspaces: vec![
                WorkspaceMode::Ephemeral,
                WorkspaceMode::ReadOnly,
                WorkspaceMode::Clone,
                WorkspaceMode::ReadWrite,
            ],
        })
    }
}

/// Why the backend cannot be used, in words for the caller.
fn unusable(error: &ClientError) -> PublicError {
    if let ClientError::Refused(error) = error {
        return error.clone();
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    PublicError {
        kind: match error.kind() {
            ErrorKind::Internal => ErrorKind::Internal,
            _ => ErrorKind::Unavailable,
        },
        message: text,
        hint: error.hint(),
    }
}

impl Backend for ProcessBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn isolation(&self) -> Isolation {
        Isolation::Process
    }

    fn probe(&self) -> Doing<'_, Result<Capabilities, PublicError>> {
        Box::pin(async { self.try_out().await.map_err(|error| unusable(&error)) })
    }

    fn provision(
        &self,
        spec: SandboxSpec,
        workspace: Option<OwnedFd>,
    ) -> Doing<'_, Result<Box<dyn Computer>, BackendError>> {
        Box::pin(async {
            let computer = self.made(spec, workspace).await?;
            Ok(Box::new(computer) as Box<dyn Computer>)
        })
    }

    fn adopt(&self, known: Known) -> Doing<'_, Result<Option<Box<dyn Computer>>, BackendError>> {
        Box::pin(async {
            let all = self.known().await?;
            let lives = all
                .iter()
                .any(|(sandbox, state, _)| *sandbox == known.sandbox && state.holds_resources());
            let adopt = || self.computer(known.sandbox, known.contract);
            Ok(lives.then(|| Box::new(adopt()) as Box<dyn Computer>))
        })
    }

    fn attach(&self, run: RunId) -> Doing<'_, Result<Execution, BackendError>> {
        Box::pin(async {
            let link = self.shared.link().await?;
            let request = Request::Attach { run };
            Ok(computer::follow(link.call(request, &[]).await?, QUICK).await?)
        })
    }

    fn sweep(&self, live: Vec<SandboxId>) -> Doing<'_, Result<Swept, BackendError>> {
        Box::pin(async move {
            let mut swept = Swept::default();
            for (sandbox, _, has_run) in self.known().await? {
                if has_run || live.contains(&sandbox) {
                    continue;
                }
                match computer::destroy(&self.shared, &sandbox).await {
                    Ok(observed) => swept.ended.push((sandbox, observed)),
                    // A slot of the supervisor's own pool is not ours to end.
                    Err(ClientError::Refused(error)) if error.kind == ErrorKind::NotFound => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(swept)
        })
    }
}
