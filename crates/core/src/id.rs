//! Identifiers, one newtype per noun.
//!
//! Every id fits a DNS label: one letter that names its kind, then twenty characters of lower-case
//! base 32 (100 bits), so that `<port>-<id>.<domain>` is always a legal host name. The caller
//! supplies the entropy; this crate draws none.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of base-32 characters behind the kind letter.
const BODY_LEN: usize = 20;
/// Lower-case letters and digits without `0`, `1`, `8`, `9`: RFC 4648 base 32, lower case.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Bytes of entropy an id is made from; the first 100 bits are used.
pub type Entropy = [u8; 13];

/// A text that is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {kind} id: expected `{letter}` and {BODY_LEN} characters of a-z, 2-7")]
pub struct IdError {
    /// What was read, cut to 64 characters.
    pub text: String,
    /// The noun of the wanted id.
    pub kind: &'static str,
    /// The letter such an id starts with.
    pub letter: char,
}

fn encode(letter: u8, entropy: &Entropy) -> String {
    let mut text = String::with_capacity(1 + BODY_LEN);
    text.push(char::from(letter));
    for index in 0..BODY_LEN {
        let bit = index * 5;
        let pair =
            u16::from(entropy[bit / 8]) << 8 | u16::from(*entropy.get(bit / 8 + 1).unwrap_or(&0));
        let value = (pair >> (11 - bit % 8)) & 31;
        text.push(char::from(ALPHABET[usize::from(value)]));
    }
    text
}

fn check(text: &str, letter: u8, kind: &'static str) -> Result<(), IdError> {
    let bytes = text.as_bytes();
    let good = bytes.len() == 1 + BODY_LEN
        && bytes[0] == letter
        && bytes[1..].iter().all(|byte| ALPHABET.contains(byte));
    if good {
        return Ok(());
    }
    Err(IdError {
        text: text.chars().take(64).collect(),
        kind,
        letter: char::from(letter),
    })
}

macro_rules! id {
    ($name:ident, $letter:literal, $kind:literal, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $name(String);

        impl $name {
            /// Makes an id from entropy that the caller drew.
            #[must_use]
            pub fn from_entropy(entropy: &Entropy) -> Self {
                Self(encode($letter, entropy))
            }

            /// Reads an id.
            ///
            /// # Errors
            /// When the text is not exactly one id of this kind.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                check(text, $letter, $kind)?;
                Ok(Self(text.to_owned()))
            }

            /// The id as text; safe as a file name, a DNS label and a cgroup name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                let text = String::deserialize(input)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(SandboxId, b's', "sandbox", "One bounded computer.");
id!(
    RunId,
    b'r',
    "run",
    "One tool invocation or command, as a durable record."
);

id!(
    LeaseId,
    b'l',
    "lease",
    "The time-bound right to operate one sandbox."
);
id!(KeyId, b'k', "key", "One API key; not the secret in it.");
id!(
    WorkerId,
    b'w',
    "worker",
    "The process that owns sandboxes on one machine."
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_dns_labels_and_read_back() {
        let id = SandboxId::from_entropy(&[0xff; 13]);
        assert_eq!(id.as_str(), "s77777777777777777777");
        assert_eq!(SandboxId::parse(id.as_str()), Ok(id));
        assert_eq!(
            RunId::from_entropy(&[0; 13]).as_str(),
            "raaaaaaaaaaaaaaaaaaaa"
        );
    }

    #[test]
    fn every_used_bit_of_entropy_shows() {
        let zero = RunId::from_entropy(&[0; 13]);
        for bit in 0..100 {
            let mut entropy = [0; 13];
            entropy[bit / 8] |= 0x80 >> (bit % 8);
            assert_ne!(RunId::from_entropy(&entropy), zero, "bit {bit} is lost");
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "s",
            "r77777777777777777777",
            "s7777777777777777777",
            "s7777777777777777777/",
            "S77777777777777777777",
            "s../../../../../../../",
        ] {
            assert!(SandboxId::parse(text).is_err(), "{text} was taken");
        }
    }
}
