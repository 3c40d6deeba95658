//! The lifecycle of one bounded computer.

pub mod state;
