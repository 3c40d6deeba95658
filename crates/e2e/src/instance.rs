//! One private instance of Leasehold: its own state and run directories, removed at the end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::cli::{Outcome, Running};
use crate::inventory::Inventory;

/// Longest that one call may take, unless a test says otherwise.
const CALL_MAX: Duration = Duration::from_secs(60);

/// Who runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Whoever runs the test.
    Me,
    /// User and group 1000 without any capability, started through `setpriv`.
    Ordinary,
}

/// A private instance. Two of them never touch each other's things, so tests run side by side.
#[derive(Debug)]
pub struct Instance {
    folder: PathBuf,
    who: Who,
}

impl Default for Instance {
    fn default() -> Self {
        Self::new()
    }
}

impl Instance {
    /// One that runs as whoever runs the test.
    pub fn new() -> Self {
        Self::of(Who::Me)
    }

    /// One that runs as `who`.
    ///
    /// # Panics
    /// When its directories cannot be made.
    pub fn of(who: Who) -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasehold-e2e-{}-{serial}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let instance = Self { folder, who };
        for part in ["state", "run", "home"] {
            let path = instance.folder.join(part);
            std::fs::create_dir_all(&path).expect("make the instance's folder");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            std::fs::set_permissions(&path, mode).expect("close the folder to others");
            if who == Who::Ordinary {
                std::os::unix::fs::chown(&path, Some(1000), Some(1000)).expect("give it away");
            }
        }
        instance
    }

    /// Its state directory.
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// Its run directory.
    pub fn run_folder(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// The directory of one run's record and logs.
    pub fn run_record_folder(&self, run: &str) -> PathBuf {
        self.state().join("runs").join(run)
    }

    /// The name that its groups on the host carry: the first ten hexadecimal digits of the SHA-256 of
    /// the state directory's path.
    pub fn name(&self) -> String {
        name_of(&self.state())
    }

    /// The folder that holds everything of it.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A folder for the test's own files that its user can read, made on first use and removed with
    /// the instance.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn scratch(&self, name: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::create_dir_all(&path).expect("make a folder");
        if self.who == Who::Ordinary {
            std::os::unix::fs::chown(&path, Some(1000), Some(1000)).expect("give it away");
        }
        path
    }

    /// Writes a file that belongs to the user of this instance.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self, path: &Path, text: &str) {
        std::fs::write(path, text).expect("write a file");
        if self.who == Who::Ordinary {
            std::os::unix::fs::chown(path, Some(1000), Some(1000)).expect("give it away");
        }
    }

    /// The command line with these arguments, not yet started. Its environment holds the search path,
    /// a home and the two directories, nothing else.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        self.command_under(&[], args)
    }

    /// The same, executed by a program of the host with its own arguments first.
    pub(crate) fn command_under<S: AsRef<std::ffi::OsStr>>(
        &self,
        under: &[String],
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut words: Vec<&std::ffi::OsStr> = under.iter().map(AsRef::as_ref).collect();
        if self.who == Who::Ordinary {
            let switch = "setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all --";
            words.extend(switch.split(' ').map(std::ffi::OsStr::new));
        }
        words.push(crate::leasehold().as_os_str());
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
            .args(args)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", self.folder.join("home"))
            .env("LEASEHOLD_STATE_DIR", self.state())
            .env("LEASEHOLD_RUN_DIR", self.run_folder())
            .current_dir(&self.folder);
        command
    }

    /// Calls the command line and waits for its end.
    ///
    /// # Panics
    /// When it takes longer than a minute.
    #[track_caller]
    pub fn cli<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Outcome {
        self.start(args).wait(CALL_MAX)
    }

    /// Starts the command line.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn start<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Running {
        Running::start(&mut self.command(args), None)
    }

    /// `leasehold run` with these arguments: flags, `--`, command.
    #[track_caller]
    pub fn run<const N: usize>(&self, args: [&str; N]) -> Outcome {
        self.cli(std::iter::once("run").chain(args))
    }

    /// `leasehold run` of a shell script, with flags.
    #[track_caller]
    pub fn sh(&self, flags: &[&str], script: &str) -> Outcome {
        self.cli(sh_words(&["run"], flags, script))
    }

    /// Like [`Instance::sh`], and returns the complete record, cleanup included.
    ///
    /// # Panics
    /// When there is no record.
    #[track_caller]
    pub fn record_of(&self, flags: &[&str], script: &str) -> Value {
        self.cli(sh_words(&["run", "--json"], flags, script)).json()
    }

    /// The newest run's record as its state directory holds it, once its cleanup was observed.
    ///
    /// # Panics
    /// When there is none within ten seconds.
    #[track_caller]
    pub fn last_record(&self) -> Value {
        until_record(&self.state().join("runs"), None)
    }

    /// One run's record as its state directory holds it, once its cleanup was observed.
    ///
    /// # Panics
    /// When there is none within ten seconds.
    #[track_caller]
    pub fn record(&self, run: &str) -> Value {
        until_record(&self.state().join("runs"), Some(run))
    }

    /// The id of the newest run, as its state directory names it, however far it is.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn last_run(&self) -> String {
        let newest = newest(&self.state().join("runs")).expect("a run");
        let name = newest.file_name().expect("a name");
        name.to_string_lossy().into_owned()
    }

    /// What this instance has on the host now.
    pub fn inventory(&self) -> Inventory {
        Inventory::of(&self.name(), &self.folder)
    }

    /// Ends the supervisor and returns what is still there two seconds later, which should be nothing.
    #[track_caller]
    pub fn stopped_inventory(&self) -> Inventory {
        self.cli(["stop"]);
        let end = Instant::now() + Duration::from_secs(2) * crate::patience();
        loop {
            let left = self.inventory();
            if left.is_empty() || Instant::now() > end {
                return left;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Calls a subcommand for its effect alone, for at most ten seconds.
    fn quietly(&self, subcommand: &str) {
        Self::quiet_end(self.command([subcommand]));
    }

    /// Waits for a command that is called for its effect alone, for at most ten seconds.
    pub(crate) fn quiet_end(mut command: Command) {
        let null = std::process::Stdio::null;
        let child = command.stdin(null()).stdout(null()).stderr(null()).spawn();
        let Ok(mut child) = child else { return };
        let end = Instant::now() + Duration::from_secs(10);
        while let Ok(None) = child.try_wait() {
            if Instant::now() > end {
                child.kill().ok();
                child.wait().ok();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Process id of this instance's supervisor on the host.
    pub fn supervisor(&self) -> Option<u32> {
        crate::inventory::supervisor_of(&self.folder)
    }
}

impl Drop for Instance {
    /// Leaves nothing on the host, also when the test failed. Must not panic: it may run in a panic.
    fn drop(&mut self) {
        self.quietly("stop");
        let left = self.inventory();
        if !left.is_empty() {
            for pid in left.pids() {
                if let Some(pid) = Pid::from_raw(pid) {
                    kill_process(pid, Signal::KILL).ok();
                }
            }
            self.quietly("sweep");
        }
        remove(&self.folder);
    }
}

/// The name of the groups of whoever has this state directory.
pub(crate) fn name_of(state: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let digest = Sha256::digest(state.as_os_str().as_bytes());
    digest[..5]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn remove(folder: &Path) {
    // A mount that a failed test left makes removal fail; the next run says so by its inventory.
    std::fs::remove_dir_all(folder).ok();
}

fn sh_words<'a>(head: &[&'a str], flags: &[&'a str], script: &'a str) -> Vec<&'a str> {
    [head, flags, &["--", "sh", "-c", script]].concat()
}

#[track_caller]
fn until_record(runs: &Path, run: Option<&str>) -> Value {
    crate::until("a complete run record", Duration::from_secs(10), || {
        let folder = match run {
            Some(run) => runs.join(run),
            None => newest(runs)?,
        };
        let text = std::fs::read(folder.join("record.json")).ok()?;
        let record: Value = serde_json::from_slice(&text).ok()?;
        record
            .get("cleanup")
            .is_some_and(|cleanup| !cleanup.is_null())
            .then_some(record)
    })
}

fn newest(runs: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(runs).ok()?.filter_map(Result::ok);
    entries
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .max()
        .map(|(_, path)| path)
}
