//! Sandboxes of Linux namespaces, made by the supervisor; here is its client.
//!
//! Nothing here makes a namespace, a mount or a cgroup: the supervisor parents every sandbox and
//! outlives whoever asked for it. [`client`] is blocking and free of any runtime, for the command
//! line's short path; [`ProcessBackend`] is the same conversation behind the seam.

pub mod client;
mod computer;
mod link;
pub mod start;

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::contract::Contract;
use leasehold_core::digest::Digest;
use leasehold_core::end::CancelledBy;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::isolation::Isolation;
use leasehold_core::limits::{Limit, Limits};
use leasehold_core::spec::{ExecSpec, SandboxSpec, WorkspaceMode};
use leasehold_protocol::memory;
use leasehold_protocol::supervisor::{
    Event, Request, SandboxStatus, Supplied, Target, artifact_name,
};

use self::client::ClientError;
pub(crate) use self::computer::{Notices, ProcessComputer};
use self::link::Link;
use self::start::Endpoint;
use crate::error::BackendError;
use crate::execution::Execution;
use crate::seam::{Backend, Capabilities, Computer, Doing, Known, Launch, Swept};

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
    /// Held while a computer is made to see what this host can do: nobody else knows it, and a sweep
    /// would take it for an orphan.
    trying: tokio::sync::Mutex<()>,
    /// The agent's program, once it was asked for.
    agent: OnceLock<OwnedFd>,
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

    /// The agent's program in sealed memory.
    fn agent(&self) -> Result<BorrowedFd<'_>, PublicError> {
        if let Some(file) = self.agent.get() {
            return Ok(file.as_fd());
        }
        let file = memory::sealed("leasehold-agent", self.endpoint.agent).map_err(|error| {
            let message = format!("the agent's program cannot be held in memory: {error}");
            PublicError::new(ErrorKind::NoCapacity, message)
        })?;
        Ok(self.agent.get_or_init(|| file).as_fd())
    }

    /// Asks for one answer. A question that changes nothing twice may be asked again by the caller.
    async fn ask(
        &self,
        request: Request,
        fds: &[BorrowedFd<'_>],
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
                trying: tokio::sync::Mutex::new(()),
                agent: OnceLock::new(),
            }),
        }
    }

    /// Makes a sandbox and leaves it parked, for whoever has it in its books.
    pub(crate) async fn made(
        &self,
        spec: SandboxSpec,
        workspace: Option<OwnedFd>,
    ) -> Result<ProcessComputer, ClientError> {
        self.provisioned(spec, workspace, false).await
    }

    /// The same for this process alone: nobody else knows of it, and it is not there any longer than this is.
    async fn made_here(&self, spec: SandboxSpec) -> Result<ProcessComputer, ClientError> {
        self.provisioned(spec, None, true).await
    }

    async fn provisioned(
        &self,
        spec: SandboxSpec,
        workspace: Option<OwnedFd>,
        held: bool,
    ) -> Result<ProcessComputer, ClientError> {
        let request = Request::Provision {
            sandbox: spec,
            held,
        };
        let fds: Vec<_> = workspace.iter().map(AsFd::as_fd).collect();
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

    /// What the supervisor knows.
    async fn known(&self) -> Result<Vec<SandboxStatus>, ClientError> {
        match self.shared.ask(Request::Status, &[], QUICK).await? {
            (Event::Status { sandboxes }, _) => Ok(sandboxes),
            _ => Err(ClientError::Unexpected { request: "status" }),
        }
    }

    /// Takes up a sandbox that lives.
    pub(crate) async fn adopted(
        &self,
        known: Known,
    ) -> Result<Option<ProcessComputer>, ClientError> {
        let all = self.known().await?;
        let lives = all
            .iter()
            .any(|status| status.sandbox == known.sandbox && status.state.holds_resources());
        Ok(lives.then(|| self.computer(known.sandbox, known.contract)))
    }

    /// Asks for something that is carried out and has no other answer.
    async fn order(
        &self,
        request: Request,
        name: &'static str,
        patience: Duration,
    ) -> Result<(), ClientError> {
        match self.shared.ask(request, &[], patience).await? {
            (Event::Done, _) => Ok(()),
            _ => Err(ClientError::Unexpected { request: name }),
        }
    }

    /// Leaves a sealed memory file with the supervisor, for whoever comes later.
    pub(crate) async fn keep(
        &self,
        digest: Digest,
        file: BorrowedFd<'_>,
    ) -> Result<(), ClientError> {
        let request = Request::Keep { digest };
        match self.shared.ask(request, &[file], QUICK).await? {
            (Event::Done, _) => Ok(()),
            _ => Err(ClientError::Unexpected { request: "keep" }),
        }
    }

    /// A file that was left with the supervisor; sealed, whoever left it.
    pub(crate) async fn kept(&self, digest: Digest) -> Result<Option<OwnedFd>, ClientError> {
        let request = Request::Kept { digest };
        match self.shared.ask(request, &[], QUICK).await? {
            (Event::Kept { .. }, fds) => Ok(fds.into_iter().find(|file| memory::is_sealed(file))),
            _ => Err(ClientError::Unexpected { request: "kept" }),
        }
    }

    async fn launched(&self, launch: Launch) -> Result<Execution, ClientError> {
        if launch.exec.module.is_some() {
            return Err(no_modules().into());
        }
        self.launch_with(launch, None).await
    }

    /// Launches a run whose program comes with it, if one does.
    pub(crate) async fn launch_with(
        &self,
        launch: Launch,
        program: Option<Supply<'_>>,
    ) -> Result<Execution, ClientError> {
        let link = self.shared.link().await?;
        let target = Target::New(launch.sandbox);
        let (request, supplied) = ordered(launch.run, target, launch.exec, program);
        let workspace = launch.workspace.iter().map(AsFd::as_fd);
        let image = launch.image.iter();
        let image = image.flat_map(|image| [image.layers.as_fd(), image.lease.as_fd()]);
        let fds: Vec<_> = workspace.chain(image).chain(supplied).collect();
        computer::follow(link.call(request, &fds).await?, PROVISION).await
    }

    /// Starts work of our own that ends with this process's connection, and says what holds it.
    pub(crate) async fn start_bound(
        &self,
        run: RunId,
        spec: SandboxSpec,
        exec: ExecSpec,
        program: Supply<'_>,
    ) -> Result<(Execution, Contract), ClientError> {
        // Nobody knows the sandbox between the two messages.
        let _trying = self.shared.trying.lock().await;
        let computer = self.made_here(spec).await?;
        match computer.claim(run, exec, Some(program)).await {
            Ok(execution) => Ok((execution, computer.contract().clone())),
            Err(error) => {
                computer.end().await?;
                Err(error)
            }
        }
    }

    /// Opens the copy of a collected file in the supervisor's state directory.
    fn copy(&self, run: &RunId, place: usize) -> Result<File, BackendError> {
        let state = &self.shared.endpoint.state_dir;
        let folder = state.join("runs").join(run.as_str()).join("artifacts");
        let flags = rustix::fs::OFlags::NOFOLLOW.bits();
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(flags.cast_signed())
            .open(folder.join(artifact_name(place)));
        opened.map_err(|source| {
            let kind = match source.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Internal,
            };
            BackendError::Lost {
                backend: NAME,
                kind,
                source: Box::new(source),
            }
        })
    }

    /// Host process id of a sandbox's init; `None` when the sandbox is not there. For tests that end
    /// it from outside.
    ///
    /// # Errors
    /// When the supervisor cannot be asked.
    pub async fn init_pid(&self, sandbox: &SandboxId) -> Result<Option<u32>, BackendError> {
        let found = self.known().await?.into_iter();
        let mut found = found.filter(|status| status.sandbox == *sandbox && status.init_pid != 0);
        Ok(found.next().map(|status| status.init_pid))
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
        let _trying = self.shared.trying.lock().await;
        let computer = self.made_here(spec).await?;
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

/// A program that comes with its run, and what it is passed.
#[derive(Debug)]
pub(crate) struct Supply<'a> {
    /// How it is started; the number of what it is passed is set from `passed`.
    pub(crate) order: Supplied,
    /// A sealed memory file.
    pub(crate) program: BorrowedFd<'a>,
    /// It gets these as 3, 4 and so on.
    pub(crate) passed: Vec<BorrowedFd<'a>>,
}

