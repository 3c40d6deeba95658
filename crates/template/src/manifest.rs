//! What is written beside a template.

use serde::{Deserialize, Serialize};

/// The generation of the manifest.
pub(crate) const FORMAT: u32 = 1;

/// What a template is, in `NAME.json` beside `NAME.wasm`. It names no time and no machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The generation of this form: 1.
    pub format: u32,
    /// The template's name.
    pub name: String,
    /// `python` or `javascript`.
    pub interpreter: String,
    /// Its version, as it tells it itself.
    pub interpreter_version: String,
    /// The component, by which the template is known.
    pub component: Component,
    /// What it was made of.
    pub inputs: Vec<Input>,
    /// Packages that were baked in, as their metadata name them: `idna 3.10`. A list of requirements that pins
    /// no versions is told here as what came of it.
    #[serde(default)]
    pub packages: Vec<String>,
    /// What a program can import, sorted.
    pub modules: Vec<String>,
    /// Modules inside of packages that miss another module: not imported in the build, and refused in a run
    /// with the same words, `click._termui_impl: No module named 'termios'`.
    #[serde(default)]
    pub left: Vec<String>,
}

/// The component of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Component {
    /// SHA-256 of `NAME.wasm` in hexadecimal.
    pub sha256: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Something that a template was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// What it is.
    pub name: String,
    /// SHA-256 of it in hexadecimal. For a list of pinned packages it is that of the list, which has theirs.
    pub sha256: String,
}
