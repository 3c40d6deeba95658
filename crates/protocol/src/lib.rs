//! Every byte that crosses a process boundary.
//!
//! [`guest`] is the fixed-size binary protocol between the supervisor and the two programs that
//! wait in a sandbox; the other end is hostile, so every length is checked before it is believed.
//! [`supervisor`] is what the command line and the daemon say to the supervisor over its Unix
//! socket. [`envd`] holds the message types of the agent's public surface. [`socket`] carries frames
//! and descriptors. [`memory`] makes the sealed files that cross. [`wasm`] is what an owner and a WebAssembly host say to each other.

pub mod envd;
pub mod guest;
pub mod leash;
pub mod memory;
pub mod socket;
pub mod supervisor;
pub mod wasm;
