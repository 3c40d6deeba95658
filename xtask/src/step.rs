//! Running other programs as named, timed, bounded steps.
//!
//! A step prints the command it runs, so that a person can repeat it by hand, and its time at the
//! end. This module must not decide what is run; it has no knowledge of the project.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The command line of `command` as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            words.push(format!(
                "{}={}",
                name.to_string_lossy(),
                quoted(&value.to_string_lossy())
            ));
        }
    }
    let program = Path::new(command.get_program());
    // The path of the toolchain's own cargo is of no interest to a person.
    let cargo = program.file_name().filter(|name| *name == "cargo");
    words.push(quoted(
        &cargo.unwrap_or(program.as_os_str()).to_string_lossy(),
    ));
    words.extend(command.get_args().map(|arg| quoted(&arg.to_string_lossy())));
    words.join(" ")
}

/// A word as a shell would need it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs `command` with its output on ours and returns what it printed on standard output.
///
/// # Errors
/// When it cannot be started, fails, or is still running after `limit`; it is killed then.
pub(crate) fn tee(name: &str, command: &mut Command, limit: Duration) -> Result<String> {
    let (text, status) = run(name, command, limit, true)?;
    if !status.success() {
        bail!("step `{name}` failed ({status}): {}", shown(command));
    }
    Ok(text)
}

/// Like [`tee`], but a failure is returned beside what was printed.
///
/// # Errors
/// When it cannot be started or is still running after `limit`.
pub(crate) fn tee_status(
    name: &str,
    command: &mut Command,
    limit: Duration,
) -> Result<(String, ExitStatus)> {
    run(name, command, limit, true)
}

fn run(
    name: &str,
    command: &mut Command,
    limit: Duration,
    echo: bool,
) -> Result<(String, ExitStatus)> {
    println!("\n==> {name}: {}", shown(command));
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", shown(command)))?;
    let lines = lines_of(&mut child)?;
    let mut text = String::new();
    let end = started + limit;
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if echo {
                    println!("{line}");
                }
                text.push_str(&line);
                text.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                child.kill().ok();
                child.wait().ok();
                bail!("step `{name}` took longer than {} s", limit.as_secs());
            }
        }
    }
    let status = child.wait().context("wait for the step")?;
    println!("<== {name}: {:.1} s", started.elapsed().as_secs_f64());
    Ok((text, status))
}

/// Lines of a child's standard output, sent from a thread that ends with the stream.
///
/// # Errors
/// When its output is not a pipe.
pub(crate) fn lines_of(child: &mut Child) -> Result<mpsc::Receiver<String>> {
    let stdout = child.stdout.take().context("the step has no output pipe")?;
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        // Bounded per line, so that a program that never ends its line cannot fill memory.
        const LINE_MAX: u64 = 1 << 20;
        let mut reader = BufReader::new(stdout);
        let mut line = Vec::new();
        while let Ok(1..) = reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line);
            if send
                .send(text.trim_end_matches(['\n', '\r']).to_owned())
                .is_err()
            {
                break;
            }
            line.clear();
        }
    });
    Ok(receive)
}

/// Runs `command` quietly and returns its standard output; its standard error is in the failure.
///
/// # Errors
/// When it cannot be started or fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {}", shown(command)))?;
    if !output.status.success() {
        bail!(
            "{} failed ({}): {}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The cargo that started us, so that every step uses one toolchain.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Where `program` is on the search path, if it is.
pub(crate) fn which(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(|extra| Path::new(extra).to_owned()))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_would_be_typed() {
        let mut command = Command::new("echo");
        command
            .args(["plain", "two words", "it's", ""])
            .env("A", "b c");
        assert_eq!(
            shown(&command),
            r"A='b c' echo plain 'two words' 'it'\''s' ''"
        );
    }

    #[test]
    fn a_step_that_hangs_is_ended() {
        let started = Instant::now();
        let error = tee(
            "hang",
            Command::new("sleep").arg("30"),
            Duration::from_millis(100),
        )
        .unwrap_err();
        assert!(error.to_string().contains("took longer"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_step_that_fails_is_an_error_and_its_output_is_kept() {
        let limit = Duration::from_secs(10);
        assert!(tee("fail", &mut Command::new("false"), limit).is_err());
        let text = tee("say", Command::new("echo").arg("hello"), limit).unwrap();
        assert_eq!(text, "hello\n");
    }
}
