//! Bytes from a process to its readers, and its end.
//!
//! The end is told when the process has ended *and* its output is over. What it started may hold the
//! output open for ever (a server in the background does), so after the end only what comes without a
//! pause is still taken; then the end is told, and the rest is read and dropped so that whoever
//! writes it lives on.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use leasehold_protocol::envd::base64::Base64;
use leasehold_protocol::envd::process::{Data, Ended, ProcessEvent};
use rustix::io::Errno;
use rustix::process::{Signal, WaitIdStatus};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::acting::reap;
use super::super::bounds;
use super::super::state::State;
use super::{Process, event};

/// Which output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Stdout,
    Stderr,
    Terminal,
}

/// An output of a process.
pub(super) struct Output {
    pub(super) kind: Kind,
    pub(super) from: Rc<AsyncFd<OwnedFd>>,
}

/// Reads once, waiting for it. 0 is the end.
async fn read(from: &AsyncFd<OwnedFd>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut guard = from.readable().await?;
        match guard.try_io(|from| Ok(rustix::io::read(from.get_ref(), &mut *buffer)?)) {
            // So says a terminal whose other side is closed everywhere.
            Ok(Err(error)) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                return Ok(0);
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(outcome) => return outcome,
            Err(_would_block) => {}
        }
    }
}

/// Carries one output to the readers until its end, or until it pauses after the end of the process.
/// Gives it back if somebody still holds it.
async fn carry(
    process: Rc<Process>,
    output: Output,
    mut exited: watch::Receiver<bool>,
) -> Option<Output> {
    let mut buffer = vec![0; bounds::OUTPUT_PIECE];
    let mut after_exit = 0;
    loop {
        let over = *exited.borrow();
        let got = if over {
            match timeout(bounds::QUIET_AFTER_EXIT, read(&output.from, &mut buffer)).await {
                Ok(got) => got,
                Err(_quiet) => return Some(output),
            }
        } else {
            tokio::select! {
                biased;
                got = read(&output.from, &mut buffer) => got,
                _ = exited.changed() => continue,
            }
        };
        let bytes = match got {
            Ok(0) | Err(_) => return None,
            Ok(got) => &buffer[..got],
        };
        if process.has_subscribers() {
            let bytes = Base64(bytes.to_vec());
            let data = match output.kind {
                Kind::Stdout => Data::Stdout(bytes),
                Kind::Stderr => Data::Stderr(bytes),
                Kind::Terminal => Data::Pty(bytes),
            };
            process.publish(event(ProcessEvent::Data(data))).await;
        }
        if over {
            after_exit += bytes_len(got);
            if after_exit > bounds::BYTES_AFTER_EXIT {
                return Some(output);
            }
        }
    }
}

fn bytes_len(got: io::Result<usize>) -> usize {
    got.unwrap_or(0)
}

/// Follows a process to its end.
pub(super) fn follow(
    state: State,
    process: Rc<Process>,
    pidfd: AsyncFd<OwnedFd>,
    outputs: Vec<Output>,
) {
    let (exit, exited) = watch::channel(false);
    let carriers: Vec<JoinHandle<Option<Output>>> = outputs
        .into_iter()
        .map(|output| tokio::task::spawn_local(carry(process.clone(), output, exited.clone())))
        .collect();
    drop(exited);
    tokio::task::spawn_local(async move {
        let _ = pidfd.readable().await;
        let status = reap(pidfd.get_ref());
        process.reaped.set(true);
        process.gone.notify_waiters();
        drop(pidfd);
        let _ = exit.send(true);
        let ended = ended(status);
        for carrier in carriers {
            if let Ok(Some(held)) = carrier.await {
                drain(state.clone(), held);
            }
        }
        state.processes.leave(&process, ended.clone());
        process.conclude(&ended);
    });
}

/// Reads and drops what is written after the end. A terminal is hung up instead.
fn drain(state: State, output: Output) {
    let drained = &state.processes.drained;
    if output.kind == Kind::Terminal || drained.get() == bounds::DRAINED {
        return;
    }
    drained.set(drained.get() + 1);
    tokio::task::spawn_local(async move {
        let mut buffer = vec![0; 4_096];
        while matches!(read(&output.from, &mut buffer).await, Ok(1..)) {}
        let drained = &state.processes.drained;
        drained.set(drained.get() - 1);
    });
}

/// The wire's words for an end.
fn ended(status: Option<WaitIdStatus>) -> Ended {
    let exit = status.as_ref().and_then(WaitIdStatus::exit_status);
    let signal = status.as_ref().and_then(WaitIdStatus::terminating_signal);
    let (exit_code, text) = match (exit, signal) {
        (Some(code), _) => (code, format!("exit status {code}")),
        (None, Some(number)) => (-1, format!("signal: {}", signal_name(number))),
        (None, None) => (-1, "unknown".to_owned()),
    };
    Ended {
        exit_code,
        exited: exit.is_some(),
        error: (exit_code != 0).then(|| text.clone()),
        status: text,
    }
}

fn signal_name(number: i32) -> String {
    let names = [
        (Signal::HUP, "hangup"),
        (Signal::INT, "interrupt"),
        (Signal::QUIT, "quit"),
        (Signal::ILL, "illegal instruction"),
        (Signal::TRAP, "trace/breakpoint trap"),
        (Signal::ABORT, "aborted"),
        (Signal::BUS, "bus error"),
        (Signal::FPE, "floating point exception"),
        (Signal::KILL, "killed"),
        (Signal::USR1, "user defined signal 1"),
        (Signal::SEGV, "segmentation fault"),
        (Signal::USR2, "user defined signal 2"),
        (Signal::PIPE, "broken pipe"),
        (Signal::ALARM, "alarm clock"),
        (Signal::TERM, "terminated"),
        (Signal::XCPU, "CPU time limit exceeded"),
        (Signal::XFSZ, "file size limit exceeded"),
        (Signal::SYS, "bad system call"),
    ];
    names
        .iter()
        .find(|(signal, _)| signal.as_raw() == number)
        .map_or_else(
            || format!("signal {number}"),
            |(_, name)| (*name).to_owned(),
        )
}
