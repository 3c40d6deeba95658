//! Modules in sandboxes of their own: the supervisor, the host and what is recorded of a run, all real. `rig`
//! makes an order as the command line does, `ends` has every way a run can end, `files` its workspace.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "all of it is test code"
)]

mod ends;
mod files;
#[path = "../it/guests.rs"]
#[allow(dead_code, reason = "the other tests of this crate use the rest")]
mod guests;
mod rig;
