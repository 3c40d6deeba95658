//! Base64 as protobuf's JSON mapping wants it, and nothing else.
//!
//! Written here because it is forty lines and the static agent's dependency list stays short.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Not base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("text is not base64")]
pub struct Base64Error;

/// Writes bytes in the standard alphabet with padding.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = encode_unpadded(bytes);
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

/// Writes bytes in the standard alphabet without padding.
#[must_use]
pub fn encode_unpadded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk
            .iter()
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            let index = (word >> (18 - 6 * place)) & 63;
            text.push(char::from(ALPHABET[index as usize]));
        }
    }
    text
}

fn value(letter: u8) -> Result<u32, Base64Error> {
    Ok(u32::from(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return Err(Base64Error),
    }))
}

/// Reads either alphabet, with or without padding.
///
/// # Errors
/// When a letter is outside both alphabets or the length is impossible.
pub fn decode(text: &str) -> Result<Vec<u8>, Base64Error> {
    let letters = text.as_bytes();
    let padding = letters.iter().rev().take_while(|b| **b == b'=').count();
    if padding > 2 || (padding > 0 && !letters.len().is_multiple_of(4)) {
        return Err(Base64Error);
    }
    let letters = &letters[..letters.len() - padding];
    let mut bytes = Vec::with_capacity(letters.len() / 4 * 3 + 2);
    for chunk in letters.chunks(4) {
        if chunk.len() == 1 {
            return Err(Base64Error);
        }
        let mut word = 0;
        for letter in chunk {
            word = word << 6 | value(*letter)?;
        }
        word <<= 6 * (4 - chunk.len());
        bytes.extend_from_slice(&word.to_be_bytes()[1..chunk.len()]);
    }
    Ok(bytes)
}

/// Bytes that travel as base64 text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Base64(pub Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        decode(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_vectors_hold() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), plain.as_bytes());
            assert_eq!(
                decode(text.trim_end_matches('=')).unwrap(),
                plain.as_bytes()
            );
        }
    }

    #[test]
    fn every_byte_and_both_alphabets_read_back() {
        let all: Vec<u8> = (0..=255).collect();
        for cut in 0..5 {
            let text = encode(&all[cut..]);
            assert_eq!(decode(&text).unwrap(), &all[cut..]);
            let url = text.replace('+', "-").replace('/', "_");
            assert_eq!(decode(&url).unwrap(), &all[cut..]);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["A", "AAAAA", "====", "A===", "Zg=", "Z g=", "Zg==Zg==", "ä"] {
            assert_eq!(decode(text), Err(Base64Error), "{text}");
        }
    }
}
