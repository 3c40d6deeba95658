//! Digests, and the one form of JSON that is hashed.
//!
//! Canonical JSON here is JSON without spaces, object keys in byte order, numbers whole, and text as
//! UTF-8 with only the escapes JSON demands. For such values it is what RFC 8785 gives when keys are
//! ASCII. A value with a fraction has no canonical form: it is refused, since two writers could differ.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::canonical::Writer;

/// Deepest nesting of a value that is hashed.
pub const DEPTH_MAX: usize = 64;

/// A SHA-256 digest, written `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A text that is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no digest: expected `sha256:` and 64 digits of 0-9, a-f")]
pub struct DigestError(pub String);

/// A value that has no canonical form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalError {
    /// It is no JSON value at all.
    #[error("it cannot be written as JSON: {0}")]
    Value(String),
    /// It has a number with a fraction or one that does not fit 64 bits.
    #[error("the number {0} is not whole")]
    Number(String),
    /// It is nested too deep.
    #[error("it is nested deeper than {DEPTH_MAX}")]
    Depth,
}

impl Digest {
    /// What a chain starts from.
    pub const ZERO: Self = Self([0; 32]);

    /// The digest of bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of the canonical form of a value.
    ///
    /// # Errors
    /// When the value has none.
    pub fn of_value<T: Serialize>(value: &T) -> Result<Self, CanonicalError> {
        Ok(Self::of(&canonical(value)?))
    }

    /// Reads a digest.
    ///
    /// # Errors
    /// When the text is not exactly one.
    pub fn parse(text: &str) -> Result<Self, DigestError> {
        let wrong = || DigestError(text.chars().take(80).collect());
        let hex = text.strip_prefix("sha256:").ok_or_else(wrong)?;
        if hex.len() != 64 {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let [high, low] = [pair[0], pair[1]].map(digit);
            *byte = high.zip(low).map(|(h, l)| h << 4 | l).ok_or_else(wrong)?;
        }
        Ok(Self(bytes))
    }

    /// From bytes that a hash gave.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bare bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Gives the whole text away, written in one piece.
    fn written<T>(&self, take: impl FnOnce(&str) -> T) -> T {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = *b"sha256:0000000000000000000000000000000000000000000000000000000000000000";
        for (pair, byte) in text[7..].chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        take(str::from_utf8(&text).unwrap_or_default())
    }

    /// The 64 hexadecimal digits without the prefix.
    #[must_use]
    pub fn hex(&self) -> String {
        self.written(|text| text["sha256:".len()..].to_owned())
    }
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

/// The canonical form of a value.
///
/// # Errors
/// When the value has a number that is not whole, or is nested deeper than [`DEPTH_MAX`].
pub fn canonical<T: Serialize>(value: &T) -> Result<Vec<u8>, CanonicalError> {
    let mut out = Vec::with_capacity(512);
    value.serialize(Writer::new(&mut out))?;
    Ok(out)
}

impl fmt::Display for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.written(|text| out.write_str(text))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        self.written(|text| out.serialize_str(text))
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = String::deserialize(input)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn one_value_has_one_form() {
        let value = json!({"b": [1, true, null], "a": {"z": "\u{1}é\n", "y": -5}, "": 0});
        let text = String::from_utf8(canonical(&value).unwrap()).unwrap();
        assert_eq!(
            text,
            r#"{"":0,"a":{"y":-5,"z":"\u0001é\n"},"b":[1,true,null]}"#
        );
        let again: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(canonical(&again).unwrap(), text.as_bytes());
    }

    #[test]
    fn fractions_and_depth_are_refused() {
        assert_eq!(
            canonical(&json!([1.5])),
            Err(CanonicalError::Number("1.5".into()))
        );
        let mut deep = json!(1);
        for _ in 0..=DEPTH_MAX {
            deep = json!([deep]);
        }
        assert_eq!(canonical(&deep), Err(CanonicalError::Depth));
    }

    #[test]
    fn a_digest_reads_back() {
        // The well-known digest of no bytes.
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), text);
        assert_eq!(Digest::parse(text), Ok(Digest::of(b"")));
        assert_eq!(format!("sha256:{}", Digest::of(b"").hex()), text);
        for bad in ["", "sha256:", &text[1..], &text.to_uppercase(), &text[..70]] {
            assert!(Digest::parse(bad).is_err(), "{bad} was taken");
        }
    }
}
