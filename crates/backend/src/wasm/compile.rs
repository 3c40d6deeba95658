//! One module compiled, in a sandbox of its own.
//!
//! Hostile input makes a compiler slow and large without bound, and it cannot be stopped from inside. So each
//! module has a process with bounds on time, memory and output that the supervisor holds, and the compiler has
//! confined itself before it reads a byte. What comes out is believed no further than that it is code of the
//! module that went in: a host loads it, and a host is believed nothing.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};

use leasehold_core::digest::Digest;
use leasehold_core::end::{EndReason, ExitStatus, LimitHit};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_core::limits::{Limit, Limits, OnOutputLimit, Resource};
use leasehold_core::quantity::{format_bytes, format_micros};
use leasehold_core::record::RunRecord;
use leasehold_core::spec::{ExecSpec, SandboxSpec};
use leasehold_protocol::supervisor::Supplied;
use leasehold_protocol::wasm::{Flavour, Kind, printable};
use tokio::net::unix::pipe;

use super::code::Code;
use super::programs::{COMPILER_NAME, Programs, ProgramsError};
use super::sealed::{self, CopyError, FromStart, Sealed};
use crate::error::BackendError;
use crate::execution::{Execution, RunEvent};
use crate::process::{ProcessBackend, Supply};
use crate::seam::Launch;

/// Most bytes of what a compiler says.
const SAID_MAX: u64 = 4 << 10;
/// Most characters of it that are passed on.
const TEXT_MAX: usize = 500;
/// Status of a compiler that was given no valid module.
const DATA: u8 = 65;
/// Signals of the kernel's own bound on processor time, and of a program that gives up for want of memory.
const XCPU: u8 = 24;
const ABORT: u8 = 6;

/// What one module may cost to compile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileLimits {
    /// Bytes of the module.
    pub module_bytes: u64,
    /// Bytes of the code it becomes.
    pub code_bytes: u64,
    /// Processor time in milliseconds.
    pub cpu_ms: u64,
    /// Time in milliseconds.
    pub wall_ms: u64,
    /// Memory of the compiler in bytes.
    pub memory_bytes: u64,
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self {
            module_bytes: 64 << 20,
            code_bytes: 512 << 20,
            cpu_ms: 120_000,
            wall_ms: 300_000,
            memory_bytes: 2 << 30,
        }
    }
}

/// Which bound a module met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompileBound {
    /// [`CompileLimits::module_bytes`].
    Module,
    /// [`CompileLimits::code_bytes`].
    Code,
    /// [`CompileLimits::cpu_ms`].
    Cpu,
    /// [`CompileLimits::wall_ms`].
    Wall,
    /// [`CompileLimits::memory_bytes`].
    Memory,
}

impl CompileBound {
    fn of(self, limits: &CompileLimits) -> u64 {
        match self {
            Self::Module => limits.module_bytes,
            Self::Code => limits.code_bytes,
            Self::Cpu => limits.cpu_ms,
            Self::Wall => limits.wall_ms,
            Self::Memory => limits.memory_bytes,
        }
    }

    fn phrase(self, limits: &CompileLimits) -> String {
        match self {
            Self::Module => format!(
                "the module is longer than {}",
                format_bytes(limits.module_bytes)
            ),
            Self::Code => format!(
                "its code is longer than {}",
                format_bytes(limits.code_bytes)
            ),
            Self::Cpu => format!(
                "compiling it takes more processor time than {}",
                format_micros(limits.cpu_ms.saturating_mul(1_000))
            ),
            Self::Wall => format!(
                "compiling it takes longer than {}",
                format_micros(limits.wall_ms.saturating_mul(1_000))
            ),
            Self::Memory => format!(
                "compiling it takes more memory than {}",
                format_bytes(limits.memory_bytes)
            ),
        }
    }
}

/// Why a module has no code.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CompileError {
    /// A bound was met: the end of such a run is `compile_limit`.
    #[error("compile_limit: {said}")]
    Limit {
        /// Which.
        bound: CompileBound,
        /// The limit: milliseconds of a bound on time, bytes of any other.
        limit: u64,
        /// In words, with the limit.
        said: String,
    },
    /// It is no module that can be run.
    #[error("the compiler refused the module: {0}")]
    Invalid(String),
    /// Its bytes are not those that were named.
    #[error("the module's bytes do not have the digest {0}")]
    Changed(Digest),
    /// Its bytes cannot be had.
    #[error(transparent)]
    Bytes(PublicError),
    /// The compiler is not there or not to be trusted.
    #[error(transparent)]
    Programs(PublicError),
    /// It was not the module's fault: the compiler was ended, or could not be started.
    #[error("the module could not be compiled: {said}")]
    Failed {
        /// Whether it may go well another time.
        kind: ErrorKind,
        /// What is known.
        said: String,
    },
    /// Too many modules wait to be compiled.
    #[error("{waiting} modules wait to be compiled: most is {most}")]
    Busy {
        /// How many do.
        waiting: usize,
        /// How many may.
        most: usize,
    },
}

