//! Tests of the store through its public face. New ones go into the module of their matter.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of it is test code"
)]

mod child; // the process that others end or give a small disk
mod crash; // ends of the process at any moment
mod disk; // full and damaged disks, newer formats
mod objects; // bytes beside the rows
mod scratch; // a directory for each test
mod suite; // the suite that every engine must pass
