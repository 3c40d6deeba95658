//! A run with a sandbox of its own: a host that runs one module, as the program of that sandbox.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_core::limits::Limits;
use leasehold_core::spec::{ExecSpec, WorkspaceMode};
use leasehold_protocol::memory;
use leasehold_protocol::supervisor::{Request, Supplied, Target};
use leasehold_protocol::wasm::{Load, ONE_BYTES_MAX, One, Preopen, one_argv};

use super::code::Code;
use super::programs::Programs;
use super::sealed::Sealed;
use super::{Asked, limits};
use crate::process::Supply;

/// Where a run finds its workspace.
const WORKSPACE: &str = "/workspace";

/// Everything that goes with the order for such a run.
#[derive(Debug)]
pub struct Single {
    program: Arc<Sealed>,
    config: OwnedFd,
    code: Arc<Code>,
    argv: Vec<String>,
}

fn invalid(message: impl Into<String>) -> PublicError {
    PublicError::new(ErrorKind::Invalid, message)
}

/// What such a run cannot have.
pub(super) fn check(exec: &ExecSpec) -> Result<(), PublicError> {
    if exec.tty.is_some() {
        return Err(invalid(
            "a WebAssembly module has no terminal: run it without one",
        ));
    }
    if exec.cwd.as_deref().is_some_and(|cwd| cwd != WORKSPACE) {
        return Err(invalid(format!(
            "a WebAssembly module has no working directory but `{WORKSPACE}`: leave `cwd` out"
        )));
    }
    Ok(())
}

impl Single {
    pub(super) fn new(
        programs: &Programs,
        code: Arc<Code>,
        asked: Asked<'_>,
        bounds: &Limits,
        workspace: WorkspaceMode,
    ) -> Result<Self, PublicError> {
        let writable = workspace != WorkspaceMode::ReadOnly;
        let mut start = limits::start(asked, bounds);
        start.preopens = vec![Preopen {
            guest: WORKSPACE.to_owned(),
            writable,
        }];
        let one = One {
            load: Load {
                kind: code.kind,
                flavour: code.flavour,
            },
            start,
        };
        let text = serde_json::to_vec(&one).map_err(|error| invalid(error.to_string()))?;
        if text.len() as u64 > ONE_BYTES_MAX {
            return Err(invalid(format!(
                "arguments and environment have {} bytes as a host reads them: most is {ONE_BYTES_MAX}",
                text.len()
            )));
        }
        let lacking =
            |error: io::Error| PublicError::new(ErrorKind::Unavailable, error.to_string());
        Ok(Self {
            program: programs.host.sealed().map_err(|error| error.public())?,
            config: memory::sealed("leasehold-wasm-run", &text).map_err(lacking)?,
            code,
            argv: one_argv(Some(writable)),
        })
    }

    /// The order of the run for the supervisor, and the descriptors that follow that of its workspace.
    #[must_use]
    pub fn ordered(
        &self,
        run: RunId,
        target: Target,
        exec: ExecSpec,
    ) -> (Request, Vec<BorrowedFd<'_>>) {
        crate::process::ordered(run, target, exec, Some(self.supply()))
    }

    /// The program and what it is passed.
    pub(super) fn supply(&self) -> Supply<'_> {
        Supply {
            order: Supplied {
                argv: self.argv.clone(),
                passed: 0,
                report: true,
                bound: false,
                digest: self.program.digest,
            },
            program: self.program.file.as_fd(),
            passed: vec![self.config.as_fd(), self.code.sealed.file.as_fd()],
        }
    }
}
