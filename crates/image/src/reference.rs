//! Names of images: registry, repository, tag, digest.

use std::fmt;

use leasehold_core::digest::Digest;

use crate::error::{ImageError, Result, shown};
use crate::limits::NAME_BYTES;

/// The registry of names without one.
const DEFAULT_REGISTRY: &str = "docker.io";
/// Where that one is reached.
const DEFAULT_HOST: &str = "registry-1.docker.io";

/// A name in full, such as `docker.io/library/debian:12`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// Reads a name as people type it. Without a registry it is of `docker.io`, without tag and digest of
    /// `latest`.
    ///
    /// # Errors
    /// With the part that is wrong.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |what: String| ImageError::Reference {
            name: shown(text.as_bytes()),
            what,
        };
        if text.is_empty() || text.len() > NAME_BYTES {
            return Err(wrong(format!("is empty or longer than {NAME_BYTES} bytes")));
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => {
                let digest = Digest::parse(digest)
                    .map_err(|error| wrong(format!("has a bad digest: {error}")))?;
                (rest, Some(digest))
            }
            None => (text, None),
        };
        let (registry, rest) = match rest.split_once('/') {
            Some((first, rest)) if is_registry(first) => (first, rest),
            _ => (DEFAULT_REGISTRY, rest),
        };
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (rest, None),
        };
        if !valid_registry(registry) {
            return Err(wrong(format!(
                "has the registry {:?}, which is no host with a port",
                shown(registry.as_bytes())
            )));
        }
        if let Some(tag) = tag
            && !valid_tag(tag)
        {
            return Err(wrong(
                "has a tag that is not 1 to 128 of letters, digits, `_`, `.` and `-`".to_owned(),
            ));
        }
        let repository = match registry == DEFAULT_REGISTRY && !repository.contains('/') {
            true => format!("library/{repository}"),
            false => repository.to_owned(),
        };
        if !repository.split('/').all(valid_component) {
            return Err(wrong("has a repository that is not lower-case letters and digits, parted by `/`, `.`, `_` or `-`".to_owned()));
        }
        let tag = tag.map(str::to_owned);
        let tag = tag.or_else(|| digest.is_none().then(|| "latest".to_owned()));
        Ok(Self {
            registry: registry.to_owned(),
            repository,
            tag,
            digest,
        })
    }

    /// Host, and port where it has one, as it is spoken to.
    #[must_use]
    pub fn host(&self) -> &str {
        match self.registry == DEFAULT_REGISTRY {
            true => DEFAULT_HOST,
            false => &self.registry,
        }
    }

    /// The registry as it is named.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository in it.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The digest, where the name has one.
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// The tag, where the name has one.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(out, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(out, "@{digest}"),
            None => Ok(()),
        }
    }
}

/// Whether the first part of a name is a registry and no part of a repository.
fn is_registry(part: &str) -> bool {
    part == "localhost" || part.contains(['.', ':', '['])
}

fn valid_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) => {
                let good = address.parse::<std::net::Ipv6Addr>().is_ok();
                (if good { "v6" } else { "" }, port.strip_prefix(':'))
            }
            None => return false,
        },
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let label = |label: &str| {
        let plain = label
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        plain && !label.is_empty() && label.len() <= 63 && !label.starts_with('-')
    };
    host.split('.').all(label)
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn valid_tag(tag: &str) -> bool {
    let byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=128).contains(&tag.len()) && !tag.starts_with(['.', '-']) && tag.bytes().all(byte)
}

fn valid_component(part: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = part.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_full() {
        let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        for (typed, full) in [
            ("debian", "docker.io/library/debian:latest".to_owned()),
            ("a/b:1", "docker.io/a/b:1".to_owned()),
            ("localhost:5000/x", "localhost:5000/x:latest".to_owned()),
            ("ghcr.io/o/r/s:v1.2", "ghcr.io/o/r/s:v1.2".to_owned()),
            ("[::1]:5000/x:a", "[::1]:5000/x:a".to_owned()),
            (&format!("r.io/x@{digest}"), format!("r.io/x@{digest}")),
        ] {
            assert_eq!(Reference::parse(typed).unwrap().to_string(), full);
        }
        for bad in [
            "",
            "A",
            "a//b",
            "../x",
            "r.io/../x",
            "r.io/x:",
            "r.io/x:-a",
            "r.io:0/x",
            "r.io:x/y",
            "user@r.io/x",
            "r.io/x@sha256:12",
            "r_.io/x",
            "-r.io/x",
            "a/b\n",
            "a/é",
            "[::z]/x",
        ] {
            assert!(Reference::parse(bad).is_err(), "{bad} was taken");
        }
        assert_eq!(
            Reference::parse("debian").unwrap().host(),
            "registry-1.docker.io"
        );
    }
}
