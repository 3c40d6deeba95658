//! Tests of the backends through their public interface. A new test goes into the module of the
//! part it is about; a promise every backend makes goes into the conformance suite instead.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]
#![allow(clippy::print_stderr, reason = "skips and reports are told aloud")]

mod client;
mod fake;
mod process;
mod scratch;
mod wasm;
