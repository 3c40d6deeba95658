//! The writes, each as it happens inside its transaction: look, refuse or do. A refusal leaves nothing
//! behind, since the writer rolls back to before it.

pub(super) mod chain;
pub(super) mod change;
pub(super) mod log;
pub(super) mod objects;
pub(super) mod rest;
pub(super) mod runs;

type Result<T> = std::result::Result<T, crate::seam::StoreError>;
