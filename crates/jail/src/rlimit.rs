//! Resource limits.
