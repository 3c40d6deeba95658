//! One private daemon: `leasehold serve` on directories of its own and a free port of loopback.
//!
//! It is spoken to over HTTP as anybody would, killed by its process id, and started again on the same
//! directories. What its worker has on the host is looked at from outside.

use std::io::{IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use ureq::Agent;

use crate::cli::{Outcome, Running};
use crate::instance::{Instance, name_of};
use crate::inventory::Inventory;
use crate::wait::until;

/// How long a start or an end may take.
const SOON: Duration = Duration::from_secs(30);
/// Longest that one request may take.
const ANSWER: Duration = Duration::from_secs(60);

/// An answer over HTTP.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body, null where that is no JSON.
    pub json: Value,
    /// Its body as text.
    pub text: String,
    /// `Retry-After` in seconds, where there is one.
    pub retry_after: Option<u64>,
}

impl Answer {
    /// Itself, when it has this status.
    ///
    /// # Panics
    /// Otherwise, with its body.
    #[track_caller]
    pub fn status_is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }

    /// The run that it is about.
    ///
    /// # Panics
    /// When it names none.
    #[track_caller]
    pub fn run(&self) -> String {
        let run = self.json["run"].as_str();
        run.unwrap_or_else(|| panic!("no run in {}: {}", self.status, self.text))
            .to_owned()
    }
}

/// A private daemon. Dropped, it and all of it is gone.
#[derive(Debug)]
pub struct Daemon {
    instance: Instance,
    flags: Vec<String>,
    under: Vec<String>,
    child: Option<Running>,
    modules: bool,
    agent: Agent,
    url: String,
    key: String,
}

impl Daemon {
    /// One with these flags of `serve` beside a free port, and these variables at its first start alone.
    ///
    /// # Panics
    /// When it does not serve in time.
    #[track_caller]
    pub fn start(flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut daemon = Self::prepared(flags);
        daemon.restart(variables);
        daemon
    }

