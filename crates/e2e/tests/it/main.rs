//! End-to-end tests: one binary, driven through the built `leasehold`.
//!
//! Where a new test goes:
//! - `ends`: how a run ends, its status, its reason, its record.
//! - `streams`: output and input, byte for byte, floods, slow and vanished readers.
//! - `terminal`: a person's terminal, joined and given back.
//! - `visible`: what a guest sees of its limits and of the host.
//! - `workspace`: workspace modes, artifacts, export.
//! - `crash`: who dies when, and what is left.
//! - `starting`: what a supervisor has of its starter.
//! - `daemon`: the daemon, killed, crowded, starved and lied to.
//! - `probes_*`: hostile guests, by the number of the probe they answer.
//! - `images`: images from a real registry and from files, through the command line.
//! - `image_runs`: commands in the file system of an image.
//! - `modules`: WebAssembly: modules, interpreters and templates; `guests` are those of the crate `wasm`.
//! - `record`: reading records in assertions; no tests.
//!
//! Every test takes an [`leasehold_e2e::Instance`] of its own, so all may run at once. A test that
//! cannot run on a machine calls [`leasehold_e2e::need`] first.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic in a test is its failure"
)]

#[path = "../../../wasm/tests/it/asking.rs"]
#[allow(dead_code, reason = "each crate uses some of them")]
mod asking;
#[path = "../../../wasm/tests/it/binary.rs"]
#[allow(dead_code, reason = "each crate uses some of it")]
mod binary;
mod crash;
mod daemon;
mod ends;
#[path = "../../../wasm/tests/it/guests.rs"]
#[allow(dead_code, reason = "each crate uses some of them")]
mod guests;
mod image_runs;
mod images;
mod module_ends;
mod modules;
mod probes_escape;
mod probes_files;
mod probes_resource;
mod record;
mod set_id;
mod starting;
mod streams;
mod terminal;
mod visible;
mod workspace;
