//! Entry of the first program inside every sandbox; all of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    leasehold_agent::first()
}
