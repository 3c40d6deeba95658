//! What a backend and a computer promise.
//!
//! Provisioning ends *parked*: the computer is there, bounded, and has run nothing of anybody's.
//! Claiming it for its one run is then one message, so that whoever keeps parked computers ahead of
//! demand has no slow part left on the way. Pausing, snapshots, forks and resizing will be optional
//! traits beside [`Computer`] once a backend has them; until then they do not exist.

use std::fs::File;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;

use leasehold_core::contract::{Contract, Enforced, Posture};
use leasehold_core::end::CancelledBy;
use leasehold_core::error::PublicError;
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::isolation::Isolation;
use leasehold_core::name::Name;
use leasehold_core::record::{Observed, Usage};
use leasehold_core::spec::{ExecSpec, ModuleSpec, SandboxSpec, Script, WorkspaceMode};

use crate::error::BackendError;
use crate::execution::Execution;
use crate::wasm::{Module, Origin};

/// Something a backend is doing. It may be dropped: what was begun then ends by itself or is found by
/// [`Backend::sweep`].
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a backend can do on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// How each limit holds here.
    pub enforcement: Vec<Enforced>,
    /// What a computer of this backend is made of here.
    pub posture: Posture,
    /// How its workspace may come to be.
    pub workspaces: Vec<WorkspaceMode>,
}

/// A computer that was made before, as its owner's books have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Which.
    pub sandbox: SandboxId,
    /// What it promised when it was made.
    pub contract: Contract,
}

/// What [`Backend::sweep`] ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Computers nobody knew, and what was seen after their removal.
    pub ended: Vec<(SandboxId, Observed)>,
}

/// Where the code of a module stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It is at hand: a run waits for nothing.
    Ready,
    /// It was compiled before and is kept: it is read once, and checked.
    Kept,
    /// It is being compiled, or waits for its turn.
    Compiling,
    /// It cannot be compiled, and why.
    Refused(String),
    /// Nobody had it compiled: whoever comes first waits for that.
    Absent,
}

/// An image whose file system is the root of a computer, as its store hands it on.
#[derive(Debug)]
pub struct ImageFiles {
    /// The directory of the unpacked layers.
    pub layers: OwnedFd,
    /// What keeps them as long as somebody has it.
    pub lease: OwnedFd,
}

/// One run in a computer that is made or claimed for it alone.
#[derive(Debug)]
pub struct Launch {
    /// Id chosen by the caller; it can be used once.
    pub run: RunId,
    /// The computer.
    pub sandbox: SandboxSpec,
    /// The command.
    pub exec: ExecSpec,
    /// The host directory of the workspace, for the modes that have one.
    pub workspace: Option<OwnedFd>,
    /// What the image of `sandbox` is made of, where it has one.
    pub image: Option<ImageFiles>,
    /// The WebAssembly module that `exec` names, for a backend that runs such.
    pub module: Option<Module>,
    /// The script of that module, where it is an interpreter that gets one as text.
    pub script: Option<Script>,
    /// All of standard input, where the caller has it. A backend that can give it to the run by itself does,
    /// and says so in [`Execution::fed`]; any other gives a pipe as ever.
    pub input: Option<Arc<[u8]>>,
    /// Whose run it is. A backend that lets runs share a process does so within a tenant alone, and not at
    /// all for a run of nobody's.
    pub tenant: Option<Name>,
}

impl Launch {
    /// A command of nobody's with nothing but itself.
    #[must_use]
    pub fn new(run: RunId, sandbox: SandboxSpec, exec: ExecSpec) -> Self {
        Self {
            run,
            sandbox,
            exec,
            workspace: None,
            image: None,
            module: None,
            script: None,
            input: None,
            tenant: None,
        }
    }
}

/// A way to make bounded computers.
pub trait Backend: Send + Sync {
    /// Its name in contracts and flags.
    fn name(&self) -> &'static str;

    /// How strong its boundary is.
    fn isolation(&self) -> Isolation;

    /// Tries it on this host.
    ///
    /// # Errors
    /// The reason why it cannot be used here, and the mend where one is known.
    fn probe(&self) -> Doing<'_, Result<Capabilities, PublicError>>;

    /// Makes a computer and leaves it parked. The descriptor is the host directory of the workspace,
    /// for the modes that have one.
    ///
    /// # Errors
    /// When it refuses or cannot make it; nothing is left then.
    fn provision(
        &self,
        spec: SandboxSpec,
        workspace: Option<OwnedFd>,
    ) -> Doing<'_, Result<Box<dyn Computer>, BackendError>>;

    /// Whether a run of this module begins without waiting for its code. A backend that compiles nothing has
    /// it always.
    fn at_hand(&self, _: &ModuleSpec) -> bool {
        true
    }

