//! Runs of WebAssembly: core modules of WASI preview 1 and components of WASI 0.2.
//!
//! Two programs are made of this crate, neither of them a daemon. The *compiler* (`compiler`) turns one module
//! into machine code and ends; the *host* (`host`) runs such code and has no compiler in it. Both lock
//! themselves down before they see a byte of anybody's. [`engine`] is the one configuration both share: start
//! there, then [`run`]. Nothing here knows tenants, records or the supervisor.

#[cfg(feature = "compiler")]
pub mod compile;
pub mod engine;

#[cfg(feature = "host")]
mod alias;
#[cfg(feature = "host")]
pub mod host;
#[cfg(feature = "host")]
mod http;
#[cfg(feature = "host")]
pub mod input;
#[cfg(feature = "host")]
mod limiter;
#[cfg(feature = "host")]
pub mod output;
#[cfg(feature = "host")]
pub mod program;
#[cfg(feature = "host")]
pub mod run;
#[cfg(feature = "host")]
mod state;
#[cfg(feature = "host")]
mod verdict;
