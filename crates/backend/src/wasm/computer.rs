//! A sandbox that waits for its one module.

use std::os::fd::OwnedFd;

use leasehold_core::contract::Contract;
use leasehold_core::end::CancelledBy;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::isolation::Isolation;
use leasehold_core::record::{Observed, Usage};
use leasehold_core::spec::{ExecSpec, WorkspaceMode};

use super::single::Single;
use super::{Inner, Module, NAME};
use crate::error::BackendError;
use crate::execution::Execution;
use crate::process::ProcessComputer;
use crate::seam::{Computer, Doing};
use std::sync::Arc;

/// A parked sandbox of the supervisor's, in which a host will run.
#[derive(Debug)]
pub(super) struct WasmComputer {
    inner: Arc<Inner>,
    sandbox: ProcessComputer,
    contract: Contract,
}

impl WasmComputer {
    pub(super) fn new(inner: Arc<Inner>, sandbox: ProcessComputer) -> Self {
        let contract = Contract {
            backend: NAME.to_owned(),
            isolation: Isolation::Wasm,
            ..sandbox.contract().clone()
        };
        Self {
            inner,
            sandbox,
            contract,
        }
    }

    /// How its workspace came to be.
    fn workspace(&self) -> WorkspaceMode {
        self.contract.workspace
    }

    async fn claim(
        &self,
        run: RunId,
        exec: ExecSpec,
        module: Option<Module>,
    ) -> Result<Execution, BackendError> {
        let asked = super::asked(&exec, module.as_ref(), None)?;
        let (code, _) = self.inner.code(asked.module, asked.flavour(), None).await?;
        let limits = &self.contract.limits;
        let programs = &self.inner.programs;
        let single = Single::new(programs, code, asked, limits, self.workspace())?;
        let supply = Some(single.supply());
        Ok(self.sandbox.claim(run, exec.clone(), supply).await?)
    }
}

impl Computer for WasmComputer {
    fn id(&self) -> &SandboxId {
        self.sandbox.id()
    }

    fn contract(&self) -> &Contract {
        &self.contract
    }

    fn run(
        &self,
        run: RunId,
        exec: ExecSpec,
        module: Option<Module>,
    ) -> Doing<'_, Result<Execution, BackendError>> {
        Box::pin(self.claim(run, exec, module))
    }

    fn cancel(&self, by: CancelledBy, at_once: bool) -> Doing<'_, Result<(), BackendError>> {
        self.sandbox.cancel(by, at_once)
    }

    fn channel(&self) -> Doing<'_, Result<OwnedFd, BackendError>> {
        let message = "nothing but a WebAssembly module runs in this sandbox, and no agent";
        let none = PublicError::new(ErrorKind::Unsupported, message);
        Box::pin(std::future::ready(Err(none.into())))
    }

    fn usage(&self) -> Doing<'_, Result<Usage, BackendError>> {
        self.sandbox.usage()
    }

    fn destroy(&self) -> Doing<'_, Result<Observed, BackendError>> {
        self.sandbox.destroy()
    }
}
