//! `tool.yaml`: what a tool is, what it needs and what it promises.
//!
//! A manifest asks; it never decides. Its trust class is a wish (only policy makes a tool more than
//! untrusted), its limits are bounds that policy may lower, its network and credentials are what policy
//! must allow. Reading one is pure, and tells everything that is wrong at once.

mod entry;
pub(crate) mod read;
mod warn;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use leasehold_core::digest::{CanonicalError, Digest, canonical};
use leasehold_core::document::{Mistakes, Node};
use leasehold_core::isolation::{Isolation, TrustClass};
use leasehold_core::name::{Name, ToolRef, Version};

use crate::asked::Asked;
use crate::module::Manner;
use crate::schema::Schema;

/// Most items of a list in a manifest.
pub const ITEMS_MAX: usize = 64;

/// What runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entrypoint {
    /// A program with its arguments. The tool's own files are below `/workspace/.tool`.
    Command {
        /// Program and arguments.
        argv: Vec<String>,
    },
    /// A Python program among the tool's files.
    Python {
        /// Its name there.
        file: String,
        /// Its arguments.
        args: Vec<String>,
    },
    /// A WebAssembly module or component, or a script for one that is an interpreter.
    Wasm(WasmEntry),
    /// A program of an image.
    Image {
        /// Digest of the image's manifest.
        image: Digest,
        /// Where it is had: `NAME` or `NAME:TAG`. Without one it has to be there.
        name: Option<String>,
        /// Program and arguments.
        argv: Vec<String>,
    },
}

/// A WebAssembly module, or a script for an interpreter in WebAssembly, among the tool's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WasmEntry {
    /// The name of the file.
    pub file: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// The template that runs the file as a script; absent where the file is the module.
    pub interpreter: Option<String>,
    /// How it runs.
    pub manner: Manner,
    /// Digest of the file; set when it is published.
    pub content: Option<Digest>,
    /// Whether the tool has other files, so that each run needs a tree; set when it is published.
    pub tree: bool,
}

/// A credential that a tool needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialWish {
    /// Name the tool knows it by.
    pub name: String,
    /// Where its value is; never the value.
    pub secret_ref: String,
    /// `env`, `file`, `proxy` or `broker`.
    pub way: String,
    /// How long it must be good for, in milliseconds; absent for as long as the run may last.
    pub ttl_ms: Option<u64>,
}

/// The tree a tool works in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filesystem {
    /// Whether callers may send the workspace's content along.
    pub upload: bool,
    /// Paths inside that it may use; empty says nothing beyond what every sandbox has.
    pub allow: Vec<String>,
    /// Paths inside that it may read only.
    pub read_only: Vec<String>,
    /// Globs below `/workspace` of files that leave it.
    pub artifacts: Vec<String>,
}

/// A tool, as its manifest describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Its name.
    pub id: Name,
    /// Its version.
    pub version: Version,
    /// What it belongs to, for people.
    pub category: Option<Name>,
    /// Who looks after it.
    pub owner: Option<String>,
    /// What it does.
    pub description: Option<String>,
    /// What runs.
    pub entrypoint: Entrypoint,
    /// Digest of the archive of its files; set when it is published.
    pub package: Option<Digest>,
    /// The isolation it prefers.
    pub isolation: Option<Isolation>,
    /// The trust it wishes for.
    pub trust: Option<TrustClass>,
    /// Limits.
    pub limits: Asked,
    /// Host names and ports it connects to.
    pub egress: Vec<String>,
    /// Ports inside that are reached from outside.
    pub ingress: Vec<u16>,
    /// The tree it works in.
    pub filesystem: Filesystem,
    /// Variables with fixed values. Public: they are in the manifest.
    pub environment: BTreeMap<String, String>,
    /// Variables that a caller may set.
    pub accepts: BTreeSet<String>,
    /// Credentials.
    pub credentials: Vec<CredentialWish>,
    /// Schema of its input, which is JSON on its standard input.
    pub input: Option<Schema>,
    /// Schema of its output, which is JSON on its standard output.
    pub output: Option<Schema>,
    /// Permissions it uses; a run has those of them that its caller was granted and policy allows.
    pub permissions: Vec<String>,
    /// Whether running it twice does no more than once.
    pub idempotent: bool,
    /// Whether equal inputs give equal outputs, so that a result may be kept.
    pub cacheable: bool,
    /// How often a run is begun at most, where its worker or computer is lost or none can be made; without a
    /// word 2 for one that is idempotent, else 1.
    pub attempts: u32,
    /// What the worker must have beside the backend.
    pub capabilities: Vec<String>,
}

impl Manifest {
    /// Launches of a run at most where its manifest does not say.
    #[must_use]
    pub fn attempts_of(idempotent: bool) -> u32 {
        if idempotent { 2 } else { 1 }
    }

    /// Reads a manifest from its tree.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(node: &Node) -> Result<Self, Mistakes> {
        read::manifest(node)
    }

    /// Reads a manifest from YAML or JSON.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, Mistakes> {
        Self::read(&crate::yaml::parse(text)?)
    }

    /// What it is called.
    #[must_use]
    pub fn tool(&self) -> ToolRef {
        ToolRef {
            tool: self.id.clone(),
            version: self.version.clone(),
        }
    }

    /// The form that is kept and hashed; [`Manifest::parse`] reads it back to the same manifest.
    ///
    /// # Errors
    /// Never for a manifest that was read.
    pub fn canonical(&self) -> Result<Vec<u8>, CanonicalError> {
        canonical(&write::value(self))
    }

    /// What is not wrong, and yet worth a second look.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        warn::warnings(self)
    }

    /// The file among the tool's own that its entrypoint names.
    #[must_use]
    pub fn entry_file(&self) -> Option<&str> {
        match &self.entrypoint {
            Entrypoint::Python { file, .. } | Entrypoint::Wasm(WasmEntry { file, .. }) => {
                Some(file)
            }
            Entrypoint::Command { .. } | Entrypoint::Image { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests;
