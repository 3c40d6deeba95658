//! Policy: documents at six levels, and what they come to where they meet.
//!
//! A document bounds what happens below its scope. Only the operator's two outermost levels give: trust, an
//! allow list where no other level speaks, a weight. All others narrow (see [`Scope::of_operator`]). Documents *meet*: floors by max, numbers by the most
//! restrictive, allow lists by intersection. A list that is missing, null, empty or `{}` allows nothing;
//! the word `inherit` says nothing at this level (invariant I9). Everything here is pure.

mod document;
mod effective;
mod list;
mod number;
mod scope;

pub use document::{Document, TrustRules};
pub use effective::{Denied, Effective, Explained, Level};
pub use list::{AllowList, ENTRIES_MAX, Say, covers, egress_rule};
pub use number::Number;
pub use scope::{Scope, ScopeError};

#[cfg(test)]
mod tests;
