//! The two static programs inside a sandbox.
//!
//! Every sandbox begins as `leasehold-init`, a small one: [`init`] is PID 1, [`stub`] becomes the first command.
//! `leasehold-agent`, which has [`serve`], an HTTP server, is executed on demand, for a session. Neither decides
//! anything about policy: they do what the host says on inherited sockets, and the host believes none of
//! their answers further than the protocol goes.

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

/// What a process of the first program is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Init(Option<warm::Warm>, Root),
    /// A stub without an init.
    Stub,
}

/// Status of a process that was started in no known mode, or without its descriptors.
const USAGE: u8 = 64;

/// Reads the mode from the arguments after the program's name.
fn mode(arguments: &[String]) -> Option<Mode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => Some(Mode::Init(None, Root::Template)),
        ["--image"] => Some(Mode::Init(None, Root::Image)),
        ["--warm", "python"] => Some(Mode::Init(Some(warm::Warm::Python), Root::Template)),
        ["stub"] => Some(Mode::Stub),
        _ => None,
    }
}

/// `leasehold-init`: the mode that the arguments of this process name.
#[must_use]
pub fn first() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .take(3)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    match mode(&arguments) {
        Some(Mode::Init(warm, root)) => init::main(warm, root),
        Some(Mode::Stub) => match sys::inherited(STUB_FD) {
            Ok(socket) => ExitCode::from(stub::run(&socket, None, None, Root::Template)),
            Err(_) => ExitCode::from(USAGE),
        },
        None => ExitCode::from(USAGE),
    }
}

/// `leasehold-agent`: serves a session on its inherited channel.
#[must_use]
pub fn agent() -> ExitCode {
    match (posture::hide(), sys::inherited(INIT_FD)) {
        (Ok(()), Ok(channel)) => serve::main(channel),
        _ => ExitCode::from(USAGE),
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
    fn the_arguments_name_the_mode() {
        assert_eq!(read(&[]), Some(Mode::Init(None, Root::Template)));
        assert_eq!(read(&["--image"]), Some(Mode::Init(None, Root::Image)));
        assert_eq!(
            read(&["--warm", "python"]),
            Some(Mode::Init(Some(warm::Warm::Python), Root::Template))
        );
        assert_eq!(read(&["stub"]), Some(Mode::Stub));
        for words in [
            &["x"][..],
            &[""],
            &["--warm"],
            &["--image", "--warm"],
            &["stub", "y"],
        ] {
            assert_eq!(read(words), None, "{words:?}");
        }
    }
}
