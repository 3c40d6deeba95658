//! Telling code from comments and literals in Rust text, well enough for searching words in it.

/// `text` with comments, strings and character literals blanked; line breaks stay where they are.
pub(super) fn without_comments_and_literals(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut kept = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => line_end(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'*') => comment_end(bytes, at),
            b'r' if !after_word(bytes, at) => raw_string_end(bytes, at).unwrap_or(at),
            b'"' => string_end(bytes, at),
            b'\'' => character_end(bytes, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            kept.push(bytes[at]);
            at += 1;
        } else {
            kept.extend(
                bytes[at..end]
                    .iter()
                    .map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }),
            );
            at = end;
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Whether a word stands alone somewhere in `text`.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(part)
            && !text[at + word.len()..].chars().next().is_some_and(part)
    })
}

fn after_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
        // `br"…"` is a raw string as well.
        && !(bytes[at - 1] == b'b' && (at < 2 || !bytes[at - 2].is_ascii_alphanumeric()))
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..]
        .iter()
        .position(|byte| *byte == b'\n')
        .map_or(bytes.len(), |length| at + length)
}

fn comment_end(bytes: &[u8], at: usize) -> usize {
    let mut depth = 0;
    let mut next = at;
    while next + 1 < bytes.len() {
        match &bytes[next..next + 2] {
            b"/*" => {
                depth += 1;
                next += 2;
            }
            b"*/" => {
                depth -= 1;
                next += 2;
                if depth == 0 {
                    return next;
                }
            }
            _ => next += 1,
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut next = at + 1;
    while next < bytes.len() {
        match bytes[next] {
            b'\\' => next += 2,
            b'"' => return next + 1,
            _ => next += 1,
        }
    }
    bytes.len()
}

fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at + 1..]
        .iter()
        .take_while(|byte| **byte == b'#')
        .count();
    let open = at + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"')
        .chain(std::iter::repeat_n(b'#', hashes))
        .collect();
    let found = bytes[open + 1..]
        .windows(close.len())
        .position(|window| window == close);
    Some(found.map_or(bytes.len(), |length| open + 1 + length + close.len()))
}

/// The end of a character literal; `None` for a lifetime.
fn character_end(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at + 1)? {
        b'\\' => bytes[at + 3..]
            .iter()
            .position(|byte| *byte == b'\'')
            .map(|length| at + 4 + length),
        b'\'' => None,
        _ => {
            let close = bytes[at + 2..]
                .iter()
                .take(4)
                .position(|byte| *byte == b'\'')?
                + at
                + 2;
            std::str::from_utf8(&bytes[at + 1..close])
                .is_ok_and(|text| text.chars().count() == 1)
                .then_some(close + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let cases = [
            ("let a = \"unsafe\"; b", "b"),
            ("a // unsafe\nb", "b"),
            ("/* unsafe /* x */ unsafe */ b", "b"),
            ("r#\"un\"safe\"# b", "b"),
            ("br\"unsafe\" b", "b"),
            ("'\\'' ; \"unsafe\" b", "b"),
            ("'\"' b", "b"),
            ("\"\\\"unsafe\" b", "b"),
        ];
        for (text, kept) in cases {
            let code = without_comments_and_literals(text);
            assert!(!code.contains("unsafe"), "{text} -> {code}");
            assert!(code.contains(kept), "{text} -> {code}");
        }
    }

    #[test]
    fn code_stays() {
        let text = "fn f<'a>(x: &'a str) { unsafe { g('x', \"s\") } }";
        let code = without_comments_and_literals(text);
        assert!(code.contains("unsafe {") && code.contains("<'a>"), "{code}");
    }

    #[test]
    fn a_word_stands_alone() {
        assert!(has_word("an unsafe block", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe"));
    }
}
