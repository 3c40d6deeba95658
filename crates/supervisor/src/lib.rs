//! The supervisor: the one process that parents every sandbox of a state directory.
//!
//! One thread, one epoll loop, no async runtime. It decides nothing about policy; it makes what it is
//! told to make, holds it to its limits, keeps its output and its record, and removes it. It outlives
//! the command line and the daemon; when it dies, its sandboxes die with it, and the next start
//! sweeps.
//!
//! Start reading at [`main`], then `server.rs` (the loop) and `step.rs` (how a run moves).

mod admit;
mod callers;
mod calls;
pub mod collector;
mod conclude;
mod connection;
mod cores;
mod failpoint;
mod guest;
mod held;
mod heritage;
mod image;
mod kept;
pub mod ledger;
mod left;
mod lend;
pub mod lock;
mod log;
mod make;
mod notices;
mod order;
pub mod paths;
mod pool;
pub mod program;
mod prune;
pub mod records;
mod remove;
mod report;
pub mod retention;
mod rootless;
mod run;
mod sandbox;
mod scratch;
mod server;
mod source;
mod spare;
mod spool;
mod start;
mod step;
mod streams;
mod supplied;
pub mod sweep;
mod timer;
pub mod uids;
mod vigil;

#[cfg(test)]
mod scratch_directory;

pub use heritage::{Shortage, raise_file_size};
pub use start::{Config, IDLE_EXIT, main};
