//! The supervisor from outside: a real one per test, driven over its socket as root.
//! `ends`: every way a run can end. `streams`: output and input. `life`: sandboxes, pools, attach,
//! status, stop. `pools`: for whom they are kept. `callers`: many of them. `crash`: kill -9 at each stage,
//! sweeps, removal that fails. `held`: what the host holds of a sandbox that is gone. `spawner`: its deaths.
//! `supplied`: programs that come with their run. `stuck`: sandboxes that outlive their kill. `retention`: what runs left,
//! and when it goes. New tests go where their subject is; `speed` prints figures and asserts none.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "all of it is test code"
)]

mod callers;
mod crash;
mod ends;
mod harness;
mod held;
mod life;
mod pools;
mod retention;
mod spawner;
mod speed;
mod streams;
mod stuck;
mod supplied;
