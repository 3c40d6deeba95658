//! Images: kept by digest, fetched from registries or loaded from archives, unpacked by a process that can do
//! nothing else.
//!
//! Start at [`store::Store`]: it is opened below a state directory, pulls and loads, and gives a backend the
//! layers of an image with a lease on them. What must hold is in `docs/IMAGES.md`. This crate makes no sandbox,
//! mounts nothing, and decides no policy: who may use what is told by the scope it is asked for.

pub mod archive;
pub mod document;
pub mod error;
pub mod limits;
pub mod path;
mod pull;
pub mod reference;
pub mod registry;
pub mod stack;
pub mod store;
pub mod tar;
pub mod unpack;

pub use error::{ImageError, Result};
