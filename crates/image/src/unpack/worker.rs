//! Starts the process that unpacks, waits for it with bounds, and takes its answer.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Answer, Request};

/// Most bytes of an answer.
const ANSWER_MAX: u64 = 256 << 10;

/// How the process is started: a program of ours, and what makes it unpack.
#[derive(Debug, Clone)]
pub struct Worker {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Worker {
    /// A program that calls [`super::child::main`] when it is given these arguments.
    #[must_use]
    pub fn new(program: PathBuf, arguments: Vec<OsString>) -> Self {
        Self { program, arguments }
    }

    /// Has one layer unpacked. It is started by the thread that calls, and dies with it.
    ///
    /// # Errors
    /// With what happened, when it cannot be started, breaks off, or takes longer than the layers below left of the
    /// limit for an image.
    pub fn run(&self, request: &Request) -> Result<Answer, String> {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("its process cannot be started: {error}"))?;
        let answer = talk(&mut child, request);
        if answer.is_err() {
            // It may be at it still; its end is waited for below.
            let _ = child.kill();
        }
        let status = child.wait().map_err(|error| error.to_string());
        match (answer, status) {
            (Ok(Some(answer)), _) => Ok(answer),
            (Ok(None), Ok(status)) => Err(format!("its process ended without an answer: {status}")),
            (Err(why), _) | (_, Err(why)) => Err(why),
        }
    }
}

fn talk(child: &mut Child, request: &Request) -> Result<Option<Answer>, String> {
    let bytes = serde_json::to_vec(request).map_err(|error| error.to_string())?;
    if let Some(mut input) = child.stdin.take() {
        // A process that is gone has no answer either, which is told then.
        let _ = input.write_all(&bytes);
    }
    let Some(output) = child.stdout.take() else {
        return Err("its process has no output".to_owned());
    };
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let read = output.take(ANSWER_MAX).read_to_end(&mut text);
        read.map(|_| text)
    });
    let limit = Duration::from_secs(request.limits.wall_seconds.into());
    let deadline = Instant::now() + limit.saturating_sub(request.spent.time);
    let mut pause = Duration::from_micros(200);
    while !reader.is_finished() {
        if Instant::now() >= deadline {
            return Err(format!(
                "it is beyond the limit `wall` of {limit:?} for all layers of its image"
            ));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    let text = reader
        .join()
        .map_err(|_| "its answer cannot be read".to_owned())?
        .map_err(|error| format!("its answer cannot be read: {error}"))?;
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|_| "its answer makes no sense".to_owned())
}
