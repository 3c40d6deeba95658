//! The runs of a host: each a task of its own, whose output goes to the socket while it runs.

use std::rc::Rc;

use leasehold_protocol::wasm::{CHUNK_MAX, FromHost, Report, STDIN_WINDOW, ToHost};
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use super::said;
use super::server::{HostError, Shared};
use crate::input::Input;
use crate::output::Output;
use crate::program::Program;
use crate::run::{self, Task};

/// One run, as the socket knows it.
#[derive(Debug)]
pub(super) struct Run {
    stdin: Input,
    cancel: Option<oneshot::Sender<()>>,
}

/// Starts a run. Its end is told after all its output.
pub(super) fn begin(shared: &Rc<Shared>, program: Program, id: u32, task: Task) {
    let (cancel, cancelled) = oneshot::channel();
    let run = Run {
        stdin: task.stdin.clone(),
        cancel: Some(cancel),
    };
    shared.runs.borrow_mut().insert(id, run);
    let shared = Rc::clone(shared);
    spawn_local(async move {
        let (stdin, stdout, stderr) =
            (task.stdin.clone(), task.stdout.clone(), task.stderr.clone());
        let running = {
            let shared = Rc::clone(&shared);
            // In a task of its own, so that a panic in it is an end like another.
            spawn_local(async move {
                let _clock = shared.epochs.run();
                run::run_leaving(&program, task, cancelled).await
            })
        };
        let (ended, (), (), ()) = tokio::join!(
            async {
                let report = running.await;
                stdin.end();
                stdout.finish();
                stderr.finish();
                report
            },
            carry(&shared, FromHost::Stdout, id, &stdout),
            carry(&shared, FromHost::Stderr, id, &stderr),
            tell_taken(&shared, id, &stdin),
        );
        let (report, remains) = ended.unwrap_or_else(|error| {
            let report = Report {
                crashed: Some(format!("the host's own code failed: {}", said(error))),
                stdout: stdout.counted(),
                stderr: stderr.counted(),
                ..Report::default()
            };
            (report, None)
        });
        shared.runs.borrow_mut().remove(&id);
        shared.remains.borrow_mut().extend(remains);
        shared.report(id, &report);
    });
}

async fn carry(shared: &Shared, kind: FromHost, id: u32, output: &Output) {
    while let Some(bytes) = output.next().await {
        for piece in bytes.chunks(CHUNK_MAX) {
            shared.room().await;
            shared.send(kind, id, piece);
        }
    }
}

async fn tell_taken(shared: &Shared, id: u32, stdin: &Input) {
    while let Some(count) = stdin.taken().await {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        shared.room().await;
        shared.send(FromHost::StdinTaken, id, &count.to_le_bytes());
    }
}

/// Bytes for a run, or their end. A run that is over is not told about: its owner may not know it yet.
pub(super) fn feed(shared: &Shared, kind: ToHost, id: u32, bytes: &[u8]) -> Result<(), HostError> {
    let runs = shared.runs.borrow();
    let Some(run) = runs.get(&id) else {
        return Ok(());
    };
    if kind == ToHost::StdinEnd {
        run.stdin.end();
        return Ok(());
    }
    if run.stdin.held() as u64 + bytes.len() as u64 > STDIN_WINDOW {
        return Err(HostError::Protocol(format!(
            "run {id} was sent more than {STDIN_WINDOW} bytes ahead"
        )));
    }
    run.stdin.feed(bytes);
    Ok(())
}

/// Ends a run.
pub(super) fn cancel(shared: &Shared, id: u32) {
    let mut runs = shared.runs.borrow_mut();
    if let Some(cancel) = runs.get_mut(&id).and_then(|run| run.cancel.take()) {
        // One that has just ended does not hear it.
        let _ = cancel.send(());
    }
}
