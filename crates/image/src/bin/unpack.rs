//! The process that unpacks a layer, as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(leasehold_image::unpack::child::main())
}
