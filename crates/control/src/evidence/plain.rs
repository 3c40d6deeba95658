//! Text of others, made safe for a line of ours.

use std::fmt::Write;

/// Most characters of one text.
const SHOWN_MAX: usize = 240;

/// The text in quotes, on one line: what moves a cursor, ends a line, turns its direction or cannot be seen is
/// written as `\u{…}`, and what is too long is cut with its length told.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(SHOWN_MAX) + 2);
    out.push('"');
    for (shown, character) in text.chars().enumerate() {
        if shown == SHOWN_MAX {
            let _ = write!(out, "\" (cut; {} characters)", text.chars().count());
            return out;
        }
        match character {
            '"' | '\\' => {
                out.push('\\');
                out.push(character);
            }
            _ if visible(character) => out.push(character),
            _ => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(character));
            }
        }
    }
    out.push('"');
    out
}

fn visible(character: char) -> bool {
    let hidden = matches!(
        u32::from(character),
        // Soft hyphen, Arabic letter mark, joiners, marks and embeddings of direction, separators, fillers,
        // variation selectors, byte order mark, interlinear marks, tags, private use.
        0xad | 0x61c | 0x115f..=0x1160 | 0x17b4..=0x17b5 | 0x180b..=0x180f | 0x200b..=0x200f | 0x2028..=0x202e
            | 0x2060..=0x206f | 0x3164 | 0xe000..=0xf8ff | 0xfe00..=0xfe0f | 0xfeff | 0xffa0 | 0xfff0..=0xfffd
            | 0xe0000..=0x0010_ffff
    );
    !character.is_control() && !hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_leaves_its_line_or_its_quotes() {
        let cases = [
            ("as it is, é 漢", "\"as it is, é 漢\""),
            ("a\nb\r\tc", "\"a\\u{a}b\\u{d}\\u{9}c\""),
            ("\u{1b}[2J\u{9b}31m", "\"\\u{1b}[2J\\u{9b}31m\""),
            ("\u{202e}evil\u{2028}", "\"\\u{202e}evil\\u{2028}\""),
            ("\"} ok: \\", "\"\\\"} ok: \\\\\""),
        ];
        for (text, safe) in cases {
            assert_eq!(plain(text), safe);
        }
        let long = plain(&"x".repeat(1_000));
        assert!(long.len() < 300 && long.ends_with("(cut; 1000 characters)"));
    }
}
