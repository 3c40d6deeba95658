//! The WebAssembly backend, against the built programs.

mod compile;
mod determinism;
mod files;
#[path = "../../../../wasm/tests/it/guests.rs"]
#[allow(dead_code, reason = "each crate uses some of them")]
mod guests;
mod hostile;
mod script;
mod shared;
mod suite;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_backend::execution::Execution;
use leasehold_backend::process::ProcessBackend;
use leasehold_backend::seam::{Backend as _, Launch};
use leasehold_backend::wasm::programs::{DIR_VARIABLE, Programs, places};
use leasehold_backend::wasm::{Module, WasmBackend, WasmBounds};
use leasehold_core::end::EndReason;
use leasehold_core::id::RunId;
use leasehold_core::limits::{Limit, Limits};
use leasehold_core::name::Name;
use leasehold_core::record::RunRecord;
use leasehold_core::spec::{Determinism, ExecSpec, ModuleSpec, SandboxSpec};

use crate::process::Own;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A run id nobody used.
fn run_id() -> RunId {
    let mut entropy = [0; 13];
    entropy[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    RunId::from_entropy(&entropy)
}

fn tenant(name: &str) -> Name {
    Name::parse(name).unwrap()
}

/// A supervisor, the programs and a backend of one test.
struct Rig {
    backend: WasmBackend,
    process: ProcessBackend,
    own: Own,
}

impl Rig {
    fn new(test: &str) -> Option<Self> {
        Self::bounded(test, &WasmBounds::default())
    }

    fn bounded(test: &str, bounds: &WasmBounds) -> Option<Self> {
        let own = Own::new(test)?;
        let looked = places(&own.endpoint.program, std::env::var_os(DIR_VARIABLE));
        let programs = match Programs::find(&looked) {
            Ok(programs) => programs,
            Err(error) => {
                eprintln!("SKIP {test}: {error}: {}", error.hint());
                return None;
            }
        };
        let process = ProcessBackend::new(own.endpoint.clone());
        let folder = own.directory.path().join("state/wasm");
        Some(Self {
            backend: WasmBackend::new(process.clone(), programs, folder, bounds),
            process,
            own,
        })
    }

    /// The backend that a later process would have.
    fn successor(&self, folder: std::path::PathBuf) -> WasmBackend {
        self.successor_with(folder, &WasmBounds::default())
    }

    fn successor_with(&self, folder: std::path::PathBuf, bounds: &WasmBounds) -> WasmBackend {
        let programs = Programs::find(&[self.backend.programs().folder().to_owned()]).unwrap();
        let process = ProcessBackend::new(self.own.endpoint.clone());
        WasmBackend::new(process, programs, folder, bounds)
    }

    /// Runs it to the end of its removal.
    async fn run(&self, order: Order) -> Done {
        let run = order.launch.run.clone();
        let execution = self.backend.launch(order.launch).await;
        let execution = execution.unwrap_or_else(|error| panic!("{run}: {error}"));
        finish(execution).await
    }
}

/// What came of a run.
#[derive(Debug)]
struct Done {
    record: RunRecord,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Done {
    fn end(&self) -> &EndReason {
        self.record.end.as_ref().unwrap()
    }

    /// Whether a shared host had it.
    fn shared(&self) -> bool {
        let contract = self.record.contract.as_ref().unwrap();
        assert_eq!(contract.backend, "wasm");
        contract.isolation_reason.contains("its tenant's alone")
    }
}

async fn finish(mut execution: Execution) -> Done {
    // Where the backend gives no input by itself there is none, so that nothing waits for it.
    drop(execution.input.take());
    let record = execution.cleaned().await.unwrap().unwrap();
    Done {
        record,
        stdout: content(&execution.stdout),
        stderr: content(&execution.stderr),
    }
}

fn content(file: &std::fs::File) -> Vec<u8> {
    use std::os::unix::fs::FileExt as _;
    let mut bytes = vec![0; file.metadata().unwrap().len().try_into().unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// A run that is about to be asked for.
struct Order {
    launch: Launch,
}

fn module(text: &str) -> Module {
    let wasm = wat::parse_str(text).unwrap_or_else(|error| panic!("{error}"));
    Module::of_bytes(&wasm).unwrap()
}

/// A module without arguments, in a sandbox of its own.
fn order(module: &Module) -> Order {
    let mut exec = ExecSpec::command(["guest.wasm"]);
    exec.module = Some(spec(module));
    let launch = Launch {
        module: Some(module.clone()),
        ..Launch::new(run_id(), SandboxSpec::default(), exec)
    };
    Order { launch }
}

fn spec(module: &Module) -> ModuleSpec {
    ModuleSpec {
        digest: *module.digest(),
        name: "guest.wasm".to_owned(),
        script: None,
        determinism: None,
        fuel: None,
    }
}

impl Order {
    /// Whose it is: it may share a host.
    fn of(mut self, name: &str) -> Self {
        self.launch.tenant = Some(tenant(name));
        self
    }

    fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.launch.sandbox.limits);
        self
    }

    fn wall(self, wall_ms: u64) -> Self {
        self.limits(|limits| limits.wall_ms = Limit::asked(wall_ms))
    }

    fn input(mut self, bytes: &[u8]) -> Self {
        self.launch.exec.stdin = true;
        self.launch.input = Some(Arc::from(bytes));
        self
    }

    fn spec(mut self, change: impl FnOnce(&mut ModuleSpec)) -> Self {
        change(self.launch.exec.module.as_mut().unwrap());
        self
    }

    fn fixed(self, seed: u64) -> Self {
        let determinism = Determinism {
            seed,
            clock_ms: 1_000,
        };
        self.spec(|spec| spec.determinism = Some(determinism))
    }

    fn workspace(
        mut self,
        mode: leasehold_core::spec::WorkspaceMode,
        directory: impl Into<OwnedFd>,
    ) -> Self {
        self.launch.sandbox.workspace = mode;
        self.launch.workspace = Some(directory.into());
        self
    }
}
