//! WebAssembly modules, in processes that have no other program in them.
//!
//! A module runs in one of two ways. *Single*: a host in a sandbox of its own runs it alone; it may have a
//! workspace and leaves artifacts, its record is the supervisor's, and it outlives whoever asked for it. *Shared*:
//! a host that is kept running has it beside others of the same tenant; it has neither files nor a sandbox of its
//! own, its record is this process's, and it starts in microseconds. The first is always possible, the second is
//! taken where [`Launch`] names a tenant and the run wants nothing that it does not have.
//!
//! Start with [`WasmBackend`]. [`programs`] finds the two programs, `codes` turns modules into code, `hosts` gives
//! a run its host, `host` is the owner's side of one, `run` is one shared run.

mod bounds;
mod code;
mod codes;
mod compile;
mod computer;
mod counts;
mod fingerprint;
mod host;
mod hosts;
mod journal;
mod limits;
mod module;
mod pace;
pub mod programs;
mod room;
mod run;
mod runs;
mod sealed;
mod shared;
mod single;
#[cfg(test)]
mod testing;

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::contract::{Enforced, Enforcement};
use leasehold_core::end::{CancelledBy, EndReason};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::isolation::Isolation;
use leasehold_core::limits::{Limit, Limits, Resource};
use leasehold_core::name::Name;
use leasehold_core::spec::{ExecSpec, ModuleSpec, SandboxSpec, Script};
use leasehold_protocol::wasm::Flavour;

pub use self::bounds::WasmBounds;
pub use self::codes::Origin;
pub use self::compile::{CompileBound, CompileError, CompileLimits};
pub use self::counts::WasmCounts;
pub use self::hosts::HostStatus;
pub use self::module::{Module, ModuleSource};
pub use self::pace::Pace;
pub use leasehold_protocol::wasm::Kind;

use self::code::Code;
use self::codes::Codes;
use self::computer::WasmComputer;
use self::counts::{Counts, count};
use self::host::{Common, HostBounds, Setup};
use self::hosts::{Hosts, HostsBounds};
use self::programs::Programs;
use self::room::Shares;
use self::runs::Runs;
use self::sealed::Sealed;
pub use self::single::Single;
use crate::error::BackendError;
use crate::execution::Execution;
use crate::process::ProcessBackend;
use crate::seam::{Backend, Capabilities, Computer, Doing, Known, Launch, Readiness, Swept};

/// Name of this backend.
pub const NAME: &str = "wasm";
/// Name of the file that remembers which runs were begun in shared hosts.
const SHARED_RUNS: &str = "shared-runs";

/// The smallest program there is, for trying everything out.
const NOTHING: &[u8] = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x07\x0a\x01\x06_start\0\0\x0a\x04\x01\x02\0\x0b";

/// The backend. Cheap to clone; clones share hosts and code.
#[derive(Debug, Clone)]
pub struct WasmBackend {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    process: ProcessBackend,
    programs: Arc<Programs>,
    codes: Arc<Codes>,
    hosts: Arc<Hosts>,
    runs: Arc<Runs>,
    /// Output that shared runs may come to hold in memory.
    output: Shares,
    probed: Mutex<Option<Capabilities>>,
    counts: Arc<Counts>,
    /// Where digests are remembered, where files are left with the supervisor and taken from there.
    lend: Option<PathBuf>,
}

impl Inner {
    async fn code(
        &self,
        module: &Module,
        flavour: Flavour,
        tenant: Option<&Name>,
    ) -> Result<(Arc<Code>, Origin), CompileError> {
        self.codes.code(module, flavour, tenant).await
    }

    /// Takes the host's program from the supervisor, or leaves it there. Where neither can be done it is read and
    /// copied as ever, by whoever needs it.
    async fn lend_host(&self) {
        let Some(folder) = &self.lend else { return };
        let host = &self.programs.host;
        let Ok(digest) = fingerprint::of_host(host, folder) else {
            return;
        };
        if let Ok(Some(file)) = self.process.kept(digest).await {
            let bytes = host.identity().bytes;
            host.lent(Sealed {
                file,
                bytes,
                digest,
            });
        } else if let Ok(sealed) = host.sealed() {
            let _ = self.process.keep(sealed.digest, sealed.file.as_fd()).await;
        }
    }
}

/// A random word for the name of a file.
fn random_word() -> std::io::Result<String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}

/// What a run names, and what came with it.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    exec: &'a ExecSpec,
    spec: &'a ModuleSpec,
    module: &'a Module,
    script: Option<&'a Script>,
}

impl Asked<'_> {
    /// The arguments as the module gets them.
    fn argv(&self) -> Vec<String> {
        let argv = &self.exec.argv;
        self.script
            .map_or_else(|| argv.clone(), |script| script.argv(argv))
    }

    fn flavour(&self) -> Flavour {
        limits::flavour(self.spec)
    }
}

