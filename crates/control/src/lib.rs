//! The control plane: decides and records.
//!
//! It authenticates, resolves tenant and policy, fixes the contract, allocates, grants leases, ends what
//! expired, reconciles and signs. Bytes of terminals and output never pass through its rows. It knows
//! no HTTP and no concrete store or backend: those are wired in the binary.

pub mod access;
pub mod admission;
pub mod archive;
pub mod asked;
pub mod auth;
pub mod clock;
pub mod control;
pub mod engine;
pub mod entropy;
pub mod environment;
pub mod evidence;
pub mod image;
pub mod keys;
pub mod manifest;
pub mod module;
pub mod plan;
pub mod policies;
pub mod request;
pub mod schema;
pub mod tenants;
pub mod tools;
pub mod uploads;
pub mod vault;
pub mod yaml;
