//! The store, as its users see it: through `Store`, with the unpacking process as it is.
//!
//! Where a new test goes:
//! - `layers`: what an entry of a layer does, and what none may do; each attack with a reader that it works on.
//! - `stacks`: what layers do to those below them, and the process that unpacks.
//! - `accounts`: who a command of an image is.
//! - `bombs`: bounds, each by its name.
//! - `archives`: layouts and archives of `docker save`.
//! - `hostile`: a registry that lies, stalls and breaks off.
//! - `downloads`: those that are slow, wrong from before, too many, or somebody else's.
//! - `reference`: our reader of archives beside another one.
//! - `sharing`: scopes, names, leases, collection, verification.
//! - `tarball`, `layout`, `server`: makers of archives, layouts and registries; no tests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic in a test is its failure"
)]

mod accounts;
mod archives;
mod bombs;
mod downloads;
mod hostile;
mod layers;
mod layout;
mod reference;
mod server;
mod sharing;
mod stacks;
mod tarball;
