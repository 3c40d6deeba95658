//! Compiling, loading and running in this process, as the two programs do in theirs.

use std::fs::File;
use std::io::Write as _;

use leasehold_protocol::wasm::{Flavour, Kind, Report, RunLimits};
use leasehold_wasm::compile::Compiler;
use leasehold_wasm::engine::Room;
use leasehold_wasm::host::epoch::Epochs;
use leasehold_wasm::program::{Loader, Program};
use leasehold_wasm::run::{Task, run};
use rustix::fs::{MemfdFlags, SealFlags};
use tokio::sync::oneshot;

/// Everything a run needs.
pub(crate) struct Rig {
    pub(crate) loader: Loader,
    compiler: Compiler,
    flavour: Flavour,
    epochs: Epochs,
    pub(crate) runtime: tokio::runtime::Runtime,
}

/// What a run wrote and how it ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) report: Report,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Bytes in a memory file that nobody can change.
pub(crate) fn sealed(bytes: &[u8]) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("code", flags).unwrap());
    file.write_all(bytes).unwrap();
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

impl Rig {
    pub(crate) fn new(flavour: Flavour) -> Self {
        let loader = Loader::new(flavour, Room::Pool { runs: 8 }).unwrap();
        let epochs = Epochs::start(vec![loader.engine().clone()]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        Self {
            loader,
            compiler: Compiler::new(flavour).unwrap(),
            flavour,
            epochs,
            runtime,
        }
    }

    pub(crate) fn compile(&self, text: &str) -> (Kind, Vec<u8>) {
        let wasm = wat::parse_str(text).unwrap();
        self.compiler.compile(&wasm).unwrap()
    }

    pub(crate) fn program(&self, text: &str) -> Program {
        let (kind, code) = self.compile(text);
        self.loader.load(kind, self.flavour, sealed(&code)).unwrap()
    }

    /// Runs a task to its end and keeps what it wrote.
    pub(crate) fn run(&self, program: &Program, task: Task) -> Ran {
        self.run_until(program, task, std::future::pending())
    }

    /// The same, cancelled when `signal` is over.
    pub(crate) fn run_until(
        &self,
        program: &Program,
        task: Task,
        signal: impl Future<Output = ()>,
    ) -> Ran {
        task.check(program).unwrap();
        let _clock = self.epochs.run();
        self.runtime.block_on(async {
            let (cancel, cancelled) = oneshot::channel();
            let (stdout, stderr) = (task.stdout.clone(), task.stderr.clone());
            let gather = async |output: leasehold_wasm::output::Output| {
                let mut all = Vec::new();
                while let Some(bytes) = output.next().await {
                    all.extend_from_slice(&bytes);
                }
                all
            };
            let all = async {
                tokio::join!(
                    run(program, task, cancelled),
                    gather(stdout),
                    gather(stderr)
                )
            };
            let mut all = std::pin::pin!(all);
            let done = tokio::select! {
                done = &mut all => Some(done),
                () = signal => None,
            };
            let (report, stdout, stderr) = match done {
                Some(done) => done,
                None => {
                    cancel.send(()).unwrap();
                    all.await
                }
            };
            Ran {
                report,
                stdout,
                stderr,
            }
        })
    }

    /// A program with these limits and no input.
    pub(crate) fn ends(&self, text: &str, limits: RunLimits) -> Ran {
        self.run(&self.program(text), Task::new("guest", limits))
    }
}

/// Ten seconds, 64 MiB, 1 MiB of output.
pub(crate) fn limits() -> RunLimits {
    RunLimits {
        memory_bytes: 64 << 20,
        wall_ms: 10_000,
        output_bytes: 1 << 20,
        ..RunLimits::default()
    }
}
