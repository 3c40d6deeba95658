//! The host process: it runs modules for one owner, over one socket, until that closes.
//!
//! Everything happens on one thread: a run that computes lets the others go on at each tick of [`epoch`]. What
//! breaks the protocol ends the process, and so do its owner's end and the socket's; a module that traps, and
//! even a defect in what it calls, end the run alone.

pub mod epoch;
mod runs;
pub mod server;
