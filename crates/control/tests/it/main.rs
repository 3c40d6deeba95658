//! Tests of the control plane through its public face, over the real store in a scratch directory.

mod admin;
mod keys;
mod scratch;
mod engine;
mod remote;
mod restart;
mod world;
