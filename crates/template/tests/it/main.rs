//! Building templates with the real tool chains. New tests of the build go into [`build`].
//!
//! They need what `cargo xtask templates` fetches, and fetch nothing themselves: where that was never run they
//! say so and do nothing.

#![allow(clippy::unwrap_used, reason = "all of it is test code")]

mod build;
