//! Challenges of a registry: what `WWW-Authenticate` asks for. Pure.

use serde::Deserialize;

/// Most challenges, and parameters of one, that are read.
const PARTS_MAX: usize = 16;

/// What a registry asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// Name and password with each request.
    Basic,
    /// A token, which somebody else gives.
    Bearer {
        /// Where it is had.
        realm: String,
        /// For which service.
        service: Option<String>,
        /// For what; what was asked for when it does not say.
        scope: Option<String>,
    },
}

/// A token as a service gives it.
#[derive(Debug, Deserialize)]
pub(crate) struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Token {
    /// The token itself, if it can go into a header.
    pub(crate) fn text(self) -> Option<String> {
        let text = self.token.or(self.access_token)?;
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        (plain && !text.is_empty() && text.len() <= 32 << 10).then_some(text)
    }
}

/// Reads the value of a header. A bearer challenge comes before a basic one.
pub(crate) fn challenge(header: &str) -> Option<Challenge> {
    if header.len() > 8_192 {
        return None;
    }
    let mut basic = false;
    let mut rest = header.trim();
    for _ in 0..PARTS_MAX {
        let (scheme, after) = rest.split_once(' ').unwrap_or((rest, ""));
        let (parameters, after) = parameters(after)?;
        let find = |name: &str| {
            let found = parameters
                .iter()
                .find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.clone())
        };
        if scheme.eq_ignore_ascii_case("bearer") {
            return Some(Challenge::Bearer {
                realm: find("realm")?,
                service: find("service"),
                scope: find("scope"),
            });
        }
        basic |= scheme.eq_ignore_ascii_case("basic");
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    basic.then_some(Challenge::Basic)
}

type Parameters = Vec<(String, String)>;

/// `KEY="VALUE"` and `KEY=VALUE`, parted by commas, up to where another scheme begins.
fn parameters(mut rest: &str) -> Option<(Parameters, &str)> {
    let mut all = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        let end = rest.find(['=', ' ', ',']).unwrap_or(rest.len());
        if !rest[end..].starts_with('=') || all.len() >= PARTS_MAX {
            return Some((all, rest));
        }
        let (key, value) = (&rest[..end], &rest[end + 1..]);
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => {
                let close = quoted.find('"')?;
                (&quoted[..close], &quoted[close + 1..])
            }
            None => value.split_at(value.find([',', ' ']).unwrap_or(value.len())),
        };
        all.push((key.to_owned(), value.to_owned()));
        rest = after;
    }
}

/// A text as part of a query.
pub(crate) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte);
    text.bytes()
        .map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let header = "Bearer realm=\"https://auth.r.io/token\",service=\"r.io\",scope=\"repository:a/b:pull,push\"";
        let bearer = Challenge::Bearer {
            realm: "https://auth.r.io/token".to_owned(),
            service: Some("r.io".to_owned()),
            scope: Some("repository:a/b:pull,push".to_owned()),
        };
        assert_eq!(challenge(header), Some(bearer.clone()));
        assert_eq!(
            challenge(&format!("Basic realm=\"x\", {header}")),
            Some(bearer)
        );
        assert_eq!(challenge("basic realm=x"), Some(Challenge::Basic));
        assert_eq!(challenge("Basic"), Some(Challenge::Basic));
        for bad in ["", "Negotiate", "Bearer service=\"x\"", "Bearer realm=\"x"] {
            assert_eq!(challenge(bad), None, "{bad}");
        }
        assert_eq!(escaped("a b&c=d/é"), "a%20b%26c%3Dd/%C3%A9");
    }
}