impl CompileError {
    /// Whether the same module would come to the same end. A bound on time of the wall is met for want of a
    /// processor as well, which others may have taken; that on the length is met before its digest is known.
    pub(super) fn lasting(&self) -> bool {
        match self {
            Self::Limit {
                bound: CompileBound::Code | CompileBound::Cpu | CompileBound::Memory,
                ..
            }
            | Self::Invalid(_) => true,
            Self::Limit {
                bound: CompileBound::Wall | CompileBound::Module,
                ..
            }
            | Self::Changed(_)
            | Self::Bytes(_)
            | Self::Programs(_)
            | Self::Failed { .. }
            | Self::Busy { .. } => false,
        }
    }

    /// In words that may be shown to a caller.
    #[must_use]
    pub fn public(&self) -> PublicError {
        let said = self.to_string();
        match self {
            Self::Limit { .. } | Self::Invalid(_) | Self::Changed(_) => {
                PublicError::new(ErrorKind::Invalid, said)
            }
            Self::Bytes(error) | Self::Programs(error) => error.clone(),
            Self::Failed { kind, .. } => PublicError::new(*kind, said),
            Self::Busy { .. } => PublicError::new(ErrorKind::Quota, said).retry_after_ms(1_000),
        }
    }
}

impl From<ProgramsError> for CompileError {
    fn from(error: ProgramsError) -> Self {
        Self::Programs(error.public())
    }
}

impl From<CompileError> for BackendError {
    /// A module that cannot be run ends its run; anything else is a refusal.
    fn from(error: CompileError) -> Self {
        let end = match &error {
            CompileError::Limit { limit, .. } => EndReason::ResourceExceeded {
                hit: LimitHit {
                    which: Resource::Compile,
                    limit: *limit,
                    // It was ended there; how much it would have taken nobody knows.
                    observed: *limit,
                },
                exit: None,
            },
            CompileError::Invalid(_) => EndReason::ToolError {
                exit: ExitStatus::NotExecutable,
            },
            _ => return Self::Refused(error.public()),
        };
        Self::Unrunnable {
            end: Box::new(end),
            detail: error.to_string(),
        }
    }
}

fn failed(kind: ErrorKind, said: impl Into<String>) -> CompileError {
    CompileError::Failed {
        kind,
        said: said.into(),
    }
}

fn broken(error: &io::Error) -> CompileError {
    failed(ErrorKind::Unavailable, error.to_string())
}

pub(super) fn limit(bound: CompileBound, limits: &CompileLimits) -> CompileError {
    CompileError::Limit {
        bound,
        limit: bound.of(limits),
        said: bound.phrase(limits),
    }
}

/// Compiles one module. `wasm` has been checked to be what was named.
pub(super) async fn compile(
    process: &ProcessBackend,
    programs: &Programs,
    limits: &CompileLimits,
    flavour: Flavour,
    wasm: &File,
) -> Result<Code, CompileError> {
    let program = programs.compiler.sealed()?;
    let launch = Launch::new(
        new_run().map_err(|error| broken(&error))?,
        sandbox(limits),
        exec(flavour),
    );
    let order = Supplied {
        argv: arguments(limits, flavour),
        passed: 0,
        report: false,
        bound: true,
        digest: program.digest,
    };
    let supply = Supply {
        order,
        program: program.file.as_fd(),
        passed: Vec::new(),
    };
    let launched = process.launch_with(launch, Some(supply)).await;
    let mut execution = launched.map_err(|error| {
        let error = BackendError::from(error);
        failed(error.kind(), error.chain())
    })?;
    let input = execution.input.take();
    let fed = feed(input, wasm);
    // A compiler that has enough of its input ends, and that is told by its end.
    let (record, _) = tokio::join!(ended(&mut execution), fed);
    let record = record?;
    let said = said(&execution.stderr);
    verdict(&record, &said, limits)?;
    code(&execution, &record, &said, flavour, limits).await
}

/// What the record tells of it. Nobody reads it but whoever looks for what went wrong.
fn exec(flavour: Flavour) -> ExecSpec {
    ExecSpec {
        stdin: true,
        ..ExecSpec::command([COMPILER_NAME, flavour.word()])
    }
}

