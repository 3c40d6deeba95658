//! The control plane: decides and records.
//!
//! It authenticates, resolves tenant and policy, fixes the contract, allocates, grants leases, ends what
//! expired, reconciles and signs. Bytes of terminals and output never pass through its rows. It knows
//! no HTTP and no concrete store or backend: those are wired in the binary.

pub mod control;
pub mod access;
pub mod archive;
pub mod auth;
pub mod plan;
pub mod yaml;
pub mod request;
