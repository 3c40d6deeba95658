//! Runs of real modules under the library, and the two processes from outside. New tests go to the module that
//! names what they are about; guests in WebAssembly text are in `guests`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "all of it is test code"
)]

mod asking;
mod binary;
mod bombs;
mod compile;
mod components;
mod determinism;
mod ends;
mod files;
mod guests;
mod host;
mod hostile;
mod limits;
mod network;
mod numbers;
mod one;
mod process;
mod rig;
mod streams;
mod templates;
