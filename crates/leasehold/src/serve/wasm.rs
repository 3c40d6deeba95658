//! The WebAssembly backend of a daemon, whose programs may be installed while it runs.
//!
//! Until they are there it refuses what would begin, and answers for what an earlier daemon began: such a run is
//! the supervisor's, as any other.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use leasehold_backend::error::BackendError;
use leasehold_backend::execution::Execution;
use leasehold_backend::process::ProcessBackend;
use leasehold_backend::seam::{
    Backend, Capabilities, Computer, Doing, Known, Launch, Readiness, Swept,
};
use leasehold_backend::wasm::programs::Programs;
use leasehold_backend::wasm::{Module, NAME, Origin, WasmBackend, WasmBounds, lost_before};
use leasehold_core::end::CancelledBy;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::isolation::Isolation;
use leasehold_core::name::Name;
use leasehold_core::spec::{ModuleSpec, SandboxSpec};

/// The backend, made when its programs are found.
pub(crate) struct LateWasm {
    process: ProcessBackend,
    folder: PathBuf,
    made: OnceLock<WasmBackend>,
    making: Mutex<()>,
}

impl LateWasm {
    /// Over the supervisor of `process`; `folder` is its own.
    pub(crate) fn new(process: ProcessBackend, folder: PathBuf) -> Self {
        Self {
            process,
            folder,
            made: OnceLock::new(),
            making: Mutex::default(),
        }
    }

    /// The real one.
    fn real(&self) -> Result<&WasmBackend, PublicError> {
        // Nothing panics while it holds the lock.
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let programs = Programs::of_this_program().map_err(|error| {
            tracing::warn!(%error, "no WebAssembly");
            error.public()
        })?;
        let bounds = WasmBounds::default();
        let (process, folder) = (self.process.clone(), self.folder.clone());
        let made = WasmBackend::new(process, programs, folder, &bounds);
        Ok(self.made.get_or_init(|| made))
    }

    /// Takes a run up where there are no programs any more. A shared one went with its daemon.
    async fn attach_without(&self, run: RunId) -> Result<Execution, BackendError> {
        let nobody = match self.process.attach(run.clone()).await {
            Err(error) if error.kind() == ErrorKind::NotFound => error,
            found => return found,
        };
        let lost = lost_before(&self.folder, &run).map_err(|error| {
            let message = format!("the run cannot be looked up: {error}");
            PublicError::new(ErrorKind::Unavailable, message)
        })?;
        lost.ok_or(nobody)
    }

    /// Who knows of what was begun.
    fn present(&self) -> &dyn Backend {
        match self.made.get() {
            Some(made) => made,
            None => &self.process,
        }
    }
}

impl Backend for LateWasm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn isolation(&self) -> Isolation {
        Isolation::Wasm
    }

    fn probe(&self) -> Doing<'_, Result<Capabilities, PublicError>> {
        Box::pin(async { self.real()?.probe().await })
    }

    fn provision(
        &self,
        spec: SandboxSpec,
        workspace: Option<OwnedFd>,
    ) -> Doing<'_, Result<Box<dyn Computer>, BackendError>> {
        Box::pin(async { self.real()?.provision(spec, workspace).await })
    }

    fn at_hand(&self, module: &ModuleSpec) -> bool {
        self.made.get().is_some_and(|made| made.at_hand(module))
    }

    fn readiness(&self, module: ModuleSpec) -> Doing<'_, Readiness> {
        match self.real() {
            Ok(real) => real.readiness(module),
            Err(error) => Box::pin(std::future::ready(Readiness::Refused(error.message))),
        }
    }

    fn make_ready(
        &self,
        spec: ModuleSpec,
        module: Module,
        tenant: Option<Name>,
    ) -> Doing<'_, Result<Origin, BackendError>> {
        Box::pin(async { self.real()?.make_ready(spec, module, tenant).await })
    }

    fn launch(&self, launch: Launch) -> Doing<'_, Result<Execution, BackendError>> {
        Box::pin(async { self.real()?.launch(launch).await })
    }

    fn cancel(
        &self,
        run: RunId,
        by: CancelledBy,
        at_once: bool,
    ) -> Doing<'_, Result<(), BackendError>> {
        self.present().cancel(run, by, at_once)
    }

    fn running(&self) -> Doing<'_, Result<Vec<(RunId, SandboxId)>, BackendError>> {
        self.present().running()
    }

    fn artifact(&self, run: RunId, place: usize) -> Doing<'_, Result<File, BackendError>> {
        self.present().artifact(run, place)
    }

    fn keep_warm(&self, spec: SandboxSpec, count: u32) -> Doing<'_, Result<(), BackendError>> {
        Box::pin(async move { self.real()?.keep_warm(spec, count).await })
    }

    fn adopt(&self, known: Known) -> Doing<'_, Result<Option<Box<dyn Computer>>, BackendError>> {
        self.present().adopt(known)
    }

    /// What was shared at an earlier daemon is in the books of the real one.
    fn attach(&self, run: RunId) -> Doing<'_, Result<Execution, BackendError>> {
        match self.real() {
            Ok(real) => real.attach(run),
            Err(_) => Box::pin(self.attach_without(run)),
        }
    }

    fn sweep(&self, live: Vec<SandboxId>) -> Doing<'_, Result<Swept, BackendError>> {
        self.present().sweep(live)
    }
}
