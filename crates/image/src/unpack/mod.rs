//! Unpacking of one layer by a process of our own.
//!
//! [`worker`] starts it and believes what it answers; [`child`] is that process: it confines itself and reads
//! the layer. [`decode`] undoes the compression and counts, [`apply`] does what each entry says, [`lowers`] finds
//! what the layers below have, [`tree`] makes
//! the files, and [`compare`] finds what somebody changed afterwards.

mod apply;
pub mod child;
mod compare;
pub mod decode;
mod lowers;
mod tree;
pub mod worker;

use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::digest::Digest;
use serde::{Deserialize, Serialize};

use crate::limits::Limits;

/// What the process is asked to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// The layer's bytes, whose digest has been checked.
    pub blob: PathBuf,
    /// An empty directory.
    pub target: PathBuf,
    /// The unpacked layers below, the topmost first.
    pub lowers: Vec<PathBuf>,
    /// Digest that the bytes must have when they are not compressed.
    pub diff_id: Digest,
    /// Bounds.
    pub limits: Limits,
    /// What the layers below came to.
    pub spent: Spent,
    /// A directory that this layer was unpacked into earlier, to be compared.
    pub against: Option<PathBuf>,
}

/// What layers of an image came to, of what all of them may.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Bytes, unpacked.
    pub bytes: u64,
    /// Entries.
    pub entries: u64,
    /// Wall time of the processes that unpacked them.
    pub time: Duration,
}

/// What it answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// All is unpacked.
    Done(Box<Unpacked>),
    /// The layer is refused, with the entry and what is wrong with it.
    Refused(String),
    /// The host failed.
    Failed(String),
}

/// A layer that is unpacked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    /// Entries of the archive.
    pub entries: u64,
    /// Bytes of the archive without compression, and of what is copied from the layers below.
    pub bytes: u64,
    /// It leans on the layers below, and is right on them alone.
    pub leans: bool,
    /// It describes the root itself.
    #[serde(default)]
    pub root: bool,
    /// Its root hides the layers below. A mount does not look at that of a root, and ends with this layer.
    #[serde(default)]
    pub opaque: bool,
    /// Owners are those of the archive; else everything is the caller's.
    pub owners: bool,
    /// What was not made, by number.
    pub left_out: LeftOut,
    /// Names that are otherwise in the directory it was compared with, cut.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub altered: Vec<String>,
    /// Whether the process had a root of its own, and Landlock.
    pub confined: (bool, bool),
}

/// What a layer has and a sandbox does not get.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Device nodes and pipes.
    pub specials: u64,
    /// Extended attributes.
    pub attributes: u64,
    /// Set-user-id and set-group-id of files.
    pub set_ids: u64,
    /// Files of other tools about layers, below names with `.wh..wh.`, and marks of names that no layer below has.
    pub marks: u64,
}
