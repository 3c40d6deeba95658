//! Lines for the operator, on standard error: the log file of a supervisor in the background.
//! Never a secret, never the workload's words unescaped.

use std::error::Error;
use std::io::Write;

/// Writes one line.
pub(crate) fn line(text: &str) {
    let safe: String = text
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    let _ = writeln!(std::io::stderr(), "{} {safe}", crate::calls::unix_ms());
}

/// Writes what failed and the chain of its causes.
pub(crate) fn failure(what: &str, error: &dyn Error) {
    let mut text = format!("{what}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    line(&text);
}
