//! An image as the root of a sandbox: what a backend is told of it. The image itself, its names and its
//! configuration are the image store's matter.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::Digest;
use crate::error::{ErrorKind, PublicError};

/// Most layers of an image: a mount has room for no more on one page.
pub const LAYERS_MAX: usize = 126;
/// Highest user and group id of an image, and of whoever runs in it.
pub const ID_MAX: u32 = 65_535;
/// Permissions, set-id bits and the sticky bit.
const MODE_MAX: u32 = 0o7777;
/// What a layer that leans on those below it has before its digits.
const LEANS: &str = "chain-";

/// Name of an unpacked layer in an image store: 64 digits, of its own content or of it and all below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerName {
    /// Of its content, or of the chain that ends with it.
    pub digest: Digest,
    /// Whether it is the chain's.
    pub leans: bool,
}

impl LayerName {
    /// Reads a name.
    ///
    /// # Errors
    /// When the text is none.
    pub fn parse(text: &str) -> Result<Self, PublicError> {
        let (digits, leans) = match text.strip_prefix(LEANS) {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        match Digest::parse(&format!("sha256:{digits}")) {
            Ok(digest) => Ok(Self { digest, leans }),
            Err(_) => Err(invalid(format!(
                "`image.layers` has {:?}, which is no layer: 64 digits of 0-9, a-f",
                text.chars().take(80).collect::<String>()
            ))),
        }
    }
}

impl fmt::Display for LayerName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = if self.leans { LEANS } else { "" };
        write!(out, "{head}{}", self.digest.hex())
    }
}

impl Serialize for LayerName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LayerName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// The directory that a sandbox has as its root, as the image describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootDirectory {
    /// Permissions.
    pub mode: u32,
    /// Owner, by the image's count.
    pub uid: u32,
    /// Group, by the image's count.
    pub gid: u32,
}

/// Who a command is inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ImageUser))]
pub struct User {
    /// User id inside. 0 is the owner of most files of an image, and has no capability all the same.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
}

/// An image whose file system is the root of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSpec {
    /// Digest of its manifest.
    pub digest: Digest,
    /// Its unpacked layers, the topmost first, without those that another one's root hides. 1 to [`LAYERS_MAX`].
    pub layers: Vec<LayerName>,
    /// What its root is like.
    pub root: RootDirectory,
    /// Whether its files have the owners of the image, 0 to [`ID_MAX`]; else all of them are the caller's.
    pub owners: bool,
    /// Who its command is.
    pub user: User,
    /// Whether `/home/user` is made for it, as the image has no home of its own for it.
    #[serde(default)]
    pub home: bool,
}

impl ImageSpec {
    /// Checks its bounds.
    ///
    /// # Errors
    /// Names the field, the value and the limit.
    pub fn check(&self) -> Result<(), PublicError> {
        let layers = self.layers.len();
        if !(1..=LAYERS_MAX).contains(&layers) {
            return Err(invalid(format!(
                "`image` has {layers} layers: allowed are 1 to {LAYERS_MAX}"
            )));
        }
        let RootDirectory { mode, uid, gid } = self.root;
        for (field, value, most) in [
            ("root.mode", mode, MODE_MAX),
            ("root.uid", uid, ID_MAX),
            ("root.gid", gid, ID_MAX),
            ("user.uid", self.user.uid, ID_MAX),
            ("user.gid", self.user.gid, ID_MAX),
        ] {
            if value > most {
                return Err(invalid(format!(
                    "`image.{field}` is {value}: most is {most}"
                )));
            }
        }
        Ok(())
    }
}

/// The image of a run, for its contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ImageUse {
    /// Digest of its manifest, which a name was resolved to once.
    pub digest: Digest,
    /// Who the command was inside.
    pub user: User,
}

fn invalid(message: String) -> PublicError {
    PublicError::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ImageSpec {
        let name = |text: &[u8], leans| LayerName {
            digest: Digest::of(text),
            leans,
        };
        ImageSpec {
            digest: Digest::of(b"manifest"),
            layers: vec![name(b"upper", true), name(b"lower", false)],
            root: RootDirectory {
                mode: 0o755,
                uid: 0,
                gid: 0,
            },
            owners: true,
            user: User {
                uid: 1_000,
                gid: 1_000,
            },
            home: true,
        }
    }

    #[test]
    fn an_image_reads_back_and_its_bounds_are_named() {
        let good = spec();
        assert_eq!(good.check(), Ok(()));
        let text = serde_json::to_string(&good).unwrap();
        assert!(text.contains("\"chain-"), "{text}");
        assert_eq!(serde_json::from_str::<ImageSpec>(&text).unwrap(), good);
        type Bend = fn(&mut ImageSpec);
        let cases: [(&str, Bend); 5] = [
            ("0 layers", |spec| spec.layers.clear()),
            ("127 layers", |spec| spec.layers = vec![spec.layers[0]; 127]),
            ("root.mode", |spec| spec.root.mode = 0o10_000),
            ("user.uid", |spec| spec.user.uid = 65_536),
            ("user.gid", |spec| spec.user.gid = u32::MAX),
        ];
        for (word, bend) in cases {
            let mut bent = spec();
            bend(&mut bent);
            let error = bent.check().unwrap_err();
            assert!(error.message.contains(word), "{error}");
        }
    }

    #[test]
    fn a_layers_name_leads_nowhere_else() {
        let digits = "0".repeat(64);
        assert!(LayerName::parse(&digits).is_ok());
        for text in [
            "",
            "..",
            "chain-",
            "../../etc",
            &format!("{digits}/.."),
            &format!("chain-chain-{digits}"),
            &digits.replace('0', "A"),
        ] {
            assert!(LayerName::parse(text).is_err(), "{text}");
        }
    }
}
