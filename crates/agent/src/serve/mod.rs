//! The mode `serve`: sessions, files, terminals and watches over one channel.

use std::os::fd::OwnedFd;
use std::process::ExitCode;

/// Serves the channel until it closes.
#[must_use]
pub fn main(channel: OwnedFd) -> ExitCode {
    drop(channel);
    ExitCode::FAILURE
}
