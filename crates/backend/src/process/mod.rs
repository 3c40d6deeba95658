//! Sandboxes of Linux namespaces, made by the supervisor; here is its client.
//!
//! Nothing here makes a namespace, a mount or a cgroup: the supervisor parents every sandbox and
//! outlives whoever asked for it. [`client`] is blocking and free of any runtime, for the command
//! line's short path.

pub mod client;
pub mod start;