/// Seconds and address space are bounds that the compiler sets itself, above those of its sandbox: they hold
/// where the host has no control groups.
fn arguments(limits: &CompileLimits, flavour: Flavour) -> Vec<String> {
    let seconds = limits.cpu_ms.div_ceil(1_000) + 1;
    let address = limits.memory_bytes.saturating_mul(2);
    [
        COMPILER_NAME.to_owned(),
        flavour.word().to_owned(),
        seconds.to_string(),
        address.to_string(),
        limits.module_bytes.to_string(),
    ]
    .into()
}

fn sandbox(limits: &CompileLimits) -> SandboxSpec {
    SandboxSpec {
        limits: Limits {
            memory_bytes: Limit::defaulted(limits.memory_bytes),
            disk_bytes: Limit::defaulted(1 << 20),
            inodes: Limit::defaulted(64),
            pids: Limit::defaulted(8),
            files: Limit::defaulted(32),
            wall_ms: Limit::defaulted(limits.wall_ms),
            cpu_time_ms: Some(Limit::defaulted(limits.cpu_ms)),
            grace_ms: 0,
            output_bytes: Limit::defaulted(limits.code_bytes),
            on_output_limit: OnOutputLimit::Kill,
            ..Limits::default()
        },
        ..SandboxSpec::default()
    }
}

/// A run id nobody used.
pub(super) fn new_run() -> io::Result<RunId> {
    let mut entropy = [0; 13];
    rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty())?;
    Ok(RunId::from_entropy(&entropy))
}

