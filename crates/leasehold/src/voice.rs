//! How the command line speaks: data on standard output, everything else on standard error.
//!
//! Text that a guest may have written goes through [`clean`] first, so that it cannot steer the
//! reader's terminal.

use std::fmt::Write as _;
use std::io::{self, Write};

use unicode_general_category::{GeneralCategory, get_general_category};

use crate::fault::Fault;

/// Tells one line on standard error. A reader that is gone is no failure of ours.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "leasehold: {text}");
}

/// Tells how to mend what was just told.
pub(crate) fn hint(text: &str) {
    let _ = writeln!(io::stderr().lock(), "hint: {text}");
}

/// Tells a failure: its chain of causes on one line, then the hint. A cause may quote what somebody else sent.
pub(crate) fn fault(fault: &Fault) {
    note(&format!("error: {}", clean_lines(&fault.chain())));
    if let Some(text) = fault.mend() {
        hint(&clean_lines(text));
    }
}

/// A text of our own with parts from elsewhere: as [`clean`], but its lines stay lines.
fn clean_lines(text: &str) -> String {
    text.lines().map(clean).collect::<Vec<_>>().join("\n")
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

/// Whether a character steers what is shown, or is not seen at all: controls, formatting (which turns the
/// direction of text, or joins and parts it without a trace), ends of lines, and letters and marks without an
/// image, after `Default_Ignorable_Code_Point` of Unicode 16 (`DerivedCoreProperties.txt`).
fn unseen(character: char) -> bool {
    use GeneralCategory as Category;
    let category = get_general_category(character);
    let steers = matches!(
        category,
        Category::Control
            | Category::Format
            | Category::LineSeparator
            | Category::ParagraphSeparator
            | Category::PrivateUse
            | Category::Unassigned
    );
    steers
        || matches!(
            character,
            '\u{34f}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{ffa0}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// A text from elsewhere for a terminal: what steers it or cannot be seen is written out, and it is cut at
/// 4096 characters.
pub(crate) fn clean(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(4_096));
    for (at, character) in text.chars().enumerate() {
        if at == 4_096 {
            shown.push('…');
            break;
        }
        match u32::from(character) {
            _ if !unseen(character) => shown.push(character),
            code @ ..=0xff => {
                let _ = write!(shown, "\\x{code:02x}");
            }
            code => {
                let _ = write!(shown, "\\u{{{code:x}}}");
            }
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
        // Text that reads as another one, and text that is not seen.
        let bidi = "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";
        let hidden = "\u{ad}\u{34f}\u{115f}\u{180e}\u{200b}\u{200c}\u{200d}\u{2028}\u{2029}\u{2060}\u{3164}\u{feff}\u{fe0f}\u{e0041}\u{e0100}";
        for character in bidi.chars().chain(hidden.chars()) {
            let text = clean(&format!("a{character}b"));
            assert!(text.is_ascii() && text.contains('\\'), "{text:?}");
        }
        assert_eq!(clean("gpj.\u{202e}exe"), "gpj.\\u{202e}exe");
        assert_eq!(clean_lines("a\x1b[1m\nb\u{202e}"), "a\\x1b[1m\nb\\u{202e}");
        // What is clean already stays as it is.
        assert_eq!(clean(&clean("\x1b\\")), clean("\x1b\\"));
        // What people write passes.
        for text in [
            "na\u{ef}ve \u{2014} \u{65e5}\u{672c} \u{645}\u{631} \u{5e9} \u{1f600} e\u{301}",
            "a b\u{a0}c",
        ] {
            assert_eq!(clean(text), text);
        }
        assert!(clean(&"x".repeat(10_000)).chars().count() <= 4_097);
    }
}
