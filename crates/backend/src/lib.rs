//! The seam behind which computers are made.
//!
//! A backend makes computers; it knows no policy, no tenant's rights and no HTTP. Start with
//! [`seam`]; [`process`] is the real one and the blocking client of the supervisor, [`fake`] stands in
//! for it where the code around a backend is tested, and [`conformance`] is the suite both must pass.

pub mod conformance;
pub mod error;
pub mod execution;
pub mod fake;
mod kept;
pub mod process;
pub mod seam;
pub mod wasm;
