//! One call of the command line: started, read with bounds, waited for with a bound.

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::wait::{patience, until};

/// Most bytes kept of each stream; what is beyond is counted only.
pub const OUTPUT_MAX: usize = 64 << 20;

/// A call that is over.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its exit status; 128 and the number for a signal, as a shell says it.
    pub status: i32,
    /// What it wrote on standard output, up to [`OUTPUT_MAX`].
    pub stdout: Vec<u8>,
    /// What it wrote on standard error, up to [`OUTPUT_MAX`].
    pub stderr: Vec<u8>,
    /// Bytes it wrote on standard output in all.
    pub stdout_bytes: u64,
    /// From start to end.
    pub elapsed: Duration,
}

impl Outcome {
    /// Standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Itself, when it ended with this status.
    ///
    /// # Panics
    /// Otherwise, with all that it said.
    #[track_caller]
    pub fn status_is(self, status: i32) -> Self {
        assert_eq!(self.status, status, "{}", self.story());
        self
    }

    /// The JSON value on standard output, such as the record that `--json` gives.
    ///
    /// # Panics
    /// When there is none, with all that it said.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|error| panic!("no JSON on standard output: {error}\n{}", self.story()))
    }

    /// Itself, when it took less than `limit` times [`patience`].
    ///
    /// # Panics
    /// Otherwise, with all that it said.
    #[track_caller]
    pub fn within(self, limit: Duration) -> Self {
        assert!(self.elapsed < limit * patience(), "{}", self.story());
        self
    }

    /// All that it said, for the message of a failed assertion.
    pub fn story(&self) -> String {
        let cut =
            |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(8192)]).into_owned();
        format!(
            "status {}, {} ms\n--- stdout ({} bytes)\n{}\n--- stderr\n{}\n---",
            self.status,
            self.elapsed.as_millis(),
            self.stdout_bytes,
            cut(&self.stdout),
            cut(&self.stderr)
        )
    }
}

/// What one stream gave so far.
#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    total: u64,
}

/// A call that still runs. Dropped, it is killed.
#[derive(Debug)]
pub struct Running {
    child: Child,
    started: Instant,
    readers: Vec<JoinHandle<()>>,
    stdout: Arc<Mutex<Kept>>,
    stderr: Arc<Mutex<Kept>>,
}

impl Running {
    /// Starts `command` with its standard input from a pipe when `input` is given, else empty.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(command: &mut Command, input: Option<Vec<u8>>) -> Self {
        let stdin = if input.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        };
        let mut child = command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        let stdout = Arc::new(Mutex::new(Kept::default()));
        let stderr = Arc::new(Mutex::new(Kept::default()));
        let mut readers = vec![
            reader(child.stdout.take().expect("pipe"), Arc::clone(&stdout)),
            reader(child.stderr.take().expect("pipe"), Arc::clone(&stderr)),
        ];
        if let Some(bytes) = input {
            let mut pipe = child.stdin.take().expect("pipe");
            readers.push(std::thread::spawn(move || {
                // A command that does not read its input closes the pipe; that is its right.
                pipe.write_all(&bytes).ok();
            }));
        }
        Self {
            child,
            started: Instant::now(),
            readers,
            stdout,
            stderr,
        }
    }

    /// Process id of the command line.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Standard output so far, as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout.lock().expect("lock").bytes).into_owned()
    }

    /// Standard error so far, as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().expect("lock").bytes).into_owned()
    }

    /// Waits until standard output holds `text`.
    ///
    /// # Panics
    /// When it does not within `limit`.
    #[track_caller]
    pub fn await_out(&self, text: &str, limit: Duration) {
        until(
            &format!(
                "`{text}` on standard output (standard error: {})",
                self.err()
            ),
            limit,
            || self.out().contains(text).then_some(()),
        );
    }

    /// Sends a signal to the command line alone.
    ///
    /// # Panics
    /// When it is gone already.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("pid")).expect("pid");
        kill_process(pid, signal).expect("signal the command line");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it is still running after `limit` times [`patience`]; it is killed then.
    #[track_caller]
    pub fn wait(mut self, limit: Duration) -> Outcome {
        let status = self.status(limit);
        let elapsed = self.started.elapsed();
        // A process that it left behind may hold the pipes; what was read until then is enough.
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end && self.readers.iter().any(|reader| !reader.is_finished()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (stdout, stdout_bytes) = taken(&self.stdout);
        let (stderr, _) = taken(&self.stderr);
        Outcome {
            status: shell_status(status),
            stdout,
            stderr,
            stdout_bytes,
            elapsed,
        }
    }

    #[track_caller]
    fn status(&mut self, limit: Duration) -> ExitStatus {
        let end = Instant::now() + limit * patience();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait for the command line") {
                return status;
            }
            if Instant::now() >= end {
                self.child.kill().ok();
                panic!(
                    "still running after {} ms\n--- stdout\n{}\n--- stderr\n{}",
                    limit.as_millis(),
                    self.out(),
                    self.err()
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn taken(kept: &Mutex<Kept>) -> (Vec<u8>, u64) {
    let mut kept = kept.lock().expect("lock");
    (std::mem::take(&mut kept.bytes), kept.total)
}

fn reader(mut stream: impl Read + Send + 'static, kept: Arc<Mutex<Kept>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            let mut kept = kept.lock().expect("lock");
            let room = OUTPUT_MAX.saturating_sub(kept.bytes.len());
            kept.bytes.extend_from_slice(&buffer[..read.min(room)]);
            kept.total += read as u64;
        }
    })
}

fn shell_status(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(-1)
}
