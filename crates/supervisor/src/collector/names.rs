//! Names of collected files: written losslessly and read back.
//!
//! A guest chooses these bytes. In a manifest every byte that is not printable UTF-8 text is
//! `\xNN` and a backslash is `\\`, so that no name can end a line, steer a terminal, or look
//! like another.

/// Most bytes of one path below the workspace.
pub const PATH_MAX: usize = 4_096;

/// A path that must not be used outside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("path `{path}` {why}")]
pub struct NameError {
    /// The path as the manifest has it.
    pub path: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Writes a path for a manifest.
#[must_use]
pub fn escape(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                letter if is_plain(letter) => text.push(letter),
                letter => {
                    let mut bytes = [0; 4];
                    for byte in letter.encode_utf8(&mut bytes).bytes() {
                        push_hex(&mut text, byte);
                    }
                }
            }
        }
        for byte in chunk.invalid() {
            push_hex(&mut text, *byte);
        }
    }
    text
}

fn push_hex(text: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    text.push_str("\\x");
    text.push(char::from(DIGITS[usize::from(byte >> 4)]));
    text.push(char::from(DIGITS[usize::from(byte & 15)]));
}

/// Whether a character shows as itself: no control character, no mark of direction or of nothing.
fn is_plain(letter: char) -> bool {
    !letter.is_control()
        && !matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Reads a path from a manifest back into the bytes it was.
///
/// # Errors
/// When an escape is broken, or the path is empty, absolute, too long, or has an empty name, `.`,
/// `..`, a NUL byte or a name above 255 bytes.
pub fn unescape(text: &str) -> Result<Vec<u8>, NameError> {
    let fail = |why| NameError {
        path: text.chars().take(256).collect(),
        why,
    };
    let mut path = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            path.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'\\') => path.push(b'\\'),
            Some(b'x') => {
                let high = bytes
                    .next()
                    .and_then(|digit| char::from(digit).to_digit(16));
                let low = bytes
                    .next()
                    .and_then(|digit| char::from(digit).to_digit(16));
                let (Some(high), Some(low)) = (high, low) else {
                    return Err(fail("has a broken escape"));
                };
                path.push((high * 16 + low) as u8);
            }
            _ => return Err(fail("has a broken escape")),
        }
    }
    check(&path).map_err(fail)?;
    Ok(path)
}

/// Whether a path may be used below a directory.
///
/// # Errors
/// Says what is wrong with it.
pub(super) fn check(path: &[u8]) -> Result<(), &'static str> {
    if path.is_empty() || path.len() > PATH_MAX {
        return Err("is empty or longer than 4096 bytes");
    }
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" => return Err("is absolute or has an empty name"),
            b"." | b".." => return Err("has a name that climbs"),
            name if name.contains(&0) => return Err("has a NUL byte"),
            name if name.len() > 255 => return Err("has a name above 255 bytes"),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_the_manifest() {
        let mut all: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        all.truncate(255);
        assert_eq!(unescape(&escape(&all)), Ok(all));
        for path in [
            "a\nb",
            "\u{202e}fdp.exe",
            "\u{1b}[2J",
            "ä/日本",
            r"a\x41",
            "a\u{200b}b",
        ] {
            let text = escape(path.as_bytes());
            assert_eq!(unescape(&text).as_deref(), Ok(path.as_bytes()));
            assert!(text.chars().all(is_plain), "{text}");
        }
        assert_eq!(escape(b"a\\\n\xff"), r"a\\\x0a\xff");
        assert_eq!(escape("ä b".as_bytes()), "ä b");
    }

    #[test]
    fn different_names_stay_different() {
        let names: [&[u8]; 6] = [
            b"\n",
            br"\x0a",
            br"\\x0a",
            b"\\\n",
            b"x0a",
            "\u{a0}".as_bytes(),
        ];
        for left in names {
            for right in names {
                assert_eq!(escape(left) == escape(right), left == right);
            }
        }
    }

    #[test]
    fn paths_that_leave_are_refused() {
        let long = "a".repeat(256);
        let deep = "a/".repeat(2_100);
        for text in [
            "",
            "/etc/passwd",
            "..",
            "a/../b",
            "a//b",
            "a/",
            "./a",
            r"a\x00b",
            r"\x2e\x2e/a",
            r"a\",
            r"\x4",
            r"\q",
            r"a\x2f\x2e\x2e\x2fb",
            &long,
            &deep,
        ] {
            assert!(unescape(text).is_err(), "{text}");
        }
    }
}
