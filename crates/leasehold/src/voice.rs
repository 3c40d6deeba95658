//! How the command line speaks: data on standard output, everything else on standard error.
//!
//! Text that a guest may have written goes through [`clean`] first, so that it cannot steer the
//! reader's terminal.

use std::fmt::Write as _;
use std::io::{self, Write};

use crate::fault::Fault;

/// Tells one line on standard error. A reader that is gone is no failure of ours.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "leasehold: {text}");
}

/// Tells how to mend what was just told.
pub(crate) fn hint(text: &str) {
    let _ = writeln!(io::stderr().lock(), "hint: {text}");
}

/// Tells a failure: its chain of causes on one line, then the hint.
pub(crate) fn fault(fault: &Fault) {
    note(&format!("error: {}", fault.chain()));
    if let Some(text) = fault.mend() {
        hint(text);
    }
}

/// Writes data to standard output.
///
/// # Errors
/// When standard output fails for another reason than a reader that went away.
pub(crate) fn data(bytes: &[u8]) -> Result<(), Fault> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Fault::host("cannot write to standard output").because(&error))
        }
        _ => Ok(()),
    }
}

/// Writes what a run wrote to its standard error to ours.
///
/// # Errors
/// When standard error fails for another reason than a reader that went away.
pub(crate) fn error_data(bytes: &[u8]) -> Result<(), Fault> {
    let mut out = io::stderr().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Fault::host("cannot write to standard error").because(&error))
        }
        _ => Ok(()),
    }
}

/// Writes a value as indented JSON and a line end to standard output.
///
/// # Errors
/// As [`data`].
pub(crate) fn json<T: serde::Serialize>(value: &T) -> Result<(), Fault> {
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|error| Fault::host("cannot write the answer as JSON").because(&error))?;
    bytes.push(b'\n');
    data(&bytes)
}

/// A text from elsewhere for a terminal: control characters are written out, and it is cut at 4096
/// characters.
pub(crate) fn clean(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(4_096));
    for (at, character) in text.chars().enumerate() {
        if at == 4_096 {
            shown.push('…');
            break;
        }
        if character.is_control() {
            let _ = write!(shown, "\\x{:02x}", u32::from(character));
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_cannot_steer_the_terminal() {
        assert_eq!(
            clean("a\x1b[2Jb\r\nc\u{9b}31m"),
            "a\\x1b[2Jb\\x0d\\x0ac\\x9b31m"
        );
        assert!(clean(&"x".repeat(10_000)).chars().count() <= 4_097);
    }
}
