//! What the daemon is told: flags over environment over file over defaults.
//!
//! Every value that is wrong is named with where it came from. An unknown field in the file is refused,
//! since a misspelt limit that is silently ignored is no limit.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::document::{Fields, Mistakes, Report, parse_json};
use leasehold_core::quantity::parse_duration;

use crate::cli::daemon::ServeFlags;
use crate::env;
use crate::fault::Fault;

/// Port when nobody names one.
pub(crate) const PORT: u16 = 7431;
/// Largest configuration file in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Most runs at once that may be asked for.
const RUNNING_MAX: u32 = 10_000;
/// Most sandboxes kept parked.
const WARM_MAX: u32 = 1_000;
/// Longest drain.
const DRAIN_MAX_MS: u64 = 86_400_000;

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
#[derive(Debug, Default, PartialEq, Eq)]
struct File {
    listen: Option<String>,
    plain_http: Option<bool>,
    running_max: Option<u32>,
    warm: Option<u32>,
    drain: Option<Duration>,
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
        let drain = match (&flags.drain, file.drain) {
            (Some(text), _) => duration(text, "`--drain`")?,
            (None, drain) => drain.unwrap_or(Duration::from_secs(30)),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let running_max = flags
            .running_max
            .or(file.running_max)
            .unwrap_or(u32::try_from(cores.saturating_mul(16)).unwrap_or(u32::MAX));
        if !(1..=RUNNING_MAX).contains(&running_max) {
            return Err(Fault::usage(format!(
                "`--running-max` is {running_max}: allowed is 1 to {RUNNING_MAX}"
            )));
        }
        let warm = flags.warm.or(file.warm).unwrap_or(2);
        if warm > WARM_MAX {
            return Err(Fault::usage(format!(
                "`--warm` is {warm}: allowed is 0 to {WARM_MAX}"
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
    let wanted = "expected a time such as 30s or 5m, at most 24h";
    parse_duration(text)
        .ok()
        .filter(|time| time.as_millis() <= u128::from(DRAIN_MAX_MS))
        .ok_or_else(|| {
            let shown: String = text.chars().take(64).collect();
            Fault::usage(format!("{from} is {shown:?}: {wanted}"))
        })
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
    File::parse(&text).map_err(|error| failed(&error))
}

impl File {
    /// Reads it as every document is read: all mistakes at once, with field, value and what is allowed.
    fn parse(text: &str) -> Result<Self, Mistakes> {
        let tree: serde_json::Value = toml::from_str(text).map_err(|error| {
            let before = error
                .span()
                .map_or("", |span| text.get(..span.start).unwrap_or(""));
            let line = before.matches('\n').count() + 1;
            Mistakes::one(
                "",
                u32::try_from(line).ok(),
                format!("no valid TOML: {}", error.message()),
            )
        })?;
        let node = parse_json(tree.to_string().as_bytes())?;
        let report = Report::default();
        let mut top = Fields::of(&node, &report);
        let read = Self {
            listen: top.get("listen").and_then(|field| field.text(256)),
            plain_http: top.get("plain_http").and_then(|field| field.bool()),
            running_max: top
                .get("running_max")
                .and_then(|field| field.count(1, RUNNING_MAX)),
            warm: top.get("warm").and_then(|field| field.count(0, WARM_MAX)),
            drain: top
                .get("drain")
                .and_then(|field| field.millis(0, DRAIN_MAX_MS).map(Duration::from_millis)),
        };
        top.close();
        report.finish(Some(read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<File, Mistakes> {
        File::parse(text)
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
        for (text, told) in [
            (
                "lissten = \"x\"",
                "lissten: unknown field: known here are listen,",
            ),
            (
                "running_max = \"many\"",
                "running_max: \"many\": expected a whole number from 1 to 10000",
            ),
            (
                "running_max = 0",
                "running_max: 0: expected a whole number from 1 to 10000",
            ),
            (
                "warm = -1",
                "warm: -1: expected a whole number from 0 to 1000",
            ),
            ("plain_http = 1", "plain_http: 1: expected true or false"),
            ("drain = \"soon\"", "drain: \"soon\": expected a duration"),
            ("warm = 1\nlisten = ", "line 2: no valid TOML"),
        ] {
            let error = file(text).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
        let two = file("warm = -1\nlisten = 3").unwrap_err();
        assert_eq!(two.0.len(), 2, "{two}");
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
