//! The real program as PID 1 of namespaces of its own, driven over its two sockets as the host does.
//!
//! `sandbox` makes the namespaces (needs root), `boot` has the life of init and of one command,
//! `posture` what the command finds itself to be, `warm` the parked interpreter against a fresh one.
//! `client` talks to the agent as a client does; `processes` has what it starts,
//! `files` and `watches` what it does with files, `wire` hostile bytes and who may call.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot do its step fails; a skipped one says so"
)]

mod boot;
mod client;
mod files;
mod posture;
mod processes;
mod sandbox;
mod supplied;
mod warm;
mod watches;
mod wire;
