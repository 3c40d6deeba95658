//! The seam behind which computers are made.
//!
//! A backend makes computers; it knows no policy, no tenant's rights and no HTTP, and must not
//! decide how a run ended: that is the supervisor's word. Start with [`process`], the client of the
//! supervisor.

pub mod process;
