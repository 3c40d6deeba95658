//! Starting a host.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::contract::HostPosture;
use leasehold_core::end::CancelledBy;
use leasehold_core::error::ErrorKind;
use leasehold_core::id::RunId;
use leasehold_core::limits::{Limit, Limits};
use leasehold_core::spec::{ExecSpec, SandboxSpec};
use leasehold_protocol::supervisor::Supplied;
use leasehold_protocol::wasm::{ENGINE, FromHost, Reader, Ready, VERSION};
use tokio::net::UnixStream;
use tokio::sync::Notify;

use super::books::Books;
use super::drive::{self, Grip};
use super::out::Out;
use super::{Common, Got, Host, read_once};
use crate::error::BackendError;
use crate::execution::{Execution, RunEvent};
use crate::process::{ProcessBackend, Supply};
use crate::seam::{Backend as _, Doing};
use crate::wasm::compile::{new_run, said};
use crate::wasm::counts::Counts;
use crate::wasm::programs::{HOST_NAME, Programs};

/// Number of its socket in the host: the first after the standard streams.
const SOCKET: &str = "3";
/// How long a host may take from its start until it says that it is ready.
const READY: Duration = Duration::from_secs(30);
/// What a host needs beside its modules and runs.
const OWN_BYTES: u64 = 256 << 20;
/// Longer than any process lives that owns a host.
const FOR_EVER_MS: u64 = 315_360_000_000;

/// What a host is started with.
#[derive(Debug)]
pub(in crate::wasm) struct Setup {
    pub(in crate::wasm) process: ProcessBackend,
    pub(in crate::wasm) programs: Arc<Programs>,
    pub(in crate::wasm) common: Arc<Common>,
    pub(in crate::wasm) counts: Arc<Counts>,
}

/// A run of the supervisor's that is a host.
struct Bound {
    process: ProcessBackend,
    run: RunId,
}

impl Grip for Bound {
    fn end(&self) -> Doing<'_, Result<(), BackendError>> {
        self.process
            .cancel(self.run.clone(), CancelledBy::Operator, true)
    }
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> BackendError {
    BackendError::Lost {
        backend: crate::wasm::NAME,
        kind: ErrorKind::Unavailable,
        source: error.into(),
    }
}

/// Starts one and waits until it is ready: locked down, and untouched by anybody.
pub(in crate::wasm) async fn start(setup: &Setup) -> Result<Arc<Host>, BackendError> {
    let program = setup.programs.host.sealed();
    let program = program.map_err(|error| BackendError::Refused(error.public()))?;
    let (ours, theirs) = StdStream::pair().map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    let theirs = OwnedFd::from(theirs);
    let run = new_run().map_err(failed)?;
    let supply = Supply {
        order: Supplied {
            argv: vec![HOST_NAME.to_owned(), SOCKET.to_owned()],
            passed: 0,
            report: false,
            bound: true,
            digest: program.digest,
        },
        program: program.file.as_fd(),
        passed: vec![theirs.as_fd()],
    };
    let exec = ExecSpec::command([HOST_NAME]);
    let started = setup
        .process
        .start_bound(run.clone(), sandbox(setup), exec, supply)
        .await;
    drop(theirs);
    let (mut execution, contract) = started?;
    let grip = Bound {
        process: setup.process.clone(),
        run,
    };
    let socket = UnixStream::from_std(ours).map_err(failed)?;
    let mut reader = Reader::new(false);
    let ready = match tokio::time::timeout(READY, ready(&socket, &mut reader, &mut execution)).await
    {
        Ok(Ok(ready)) => ready,
        Ok(Err(why)) => return Err(given_up(grip, why).await),
        Err(_) => {
            let why = format!("it was not ready within {READY:?}");
            return Err(given_up(grip, why).await);
        }
    };
    let bounds = setup.common.bounds;
    let host = Arc::new(Host {
        sandbox: execution.sandbox.clone(),
        contract,
        posture: HostPosture {
            program: program.digest,
            engine: ENGINE.to_owned(),
            seccomp_sha256: ready.seccomp_sha256,
            places: Vec::new(),
        },
        socket,
        out: Mutex::new(Out::default()),
        books: Mutex::new(Books::new(bounds.memory_bytes, bounds.runs_at_once)),
        more: Notify::new(),
        common: Arc::clone(&setup.common),
    });
    tokio::spawn(drive::drive(
        Arc::clone(&host),
        reader,
        execution,
        Box::new(grip),
    ));
    Ok(host)
}

async fn given_up(grip: Bound, why: String) -> BackendError {
    // It ends with our connection at the latest.
    let _ = grip.end().await;
    failed(format!("a WebAssembly host could not be started: {why}"))
}

fn sandbox(setup: &Setup) -> SandboxSpec {
    let bounds = &setup.common.bounds;
    let memory = bounds.memory_bytes.saturating_add(OWN_BYTES);
    SandboxSpec {
        limits: Limits {
            memory_bytes: Limit::defaulted(memory),
            disk_bytes: Limit::defaulted(1 << 20),
            inodes: Limit::defaulted(64),
            pids: Limit::defaulted(64),
            files: Limit::defaulted(4_096),
            wall_ms: Limit::defaulted(FOR_EVER_MS),
            grace_ms: 0,
            output_bytes: Limit::defaulted(64 << 10),
            ..Limits::default()
        },
        ..SandboxSpec::default()
    }
}

/// Waits for its first word.
async fn ready(
    socket: &UnixStream,
    reader: &mut Reader,
    execution: &mut Execution,
) -> Result<Ready, String> {
    loop {
        if let Some(frame) = reader.take().map_err(|error| error.to_string())? {
            if FromHost::of(frame.kind) != Some(FromHost::Ready) {
                return Err("it said something else than that it is ready".to_owned());
            }
            let ready: Ready = frame.read().map_err(|error| error.to_string())?;
            return match ready.version {
                VERSION => Ok(ready),
                theirs => Err(format!(
                    "it speaks version {theirs}, this program {VERSION}"
                )),
            };
        }
        tokio::select! {
            filled = fill(socket, reader) => if !filled? {
                return Err(last_words(execution).await);
            },
            event = execution.next() => match event {
                Some(Ok(RunEvent::Ended(record))) => {
                    let end = record.end.map(|end| end.phrase()).unwrap_or_default();
                    return Err(format!("{end}: {}", said(&execution.stderr)));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.to_string()),
                None => return Err("its supervisor went away".to_owned()),
            }
        }
    }
}

/// Waits for bytes. Says whether the host is still there.
async fn fill(socket: &UnixStream, reader: &mut Reader) -> Result<bool, String> {
    loop {
        socket.readable().await.map_err(|error| error.to_string())?;
        match read_once(socket, reader).map_err(|error| error.to_string())? {
            Got::Bytes => return Ok(true),
            Got::End => return Ok(false),
            Got::Nothing => {}
        }
    }
}

/// Waits for the end of a host that closed its socket, and says what it said.
async fn last_words(execution: &mut Execution) -> String {
    while let Some(Ok(event)) = execution.next().await {
        if let RunEvent::Ended(record) = event {
            let end = record.end.map(|end| end.phrase()).unwrap_or_default();
            return format!("{end}: {}", said(&execution.stderr));
        }
    }
    "it went away".to_owned()
}
