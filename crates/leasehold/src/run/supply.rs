//! What goes with the order for a module: the host's program and the compiled code, made here and handed over.
//! The run itself is the supervisor's, like any other.

use std::time::{Duration, Instant};

use leasehold_backend::error::BackendError;
use leasehold_backend::process::ProcessBackend;
use leasehold_backend::wasm::programs::{Programs, ProgramsError, places};
use leasehold_backend::wasm::{Module, Origin, Single, WasmBackend, WasmBounds};
use leasehold_core::quantity::{format_bytes, format_micros};
use leasehold_supervisor::paths::Paths;

use super::program::Program;
use super::request::Plan;
use crate::fault::Fault;
use crate::{env, place, voice};

/// The programs for WebAssembly of this leasehold.
///
/// # Errors
/// When they are not there or must not be trusted.
pub(crate) fn programs() -> Result<Programs, ProgramsError> {
    let binary = std::env::current_exe().unwrap_or_default();
    Programs::find(&places(&binary, env::read(env::WASM_DIR.name)))
}

/// The backend for modules over the supervisor of these directories; nothing is started.
///
/// # Errors
/// As [`programs`], or when this program cannot be found.
pub(crate) fn backend(paths: &Paths) -> Result<WasmBackend, Fault> {
    let programs = programs().map_err(|error| {
        Fault::host("isolation `wasm` cannot be had")
            .because(&error)
            .hint(error.hint())
    })?;
    let process = ProcessBackend::new(place::endpoint(paths)?);
    let folder = paths.state().join("wasm");
    let bounds = WasmBounds {
        // The next command finds there what this one has read.
        lend: true,
        ..WasmBounds::default()
    };
    Ok(WasmBackend::new(process, programs, folder, &bounds))
}

/// Does one thing that waits for the supervisor, on this thread.
///
/// # Errors
/// When there is no room for what it needs.
pub(crate) fn wait<T>(doing: impl Future<Output = T>) -> Result<T, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::host("cannot wait for the supervisor").because(&error))?;
    Ok(runtime.block_on(doing))
}

/// How long something is waited for in silence.
const SILENCE: Duration = Duration::from_secs(1);

/// Waits for something, and says so where it takes long.
async fn patiently<T>(doing: impl Future<Output = T>, tell: impl FnOnce()) -> T {
    let mut doing = std::pin::pin!(doing);
    match tokio::time::timeout(SILENCE, doing.as_mut()).await {
        Ok(done) => done,
        Err(_) => {
            tell();
            doing.await
        }
    }
}

/// Has the module compiled where that was not done before, and puts the order together.
///
/// # Errors
/// When the programs or the code cannot be had, or the module is refused.
pub(crate) fn make(
    paths: &Paths,
    plan: &Plan,
    program: &Program,
    talk: bool,
) -> Result<Single, Fault> {
    let backend = backend(paths)?;
    let module = program.module()?;
    let begun = Instant::now();
    let script = program.script.as_ref();
    let prepared = wait(patiently(
        backend.single(&plan.exec, &module, script, &plan.sandbox),
        || {
            if talk {
                let name = voice::clean(&program.spec.name);
                voice::note(&format!(
                    "compiles {name}: once, and it is no time of the run"
                ));
            }
        },
    ))?;
    let (single, prepared) = prepared.map_err(|error| fault(error, program))?;
    if talk && prepared.origin == Origin::Compiler {
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        voice::note(&format!(
            "compiled {} in {}; its code ({}) is kept for the next run",
            voice::clean(&program.spec.name),
            format_micros(micros),
            format_bytes(prepared.code_bytes)
        ));
    }
    Ok(single)
}

/// Why a module has no code, as a failure of ours or the caller's.
fn fault(error: BackendError, program: &Program) -> Fault {
    let fault = match error {
        BackendError::Refused(error) => Fault::from(error),
        BackendError::Unrunnable { end, detail } => Fault::ended(&end, detail),
        error => Fault::host("cannot use the supervisor").because(&error),
    };
    fault.about(format!("cannot run `{}`", voice::clean(&program.spec.name)))
}

impl Program {
    /// The module as the backend takes it.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub(crate) fn module(&self) -> Result<Module, Fault> {
        self.file
            .try_clone()
            .map(|file| Module::known(self.spec.digest, file))
            .map_err(|error| Fault::host("cannot read the module").because(&error))
    }
}
