//! What confines a process from inside, against the running kernel.
//!
//! Every restriction is taken in a forked child, and beside each stands the same attempt without it:
//! `seccomp` the program, `landlock` the rules and scopes, `posture` the steps
//! that put them together. New guards of the guest half go here.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot do its step fails; a skipped one says so"
)]

mod child;
mod landlock;
mod posture;
mod seccomp;