/// The request for a run, and the descriptors of its program.
pub(crate) fn ordered(
    run: RunId,
    target: Target,
    exec: ExecSpec,
    program: Option<Supply<'_>>,
) -> (Request, Vec<BorrowedFd<'_>>) {
    let Some(mut program) = program else {
        return (Request::run(run, target, exec), Vec::new());
    };
    // More than a byte counts are refused by the supervisor, and so are as many as that.
    program.order.passed = u8::try_from(program.passed.len()).unwrap_or(u8::MAX);
    let request = Request::Run {
        run,
        target,
        exec: Box::new(exec),
        supplied: Some(Box::new(program.order)),
    };
    let mut fds = vec![program.program];
    fds.append(&mut program.passed);
    (request, fds)
}

fn no_modules() -> PublicError {
    let message = format!("the backend `{NAME}` runs no WebAssembly module");
    PublicError::new(ErrorKind::Unsupported, message)
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
    let kind = match error.kind() {
        ErrorKind::Internal => ErrorKind::Internal,
        _ => ErrorKind::Unavailable,
    };
    PublicError {
        hint: error.hint(),
        ..PublicError::new(kind, text)
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

    fn launch(&self, launch: Launch) -> Doing<'_, Result<Execution, BackendError>> {
        Box::pin(async { Ok(self.launched(launch).await?) })
    }

    fn cancel(
        &self,
        run: RunId,
        by: CancelledBy,
        at_once: bool,
    ) -> Doing<'_, Result<(), BackendError>> {
        let request = Request::Cancel { run, by, at_once };
        Box::pin(async { Ok(self.order(request, "cancel", QUICK).await?) })
    }

    fn running(&self) -> Doing<'_, Result<Vec<(RunId, SandboxId)>, BackendError>> {
        Box::pin(async {
            let known = self.known().await?.into_iter();
            Ok(known
                .filter_map(|status| Some((status.run?, status.sandbox)))
                .collect())
        })
    }

    fn artifact(&self, run: RunId, place: usize) -> Doing<'_, Result<File, BackendError>> {
        Box::pin(std::future::ready(self.copy(&run, place)))
    }

    fn keep_warm(&self, spec: SandboxSpec, count: u32) -> Doing<'_, Result<(), BackendError>> {
        let request = Request::Pool {
            sandbox: spec,
            count,
            held: true,
        };
        Box::pin(async { Ok(self.order(request, "pool", PROVISION).await?) })
    }

    fn adopt(&self, known: Known) -> Doing<'_, Result<Option<Box<dyn Computer>>, BackendError>> {
        Box::pin(async {
            let adopted = self.adopted(known).await?;
            Ok(adopted.map(|computer| Box::new(computer) as Box<dyn Computer>))
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
            let _trying = self.shared.trying.lock().await;
            let mut swept = Swept::default();
            for status in self.known().await? {
                let SandboxStatus { sandbox, run, .. } = status;
                // One that is parked may be a run's by the time it would be ended, and work of our own ends with
                // whoever it is for.
                if run.is_some() || status.pooled || status.bound || live.contains(&sandbox) {
                    continue;
                }
                match computer::destroy(&self.shared, &sandbox).await {
                    Ok(observed) => swept.ended.push((sandbox, observed)),
                    // It is gone already.
                    Err(ClientError::Refused(error)) if error.kind == ErrorKind::NotFound => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(swept)
        })
    }
}
