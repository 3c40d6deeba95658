//! Capabilities and securebits.
