//! The posture builder.
