//! Tests of the control plane through its public face, over the real store in a scratch directory.

mod admin;
mod evidence;
mod engine;
mod keys;
mod process;
mod remote;
mod restart;
mod scratch;
mod world;
