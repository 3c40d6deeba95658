//! Message types of the agent's public surface (Connect with JSON, the public E2B `envd` names).
//!
//! The host reaches the agent through one *channel*, over which it passes connected stream sockets
//! ([`channel`]); each socket is one HTTP/1.1 connection. On it: unary calls with a bare JSON body,
//! streams whose messages are enveloped ([`frame`]), and plain HTTP for file contents. [`process`]
//! and [`filesystem`] are the public services, [`bootstrap`] is ours, for the host alone.
//!
//! The types follow the protobuf JSON mapping: camelCase names, bytes as base64 text, 64-bit
//! integers as text, enumerations by name, unknown fields ignored.

pub mod base64;
pub mod bootstrap;
pub mod channel;
pub mod code;
pub mod filesystem;
pub mod frame;
pub mod http;
pub mod process;

/// The version the agent speaks; clients switch features on by it.
pub const VERSION: &str = "0.6.13";
/// The guest port under which clients know the agent.
pub const PORT: u16 = 49_983;
