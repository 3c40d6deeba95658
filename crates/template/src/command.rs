//! Running the programs of a tool chain: bounded, logged, and with an environment that is given.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::BuildError;
use crate::error::file;

/// Longest that one program may take.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// How much of what it printed is told when it fails, in bytes.
const TOLD: usize = 4000;

/// A program to be run.
#[derive(Debug)]
pub(crate) struct Tool<'a> {
    /// What it is for, for errors.
    pub(crate) what: &'static str,
    /// The package that brings it.
    pub(crate) package: &'static str,
    /// It with its arguments and environment.
    pub(crate) command: Command,
    /// Where its output goes.
    pub(crate) log: &'a Path,
}

impl Tool<'_> {
    /// Runs it to its end.
    pub(crate) fn run(mut self) -> Result<(), BuildError> {
        let log = File::create(self.log).map_err(file("create", self.log))?;
        let second = log.try_clone().map_err(file("write", self.log))?;
        let program = self.command.get_program().to_string_lossy().into_owned();
        let child = self
            .command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(second)
            .process_group(0)
            .spawn()
            .map_err(|source| BuildError::Missing {
                program,
                package: self.package,
                source,
            })?;
        let status = match bounded(child, LIMIT).map_err(file("wait for", self.log))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => status.to_string(),
            None => format!("not done after {} s", LIMIT.as_secs()),
        };
        Err(BuildError::Failed {
            what: self.what,
            status,
            log: end(self.log),
        })
    }
}

/// Waits for the child; ends it and all it started after `limit`.
fn bounded(mut child: Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let Some(group) = group {
                kill_process_group(group, Signal::KILL).ok();
            }
            child.kill().ok();
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The end of a log.
fn end(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let from = text.len().saturating_sub(TOLD);
    String::from_utf8_lossy(&text[from..]).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn tool(log: &Path, words: &[&str]) -> Result<(), BuildError> {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        let tool = Tool {
            what: "a test",
            package: "nothing",
            command,
            log,
        };
        tool.run()
    }

    #[test]
    fn a_failure_tells_what_was_printed() {
        let folder = Scratch::new();
        let log = folder.path().join("log");
        tool(&log, &["true"]).unwrap();
        let error = tool(&log, &["sh", "-c", "echo reason; exit 3"]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("a test failed") && text.contains("reason"),
            "{text}"
        );
        let missing = tool(&log, &["no-such-program-anywhere"]).unwrap_err();
        assert!(missing.to_string().contains("install nothing"), "{missing}");
    }

    #[test]
    fn what_does_not_end_is_ended_with_all_it_started() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo $!; wait"]);
        let mut child = command
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        let ended = bounded(child, Duration::from_millis(1)).unwrap();
        assert!(ended.is_none());
        // The pipe closes when the last process that holds it is gone.
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut output, &mut rest).unwrap();
        assert!(rest.is_empty());
    }
}
