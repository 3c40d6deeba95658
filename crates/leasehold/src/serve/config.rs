//! What the daemon is told: flags over environment over file over defaults.
//!
//! Every value that is wrong is named with where it came from. An unknown field in the file is refused,
//! since a misspelt limit that is silently ignored is no limit.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::quantity::parse_duration;
use serde::Deserialize;

use crate::cli::daemon::ServeFlags;
use crate::env;
use crate::fault::Fault;

/// Port when nobody names one.
pub(crate) const PORT: u16 = 7431;
/// Largest configuration file in bytes.
const FILE_MAX: u64 = 1 << 20;

/// The settled configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// Where HTTP is served.
    pub(crate) listen: SocketAddr,
    /// Whether plain HTTP may leave this machine, because something in front of it speaks TLS.
    pub(crate) plain_http: bool,
    /// Most runs at once on this machine; at least 1.
    pub(crate) running_max: u32,
    /// Untouched sandboxes of the default kind that are kept parked; 0 keeps none.
    pub(crate) warm: u32,
    /// How long running work may go on once the daemon is told to end.
    pub(crate) drain: Duration,
}

/// The file as it is written.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: Option<String>,
    plain_http: Option<bool>,
    running_max: Option<u32>,
    warm: Option<u32>,
    drain: Option<String>,
}

impl Config {
    /// Settles flags, environment and file.
    ///
    /// # Errors
    /// Names the value, where it came from and what is allowed.
    pub(crate) fn settle(flags: &ServeFlags) -> Result<Self, Fault> {
        let path = flags
            .config
            .clone()
            .or_else(|| env::read(env::CONFIG.name).map(PathBuf::from));
        let file = path.as_deref().map(read).transpose()?.unwrap_or_default();
        let named = env::read(env::LISTEN.name).map(|value| value.to_string_lossy().into_owned());
        Self::of(flags, named, file)
    }

    fn of(flags: &ServeFlags, listen: Option<String>, file: File) -> Result<Self, Fault> {
        let (listen, from) = match (&flags.listen, listen, file.listen) {
            (Some(text), _, _) => (text.clone(), "`--listen`"),
            (None, Some(text), _) => (text, "`LEASEHOLD_LISTEN`"),
            (None, None, Some(text)) => (text, "`listen` of the file"),
            (None, None, None) => (format!("127.0.0.1:{PORT}"), "default"),
        };
        let drain = match (&flags.drain, &file.drain) {
            (Some(text), _) => duration(text, "`--drain`")?,
            (None, Some(text)) => duration(text, "`drain` of the file")?,
            (None, None) => Duration::from_secs(30),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let running_max = flags
            .running_max
            .or(file.running_max)
            .unwrap_or(u32::try_from(cores.saturating_mul(16)).unwrap_or(u32::MAX));
        if !(1..=10_000).contains(&running_max) {
            return Err(Fault::usage(format!(
                "`running_max` is {running_max}: allowed is 1 to 10000"
            )));
        }
        let warm = flags.warm.or(file.warm).unwrap_or(2);
        if warm > 1_000 {
            return Err(Fault::usage(format!(
                "`warm` is {warm}: allowed is 0 to 1000"
            )));
        }
        Ok(Self {
            listen: address(&listen, from)?,
            plain_http: flags.plain_http || file.plain_http.unwrap_or(false),
            running_max,
            warm,
            drain,
        })
    }

    /// Whether only this machine can reach it.
    pub(crate) fn is_loopback(&self) -> bool {
        self.listen.ip().is_loopback()
    }
}

fn address(text: &str, from: &str) -> Result<SocketAddr, Fault> {
    let port_only = text.parse::<u16>().ok();
    let parsed = match port_only {
        Some(port) => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        None => text.parse(),
    };
    parsed.map_err(|_| {
        let shown: String = text.chars().take(64).collect();
        Fault::usage(format!(
            "{from} is {shown:?}: expected ADDRESS:PORT such as 127.0.0.1:{PORT}, or a port"
        ))
    })
}

fn duration(text: &str, from: &str) -> Result<Duration, Fault> {
    parse_duration(text).map_err(|error| Fault::usage(format!("{from}: {error}")))
}

fn read(path: &Path) -> Result<File, Fault> {
    let failed = |error: &dyn std::error::Error| {
        Fault::usage(format!("cannot read the configuration {}", path.display())).because(error)
    };
    let length = fs::metadata(path).map_err(|error| failed(&error))?.len();
    if length > FILE_MAX {
        return Err(Fault::usage(format!(
            "the configuration {} has {length} bytes: at most {FILE_MAX}",
            path.display()
        )));
    }
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    toml::from_str(&text).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<File, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn flags_come_before_environment_before_file() {
        let from_file = || file("listen = \"127.0.0.1:1\"\ndrain = \"5s\"\nwarm = 0").unwrap();
        let mut flags = ServeFlags::default();
        let config = Config::of(&flags, None, from_file()).unwrap();
        assert_eq!((config.listen.port(), config.warm), (1, 0));
        assert_eq!(config.drain, Duration::from_secs(5));
        let config = Config::of(&flags, Some("2".into()), from_file()).unwrap();
        assert_eq!(config.listen.port(), 2);
        flags.listen = Some("0.0.0.0:3".into());
        let config = Config::of(&flags, Some("2".into()), from_file()).unwrap();
        assert_eq!(config.listen.port(), 3);
        assert!(!config.is_loopback());
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(
            file("lissten = \"x\"")
                .unwrap_err()
                .to_string()
                .contains("lissten")
        );
        let flags = ServeFlags {
            listen: Some("localhost".into()),
            ..ServeFlags::default()
        };
        let fault = Config::of(&flags, None, File::default()).unwrap_err();
        assert!(
            fault.chain().contains("`--listen` is \"localhost\""),
            "{}",
            fault.chain()
        );
        let flags = ServeFlags {
            running_max: Some(0),
            ..ServeFlags::default()
        };
        assert!(Config::of(&flags, None, File::default()).is_err());
    }
}
