//! Tests of the control plane through its public face, over the real store in a scratch directory.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "all of it is test code"
)]

mod admin;
mod backends;
mod engine;
mod evidence;
mod fence;
mod images;
mod kept;
mod keys;
mod modules;
mod process;
mod remote;
mod restart;
mod scratch;
mod world;
