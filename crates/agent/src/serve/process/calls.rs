//! The calls of `process.Process`.

use hyper::body::Incoming;
use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::envd::frame::{self, Unwrapper};
use leasehold_protocol::envd::process::{
    Empty, ListResponse, ProcessEvent, SelectRequest, SendInputRequest, SendSignalRequest, Signal,
    StartRequest, Started, StreamInputRequest, UpdateRequest,
};
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::time::Instant;

use super::super::bounds;
use super::super::reply::{self, Reply, stream_error};
use super::super::request::{self, Meta};
use super::super::state::State;
use super::launch::{Launched, launch};
use super::{Process, event, output};

/// Every running process.
pub(in super::super) fn list(state: &State) -> ListResponse {
    let live = state.processes.live.borrow();
    ListResponse {
        processes: live.values().map(|process| process.info()).collect(),
    }
}

/// Starts a process and streams what it does.
pub(in super::super) async fn start(state: State, meta: Meta, request: StartRequest) -> Reply {
    let deadline = meta.deadline;
    let keepalive = meta.keepalive;
    // In a task of its own: a client that goes away meanwhile must not leave half a process.
    let begun = tokio::task::spawn_local(async move {
        let launched = launch(&state, &meta, request).await?;
        let (reply, frames) = reply::stream();
        let Launched {
            process,
            pidfd,
            outputs,
        } = launched;
        let attendance = process.subscribe(frames, true)?;
        tokio::task::spawn_local(attendance.attend(process.clone(), keepalive, None));
        if let Some(deadline) = deadline {
            let timer = tokio::task::spawn_local(bound(Rc::downgrade(&process), deadline));
            *process.deadline.borrow_mut() = Some(timer.abort_handle());
        }
        output::follow(state, process, pidfd, outputs);
        Ok::<Reply, CallError>(reply)
    });
    match begun.await {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => stream_error(error),
        Err(_) => stream_error(CallError::new(Code::Internal, "process was not started")),
    }
}

/// Ends a process at its deadline, whether or not anybody still reads.
async fn bound(process: Weak<Process>, deadline: Instant) {
    tokio::time::sleep_until(deadline).await;
    if let Some(process) = process.upgrade() {
        process.expire();
    }
}

/// Streams what a running process does from now on. One that has just ended tells only that.
pub(in super::super) fn connect(state: &State, meta: &Meta, request: &SelectRequest) -> Reply {
    let (reply, frames) = reply::stream();
    let process = match state.processes.find(&request.process) {
        Ok(process) => process,
        Err(error) => {
            let Some((pid, ended)) = state.processes.memory(&request.process) else {
                return stream_error(error);
            };
            let last = [
                event(ProcessEvent::Start(Started { pid })),
                event(ProcessEvent::End(ended)),
                reply::end(None),
            ];
            for frame in last {
                // The queue is new and longer than this.
                let _ = frames.try_send(frame);
            }
            return reply;
        }
    };
    match process.subscribe(frames, false) {
        Ok(attendance) => {
            tokio::task::spawn_local(attendance.attend(process, meta.keepalive, meta.deadline));
            reply
        }
        Err(error) => stream_error(error),
    }
}

/// Resizes a terminal.
///
/// # Errors
/// When there is no such process or it has none.
pub(in super::super) fn update(state: &State, request: &UpdateRequest) -> Result<Empty, CallError> {
    let process = state.processes.find(&request.process)?;
    if let Some(pty) = request.pty {
        process.input.resize(pty.size.unwrap_or_default())?;
    }
    Ok(Empty {})
}

/// Sends input.
///
/// # Errors
/// When there is no such process or it takes no such input.
pub(in super::super) async fn send_input(
    state: &State,
    request: SendInputRequest,
) -> Result<Empty, CallError> {
    let process = state.processes.find(&request.process)?;
    process.input.send(&request.input).await?;
    Ok(Empty {})
}

/// Closes the standard input.
///
/// # Errors
/// When there is no such process or it has a terminal.
pub(in super::super) async fn close_stdin(
    state: &State,
    request: SelectRequest,
) -> Result<Empty, CallError> {
    let process = state.processes.find(&request.process)?;
    process.input.close().await?;
    Ok(Empty {})
}

/// Sends a signal. After KILL the process is gone when this answers, or nearly so.
///
/// # Errors
/// When there is no such process, or it has ended meanwhile.
pub(in super::super) async fn send_signal(
    state: &State,
    request: SendSignalRequest,
) -> Result<Empty, CallError> {
    let process = state.processes.find(&request.process)?;
    let signal = match request.signal {
        Signal::Kill => rustix::process::Signal::KILL,
        Signal::Term => rustix::process::Signal::TERM,
        Signal::Unspecified => {
            let message = "signal is not one of SIGNAL_SIGTERM and SIGNAL_SIGKILL";
            return Err(CallError::new(Code::InvalidArgument, message));
        }
    };
    match process.signal(signal) {
        Ok(()) if signal == rustix::process::Signal::KILL => {
            process.vanished().await;
            Ok(Empty {})
        }
        Ok(()) => Ok(Empty {}),
        Err(rustix::io::Errno::SRCH) => {
            let message = format!("process with pid {} has ended", process.number());
            Err(CallError::new(Code::NotFound, message))
        }
        Err(errno) => {
            let message = format!("error sending signal: {errno}");
            Err(CallError::new(Code::Internal, message))
        }
    }
}

/// Takes a stream of input, in order. The answer is a stream of one message.
pub(in super::super) async fn stream_input(state: State, meta: Meta, body: Incoming) -> Reply {
    let taken = take_input(&state, body);
    let outcome = match meta.deadline {
        None => taken.await,
        Some(deadline) => match tokio::time::timeout_at(deadline, taken).await {
            Ok(outcome) => outcome,
            Err(_) => Err(super::timed_out()),
        },
    };
    match outcome {
        Err(error) => stream_error(error),
        Ok(()) => {
            let frames = [reply::message(&Empty {}), reply::end(None)].concat();
            reply::whole(hyper::StatusCode::OK, "application/connect+json", frames)
        }
    }
}

async fn take_input(state: &State, mut body: Incoming) -> Result<(), CallError> {
    let mut process: Option<Rc<Process>> = None;
    let mut unwrapper = Unwrapper::new();
    let refuse =
        |error: frame::EnvelopeError| CallError::new(Code::InvalidArgument, error.to_string());
    loop {
        while let Some((flags, message)) = unwrapper.take().map_err(refuse)? {
            if flags == frame::END {
                return Ok(());
            }
            let message: StreamInputRequest = request::parse(&message)?;
            match (message.start, message.data, &process) {
                (Some(start), None, None) => {
                    process = Some(state.processes.find(&start.process)?);
                }
                (None, Some(data), Some(process)) => process.input.send(&data.input).await?,
                (None, None, _) if message.keepalive.is_some() => {}
                _ => {
                    let message = "input stream is not one start followed by data";
                    return Err(CallError::new(Code::InvalidArgument, message));
                }
            }
        }
        // Between messages the caller may take its time; a message once begun must arrive.
        let patience = match unwrapper.finish() {
            Ok(()) => Duration::from_secs(7 * 86_400),
            Err(_) => bounds::BODY_TIME,
        };
        match tokio::time::timeout(patience, request::piece(&mut body)).await {
            Ok(piece) => match piece? {
                Some(piece) => unwrapper.push(&piece),
                None => return unwrapper.finish().map_err(refuse),
            },
            Err(_) => {
                let message = "a message of the input stream did not arrive in time";
                return Err(CallError::new(Code::DeadlineExceeded, message));
            }
        }
    }
}
