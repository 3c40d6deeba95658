//! A registry, spoken to over HTTP: anonymous, by name and password, or with tokens.
//!
//! [`address`] says where a request may go, [`auth`] answers challenges, [`tls`] says whom to believe,
//! [`reach`] keeps strangers' addresses out, [`pace`] slow bodies, [`client`] asks and bounds every answer, [`download`] brings blobs. Why this is not a client library: one reads
//! manifests and tokens without a bound, and a registry is an attacker.

pub(crate) mod address;
pub(crate) mod auth;
pub(crate) mod client;
pub(crate) mod download;
mod pace;
mod reach;
mod tls;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::document::Platform;

/// Name and password, or token, for one registry.
#[derive(Clone)]
pub struct Credentials {
    /// User name.
    pub user: String,
    /// Password or token.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// How an image is pulled.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// Who asks; nobody in particular without.
    pub credentials: Option<Credentials>,
    /// What the image has to run on.
    pub platform: Platform,
    /// Certificates to believe besides the host's own, in PEM. With one, loopback is spoken to by TLS as well.
    pub ca: Option<PathBuf>,
    /// Speak plain HTTP to the registry that is named, and to nobody else.
    pub plain_http: bool,
    /// How long a connection may stand still before it is begun again.
    pub stall: Duration,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            credentials: None,
            platform: Platform::host(),
            ca: None,
            plain_http: false,
            stall: Duration::from_secs(30),
        }
    }
}
