//! The only crate with `unsafe`: everything that confines a process.
//!
//! What runs inside a sandbox is always compiled: [`seccomp`], [`landlock`], [`caps`], [`rlimit`],
//! [`posture`], [`lockdown`], [`exec`], [`sharing`], [`termination`] and the raw system calls of [`sys`]. What makes sandboxes from outside is behind the
//! feature `host`. Nothing here decides policy about runs, talks to a daemon or logs.

#[cfg(feature = "host")]
pub mod cgroup;
#[cfg(feature = "host")]
pub mod confine;
#[cfg(feature = "host")]
pub mod loop_device;
#[cfg(feature = "host")]
pub mod measure;
#[cfg(feature = "host")]
pub mod mount;
#[cfg(feature = "host")]
pub mod namespaces;
#[cfg(feature = "host")]
pub mod schedule;
#[cfg(feature = "host")]
pub mod spawn;
#[cfg(feature = "host")]
pub mod unpacking;

pub mod caps;
pub mod exec;
#[cfg(feature = "host")]
pub mod failpoint;
pub mod landlock;
pub mod lockdown;
pub mod posture;
pub mod rlimit;
pub mod seccomp;
pub mod sharing;
pub mod sys;
pub mod termination;
