//! The stand-in for init: answers requests on the control socket, one message each.
//!
//! `sh SCRIPT` runs a shell as the workload and answers its status and output; `init SCRIPT` does so
//! as init itself; `args` and `fds` tell what was handed over.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Longest message either way.
pub(crate) const MESSAGE_MAX: usize = 64 << 10;

pub(crate) fn run(args: &[String]) -> ExitCode {
    let fds = list("/proc/self/fd");
    let Ok(socket) = leasehold_jail::sys::inherited(3) else {
        return ExitCode::FAILURE;
    };
    let mut request = vec![0; MESSAGE_MAX];
    loop {
        let Ok((got, _)) = recv(&socket, &mut request[..], RecvFlags::empty()) else {
            return ExitCode::FAILURE;
        };
        if got == 0 {
            return ExitCode::SUCCESS;
        }
        let text = String::from_utf8_lossy(&request[..got]).into_owned();
        let mut answer = match text.split_once(' ') {
            Some(("sh", script)) => shell(script, true),
            Some(("init", script)) => shell(script, false),
            _ if text == "args" => args.join(" "),
            _ if text == "fds" => fds.clone(),
            _ => "?".into(),
        };
        answer.truncate(MESSAGE_MAX);
        if send(&socket, answer.as_bytes(), SendFlags::empty()).is_err() {
            return ExitCode::FAILURE;
        }
    }
}

fn list(directory: &str) -> String {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| {
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            let name = entry.file_name().to_string_lossy().into_owned();
            format!("{name} {}", target.display())
        })
        .collect();
    names.sort();
    names.join("\n")
}

fn shell(script: &str, as_workload: bool) -> String {
    let mut command = Command::new("/bin/sh");
    command
        .arg("-c")
        .arg(script)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", "/home/user")
        .current_dir("/workspace");
    let me = rustix::process::getuid().as_raw();
    if as_workload && me != 1000 {
        command.uid(1000).gid(1000);
    }
    match command.output() {
        Ok(output) => format!(
            "{}\n{}{}",
            output.status.code().unwrap_or(-1),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => format!("-2\n{error}"),
    }
}
