//! Names that people choose: of tenants, projects, principals and tools, and versions of tools.
//!
//! A name is short, plain and safe in a path, a URL, a log line and a metric label, so that no user
//! text ever needs quoting. A dot separates words of a tool's name (`text.wordcount`).

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest name in bytes.
pub const NAME_MAX: usize = 63;

/// A text that is no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {what}: {rule}")]
pub struct NameError {
    /// What was read, cut to 64 characters.
    pub text: String,
    /// What it should have been.
    pub what: &'static str,
    /// What is allowed.
    pub rule: &'static str,
}

fn refused(text: &str, what: &'static str, rule: &'static str) -> NameError {
    NameError {
        text: text.chars().take(64).collect(),
        what,
        rule,
    }
}

/// A chosen name: 1 to 63 of `a-z`, `0-9`, `-`, `.`, starting and ending with a letter or digit, no
/// two dots in a row.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// Reads a name.
    ///
    /// # Errors
    /// When the text breaks the rule.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let edge =
            |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = text.as_bytes();
        let good = bytes.len() <= NAME_MAX
            && edge(bytes.first())
            && edge(bytes.last())
            && !text.contains("..")
            && bytes.iter().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
            });
        if good {
            return Ok(Self(text.to_owned()));
        }
        Err(refused(
            text,
            "name",
            "1 to 63 of a-z, 0-9, `-` and `.`, with a letter or digit at both ends",
        ))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A version by the rules of semantic versioning, without build metadata: `1.4.0`, `2.0.0-rc.1`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Version {
    numbers: [u64; 3],
    pre: Vec<String>,
}

impl Version {
    /// Reads a version.
    ///
    /// # Errors
    /// When the text is no such version or longer than 63 bytes.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        const RULE: &str = "three numbers and perhaps a pre-release, such as 1.4.0 or 2.0.0-rc.1";
        let wrong = || refused(text, "version", RULE);
        if text.len() > NAME_MAX {
            return Err(wrong());
        }
        let (core, pre) = match text.split_once('-') {
            Some((core, pre)) => (core, Some(pre)),
            None => (text, None),
        };
        let mut parts = core.split('.');
        let mut numbers = [0; 3];
        for number in &mut numbers {
            let part = parts.next().ok_or_else(wrong)?;
            *number = numeric(part).ok_or_else(wrong)?;
        }
        if parts.next().is_some() {
            return Err(wrong());
        }
        let pre: Vec<String> = pre
            .map(|pre| pre.split('.').map(str::to_owned).collect())
            .unwrap_or_default();
        if pre.iter().any(|word| !word_of_pre_release(word)) {
            return Err(wrong());
        }
        Ok(Self { numbers, pre })
    }

    /// Whether it is a pre-release, which is never taken where no version was named.
    #[must_use]
    pub fn is_pre_release(&self) -> bool {
        !self.pre.is_empty()
    }
}

fn numeric(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = text == "0" || !text.starts_with('0');
    (digits && plain).then(|| text.parse().ok()).flatten()
}

fn word_of_pre_release(word: &str) -> bool {
    let letters = word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let digits = word.bytes().all(|b| b.is_ascii_digit());
    !word.is_empty() && letters && (!digits || numeric(word).is_some())
}

fn compare_words(left: &str, right: &str) -> Ordering {
    match (numeric(left), numeric(right)) {
        (Some(left), Some(right)) => left.cmp(&right),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => left.cmp(right),
    }
}

impl Ord for Version {
    /// The order of semantic versioning: a pre-release comes before its release.
    fn cmp(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| {
            match (self.pre.is_empty(), other.pre.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => self
                    .pre
                    .iter()
                    .zip(&other.pre)
                    .map(|(left, right)| compare_words(left, right))
                    .find(|order| order.is_ne())
                    .unwrap_or_else(|| self.pre.len().cmp(&other.pre.len())),
            }
        })
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(out, "{major}.{minor}.{patch}")?;
        if !self.pre.is_empty() {
            write!(out, "-{}", self.pre.join("."))?;
        }
        Ok(())
    }
}

/// One version of a tool: `text.wordcount@1.4.0`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolRef {
    /// Which tool.
    pub tool: Name,
    /// Which version.
    pub version: Version,
}

impl ToolRef {
    /// Reads `name@version`.
    ///
    /// # Errors
    /// When either part is missing or wrong.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let (tool, version) = text
            .split_once('@')
            .ok_or_else(|| refused(text, "tool with version", "write it as name@1.2.3"))?;
        Ok(Self {
            tool: Name::parse(tool)?,
            version: Version::parse(version)?,
        })
    }
}

impl fmt::Display for ToolRef {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}@{}", self.tool, self.version)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

macro_rules! as_text {
    ($name:ident) => {
        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "{self}")
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.collect_str(self)
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

as_text!(Name);
as_text!(Version);
as_text!(ToolRef);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["a", "acme", "text.wordcount", "a-1", "0"] {
            assert_eq!(Name::parse(good).unwrap().as_str(), good);
        }
        let long = "a".repeat(NAME_MAX + 1);
        for bad in [
            "", "-a", "a-", ".a", "a.", "a..b", "A", "a/b", "a b", "a_b", "ä", "a\n", "..", &long,
        ] {
            assert!(Name::parse(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn versions_are_ordered_as_semantic_versioning_says() {
        let order = [
            "0.9.0",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.0.1",
            "1.2.0",
            "1.10.0",
            "2.0.0",
        ];
        for pair in order.windows(2) {
            let [left, right] = [pair[0], pair[1]].map(|text| Version::parse(text).unwrap());
            assert!(left < right, "{left} is not before {right}");
            assert_eq!(left.to_string(), pair[0]);
        }
    }

    #[test]
    fn what_is_no_version_is_refused() {
        for bad in [
            "",
            "1",
            "1.2",
            "1.2.3.4",
            "01.2.3",
            "1.2.3-",
            "1.2.3-01",
            "1.2.3-a..b",
            "v1.2.3",
            "1.2.3+build",
            "-1.2.3",
            "1.2.99999999999999999999",
        ] {
            assert!(Version::parse(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_tool_reference_reads_back() {
        let text = "\"text.wordcount@1.4.0\"";
        let tool: ToolRef = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&tool).unwrap(), text);
        assert!(ToolRef::parse("text.wordcount").is_err());
    }
}
