//! The real program as PID 1 of namespaces of its own, driven over its two sockets as the host does.
//!
//! `sandbox` makes the namespaces (needs root), `boot` has the life of init and of one command,
//! `posture` what the command finds itself to be, `warm` the parked interpreter against a fresh one.
//! `client` talks to the agent as a client does; `processes` has what it starts.

mod boot;
mod client;
mod posture;
mod processes;
mod sandbox;
mod warm;
