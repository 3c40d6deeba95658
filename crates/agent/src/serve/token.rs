//! The access token and links signed with it.

use leasehold_protocol::envd::base64;
use sha2::{Digest as _, Sha256};

/// What a client must know. Never written anywhere.
#[derive(Clone)]
pub(super) struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Token(..)")
    }
}

/// What a signed link allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// Download.
    Read,
    /// Upload.
    Write,
}

impl Operation {
    fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// A signed link, as its query gives it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signed<'a> {
    /// The path, as the caller wrote it; empty when absent.
    pub(super) path: &'a str,
    /// The user; empty when absent.
    pub(super) user: &'a str,
    /// `v1_` and the digest.
    pub(super) signature: &'a str,
    /// End of its validity in seconds since the epoch, as written.
    pub(super) expiration: Option<&'a str>,
}

impl Token {
    /// A token; none when it is empty.
    pub(super) fn new(text: String) -> Option<Self> {
        (!text.is_empty()).then_some(Self(text))
    }

    /// Whether somebody knows it. Takes the same time for every wrong text of the same length.
    pub(super) fn is(&self, text: &str) -> bool {
        same(self.0.as_bytes(), text.as_bytes())
    }

    /// Checks a signed link at the time `now`, in seconds since the epoch.
    ///
    /// # Errors
    /// Says why it is not valid; the words of an expired link are part of the wire.
    pub(super) fn check(
        &self,
        link: Signed<'_>,
        operation: Operation,
        now: i64,
    ) -> Result<(), &'static str> {
        let expiration = match link.expiration.map(str::parse::<i64>) {
            None => None,
            Some(Ok(end)) => Some(end),
            Some(Err(_)) => return Err("signature expiration is not a number"),
        };
        let mut text = [link.path, operation.word(), link.user, &self.0].join(":");
        if let Some(end) = expiration {
            text.push_str(&format!(":{end}"));
        }
        let digest = base64::encode_unpadded(&Sha256::digest(text));
        if !same(format!("v1_{digest}").as_bytes(), link.signature.as_bytes()) {
            return Err("invalid signature");
        }
        match expiration {
            Some(end) if end < now => Err("signature is already expired"),
            _ => Ok(()),
        }
    }
}

fn same(left: &[u8], right: &[u8]) -> bool {
    let differing = left
        .iter()
        .zip(right)
        .fold(0, |seen, (a, b)| seen | (a ^ b));
    // The hint keeps the compiler from leaving the loop early.
    left.len() == right.len() && std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link<'a>(signature: &'a str, expiration: Option<&'a str>) -> Signed<'a> {
        Signed {
            path: "/a.txt",
            user: "",
            signature,
            expiration,
        }
    }

    fn sign(text: &str) -> String {
        format!("v1_{}", base64::encode_unpadded(&Sha256::digest(text)))
    }

    #[test]
    fn links_are_valid_for_their_own_path_operation_and_time() {
        let token = Token::new("secret".into()).unwrap();
        let good = sign("/a.txt:read::secret");
        assert_eq!(token.check(link(&good, None), Operation::Read, 100), Ok(()));
        assert_eq!(
            token.check(link(&good, None), Operation::Write, 100),
            Err("invalid signature")
        );
        let timed = sign("/a.txt:read::secret:99");
        assert_eq!(
            token.check(link(&timed, Some("99")), Operation::Read, 99),
            Ok(())
        );
        assert_eq!(
            token.check(link(&timed, Some("99")), Operation::Read, 100),
            Err("signature is already expired")
        );
        assert!(
            token
                .check(link(&timed, Some("999")), Operation::Read, 1)
                .is_err()
        );
        assert!(
            token
                .check(link(&timed, Some("x")), Operation::Read, 1)
                .is_err()
        );
        assert!(token.check(link("", None), Operation::Read, 1).is_err());
    }

    #[test]
    fn tokens_compare_whole_and_do_not_show() {
        let token = Token::new("secret".into()).unwrap();
        assert!(token.is("secret"));
        for wrong in ["", "secre", "secrets", "Secret"] {
            assert!(!token.is(wrong));
        }
        assert!(Token::new(String::new()).is_none());
        assert!(!format!("{token:?}").contains("secret"));
    }
}
