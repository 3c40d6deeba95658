//! What a guest writes, made fit for a person's terminal.
//!
//! Text, line ends, tabs and colours pass. Every other control sequence is written out, so that a
//! guest can neither move the cursor, nor set the title, nor make the terminal answer with input.

/// Longest colour sequence that passes, its introducer not counted.
const COLOUR_MAX: usize = 32;

/// The filter of one stream. Sequences may be split over any two pieces.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    /// The beginning of a sequence that the next piece may complete.
    held: Vec<u8>,
}

impl Screen {
    /// Filters a piece and appends what may be shown.
    pub(crate) fn pass(&mut self, piece: &[u8], shown: &mut Vec<u8>) {
        for byte in piece {
            self.step(*byte, shown);
        }
    }

    /// Whether the beginning of a sequence is held back.
    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Writes out what was held back, at the end of the stream.
    pub(crate) fn finish(&mut self, shown: &mut Vec<u8>) {
        for byte in std::mem::take(&mut self.held) {
            plain(byte, shown);
        }
    }

    fn step(&mut self, byte: u8, shown: &mut Vec<u8>) {
        match (self.held.as_slice(), byte) {
            ([], 0x1b | 0xc2) => self.held.push(byte),
            ([], _) => plain(byte, shown),
            // U+0080 to U+009F are control characters as well.
            ([0xc2], 0x80..=0x9f) => {
                self.held.clear();
                shown.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
            }
            ([0xc2], _) => {
                self.held.clear();
                shown.push(0xc2);
                self.step(byte, shown);
            }
            ([0x1b], b'[') => self.held.push(byte),
            ([0x1b, b'[', ..], b'0'..=b'9' | b';' | b':') if self.held.len() < COLOUR_MAX => {
                self.held.push(byte);
            }
            ([0x1b, b'[', ..], b'm') => {
                shown.append(&mut self.held);
                shown.push(byte);
            }
            _ => {
                self.finish(shown);
                self.step(byte, shown);
            }
        }
    }
}

fn plain(byte: u8, shown: &mut Vec<u8>) {
    match byte {
        b'\n' | b'\r' | b'\t' => shown.push(byte),
        0..=0x1f | 0x7f => shown.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        _ => shown.push(byte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &[u8]) -> Vec<u8> {
        let mut screen = Screen::default();
        let mut out = Vec::new();
        screen.pass(text, &mut out);
        screen.finish(&mut out);
        out
    }

    #[test]
    fn text_and_colours_pass_and_nothing_else() {
        for (text, want) in [
            (&b"a\tb\r\n"[..], &b"a\tb\r\n"[..]),
            ("ä—😀".as_bytes(), "ä—😀".as_bytes()),
            (b"\x1b[1;31mred\x1b[0m", b"\x1b[1;31mred\x1b[0m"),
            (b"\x1b[2J", b"\\x1b[2J"),
            (b"\x1b]0;title\x07", b"\\x1b]0;title\\x07"),
            (b"\x1b[6n", b"\\x1b[6n"),
            (b"\x1b\x1b[0m", b"\\x1b\x1b[0m"),
            (b"\xc2\x9b31m", b"\\x9b31m"),
            (b"\xc2\xa9", b"\xc2\xa9"),
            (b"\xc2\x1b[2J", b"\xc2\\x1b[2J"),
            (b"\x08\x7f\0", b"\\x08\\x7f\\x00"),
            (b"\x1b[", b"\\x1b["),
        ] {
            assert_eq!(shown(text), want, "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn the_split_of_pieces_does_not_matter() {
        let text = b"x\x1b[1;32mok\x1b[0m\xc2\x9b2J\x1b]0;t\x07 end\x1b";
        let whole = shown(text);
        let mut screen = Screen::default();
        let mut out = Vec::new();
        for byte in text {
            screen.pass(&[*byte], &mut out);
        }
        screen.finish(&mut out);
        assert_eq!(out, whole);
    }

    #[test]
    fn what_is_held_back_is_bounded() {
        let mut screen = Screen::default();
        let mut out = Vec::new();
        screen.pass(b"\x1b[", &mut out);
        screen.pass(&[b'1'; 10_000], &mut out);
        assert!(screen.held.len() <= COLOUR_MAX);
        assert!(out.len() >= 9_900);
    }
}
