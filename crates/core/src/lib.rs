//! The nouns and rules of Leasehold.
//!
//! This crate must not do I/O, read a clock, draw randomness or be async: everything here is a
//! value or a pure function, so every rule can be tested as a table. Start with [`sandbox::state`]
//! for the lifecycle, [`end`] for how a run ends, and [`limits`] for what bounds it.

mod canonical;
pub mod contract;
pub mod digest;
pub mod document;
pub mod end;
pub mod error;
pub mod event;
pub mod id;
pub mod image;
pub mod isolation;
pub mod lease;
pub mod limits;
pub mod name;
pub mod outcome;
pub mod policy;
pub mod quantity;
pub mod record;
pub mod run_contract;
pub mod sandbox;
#[cfg(feature = "openapi")]
mod schema;
pub mod select;
pub mod spec;
pub mod stage;
pub mod tenant;