    /// Where the code of a module stands.
    fn readiness(&self, _: ModuleSpec) -> Doing<'_, Readiness> {
        Box::pin(std::future::ready(Readiness::Ready))
    }

    /// Has the code of a module at hand, and says where it came from: what a launch would wait for else. It may be
    /// dropped at any moment, and goes on where nobody waits for it any more. `tenant` is who asked: tenants take turns.
    ///
    /// # Errors
    /// A module that cannot be run is [`BackendError::Unrunnable`], with the end that a run of it has: the bounds
    /// on compiling are the backend's own. Anything else is a refusal.
    fn make_ready(
        &self,
        _: ModuleSpec,
        _: Module,
        _: Option<Name>,
    ) -> Doing<'_, Result<Origin, BackendError>> {
        Box::pin(std::future::ready(Ok(Origin::Memory)))
    }

    /// Makes a computer, or claims a parked one that fits, runs one command in it and destroys it
    /// afterwards. One message where the backend has one for it.
    ///
    /// # Errors
    /// A refusal means that nothing was begun; its kind is `exists` where the run was launched before.
    /// Any other failure leaves that open: [`Backend::attach`] says.
    fn launch(&self, launch: Launch) -> Doing<'_, Result<Execution, BackendError>>;

    /// Ends a run: asked first and killed after the grace of its limits, or `at_once`. Does nothing
    /// to one that is over.
    ///
    /// # Errors
    /// `not_found` when no such run was recorded.
    fn cancel(
        &self,
        run: RunId,
        by: CancelledBy,
        at_once: bool,
    ) -> Doing<'_, Result<(), BackendError>>;

    /// Runs that hold a computer now, removal included.
    ///
    /// # Errors
    /// When the backend cannot be asked.
    fn running(&self) -> Doing<'_, Result<Vec<(RunId, SandboxId)>, BackendError>>;

    /// The copy of a collected file: `place` is that of its row in the record's artifacts.
    ///
    /// # Errors
    /// `not_found` when there is no such copy.
    fn artifact(&self, run: RunId, place: usize) -> Doing<'_, Result<File, BackendError>>;

    /// Keeps so many untouched computers of a kind parked for [`Backend::launch`]; 0 ends that. A backend
    /// without a pool does nothing.
    ///
    /// # Errors
    /// When it refuses or cannot make them.
    fn keep_warm(&self, spec: SandboxSpec, count: u32) -> Doing<'_, Result<(), BackendError>>;

    /// Takes up a computer made by an earlier process of its owner; `None` when it is gone.
    ///
    /// # Errors
    /// When the backend cannot be asked.
    fn adopt(&self, known: Known) -> Doing<'_, Result<Option<Box<dyn Computer>>, BackendError>>;

    /// Takes up a run again: one in progress, or one that is over and whose record is kept. Output is
    /// read from the beginning if wanted.
    ///
    /// # Errors
    /// `not_found` when no such run was recorded.
    fn attach(&self, run: RunId) -> Doing<'_, Result<Execution, BackendError>>;

    /// Ends every computer that was provisioned, has no run in it and is not among `live`. Only for
    /// the one owner of this backend's state.
    ///
    /// # Errors
    /// When the backend cannot be asked.
    fn sweep(&self, live: Vec<SandboxId>) -> Doing<'_, Result<Swept, BackendError>>;
}

/// One bounded computer. Dropping it ends nothing: its owner's books still have it.
pub trait Computer: Send + Sync {
    /// Which.
    fn id(&self) -> &SandboxId;

    /// What it promises.
    fn contract(&self) -> &Contract;

    /// Claims it for its one run; it is destroyed when that is over. The id is chosen by the caller
    /// and can be used once. `module` is the one that `exec` names, for a backend that runs such.
    ///
    /// # Errors
    /// When it is not parked any more, or the command is refused; a command that cannot be started
    /// is no error but an end.
    fn run(
        &self,
        run: RunId,
        exec: ExecSpec,
        module: Option<Module>,
    ) -> Doing<'_, Result<Execution, BackendError>>;

    /// Ends the run in it: asked first and killed after the grace of its limits, or `at_once`.
    ///
    /// # Errors
    /// `wrong_state` when there is none.
    fn cancel(&self, by: CancelledBy, at_once: bool) -> Doing<'_, Result<(), BackendError>>;

    /// A byte stream to the agent inside, started if need be. Claims it as a run would.
    ///
    /// # Errors
    /// When it is not parked, or the agent cannot be started.
    fn channel(&self) -> Doing<'_, Result<OwnedFd, BackendError>>;

    /// What it uses now.
    ///
    /// # Errors
    /// `not_found` when it is gone.
    fn usage(&self) -> Doing<'_, Result<Usage, BackendError>>;

    /// Ends it and tells what the host saw afterwards. May be called at any time and any number of
    /// times; where it is gone already the answer says so.
    ///
    /// # Errors
    /// When the backend cannot be asked.
    fn destroy(&self) -> Doing<'_, Result<Observed, BackendError>>;
}
