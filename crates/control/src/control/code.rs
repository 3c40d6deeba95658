//! The code of tools in WebAssembly: made when they are published, so that no run of theirs waits for it.

use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::error::BackendError;
use leasehold_backend::seam::{Backend, Readiness};
use leasehold_backend::wasm::Module;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::isolation::Isolation;
use leasehold_core::spec::ModuleSpec;
use leasehold_core::tenant::Principal;
use leasehold_store::seam::ToolRow;

use super::Control;
use crate::engine::modules::{in_memory, no_template};
use crate::manifest::{Entrypoint, Manifest, WasmEntry};
use crate::module::ModulePlace;
use crate::tools::{self, Publication};

/// How long a publication waits for the compiler; what takes longer goes on without it.
const WAIT: Duration = Duration::from_secs(2);

impl Control {
    /// Where the code of a tool's module stands; nothing for a tool that has none.
    pub async fn tool_code(&self, row: &ToolRow) -> Option<Readiness> {
        let manifest = tools::manifest(row).ok()?;
        let Entrypoint::Wasm(entry) = &manifest.entrypoint else {
            return None;
        };
        let spec = match self.spec(entry).await {
            Ok(spec) => spec,
            Err(error) => return Some(Readiness::Refused(error.message)),
        };
        match self.compiler() {
            Some(backend) => Some(backend.readiness(spec).await),
            None => Some(Readiness::Absent),
        }
    }

    /// Has the module of a tool compiled that is about to be published; its interpreter, where it has one.
    ///
    /// # Errors
    /// `invalid` for a module of its own that cannot be run.
    pub(super) async fn compile(
        &self,
        who: &Principal,
        publication: &mut Publication,
        package: Option<&[u8]>,
    ) -> Result<Option<Readiness>, PublicError> {
        let Entrypoint::Wasm(entry) = &publication.manifest.entrypoint else {
            return Ok(None);
        };
        let made = match self.made(who, &publication.manifest, entry, package).await {
            Err(BackendError::Unrunnable { detail, .. }) if entry.interpreter.is_none() => {
                let message = format!("tool: entrypoint.file: {:?}: {detail}", entry.file);
                return Err(PublicError::new(ErrorKind::Invalid, message));
            }
            Err(BackendError::Refused(error)) if !error.kind.retryable() => {
                let hint = error
                    .hint
                    .map_or_else(String::new, |hint| format!("; {hint}"));
                let warning = format!("it cannot be run as it is: {}{hint}", error.message);
                publication.warnings.push(warning);
                Readiness::Refused(error.message)
            }
            Err(BackendError::Unrunnable { detail, .. }) => Readiness::Refused(detail),
            // Whoever runs it first asks again.
            Err(BackendError::Refused(_) | BackendError::Lost { .. }) => Readiness::Absent,
            Ok(readiness) => readiness,
        };
        Ok(Some(made))
    }

    async fn made(
        &self,
        who: &Principal,
        manifest: &Manifest,
        entry: &WasmEntry,
        package: Option<&[u8]>,
    ) -> Result<Readiness, BackendError> {
        let spec = self.spec(entry).await?;
        let Some(backend) = self.compiler() else {
            return Ok(Readiness::Absent);
        };
        if backend.at_hand(&spec) {
            return Ok(Readiness::Ready);
        }
        let module = match &entry.interpreter {
            Some(name) => {
                let place = ModulePlace::Template(name.clone());
                self.engine.parts.module_at(spec.digest, place)
            }
            // Nothing of it is kept yet.
            None => {
                let bytes = package.and_then(|bytes| tools::entry_bytes(manifest, bytes));
                let file = in_memory(&bytes.unwrap_or_default());
                let file = file.map_err(|error| {
                    let message = format!("no memory for a module: {error}");
                    PublicError::new(ErrorKind::Unavailable, message)
                })?;
                Module::known(spec.digest, file)
            }
        };
        let tenant = Some(who.tenant.clone());
        let making = backend.make_ready(spec, module, tenant);
        match tokio::time::timeout(WAIT, making).await {
            Ok(made) => made.map(|_| Readiness::Ready),
            Err(_) => Ok(Readiness::Compiling),
        }
    }

    /// The backend that runs modules, where there is one.
    fn compiler(&self) -> Option<&Arc<dyn Backend>> {
        let mut backends = self.engine.parts.backends.iter();
        backends.find(|backend| backend.isolation() == Isolation::Wasm)
    }

    /// The module that a tool runs, as far as it decides its code.
    async fn spec(&self, entry: &WasmEntry) -> Result<ModuleSpec, PublicError> {
        let digest = match &entry.interpreter {
            Some(name) => {
                let found = self.engine.parts.templates.find(name.clone()).await?;
                found.ok_or_else(|| no_template(name))?
            }
            None => entry.content.ok_or_else(|| {
                let message = "it was published by a leasehold that ran no WebAssembly";
                PublicError::new(ErrorKind::Invalid, message)
            })?,
        };
        Ok(ModuleSpec {
            digest,
            name: entry.file.clone(),
            script: None,
            determinism: entry.manner.determinism,
            fuel: entry.manner.fuel,
        })
    }
}
