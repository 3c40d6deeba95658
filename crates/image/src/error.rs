//! Why an image cannot be had.

use std::io;
use std::path::PathBuf;

use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};

/// A failure of the store, a registry, an archive or a layer.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A reference that cannot be read.
    #[error("the image name {name:?} {what}")]
    Reference {
        /// What was given, cut.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// A document that is none, or says what is not allowed.
    #[error("{what}: {why}")]
    Document {
        /// Which document.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// Bytes that are not those of their digest.
    #[error("{what} has the digest {found}, and {wanted} was asked for")]
    Digest {
        /// Which bytes.
        what: String,
        /// What they hash to.
        found: Digest,
        /// What they should hash to.
        wanted: Digest,
    },
    /// Bytes of another number than was said.
    #[error("{what} has {found} bytes, and {wanted} were announced")]
    Size {
        /// Which bytes.
        what: String,
        /// How many came, or more than were announced.
        found: u64,
        /// How many were announced.
        wanted: u64,
    },
    /// A bound was met.
    #[error("{what} is beyond the limit `{limit}` of {most}")]
    Limit {
        /// What met it.
        what: String,
        /// Name of the bound.
        limit: &'static str,
        /// The bound.
        most: u64,
    },
    /// A layer was refused by the process that unpacks.
    #[error("layer {layer} is refused: {why}")]
    Layer {
        /// Its blob.
        layer: Digest,
        /// What is wrong, with the entry.
        why: String,
    },
    /// The process that unpacks did not end as it should.
    #[error("layer {layer} is not unpacked: {why}")]
    Unpacker {
        /// Its blob.
        layer: Digest,
        /// What happened.
        why: String,
    },
    /// Nothing of that name or digest.
    #[error("no image {0:?} is here")]
    Absent(String),
    /// Something of the store that was put in the place of what was there.
    #[error("{0} is not as it was unpacked: it is missing, or a link is in its place")]
    Altered(String),
    /// More than one image begins so.
    #[error("the digest {0:?} begins more than one image")]
    Ambiguous(String),
    /// The registry has it not, or does not let us.
    #[error("{registry} answers {status} to {what}{}", said.as_deref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Answer {
        /// Which registry.
        registry: String,
        /// HTTP status.
        status: u16,
        /// What was asked for.
        what: String,
        /// What it says, cut.
        said: Option<String>,
    },
    /// The registry cannot be spoken to, or breaks the protocol.
    #[error("cannot get {what} from {registry}: {why}")]
    Registry {
        /// Which registry.
        registry: String,
        /// What was asked for.
        what: String,
        /// Why not.
        why: String,
    },
    /// No image for this machine in an index.
    #[error("the index has no image for {wanted} (there are {there})")]
    Platform {
        /// What was looked for.
        wanted: String,
        /// What there is.
        there: String,
    },
    /// An archive or directory that is no image.
    #[error("{} is no image: {why}", plain(path))]
    Archive {
        /// Where.
        path: PathBuf,
        /// What is missing or wrong.
        why: String,
    },
    /// Somebody else holds what is needed.
    #[error("{0}")]
    Busy(String),
    /// A file of the store.
    #[error("cannot {attempt} {}", plain(path))]
    File {
        /// What was tried.
        attempt: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// What helps when the store is not as it was left.
const BROKEN: &str =
    "leasehold image verify --drop removes what is broken; then pull or load the image again";

/// What this crate answers with.
pub type Result<T> = std::result::Result<T, ImageError>;

impl ImageError {
    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Reference { .. }
            | Self::Document { .. }
            | Self::Digest { .. }
            | Self::Size { .. }
            | Self::Limit { .. }
            | Self::Layer { .. }
            | Self::Ambiguous(_)
            | Self::Archive { .. }
            | Self::Platform { .. } => ErrorKind::Invalid,
            Self::Absent(_) => ErrorKind::NotFound,
            Self::Altered(_) => ErrorKind::Internal,
            Self::Answer { status, .. } => match status {
                401 => ErrorKind::Unauthenticated,
                403 => ErrorKind::Forbidden,
                404 => ErrorKind::NotFound,
                429 | 500.. => ErrorKind::Unavailable,
                _ => ErrorKind::Invalid,
            },
            Self::Registry { .. } => ErrorKind::Unavailable,
            Self::Busy(_) => ErrorKind::Conflict,
            Self::Unpacker { why, .. } if why.contains("os error 28") => ErrorKind::NoCapacity,
            Self::Unpacker { .. } => ErrorKind::Internal,
            Self::File { source, .. } => match source.raw_os_error() {
                Some(28 | 122) => ErrorKind::NoCapacity,
                _ => ErrorKind::Internal,
            },
        }
    }

    /// Whether it is a record of the store that is none.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        matches!(self, Self::File { source, .. } if source.kind() == io::ErrorKind::InvalidData)
    }

    /// The mend, where one is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Reference { .. } => "such as debian:12, ghcr.io/owner/tool:1 or NAME@sha256:…",
            Self::Digest { .. } | Self::Size { .. } => {
                "where it comes from, or somebody on the way, altered it; these bytes are not used"
            }
            Self::Answer {
                status: 401 | 403, ..
            } => "--user NAME with --password-file FILE, or another image",
            Self::Answer { status: 404, .. } => "look at the spelling of repository and tag",
            Self::Absent(_) => "leasehold image ls; leasehold image pull NAME",
            Self::Altered(_) => BROKEN,
            Self::File { .. } if self.is_broken() => BROKEN,
            Self::Ambiguous(_) => "give more of its digits",
            Self::Platform { .. } => "--platform names another one",
            Self::Busy(_) => "try again when it is over",
            Self::Limit { .. } => "the image is larger or stranger than Leasehold takes",
            Self::File { source, .. } if source.raw_os_error() == Some(28) => {
                "the disk is full: leasehold image gc"
            }
            Self::Unpacker { why, .. } if why.contains("os error 28") => {
                "the disk is full: leasehold image gc"
            }
            _ => return None,
        };
        Some(text.to_owned())
    }

    /// The failure as a caller may see it: without paths of the host.
    #[must_use]
    pub fn public(&self) -> PublicError {
        let message = match self {
            Self::File { attempt, .. } => format!("cannot {attempt} a file of the image store"),
            Self::Archive { why, .. } => format!("the archive is no image: {why}"),
            other => other.to_string(),
        };
        let error = PublicError::new(self.kind(), message);
        match self.hint() {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

/// Makes errors about one file.
pub(crate) fn at<E: Into<io::Error>>(
    attempt: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(E) -> ImageError {
    let path = path.into();
    move |source| ImageError::File {
        attempt,
        path,
        source: source.into(),
    }
}

/// A path for an error: names in it may come from an archive.
fn plain(path: &std::path::Path) -> String {
    let text = path.to_string_lossy();
    let steers = |letter: char| letter.is_control();
    match text.contains(steers) {
        true => text.escape_debug().to_string(),
        false => text.into_owned(),
    }
}

/// A text from elsewhere, for an error: cut, and without what steers a terminal.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let cut: String = text.chars().take(200).collect();
    cut.escape_debug().to_string()
}
