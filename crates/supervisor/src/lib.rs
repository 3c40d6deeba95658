//! The supervisor: the one process that parents every sandbox of a state directory.
//!
//! One thread, one epoll loop, no async runtime. It decides nothing about policy; it makes what it is
//! told to make, holds it to its limits, keeps its output and its record, and removes it.

mod admit;
pub mod collector;
mod connection;
mod failpoint;
pub mod ledger;
pub mod paths;
pub mod records;
mod spool;
mod timer;
pub mod uids;

#[cfg(test)]
mod scratch_directory;
