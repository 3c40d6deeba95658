//! Entry of the agent of a session; all of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    leasehold_agent::agent()
}
