//! Bounds on everything that somebody else decides: each has a name, and an error says which was met.

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Most bytes of a manifest or an index.
pub const MANIFEST_BYTES: u64 = 4 * MIB;
/// Most bytes of the configuration of an image.
pub const CONFIG_BYTES: u64 = 8 * MIB;
/// Most layers of an image: a mount has room for no more on one page.
pub const LAYERS: usize = leasehold_core::image::LAYERS_MAX;
/// Most images in an index.
pub const INDEX_ENTRIES: usize = 1_024;
/// Longest name of an image or tag that is kept.
pub const NAME_BYTES: usize = 512;

/// What a layer may come to, and what its process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Compressed bytes of all layers of an image.
    pub image_bytes: u64,
    /// Bytes of one layer, unpacked, with what it copies from those below.
    pub layer_bytes: u64,
    /// Bytes of all layers of an image, unpacked.
    pub unpacked_bytes: u64,
    /// Entries of all layers of an image.
    pub image_entries: u64,
    /// Unpacked bytes for each compressed one, beyond [`Limits::RATIO_FREE`].
    pub ratio: u64,
    /// Entries of one layer.
    pub entries: u64,
    /// Components of one path.
    pub depth: usize,
    /// Bytes of the names of directories that a layer describes, and of files that it copies, taken together.
    pub directory_names_bytes: usize,
    /// Bytes of extended attributes of one entry.
    pub attribute_bytes: usize,
    /// Bytes of the window of zstd.
    pub window_bytes: u64,
    /// Processor seconds of the process.
    pub cpu_seconds: u32,
    /// Bytes of data of the process.
    pub memory_bytes: u64,
    /// Wall seconds that unpacking all layers of an image may take.
    pub wall_seconds: u32,
}

impl Limits {
    /// Unpacked bytes up to which no ratio is asked for.
    pub const RATIO_FREE: u64 = 64 * MIB;
    /// Longest path in bytes, as the kernel takes it.
    pub const PATH_BYTES: usize = 4_095;
    /// Longest component of a path in bytes, as file systems take it.
    pub const COMPONENT_BYTES: usize = 255;
    /// Highest owner that is kept.
    pub const OWNER_MAX: u64 = leasehold_core::image::ID_MAX as u64;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            image_bytes: 32 * GIB,
            layer_bytes: 32 * GIB,
            unpacked_bytes: 64 * GIB,
            image_entries: 2_000_000,
            ratio: 250,
            entries: 1_000_000,
            depth: 256,
            directory_names_bytes: 64 << 20,
            attribute_bytes: 256 << 10,
            window_bytes: 128 * MIB,
            cpu_seconds: 3_600,
            memory_bytes: 768 * MIB,
            wall_seconds: 3_600,
        }
    }
}
