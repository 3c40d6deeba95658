//! Digests as manifests write them.

use sha2::{Digest as _, Sha256};

/// The SHA-256 of `bytes` in lower-case hexadecimal.
pub(crate) fn of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The SHA-256 of several parts, each told with its length, so that no two lists have the same.
pub(crate) fn list<'a>(items: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut digest = Sha256::new();
    for item in items {
        digest.update((item.len() as u64).to_be_bytes());
        digest.update(item);
    }
    hex(&digest.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_sha256sum() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(of(b""), empty);
    }

    #[test]
    fn where_a_part_ends_matters() {
        assert_ne!(list([&b"ab"[..], b"c"]), list([&b"a"[..], b"bc"]));
    }
}
