//! Signed texts: DSSE envelopes with one Ed25519 signature.
//!
//! What is signed is the pre-authentication encoding of type and payload, so that a text of one kind can
//! never be taken for one of another. The key's id is the digest of its 32 public bytes.

use data_encoding::BASE64;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use leasehold_core::digest::Digest;
use serde::{Deserialize, Serialize};

/// Longest payload in bytes.
pub const PAYLOAD_MAX: usize = 8 << 20;

/// One signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signed {
    /// Which key; a hint that the signature itself does not cover.
    pub keyid: Digest,
    /// The signature, base 64.
    pub sig: String,
}

/// A signed text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Envelope {
    /// What kind of text.
    pub payload_type: String,
    /// The text, base 64.
    pub payload: String,
    /// Exactly one.
    pub signatures: Vec<Signed>,
}

/// The id of a key.
#[must_use]
pub fn key_id(key: &VerifyingKey) -> Digest {
    Digest::of(key.as_bytes())
}

/// The bytes that are signed (DSSE version 1).
fn encoding(kind: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len()).into_bytes();
    out.extend_from_slice(payload);
    out
}

impl Envelope {
    /// Signs a text.
    #[must_use]
    pub fn seal(key: &SigningKey, kind: &str, payload: &[u8]) -> Self {
        let signature = key.sign(&encoding(kind, payload));
        Self {
            payload_type: kind.to_owned(),
            payload: BASE64.encode(payload),
            signatures: vec![Signed {
                keyid: key_id(&key.verifying_key()),
                sig: BASE64.encode(&signature.to_bytes()),
            }],
        }
    }

    /// Which key it says it is signed by.
    #[must_use]
    pub fn signer(&self) -> Option<Digest> {
        match self.signatures.as_slice() {
            [one] => Some(one.keyid),
            _ => None,
        }
    }

    /// The text, before anything is believed of it.
    #[must_use]
    pub fn unproven(&self) -> Option<Vec<u8>> {
        if self.payload.len() > PAYLOAD_MAX.div_ceil(3) * 4 {
            return None;
        }
        BASE64.decode(self.payload.as_bytes()).ok()
    }

    /// The text, if the key signed it as this kind.
    #[must_use]
    pub fn open(&self, key: &VerifyingKey, kind: &str) -> Option<Vec<u8>> {
        let [one] = self.signatures.as_slice() else {
            return None;
        };
        if self.payload_type != kind || one.keyid != key_id(key) {
            return None;
        }
        let payload = self.unproven()?;
        let bytes: [u8; 64] = BASE64.decode(one.sig.as_bytes()).ok()?.try_into().ok()?;
        key.verify_strict(&encoding(kind, &payload), &Signature::from_bytes(&bytes))
            .ok()?;
        Some(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_is_that_of_the_standard() {
        assert_eq!(
            encoding("http://example.com/HelloWorld", b"hello world"),
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        );
    }

    #[test]
    fn only_the_signed_text_of_that_kind_opens() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let envelope = Envelope::seal(&key, "kind", b"text");
        let public = key.verifying_key();
        assert_eq!(envelope.open(&public, "kind"), Some(b"text".to_vec()));
        assert_eq!(envelope.open(&public, "other"), None);
        let stranger = SigningKey::from_bytes(&[8; 32]).verifying_key();
        assert_eq!(envelope.open(&stranger, "kind"), None);
        let mut claims = envelope.clone();
        claims.signatures[0].keyid = key_id(&stranger);
        assert_eq!(claims.open(&stranger, "kind"), None);
        let mut changed = envelope.clone();
        changed.payload = BASE64.encode(b"texT");
        assert_eq!(changed.open(&public, "kind"), None);
        let mut twice = envelope.clone();
        twice.signatures.push(envelope.signatures[0].clone());
        assert_eq!(twice.open(&public, "kind"), None);
    }
}
