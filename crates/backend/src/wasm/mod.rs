//! WebAssembly: what a module is to whoever asks for a run of one.

mod module;
mod sealed;

pub use self::module::{Module, ModuleSource};
