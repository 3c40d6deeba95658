//! Who asks: from the text of a header to a principal.
//!
//! Whatever is wrong with a token, the answer is the same and so is the work: one look-up, one digest,
//! one comparison that takes as long for a near miss as for a far one.

use std::hint::black_box;

use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::KeyId;
use leasehold_core::tenant::Principal;
use leasehold_store::seam::{KeyRow, Store, StoreError};

/// Characters of the secret part of a token: 256 bits in base 32.
pub const SECRET_LEN: usize = 52;
/// Bytes of a token: `lh_`, key id, `_`, secret.
pub const TOKEN_LEN: usize = 3 + 21 + 1 + SECRET_LEN;
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The whole secret of a new key. It is shown once, to whoever made the key, and kept nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Makes a token from entropy that the caller drew.
    #[must_use]
    pub fn from_entropy(key: &KeyId, entropy: &[u8; 32]) -> Self {
        let mut text = format!("lh_{key}_");
        for index in 0..SECRET_LEN {
            let bit = index * 5;
            let next = u16::from(*entropy.get(bit / 8 + 1).unwrap_or(&0));
            let pair = u16::from(entropy[bit / 8]) << 8 | next;
            text.push(char::from(
                ALPHABET[usize::from((pair >> (11 - bit % 8)) & 31)],
            ));
        }
        Self(text)
    }

    /// The text that its owner must keep.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    #[must_use]
    pub fn secret_digest(&self) -> Digest {
        Digest::of(&self.0.as_bytes()[TOKEN_LEN - SECRET_LEN..])
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Token(..)")
    }
}

/// The one answer to every token that is not good.
#[must_use]
pub fn refused() -> PublicError {
    PublicError::new(
        ErrorKind::Unauthenticated,
        "no valid API key came with the request",
    )
    .hint("send `Authorization: Bearer lh_…` once; `leasehold key create` makes a key")
}

/// The token in the values of all `Authorization` headers of a request: there must be exactly one, of
/// the scheme `Bearer`. What is not that reads as an empty token, which is never good.
#[must_use]
pub fn bearer<'a>(values: &[&'a [u8]]) -> &'a str {
    let [value] = values else {
        return "";
    };
    let token = match value.split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => token,
        _ => return "",
    };
    std::str::from_utf8(token).unwrap_or_default()
}

/// The parts of a token that has its form.
fn parts(token: &str) -> Option<(KeyId, &[u8])> {
    let rest = token
        .strip_prefix("lh_")
        .filter(|_| token.len() == TOKEN_LEN)?;
    let (key, secret) = rest.split_once('_')?;
    let good = secret.len() == SECRET_LEN && secret.bytes().all(|byte| ALPHABET.contains(&byte));
    Some((KeyId::parse(key).ok().filter(|_| good)?, secret.as_bytes()))
}

/// Compares without telling by its time where the first difference is.
fn same(left: &Digest, right: &Digest) -> bool {
    let mut differing = 0;
    for (left, right) in left.bytes().iter().zip(right.bytes()) {
        differing |= black_box(left ^ right);
    }
    black_box(differing) == 0
}

/// Whether a key is good at a time.
#[must_use]
pub fn is_live(row: &KeyRow, now_unix_ms: u64) -> bool {
    row.revoked_unix_ms.is_none() && row.expires_unix_ms.is_none_or(|end| now_unix_ms < end)
}

/// Proves who asks.
///
/// # Errors
/// `unauthenticated` with the one message of [`refused`], whatever the cause; `unavailable` when the
/// store failed.
pub async fn authenticate(
    store: &dyn Store,
    token: &str,
    now_unix_ms: u64,
) -> Result<Principal, PublicError> {
    let parts = parts(token);
    let (key, secret) = match &parts {
        Some((key, secret)) => (key.clone(), *secret),
        None => (KeyId::from_entropy(&[0; 13]), [b'a'; SECRET_LEN].as_slice()),
    };
    let row = match store.key(key).await {
        Ok(row) => Some(row),
        Err(StoreError::NotFound(_)) => None,
        Err(error) => return Err(error.public()),
    };
    let given = Digest::of(secret);
    let kept = row.as_ref().map_or(Digest::ZERO, |row| row.secret);
    let proven = same(&given, &kept) & parts.is_some();
    match row.filter(|row| proven && is_live(row, now_unix_ms)) {
        Some(row) => Ok(Principal {
            tenant: row.tenant,
            project: row.project,
            name: row.principal,
            role: row.role,
            key: row.key,
            grants: row.grants,
        }),
        None => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_its_length_and_every_bit_shows() {
        let key = KeyId::from_entropy(&[7; 13]);
        let zero = Token::from_entropy(&key, &[0; 32]);
        assert_eq!(zero.reveal().len(), TOKEN_LEN);
        assert_eq!(format!("{zero:?}"), "Token(..)");
        for bit in 0..256 {
            let mut entropy = [0; 32];
            entropy[bit / 8] |= 0x80 >> (bit % 8);
            let token = Token::from_entropy(&key, &entropy);
            assert_ne!(token, zero, "bit {bit} is lost");
            let (read, secret) = parts(token.reveal()).unwrap();
            assert_eq!(
                (read, Digest::of(secret)),
                (key.clone(), token.secret_digest())
            );
        }
    }

    #[test]
    fn one_header_of_the_right_scheme_alone_gives_a_token() {
        assert_eq!(bearer(&[b"Bearer x"]), "x");
        assert_eq!(bearer(&[b"bearer x"]), "x");
        let none: [&[&[u8]]; 8] = [
            &[],
            &[b""],
            &[b"Bearer"],
            &[b"Basic x"],
            &[b"x"],
            &[b"Bearer x", b"Bearer x"],
            &[b"Bearer x", b""],
            &[b"Bearer \xff"],
        ];
        for values in none {
            assert_eq!(bearer(values), "", "{values:?}");
        }
    }
}
