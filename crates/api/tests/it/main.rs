//! Tests of the HTTP interface against a real control plane: SQLite in a directory of its own, objects
//! beside it, the fake backend.
//!
//! New tests go here: [`access`] for who may do what on every route, [`runs`] for runs and their streams,
//! [`wire`] for the description, errors and headers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]

mod access;
mod rig;
mod runs;
mod wire;