/// Checks that what came is what is named.
fn asked<'a>(
    exec: &'a ExecSpec,
    module: Option<&'a Module>,
    script: Option<&'a Script>,
) -> Result<Asked<'a>, PublicError> {
    let refused = |message: &str| PublicError::new(ErrorKind::Invalid, message);
    let spec = exec.module.as_ref();
    let spec = spec.ok_or_else(|| refused("this backend runs WebAssembly modules: name one"))?;
    let module = module.ok_or_else(|| refused("the bytes of the module did not come with it"))?;
    if spec.digest != *module.digest() {
        return Err(refused("the module that came is not the one that is named"));
    }
    if spec.script != script.map(Script::digest) {
        return Err(refused("the script that came is not the one that is named"));
    }
    exec.check()?;
    script.map_or(Ok(()), |script| script.check(&exec.argv))?;
    single::check(exec)?;
    Ok(Asked {
        exec,
        spec,
        module,
        script,
    })
}

impl Launch {
    fn asked(&self) -> Result<Asked<'_>, PublicError> {
        asked(&self.exec, self.module.as_ref(), self.script.as_ref())
    }
}

/// The end of a shared run that an earlier process began with this folder, for one that has no programs to run
/// any: it was lost. `None` for any other run.
///
/// # Errors
/// When it cannot be looked up, such as while another process runs modules with this folder.
pub fn lost_before(folder: &Path, run: &RunId) -> std::io::Result<Option<Execution>> {
    Runs::new(folder.join(SHARED_RUNS), 0).lost(run)
}

/// What was prepared by [`WasmBackend::prepare`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared {
    /// Where its code came from.
    pub origin: Origin,
    /// Bytes of its code.
    pub code_bytes: u64,
}

impl WasmBackend {
    /// A backend over the supervisor of `process`. `folder` is where it keeps its own things, code among them;
    /// it is this user's alone, and one process at a time has shared runs with it.
    #[must_use]
    pub fn new(
        process: ProcessBackend,
        programs: Programs,
        folder: PathBuf,
        bounds: &WasmBounds,
    ) -> Self {
        let programs = Arc::new(programs);
        let counts = Arc::new(Counts::default());
        let codes = codes::Bounds {
            compile: bounds.compile,
            memory_bytes: bounds.code_memory_bytes,
            disk_bytes: bounds.code_disk_bytes,
            compiles: bounds.compiles.max(1),
            waiting: bounds.compiles_waiting.max(1),
            lend: bounds.lend,
        };
        let runs = Arc::new(Runs::new(folder.join(SHARED_RUNS), bounds.ended_kept));
        let common = Arc::new(Common {
            bounds: HostBounds {
                runs: bounds.host_runs.max(1),
                runs_at_once: bounds.host_runs_at_once.clamp(1, 64),
                memory_bytes: bounds.host_memory_bytes,
                idle: bounds.host_idle,
                slack: bounds.slack,
            },
            runs: Arc::clone(&runs),
            freed: tokio::sync::Notify::new(),
        });
        let setup = Setup {
            process: process.clone(),
            programs: Arc::clone(&programs),
            common,
            counts: Arc::clone(&counts),
        };
        let hosts = HostsBounds {
            all: bounds.hosts,
            per_tenant: bounds.hosts_per_tenant,
            spares: bounds.spares,
            wait: bounds.room_wait,
        };
        Self {
            inner: Arc::new(Inner {
                codes: Arc::new(Codes::new(
                    process.clone(),
                    Arc::clone(&programs),
                    folder.clone(),
                    codes,
                    Arc::clone(&counts),
                )),
                hosts: Arc::new(Hosts::new(setup, hosts)),
                output: Shares::of(bounds.output_memory_bytes, bounds.output_memory_of_a_tenant),
                probed: Mutex::new(None),
                counts,
                lend: bounds.lend.then_some(folder),
                process,
                programs,
                runs,
            }),
        }
    }

    /// Has a module compiled and its code at hand, so that no run waits for that.
    ///
    /// # Errors
    /// Why it has no code.
    pub async fn prepare(
        &self,
        module: &Module,
        flavour: Flavour,
        tenant: Option<&Name>,
    ) -> Result<Prepared, CompileError> {
        let (code, origin) = self.inner.code(module, flavour, tenant).await?;
        Ok(Prepared {
            origin,
            code_bytes: code.sealed.bytes,
        })
    }

