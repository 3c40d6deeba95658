//! The seam behind which computers are made.
//!
//! A backend makes computers; it knows no policy, no tenant's rights and no HTTP. Start with
//! [`seam`]; [`process`] runs native programs and has the blocking client of the supervisor, [`wasm`] runs
//! WebAssembly modules on top of it, [`fake`] stands in for them where the code around a backend is tested, and
//! [`conformance`] is the suite all must pass.

pub mod conformance;
pub mod error;
pub mod execution;
pub mod fake;
mod kept;
pub mod process;
pub mod seam;
pub mod wasm;
