//! The harness of the end-to-end tests: it drives the built `leasehold` binary from outside.
//!
//! It must not use any crate of this workspace: what it knows of the product is what a user sees, its
//! command line, its files and what it leaves on the host. Start with [`Instance`]. Everything waits
//! with a bound, and a test that cannot run here says so loudly through [`skip`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic in the harness is a failed test, which is what it is for"
)]

mod alone;
mod binary;
mod cli;
mod daemon;
mod helper;
mod instance;
mod inventory;
mod registry;
mod skips;
mod wait;

pub use alone::alone;
pub use binary::leasehold;
pub use cli::{OUTPUT_MAX, Outcome, Running};
pub use daemon::{Answer, Daemon};
pub use helper::c_helper;
pub use instance::{Instance, Who};
pub use inventory::Inventory;
pub use registry::{Protection, Registry, busybox_layout, done, image_layout, registry_program};
pub use skips::{Need, need, skip};
pub use wait::{patience, until};
