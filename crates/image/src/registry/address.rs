//! Where a request may go: an address with scheme, host and port, and what a redirect makes of it.

use std::net::IpAddr;

/// Longest address that is followed.
const ADDRESS_MAX: usize = 8_192;

/// An address in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) secure: bool,
    /// Host, with a port where one is given.
    pub(crate) authority: String,
    /// Path and query, with a leading `/`.
    pub(crate) path: String,
}

impl Address {
    /// Reads an address in full, or a path on the same host.
    ///
    /// # Errors
    /// With what is wrong.
    pub(crate) fn follow(&self, location: &str) -> Result<Self, String> {
        if location.len() > ADDRESS_MAX || location.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return Err("leads to no address".to_owned());
        }
        let location = location.split('#').next().unwrap_or_default();
        if location.starts_with('/') && !location.starts_with("//") {
            return Ok(Self {
                path: location.to_owned(),
                ..self.clone()
            });
        }
        Self::parse(location)
    }

    /// Reads an address in full.
    ///
    /// # Errors
    /// With what is wrong.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (secure, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            _ => return Err("leads to what is neither https nor http".to_owned()),
        };
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
        if authority.is_empty() || !authority.bytes().all(good) {
            return Err("leads to no host".to_owned());
        }
        let path = match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("/{path}"),
        };
        Ok(Self {
            secure,
            authority: authority.to_ascii_lowercase(),
            path,
        })
    }

    /// As one text.
    pub(crate) fn text(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.path)
    }

    /// Whether a request here goes to whom one there goes to.
    pub(crate) fn same_host(&self, other: &Self) -> bool {
        self.secure == other.secure && self.authority == other.authority
    }
}

/// Whether a host, with or without a port, is this machine by its name alone.
pub(crate) fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let address = host.parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_read_strictly() {
        let from = Address::parse("https://r.io/v2/x").unwrap();
        assert_eq!(from.follow("/a?b=c").unwrap().text(), "https://r.io/a?b=c");
        let other = from.follow("HTTPS://Cdn.io:8443/x#y").unwrap();
        assert_eq!(other.text(), "https://cdn.io:8443/x");
        assert!(!from.same_host(&other));
        assert!(from.follow("http://r.io/").is_ok_and(|to| !to.secure));
        for bad in [
            "//evil.io/x",
            "file:///etc/passwd",
            "https://user:pass@r.io/",
            "https://",
            "a b",
            "https:///x",
            "ftp://x/",
            "https://r.io/\n",
            "",
        ] {
            assert!(from.follow(bad).is_err(), "{bad}");
        }
        for here in [
            "localhost",
            "localhost:5000",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:5",
        ] {
            assert!(is_loopback(here), "{here}");
        }
        for there in [
            "localhost.evil.io",
            "127.0.0.1.evil.io",
            "10.0.0.1",
            "[::2]",
            "r.io:5000",
        ] {
            assert!(!is_loopback(there), "{there}");
        }
    }
}
