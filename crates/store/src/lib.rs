//! The durable plane.
//!
//! Rows answer "what is promised and what happened"; bytes (outputs, artifacts) are in an object store
//! beside them. Start with [`seam`]: the one trait, its transactions and what each keeps true. It knows
//! no policy, no HTTP and no backend.

pub mod conformance;
pub mod objects;
pub mod seam;
pub mod sqlite;