/// Writes the module to the compiler's standard input.
async fn feed(input: Option<OwnedFd>, wasm: &File) -> io::Result<()> {
    let Some(input) = input else { return Ok(()) };
    rustix::io::ioctl_fionbio(&input, true)?;
    let pipe = pipe::Sender::from_owned_fd(input)?;
    let mut wasm = FromStart::of(wasm);
    let mut piece = vec![0; 64 << 10];
    loop {
        // Of memory, so this does not wait.
        let got = wasm.read(&mut piece)?;
        if got == 0 {
            return Ok(());
        }
        let mut rest = &piece[..got];
        while !rest.is_empty() {
            pipe.writable().await?;
            match pipe.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

async fn ended(execution: &mut Execution) -> Result<Box<RunRecord>, CompileError> {
    while let Some(event) = execution.next().await {
        match event {
            Ok(RunEvent::Ended(record) | RunEvent::Cleaned(record)) => return Ok(record),
            Ok(_) => {}
            Err(error) => return Err(failed(error.kind(), error.chain())),
        }
    }
    Err(failed(ErrorKind::Unavailable, "nobody told of its end"))
}

/// What a program of ours said on standard error, cut.
pub(super) fn said(stderr: &File) -> String {
    let mut bytes = Vec::new();
    // What cannot be read was not said.
    let _ = FromStart::of(stderr).take(SAID_MAX).read_to_end(&mut bytes);
    printable(String::from_utf8_lossy(&bytes).trim(), TEXT_MAX)
}

/// What the end of a compiler says of the module.
fn verdict(record: &RunRecord, said: &str, limits: &CompileLimits) -> Result<(), CompileError> {
    let end = record.end.as_ref();
    let end = end.ok_or_else(|| failed(ErrorKind::Internal, "its record has no end"))?;
    let bound = match end {
        EndReason::Completed if record.stdout.truncated => CompileBound::Code,
        EndReason::Completed => return Ok(()),
        EndReason::ToolError {
            exit: ExitStatus::Exit { code: DATA },
        } => return Err(CompileError::Invalid(said.to_owned())),
        EndReason::ResourceExceeded { hit, .. } => match hit.which {
            Resource::CpuTime => CompileBound::Cpu,
            Resource::Memory => CompileBound::Memory,
            Resource::Output => CompileBound::Code,
            _ => return Err(failed(ErrorKind::Internal, end.phrase())),
        },
        EndReason::Timeout { .. } => CompileBound::Wall,
        EndReason::ToolError {
            exit: ExitStatus::Signal { number: XCPU },
        } => CompileBound::Cpu,
        EndReason::ToolError {
            exit: ExitStatus::Signal { number: ABORT },
        } if said.contains("memory allocation") => CompileBound::Memory,
        EndReason::Cancelled { .. }
        | EndReason::HostLost
        | EndReason::SandboxUnavailable { .. } => {
            return Err(failed(ErrorKind::Unavailable, end.phrase()));
        }
        EndReason::ToolError { .. }
        | EndReason::SandboxCrashed { .. }
        | EndReason::LeaseExpired { .. }
        | EndReason::InvalidOutput { .. } => {
            return Err(failed(
                ErrorKind::Internal,
                format!("{}: {said}", end.phrase()),
            ));
        }
    };
    Err(limit(bound, limits))
}

/// Takes the code into memory.
async fn code(
    execution: &Execution,
    record: &RunRecord,
    said: &str,
    flavour: Flavour,
    limits: &CompileLimits,
) -> Result<Code, CompileError> {
    let kind = match said {
        "core" => Kind::Core,
        "component" => Kind::Component,
        _ => {
            return Err(failed(
                ErrorKind::Internal,
                "the compiler did not say what it compiled",
            ));
        }
    };
    let spool = execution
        .stdout
        .try_clone()
        .map_err(|error| broken(&error))?;
    let (bytes, most) = (record.stdout.kept, limits.code_bytes);
    let copying = tokio::task::spawn_blocking(move || {
        let mut whole = FromStart::of(&spool).take(bytes);
        sealed::copy("leasehold-code", &mut whole, most)
    });
    let copied = copying
        .await
        .map_err(|error| broken(&io::Error::other(error)))?;
    let sealed: Sealed = copied.map_err(|error| match error {
        CopyError::TooLong(_) => limit(CompileBound::Code, limits),
        CopyError::Io(error) => broken(&error),
    })?;
    if sealed.bytes == 0 || sealed.bytes != bytes {
        return Err(failed(
            ErrorKind::Internal,
            "the compiler's output is not whole",
        ));
    }
    Ok(Code {
        kind,
        flavour,
        sealed,
    })
}

#[cfg(test)]
mod tests {
    use leasehold_core::id::SandboxId;

    use super::*;

    fn record(end: EndReason) -> RunRecord {
        let sandbox = SandboxId::from_entropy(&[1; 13]);
        RunRecord {
            end: Some(end),
            ..RunRecord::accepted(RunId::from_entropy(&[1; 13]), sandbox, 0)
        }
    }

    fn after(end: EndReason, said: &str) -> CompileError {
        verdict(&record(end), said, &CompileLimits::default()).unwrap_err()
    }

    #[test]
    fn each_bound_is_told_by_name_and_number() {
        let hit = |which| EndReason::ResourceExceeded {
            hit: LimitHit {
                which,
                limit: 1,
                observed: 2,
            },
            exit: None,
        };
        let signal = |number| EndReason::ToolError {
            exit: ExitStatus::Signal { number },
        };
        let cases = [
            (hit(Resource::CpuTime), "", CompileBound::Cpu, "120.00 s"),
            (signal(XCPU), "", CompileBound::Cpu, "processor time"),
            (hit(Resource::Memory), "", CompileBound::Memory, "2 GiB"),
            (
                signal(ABORT),
                "memory allocation of 9 bytes failed",
                CompileBound::Memory,
                "memory",
            ),
            (hit(Resource::Output), "", CompileBound::Code, "512 MiB"),
            (
                EndReason::Timeout { limit_ms: 1 },
                "",
                CompileBound::Wall,
                "longer than",
            ),
        ];
        for (end, said, wanted, words) in cases {
            let error = after(end, said);
            assert!(
                matches!(error, CompileError::Limit { bound, .. } if bound == wanted),
                "{error}"
            );
            assert_eq!(error.lasting(), wanted != CompileBound::Wall);
            let public = error.public();
            assert_eq!(public.kind, ErrorKind::Invalid);
            assert!(public.message.starts_with("compile_limit: "), "{public}");
            assert!(public.message.contains(words), "{public}");
            let BackendError::Unrunnable { end, detail } = error.into() else {
                panic!("{public}");
            };
            assert_eq!(detail, public.message);
            let EndReason::ResourceExceeded { hit, exit: None } = *end else {
                panic!("{end:?}");
            };
            let limit = wanted.of(&CompileLimits::default());
            assert_eq!((hit.which, hit.limit), (Resource::Compile, limit));
        }
        let mut cut = record(EndReason::Completed);
        assert!(verdict(&cut, "core", &CompileLimits::default()).is_ok());
        cut.stdout.truncated = true;
        let error = verdict(&cut, "core", &CompileLimits::default()).unwrap_err();
        assert!(matches!(error, CompileError::Limit { .. }), "{error}");
    }

    #[test]
    fn what_is_not_the_modules_fault_may_be_tried_again() {
        let data = EndReason::ToolError {
            exit: ExitStatus::Exit { code: DATA },
        };
        let error = after(data, "not a valid Core");
        assert!(error.lasting() && error.to_string().contains("not a valid Core"));
        for (end, kind) in [
            (EndReason::HostLost, ErrorKind::Unavailable),
            (
                EndReason::ToolError {
                    exit: ExitStatus::Signal { number: ABORT },
                },
                ErrorKind::Internal,
            ),
            (
                EndReason::ToolError {
                    exit: ExitStatus::Signal { number: 31 },
                },
                ErrorKind::Internal,
            ),
        ] {
            let error = after(end, "a defect");
            assert!(!error.lasting(), "{error}");
            assert_eq!(error.public().kind, kind);
        }
    }
}