    /// Has the module of `exec` compiled, and makes what goes with the order for a run of it in a sandbox of its
    /// own, for a caller that talks to the supervisor itself.
    ///
    /// # Errors
    /// Why it has no code, or what such a run cannot have.
    pub async fn single(
        &self,
        exec: &ExecSpec,
        module: &Module,
        script: Option<&Script>,
        sandbox: &SandboxSpec,
    ) -> Result<(Single, Prepared), BackendError> {
        let asked = asked(exec, Some(module), script)?;
        let (code, origin) = self.inner.code(module, asked.flavour(), None).await?;
        self.inner.lend_host().await;
        let prepared = Prepared {
            origin,
            code_bytes: code.sealed.bytes,
        };
        let (limits, workspace) = (&sandbox.limits, sandbox.workspace);
        let single = Single::new(&self.inner.programs, code, asked, limits, workspace)?;
        Ok((single, prepared))
    }

    /// The shared hosts that are there, untouched ones among them.
    #[must_use]
    pub fn hosts(&self) -> Vec<HostStatus> {
        self.inner.hosts.status()
    }

    /// What it did so far.
    #[must_use]
    pub fn counts(&self) -> WasmCounts {
        self.inner.counts.read()
    }

    /// The programs it runs.
    #[must_use]
    pub fn programs(&self) -> &Programs {
        &self.inner.programs
    }

    async fn launched(&self, launch: Launch) -> Result<Execution, BackendError> {
        let launched = std::time::Instant::now();
        let asked = launch.asked()?;
        let tenant = launch.tenant.as_ref();
        let (code, _) = self
            .inner
            .code(asked.module, asked.flavour(), tenant)
            .await?;
        let times = shared::Times {
            launched,
            coded: std::time::Instant::now(),
        };
        if let Some(tenant) = tenant.filter(|_| shared::suits(&launch)) {
            let shared = self.inner.share(&launch, tenant, asked, &code, times);
            if let Some(execution) = shared.await? {
                count(&self.inner.counts.shared);
                return Ok(execution);
            }
            count(&self.inner.counts.crowded);
        }
        count(&self.inner.counts.single);
        self.alone(launch, code, false).await
    }

    /// Runs it in a sandbox of its own. What is `bound` is work of ours: no row knows it, and whoever looks for
    /// runs that no row knows does not see it.
    async fn alone(
        &self,
        launch: Launch,
        code: Arc<Code>,
        bound: bool,
    ) -> Result<Execution, BackendError> {
        let asked = launch.asked()?;
        let (limits, workspace) = (&launch.sandbox.limits, launch.sandbox.workspace);
        let programs = &self.inner.programs;
        let single = Single::new(programs, code, asked, limits, workspace)?;
        let mut supply = single.supply();
        supply.order.bound = bound;
        Ok(self.inner.process.launch_with(launch, Some(supply)).await?)
    }

    /// Runs the smallest program to its end: programs, compiler, host and sandbox in one.
    async fn try_out(&self) -> Result<Capabilities, PublicError> {
        // Nothing panics while it holds this lock.
        let known = || {
            self.inner
                .probed
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(known) = known().clone() {
            return Ok(known);
        }
        let below = self.inner.process.probe().await?;
        let broken = |error: BackendError| match error {
            BackendError::Refused(error) => error,
            error => PublicError::new(error.kind(), error.chain()),
        };
        let module = Module::of_bytes(NOTHING);
        let module =
            module.map_err(|error| PublicError::new(ErrorKind::Unavailable, error.to_string()))?;
        let mut exec = ExecSpec::command(["nothing"]);
        exec.module = Some(ModuleSpec {
            digest: *module.digest(),
            name: "nothing".to_owned(),
            script: None,
            determinism: None,
            fuel: None,
        });
        let run = compile::new_run();
        let run = run.map_err(|error| PublicError::new(ErrorKind::Internal, error.to_string()))?;
        let sandbox = SandboxSpec {
            limits: Limits {
                wall_ms: Limit::defaulted(30_000),
                ..Limits::default()
            },
            ..SandboxSpec::default()
        };
        let launch = Launch {
            module: Some(module),
            ..Launch::new(run, sandbox, exec)
        };
        let asked = launch.asked()?;
        let code = self.inner.code(asked.module, asked.flavour(), None).await;
        let (code, _) = code.map_err(|error| broken(error.into()))?;
        let mut execution = self.alone(launch, code, true).await.map_err(broken)?;
        let record = execution.cleaned().await.map_err(broken)?;
        let end = record.as_ref().and_then(|record| record.end.as_ref());
        if end != Some(&EndReason::Completed) {
            let how = end.map_or_else(|| "nobody told how".to_owned(), EndReason::phrase);
            let message = format!("a module that does nothing ended otherwise: {how}");
            return Err(PublicError::new(ErrorKind::Internal, message));
        }
        let contract = record.and_then(|record| record.contract);
        let capabilities = Capabilities {
            enforcement: enforcement(below.enforcement),
            posture: contract.map_or(below.posture, |contract| contract.posture),
            workspaces: below.workspaces,
        };
        *known() = Some(capabilities.clone());
        Ok(capabilities)
    }
}

/// How each limit holds: a host holds memory, processor time, output and files by itself, and a module starts no
/// process.
fn enforcement(below: Vec<Enforced>) -> Vec<Enforced> {
    let own = [
        Resource::CpuTime,
        Resource::Memory,
        Resource::Pids,
        Resource::Files,
        Resource::Fuel,
        Resource::Stack,
        Resource::Handles,
    ];
    let rest = below.into_iter().filter(|row| !own.contains(&row.which));
    let own = own.map(|which| Enforced {
        which,
        how: Enforcement::Enforced,
    });
    rest.chain(own).collect()
}

impl Backend for WasmBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn isolation(&self) -> Isolation {
        Isolation::Wasm
    }

