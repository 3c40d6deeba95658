//! Later.
pub(crate) const CASES: &[crate::Case] = &[];
