//! Allow lists: what may be in them, and what an entry covers.

use crate::name::{NAME_MAX, Name};

/// Most entries of one list.
pub const ENTRIES_MAX: usize = 1_024;

/// The lists of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllowList {
    /// Tools by name: `text.wordcount`, `text.*`, `*`.
    Tools,
    /// Programs of bare commands, as they are written in the request: `python3`, `*`.
    Commands,
    /// Permissions: `repo.read`, `repo.*`, `*`.
    Permissions,
    /// Where a run may connect to: `api.example.org:443`, `*.example.org:443`, `*:443`.
    Egress,
    /// References of secrets: `vault/ci-token`, `vault/*`, `*`.
    Credentials,
    /// Modes of the workspace: `ephemeral`, `upload`, `read_only`, `clone`, `read_write`, `*`.
    Workspaces,
    /// Trust classes that may run: `untrusted`, `verified`, `first_party`, `*`.
    Trust,
    /// Backends by name: `process`, `*`.
    Backends,
    /// Where a run may be placed: `local`, the name of a worker pool, `*`.
    Placement,
    /// Images by registry and repository: `ghcr.io/acme/tool`, `ghcr.io/acme/*`, `*`.
    Images,
}

impl AllowList {
    /// Every list, in the order documents are written.
    pub const ALL: [Self; 10] = [
        Self::Tools,
        Self::Commands,
        Self::Permissions,
        Self::Egress,
        Self::Credentials,
        Self::Workspaces,
        Self::Trust,
        Self::Backends,
        Self::Placement,
        Self::Images,
    ];

    /// Its field below `allow`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Commands => "commands",
            Self::Permissions => "permissions",
            Self::Egress => "egress",
            Self::Credentials => "credentials",
            Self::Workspaces => "workspaces",
            Self::Trust => "trust",
            Self::Backends => "backends",
            Self::Placement => "placement",
            Self::Images => "images",
        }
    }

    /// Checks one entry.
    ///
    /// # Errors
    /// What an entry must be.
    pub fn check(self, entry: &str) -> Result<(), String> {
        if entry == "*" && self != Self::Egress {
            return Ok(());
        }
        let closed: &[&str] = match self {
            Self::Workspaces => &["ephemeral", "upload", "read_only", "clone", "read_write"],
            Self::Trust => &["untrusted", "verified", "first_party"],
            _ => &[],
        };
        if !closed.is_empty() {
            let known = closed.contains(&entry);
            return known
                .then_some(())
                .ok_or_else(|| format!("{entry:?}: expected `*` or one of {}", closed.join(", ")));
        }
        let good = match self {
            Self::Egress => return egress_rule(entry).map(|_| ()),
            Self::Images => repository(entry),
            Self::Commands => {
                !entry.is_empty() && entry.len() <= 255 && !entry.contains(['*', '\0'])
            }
            _ => named(
                entry.strip_suffix('*').unwrap_or(entry),
                entry.ends_with('*'),
            ),
        };
        good.then_some(())
            .ok_or_else(|| format!("{entry:?}: expected {}", self.wanted()))
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::Images => {
                "a registry and a repository such as ghcr.io/acme/tool, a start of one such as ghcr.io/acme/*, or `*`"
            }
            Self::Commands => "a program as requests write it, such as python3, or `*`",
            _ => "a name, a start of names such as `text.*`, or `*`",
        }
    }

    /// Whether one entry allows one thing.
    #[must_use]
    pub fn entry_allows(self, entry: &str, thing: &str) -> bool {
        match self {
            Self::Egress => egress_covers(entry, thing),
            Self::Commands => entry == "*" || entry == thing,
            _ => covers(entry, thing),
        }
    }
}

/// A registry, with its port where it has one, and a repository; a start of one ends in `/`. So no entry covers a
/// registry whose name only begins like the one that is meant.
fn repository(entry: &str) -> bool {
    let (whole, start) = match entry.strip_suffix("/*") {
        Some(whole) => (whole, true),
        None => (entry, false),
    };
    let byte =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-:[]".contains(&byte);
    let mut parts = whole.split('/');
    let registry = parts.next().unwrap_or_default();
    let is_registry = registry == "localhost" || registry.contains(['.', ':', '[']);
    entry.len() <= 255
        && is_registry
        && (start || whole.contains('/'))
        && whole
            .split('/')
            .all(|part| !part.is_empty() && part.bytes().all(byte))
}

/// Names with `/` between them, such as references of secrets; a start of one ends in `.` or `/`.
fn named(text: &str, start: bool) -> bool {
    let whole = if start {
        match text.strip_suffix(['.', '/']) {
            Some(whole) => whole,
            None => return false,
        }
    } else {
        text
    };
    whole.len() <= 4 * NAME_MAX && whole.split('/').all(|part| Name::parse(part).is_ok())
}

/// Whether a pattern of names covers a name, or a pattern that is no wider than itself.
#[must_use]
pub fn covers(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

/// Reads an egress rule: host pattern and port.
///
/// # Errors
/// What a rule must be. An address is none: policy is by name.
pub fn egress_rule(text: &str) -> Result<(&str, u16), String> {
    let wrong = || {
        format!(
            "{:?}: expected a host name and port such as api.example.org:443, *.example.org:443 or *:443",
            text.chars().take(80).collect::<String>()
        )
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let plain = !port.starts_with('0') && port.bytes().all(|byte| byte.is_ascii_digit());
    let port: u16 = port.parse().ok().filter(|_| plain).ok_or_else(wrong)?;
    let name = host.strip_prefix("*.").unwrap_or(host);
    if host == "*" || host_name(name) {
        return Ok((host, port));
    }
    Err(wrong())
}

/// A lower-case DNS name of at least two labels, whose last is no number: no address, not `localhost`.
fn host_name(name: &str) -> bool {
    let label = |label: &str| {
        let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        (1..=63).contains(&label.len())
            && label.chars().all(|c| edge(c) || c == '-')
            && label.starts_with(edge)
            && label.ends_with(edge)
    };
    let labels: Vec<&str> = name.split('.').collect();
    name.len() <= 253
        && labels.len() >= 2
        && labels.iter().all(|each| label(each))
        && labels
            .last()
            .is_some_and(|last| last.starts_with(|c: char| c.is_ascii_lowercase()))
}

fn egress_covers(entry: &str, rule: &str) -> bool {
    let (Ok((pattern, port)), Ok((host, wanted))) = (egress_rule(entry), egress_rule(rule)) else {
        return false;
    };
    let host_covered = match pattern.strip_prefix('*') {
        // `*` alone, or `*.example.org` over its own form and every name below.
        Some(end) => host.strip_prefix('*').unwrap_or(host).ends_with(end),
        None => pattern == host,
    };
    port == wanted && host_covered
}

/// What one level says with a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Say {
    /// Nothing: the other levels decide.
    Inherit,
    /// These and no others. Empty is nothing at all.
    Only(Vec<String>),
}
