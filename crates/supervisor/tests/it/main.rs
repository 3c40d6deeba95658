//! The supervisor from outside: a real one per test, driven over its socket as root.
//! `ends`: every way a run can end. `streams`: output and input. `life`: sandboxes, pools, attach,
//! status, stop. `crash`: kill -9 at each stage, sweeps, removal that fails. New tests go where
//! their subject is; `speed` prints figures and asserts none.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "all of it is test code"
)]

mod crash;
mod ends;
mod harness;
mod life;
mod speed;
mod streams;
