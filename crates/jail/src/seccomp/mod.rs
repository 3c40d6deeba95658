//! The seccomp program.