    /// One that was never started.
    pub fn prepared(flags: &[&str]) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(ANSWER * crate::patience()))
            .proxy(None)
            .build()
            .new_agent();
        Self {
            instance: Instance::new(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            under: Vec::new(),
            child: None,
            modules: false,
            agent,
            url: String::new(),
            key: String::new(),
        }
    }

    /// With the programs for WebAssembly. Without, it has none, and no host of theirs waits among its sandboxes.
    #[must_use]
    pub fn with_modules(mut self) -> Self {
        self.modules = true;
        self
    }

    /// Starts it again on the same directories; it must not be running.
    ///
    /// # Panics
    /// When it does not serve in time.
    #[track_caller]
    pub fn restart(&mut self, variables: &[(&str, &str)]) {
        self.spawn(variables);
        self.await_door();
    }

    /// Starts it again under a program of the host that executes it, such as `prlimit` with its arguments.
    ///
    /// # Panics
    /// When it does not serve in time.
    #[track_caller]
    pub fn restart_under(&mut self, under: &[&str]) {
        self.under = under.iter().map(|word| (*word).to_owned()).collect();
        self.restart(&[]);
    }

    /// Starts it again and waits for nothing.
    pub fn spawn(&mut self, variables: &[(&str, &str)]) {
        assert!(self.child.is_none(), "it runs already");
        let mut command = self.serve_command();
        command.envs(variables.iter().copied());
        self.child = Some(Running::start(&mut command, None));
    }

    /// The command that serves these directories, not yet started.
    pub fn serve_command(&self) -> Command {
        let mut command = self.instance.command_under(&self.under, ["serve"]);
        command.args(["--listen", "127.0.0.1:0"]).args(&self.flags);
        if !self.modules {
            command.env(
                "LEASEHOLD_WASM_DIR",
                self.instance.state().join("no-modules"),
            );
        }
        command
    }

    #[track_caller]
    fn await_door(&mut self) {
        let pid = self.pid();
        let end = Instant::now() + SOON * crate::patience();
        let notice = loop {
            if let Some(notice) = self.notice().filter(|notice| notice["pid"] == pid) {
                break notice;
            }
            let over = Instant::now() > end || self.is_over();
            assert!(!over, "the daemon does not serve: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        };
        self.url = notice["url"].as_str().expect("its address").to_owned();
        let key = std::fs::read_to_string(self.key_file()).expect("read the first key");
        self.key = key.trim().to_owned();
    }

    fn notice(&self) -> Option<Value> {
        let bytes = std::fs::read(self.instance.run_folder().join("daemon.json")).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// The file of the first key.
    pub fn key_file(&self) -> PathBuf {
        self.instance.state().join("daemon/operator.key")
    }

    /// The token of the first key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Where it serves.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its directories, and the command line on them.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it does not run.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a daemon that runs").pid()
    }

    /// What it said on standard error since it was started.
    pub fn log(&self) -> String {
        self.child
            .as_ref()
            .map(|child| child.err())
            .unwrap_or_default()
    }

    /// Whether the process ended.
    pub fn is_over(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        stat.map_or(true, |text| text.contains(") Z "))
    }

    /// Ends it by `SIGKILL` and waits until it is gone.
    ///
    /// # Panics
    /// When it does not run.
    #[track_caller]
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.await_end();
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("pid");
        kill_process(pid, signal).expect("signal the daemon");
    }

    /// Waits for its end, whoever brought it.
    ///
    /// # Panics
    /// When it goes on for longer than half a minute.
    #[track_caller]
    pub fn await_end(&mut self) -> Outcome {
        self.child.take().expect("a daemon that runs").wait(SOON)
    }

    /// Process id of the supervisor that is its worker.
    pub fn supervisor(&self) -> Option<u32> {
        crate::inventory::supervisor_of(&self.worker_state())
    }

    /// The state directory of its worker.
    pub fn worker_state(&self) -> PathBuf {
        self.instance.state().join("worker")
    }

    /// What its worker has on the host now, the worker itself included.
    pub fn inventory(&self) -> Inventory {
        Inventory::of_worker(&name_of(&self.worker_state()), self.instance.folder())
    }

    /// Sandboxes that its worker has on the host, by their ledger.
    pub fn sandboxes(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.worker_state().join("ledger"));
        let names = entries.into_iter().flatten().filter_map(Result::ok);
        let mut ids: Vec<String> = names
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                name.strip_suffix(".json").map(str::to_owned)
            })
            .collect();
        ids.sort();
        ids
    }

    /// How many runs its worker ever took.
    pub fn taken(&self) -> usize {
        let entries = std::fs::read_dir(self.worker_state().join("runs"));
        entries.map_or(0, Iterator::count)
    }

    /// Calls the command line as the operator.
    #[track_caller]
    pub fn cli<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Outcome {
        self.instance.cli(args)
    }

    /// Reads something as the operator.
    ///
    /// # Panics
    /// When there is no answer.
    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        let asked = self.ask("GET", path, &self.key, &[], None);
        asked.unwrap_or_else(|error| panic!("GET {path}: {error}"))
    }

    /// Sends something as the operator.
    ///
    /// # Panics
    /// When there is no answer.
    #[track_caller]
    pub fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let asked = self.ask("POST", path, &self.key, headers, Some(body));
        asked.unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    /// One request with a token.
    ///
    /// # Errors
    /// When nobody answers.
    pub fn ask(
        &self,
        method: &str,
        path: &str,
        key: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Answer, String> {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let bytes = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(bytes).map_err(|error| error.to_string())?;
        let asked = self.agent.run(request);
        let mut response = asked.map_err(|error| error.to_string())?;
        let retry_after = response.headers().get("retry-after");
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        let text = response.body_mut().read_to_string();
        let text = text.map_err(|error| error.to_string())?;
        Ok(Answer {
            status: response.status().as_u16(),
            json: serde_json::from_str(&text).unwrap_or_default(),
            text,
            retry_after,
        })
    }

    /// Passes a directory as a local caller does and gives its ticket; `mode` is `read_only`, `clone` or
    /// `read_write`.
    ///
    /// # Panics
    /// When it is not taken.
    #[track_caller]
    pub fn offer(&self, directory: &Path, mode: &str) -> String {
        let socket = self.instance.run_folder().join("daemon.sock");
        let mut stream = UnixStream::connect(socket).expect("reach the local socket");
        let directory = std::fs::File::open(directory).expect("open the directory");
        let word = format!("{mode}\n");
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [directory.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let parts = [IoSlice::new(word.as_bytes())];
        sendmsg(&stream, &parts, &mut control, SendFlags::empty()).expect("pass it");
        stream.flush().expect("flush");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("its ticket");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let ticket = answer["ticket"].as_str();
        ticket
            .unwrap_or_else(|| panic!("no ticket: {answer}"))
            .to_owned()
    }

    /// The row of a run.
    #[track_caller]
    pub fn row(&self, run: &str) -> Value {
        self.get(&format!("/v1/runs/{run}")).status_is(200).json
    }

    /// The row of a run once its removal was observed.
    ///
    /// # Panics
    /// When that takes longer than `limit`.
    #[track_caller]
    pub fn sealed(&self, run: &str, limit: Duration) -> Value {
        until(&format!("the seal of {run}"), limit, || {
            let row = self.row(run);
            (row["state"] == "sealed").then_some(row)
        })
    }

    /// Every run that it knows, newest first, up to 500.
    #[track_caller]
    pub fn rows(&self, query: &str) -> Vec<Value> {
        let page = self.get(&format!("/v1/runs?limit=500{query}"));
        let rows = page.status_is(200).json["runs"].take();
        rows.as_array().expect("a list").clone()
    }

    /// Kills the daemon, which would start its worker again, ends the worker, and returns what is still
    /// there two seconds later, which should be nothing.
    #[track_caller]
    pub fn stopped_inventory(&self) -> Inventory {
        if self.child.is_some() && !self.is_over() {
            self.signal(Signal::KILL);
            until("the end of the daemon", SOON, || {
                self.is_over().then_some(())
            });
        }
        self.stop_worker();
        let end = Instant::now() + Duration::from_secs(2) * crate::patience();
        loop {
            let left = self.inventory();
            if left.is_empty() || Instant::now() > end {
                return left;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The command line on the worker's own directories.
    pub fn worker_command(&self, args: &[&str]) -> Command {
        let mut command = self.instance.command(args);
        command.env("LEASEHOLD_STATE_DIR", self.worker_state()).env(
            "LEASEHOLD_RUN_DIR",
            self.instance.run_folder().join("worker"),
        );
        command
    }

    fn stop_worker(&self) {
        Instance::quiet_end(self.worker_command(&["stop"]));
    }
}

impl Drop for Daemon {
    /// Leaves nothing on the host, also when the test failed. Must not panic: it may run in a panic.
    #[allow(
        clippy::print_stderr,
        reason = "the runner shows it with the test that failed"
    )]
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            if std::thread::panicking() {
                let log = child.err();
                let tail = log.len().saturating_sub(4_000);
                eprintln!("the daemon said: {}", log.get(tail..).unwrap_or(&log));
            }
            drop(child);
        }
        self.stop_worker();
        let left = self.inventory();
        if !left.is_empty() {
            for pid in left.pids() {
                if let Some(pid) = Pid::from_raw(pid) {
                    kill_process(pid, Signal::KILL).ok();
                }
            }
            Instance::quiet_end(self.worker_command(&["sweep"]));
        }
    }
}
