//! The fake host in a runtime of its own, so that it outlives a daemon that is ended with all its tasks.

use std::fs::File;
use std::os::fd::OwnedFd;

use leasehold_backend::error::BackendError;
use leasehold_backend::execution::Execution;
use leasehold_backend::fake::FakeBackend;
use leasehold_backend::seam::{Backend, Capabilities, Computer, Doing, Known, Launch, Swept};
use leasehold_core::end::CancelledBy;
use leasehold_core::error::PublicError;
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::isolation::Isolation;
use leasehold_core::spec::SandboxSpec;
use tokio::runtime::Handle;

pub(crate) struct Remote {
    backend: FakeBackend,
    host: Handle,
}

impl Remote {
    pub(crate) fn new(backend: FakeBackend, host: Handle) -> Self {
        Self { backend, host }
    }
}

impl Backend for Remote {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn isolation(&self) -> Isolation {
        self.backend.isolation()
    }

    fn probe(&self) -> Doing<'_, Result<Capabilities, PublicError>> {
        self.backend.probe()
    }

    fn provision(
        &self,
        spec: SandboxSpec,
        workspace: Option<OwnedFd>,
    ) -> Doing<'_, Result<Box<dyn Computer>, BackendError>> {
        self.backend.provision(spec, workspace)
    }

    fn launch(&self, launch: Launch) -> Doing<'_, Result<Execution, BackendError>> {
        let backend = self.backend.clone();
        let launched = self.host.spawn(async move { backend.launch(launch).await });
        Box::pin(async { launched.await.unwrap() })
    }

    fn cancel(
        &self,
        run: RunId,
        by: CancelledBy,
        at_once: bool,
    ) -> Doing<'_, Result<(), BackendError>> {
        self.backend.cancel(run, by, at_once)
    }

    fn running(&self) -> Doing<'_, Result<Vec<(RunId, SandboxId)>, BackendError>> {
        self.backend.running()
    }

    fn artifact(&self, run: RunId, place: usize) -> Doing<'_, Result<File, BackendError>> {
        self.backend.artifact(run, place)
    }

    fn keep_warm(&self, spec: SandboxSpec, count: u32) -> Doing<'_, Result<(), BackendError>> {
        self.backend.keep_warm(spec, count)
    }

    fn adopt(&self, known: Known) -> Doing<'_, Result<Option<Box<dyn Computer>>, BackendError>> {
        self.backend.adopt(known)
    }

    fn attach(&self, run: RunId) -> Doing<'_, Result<Execution, BackendError>> {
        self.backend.attach(run)
    }

    fn sweep(&self, live: Vec<SandboxId>) -> Doing<'_, Result<Swept, BackendError>> {
        let backend = self.backend.clone();
        let swept = self.host.spawn(async move { backend.sweep(live).await });
        Box::pin(async { swept.await.unwrap() })
    }
}
