//! The static program inside every sandbox, in three modes.
//!
//! [`init`] is PID 1, [`stub`] becomes the first command, [`serve`] is the agent of a session. This
//! program decides nothing about policy: it does what the host says on inherited sockets, and the
//! host believes none of its answers further than the protocol goes.

pub mod init;
pub mod program;
pub mod serve;
pub mod stub;
pub mod terminal;
pub mod warm;

use std::process::ExitCode;

use leasehold_jail::landlock::Root;
use leasehold_jail::{posture, sys};
use leasehold_protocol::guest::{INIT_FD, STUB_FD};

/// What this process is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Init(Option<warm::Warm>, Root),
    Stub,
    Serve,
}

/// Status of a process that was started in no known mode.
const USAGE: u8 = 64;

/// Reads the mode from the arguments: the first that names one, program name included.
fn mode(arguments: &[String]) -> Option<Mode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let words = match words[..] {
        ["init" | "stub" | "serve", ..] => &words[..],
        [_, ref rest @ ..] => rest,
        [] => &[],
    };
    match words {
        ["init"] => Some(Mode::Init(None, Root::Template)),
        ["init", "--image"] => Some(Mode::Init(None, Root::Image)),
        ["init", "--warm", "python"] => Some(Mode::Init(Some(warm::Warm::Python), Root::Template)),
        ["stub"] => Some(Mode::Stub),
        ["serve"] => Some(Mode::Serve),
        _ => None,
    }
}

/// Runs the mode that the arguments of this process name.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .take(4)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    match mode(&arguments) {
        Some(Mode::Init(warm, root)) => init::main(warm, root),
        Some(Mode::Stub) => match sys::inherited(STUB_FD) {
            Ok(socket) => ExitCode::from(stub::run(&socket, None, None, Root::Template)),
            Err(_) => ExitCode::from(USAGE),
        },
        Some(Mode::Serve) => match (posture::hide(), sys::inherited(INIT_FD)) {
            (Ok(()), Ok(channel)) => serve::main(channel),
            _ => ExitCode::from(USAGE),
        },
        None => ExitCode::from(USAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Option<Mode> {
        mode(
            &words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn the_mode_is_one_of_the_arguments() {
        let plain = Some(Mode::Init(None, Root::Template));
        assert_eq!(read(&["leasehold-agent", "init"]), plain);
        assert_eq!(read(&["init"]), plain);
        assert_eq!(
            read(&["x", "init", "--image"]),
            Some(Mode::Init(None, Root::Image))
        );
        assert_eq!(
            read(&["x", "init", "--warm", "python"]),
            Some(Mode::Init(Some(warm::Warm::Python), Root::Template))
        );
        assert_eq!(read(&["x", "serve"]), Some(Mode::Serve));
        for words in [
            &["x"][..],
            &[],
            &["x", "init", "--warm"],
            &["x", "init", "--image", "--warm"],
            &["x", "stub", "y"],
        ] {
            assert_eq!(read(words), None, "{words:?}");
        }
    }
}
