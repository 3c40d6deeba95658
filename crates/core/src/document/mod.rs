//! Documents that people and programs write (manifests, policies, requests), as a tree that remembers
//! where each part stood, and the reader that takes such a tree apart and tells *every* fault at once.
//!
//! A reader never guesses: a field it does not know is a fault, a field twice is a fault, and each fault
//! names the path of the field, what stood there, what is allowed, and the line where there is one.
//! `null` says the same as leaving the field away. Start with [`Fields`].

mod field;
mod json;
mod node;

pub use field::{Field, Fields, Report};
pub use json::parse_json;
pub use node::{Content, Node};

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, PublicError};

/// Largest document in bytes.
pub const DOCUMENT_MAX: usize = 1 << 20;
/// Deepest nesting of a document.
pub const NESTING_MAX: usize = 48;
/// Most nodes of one document.
pub const NODES_MAX: usize = 100_000;
/// Most faults that are told of one document.
pub const FAULTS_MAX: usize = 64;

/// One thing that is wrong with a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mistake {
    /// Path of the field, such as `limits.memory` or `network.egress[2]`; empty for the whole document.
    pub path: String,
    /// Line in the text, from 1, where the text gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// What stood there and what is allowed.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(out, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(out, "{}: ", self.path)?;
        }
        out.write_str(&self.message)
    }
}

/// Everything that is wrong with a document; never empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mistakes(pub Vec<Mistake>);

impl Mistakes {
    /// One mistake.
    #[must_use]
    pub fn one(path: &str, line: Option<u32>, message: impl Into<String>) -> Self {
        Self(vec![Mistake {
            path: path.to_owned(),
            line,
            message: message.into(),
        }])
    }

    /// As a caller sees it: one line, every mistake in it.
    #[must_use]
    pub fn public(&self, what: &str) -> PublicError {
        PublicError::new(ErrorKind::Invalid, format!("{what}: {self}"))
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, mistake) in self.0.iter().enumerate() {
            if at > 0 {
                out.write_str("; ")?;
            }
            write!(out, "{mistake}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}
