//! What was measured, for people and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::bars::{Bar, Measured};
use super::sample::Summary;

/// One measured thing.
#[derive(Debug, Serialize)]
struct Row {
    what: String,
    #[serde(flatten)]
    summary: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_run_here: Option<String>,
}

/// The machine it was measured on.
#[derive(Debug, Serialize)]
struct Host {
    kernel: String,
    cores: usize,
    user: &'static str,
    program: &'static str,
    build: &'static str,
    /// Load average of the minute before, when the bench began: what else the machine did.
    load: String,
    /// File system of the records.
    records_on: String,
    measured_unix_s: u64,
}

/// The kind of file system a directory is on: a busy disk is in every figure with a record in it.
fn file_system(path: &std::path::Path) -> String {
    let Ok(found) = rustix::fs::statfs(path) else {
        return "unknown".to_owned();
    };
    match found.f_type {
        0xef53 => "ext4".to_owned(),
        0x0102_1994 => "tmpfs".to_owned(),
        0x5846_5342 => "xfs".to_owned(),
        0x9123_683e => "btrfs".to_owned(),
        0x794c_7630 => "overlayfs".to_owned(),
        other => format!("{other:#x}"),
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    backend: String,
    host: Host,
    rows: Vec<Row>,
    bars: Vec<Bar>,
    notes: Vec<String>,
}

impl Report {
    /// An empty report of a backend on this machine.
    pub(crate) fn new(backend: &str) -> Self {
        let since = std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap_or_default();
        let root = rustix::process::geteuid().is_root();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            backend: backend.to_owned(),
            host: Host {
                kernel: kernel.trim().to_owned(),
                cores: std::thread::available_parallelism().map_or(1, usize::from),
                user: if root { "root" } else { "ordinary" },
                program: env!("CARGO_PKG_VERSION"),
                build: if cfg!(debug_assertions) {
                    "debug"
                } else {
                    "release"
                },
                records_on: file_system(&std::env::temp_dir()),
                load: load.split(' ').next().unwrap_or_default().to_owned(),
                measured_unix_s: since.as_secs(),
            },
            rows: Vec::new(),
            bars: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a measured thing.
    pub(crate) fn row(&mut self, what: impl Into<String>, measured: Measured) {
        let (summary, not_run_here) = match measured {
            Ok(summary) => (Some(summary), None),
            Err(reason) => (None, Some(reason)),
        };
        self.rows.push(Row {
            what: what.into(),
            summary,
            not_run_here,
        });
    }

    /// Adds a bar.
    pub(crate) fn bar(&mut self, bar: Bar) {
        self.bars.push(bar);
    }

    /// Adds a remark.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The report for people.
    pub(crate) fn page(&self) -> String {
        let host = &self.host;
        let mut text = format!(
            "{} backend · leasehold {} ({} build) · Linux {} · {} cores · {} user · load {} · records on {}\n\n",
            self.backend,
            host.program,
            host.build,
            host.kernel,
            host.cores,
            host.user,
            host.load,
            host.records_on
        );
        let _ = writeln!(
            text,
            "{:<58} {:>5} {:>9} {:>9} {:>9}  ms",
            "", "runs", "p50", "p95", "p99"
        );
        for row in &self.rows {
            let _ = match (&row.summary, &row.not_run_here) {
                (Some(said), _) => writeln!(
                    text,
                    "{:<58} {:>5} {:>9.2} {:>9.2} {:>9.2}",
                    row.what, said.count, said.p50_ms, said.p95_ms, said.p99_ms
                ),
                (None, reason) => writeln!(
                    text,
                    "{:<58} not run here: {}",
                    row.what,
                    reason.as_deref().unwrap_or("no reason")
                ),
            };
        }
        text.push('\n');
        for bar in &self.bars {
            let _ = writeln!(text, "{}", bar.line());
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::bars::Must;
    use super::*;

    #[test]
    fn what_was_not_run_is_said_with_its_reason() {
        let mut report = Report::new("process");
        report.row("crun", Err("refuses hybrid hosts".to_owned()));
        report.bar(Bar::judge("x", Ok(2.0), Must::AtMost(1.0), ""));
        let page = report.page();
        assert!(
            page.contains("not run here: refuses hybrid hosts"),
            "{page}"
        );
        assert!(page.contains("MISSED"), "{page}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"][0]["not_run_here"], "refuses hybrid hosts");
        assert_eq!(json["bars"][0]["verdict"], "missed");
    }
}