    fn probe(&self) -> Doing<'_, Result<Capabilities, PublicError>> {
        Box::pin(self.try_out())
    }

    fn provision(
        &self,
        spec: SandboxSpec,
        workspace: Option<OwnedFd>,
    ) -> Doing<'_, Result<Box<dyn Computer>, BackendError>> {
        Box::pin(async {
            let sandbox = self.inner.process.made(spec, workspace).await?;
            let computer = WasmComputer::new(Arc::clone(&self.inner), sandbox);
            Ok(Box::new(computer) as Box<dyn Computer>)
        })
    }

    fn at_hand(&self, module: &ModuleSpec) -> bool {
        let flavour = limits::flavour(module);
        self.inner.codes.hot(&module.digest, flavour).is_some()
    }

    fn readiness(&self, module: ModuleSpec) -> Doing<'_, Readiness> {
        Box::pin(async move {
            let flavour = limits::flavour(&module);
            self.inner.codes.readiness(module.digest, flavour).await
        })
    }

    fn make_ready(
        &self,
        spec: ModuleSpec,
        module: Module,
        tenant: Option<Name>,
    ) -> Doing<'_, Result<Origin, BackendError>> {
        Box::pin(async move {
            let flavour = limits::flavour(&spec);
            let prepared = self.prepare(&module, flavour, tenant.as_ref()).await;
            Ok(prepared?.origin)
        })
    }

    fn launch(&self, launch: Launch) -> Doing<'_, Result<Execution, BackendError>> {
        Box::pin(self.launched(launch))
    }

    fn cancel(
        &self,
        run: RunId,
        by: CancelledBy,
        at_once: bool,
    ) -> Doing<'_, Result<(), BackendError>> {
        match self.inner.runs.get(&run) {
            Some(placed) => {
                // One whose host is gone is over, or about to be told so.
                if let Some(host) = placed.host.upgrade() {
                    host.cancel(placed.number, &placed.run, by);
                }
                Box::pin(std::future::ready(Ok(())))
            }
            None => self.inner.process.cancel(run, by, at_once),
        }
    }

    fn running(&self) -> Doing<'_, Result<Vec<(RunId, SandboxId)>, BackendError>> {
        Box::pin(async {
            let mut running = self.inner.process.running().await?;
            running.extend(self.inner.runs.running());
            Ok(running)
        })
    }

    fn artifact(&self, run: RunId, place: usize) -> Doing<'_, Result<File, BackendError>> {
        self.inner.process.artifact(run, place)
    }

    /// Keeps untouched shared hosts: these have no kind, so the sandbox that is asked for says nothing.
    fn keep_warm(&self, _: SandboxSpec, count: u32) -> Doing<'_, Result<(), BackendError>> {
        Box::pin(async move {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            Ok(self.inner.hosts.keep(count).await?)
        })
    }

    fn adopt(&self, known: Known) -> Doing<'_, Result<Option<Box<dyn Computer>>, BackendError>> {
        Box::pin(async {
            let adopted = self.inner.process.adopted(known).await?;
            let computer =
                adopted.map(|sandbox| WasmComputer::new(Arc::clone(&self.inner), sandbox));
            Ok(computer.map(|computer| Box::new(computer) as Box<dyn Computer>))
        })
    }

    fn attach(&self, run: RunId) -> Doing<'_, Result<Execution, BackendError>> {
        Box::pin(async move {
            let lacking = |error: std::io::Error| {
                PublicError::new(
                    ErrorKind::Unavailable,
                    format!("the run cannot be followed: {error}"),
                )
            };
            if let Some(execution) = self.inner.runs.attach(&run).map_err(lacking)? {
                return Ok(execution);
            }
            let nobody = match self.inner.process.attach(run.clone()).await {
                Err(error) if error.kind() == ErrorKind::NotFound => error,
                found => return found,
            };
            let lost = self.inner.runs.lost(&run).map_err(lacking)?;
            lost.ok_or(nobody)
        })
    }

    fn sweep(&self, live: Vec<SandboxId>) -> Doing<'_, Result<Swept, BackendError>> {
        self.inner.process.sweep(live)
    }
}
