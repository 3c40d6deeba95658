//! What is fuzzed: one function for each reader of bytes that somebody else wrote.
//!
//! Each takes any bytes at all. What it must never do is panic or take long; what it reads must be the same
//! when it is written and read again, else two readers could understand it in two ways. The tests of this
//! crate run each over changed seeds for some seconds; the folder `fuzz` at the top of the repository has the
//! same functions as targets of cargo-fuzz.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a panic is what it is for"
)]

mod frames;
mod module;
mod mutate;
#[path = "../../wasm/tests/it/numbers.rs"]
mod numbers;
mod papers;

pub use mutate::{Found, drive};

/// Something that reads bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// What it is called, here and in `fuzz/fuzz_targets`.
    pub name: &'static str,
    /// Reads them.
    pub body: fn(&[u8]),
    /// Bytes that it reads without complaint, to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: [Target; 6] = [
    Target {
        name: "module",
        body: module::body,
        seeds: module::seeds,
    },
    Target {
        name: "host_wire",
        body: frames::host,
        seeds: frames::host_seeds,
    },
    Target {
        name: "supervisor_frames",
        body: frames::supervisor,
        seeds: frames::supervisor_seeds,
    },
    Target {
        name: "guest_frames",
        body: frames::guest,
        seeds: frames::guest_seeds,
    },
    Target {
        name: "manifest",
        body: papers::manifest,
        seeds: papers::manifest_seeds,
    },
    Target {
        name: "archive",
        body: papers::archive,
        seeds: papers::archive_seeds,
    },
];

/// The target of this name.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn target(name: &str) -> Target {
    let found = TARGETS.into_iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("no target {name}"))
}
