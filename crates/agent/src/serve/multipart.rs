//! Takes a multipart body apart as it arrives, holding at most one part head or one piece.

use super::bounds;

/// A body that is no multipart body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum MultipartError {
    /// No or an impossible boundary in the content type.
    #[error("multipart boundary is missing or not of 1 to 70 characters")]
    Boundary,
    /// A part's head is too long.
    #[error(
        "head of a multipart part is longer than {} bytes",
        bounds::PART_HEAD_BYTES
    )]
    Head,
    /// Something else than a line end after a boundary.
    #[error("multipart boundary is followed by something else")]
    Delimiter,
    /// The body ended before its last boundary.
    #[error("multipart body ended early")]
    Cut,
}

/// What comes next in the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// A part begins.
    Part(PartHead),
    /// Bytes of the current part.
    Data(Vec<u8>),
    /// The current part is over.
    PartEnd,
    /// The body is over.
    End,
    /// Nothing until more is pushed.
    More,
}

/// What a part says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PartHead {
    /// Name of the form field.
    pub(super) name: String,
    /// File name with whatever path the client put into it.
    pub(super) filename: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Preamble,
    Delimiter,
    Head,
    Body,
    Epilogue,
}

/// The parser.
#[derive(Debug)]
pub(super) struct Multipart {
    delimiter: Vec<u8>,
    bytes: Vec<u8>,
    state: State,
}

impl Multipart {
    /// A parser for a body with this content type.
    ///
    /// # Errors
    /// When it names no boundary.
    pub(super) fn new(content_type: &str) -> Result<Self, MultipartError> {
        let boundary = parameter(content_type, "boundary").ok_or(MultipartError::Boundary)?;
        if !(1..=70).contains(&boundary.len()) {
            return Err(MultipartError::Boundary);
        }
        Ok(Self {
            delimiter: [b"\r\n--", boundary.as_bytes()].concat(),
            // The first boundary may stand at the very beginning, where no line ends before it.
            bytes: b"\r\n".to_vec(),
            state: State::Preamble,
        })
    }

    /// Adds bytes of the body.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// What comes next.
    ///
    /// # Errors
    /// When the body is no multipart body.
    pub(super) fn next(&mut self) -> Result<Piece, MultipartError> {
        loop {
            match self.state {
                State::Preamble => match find(&self.bytes, &self.delimiter) {
                    Some(at) => {
                        self.bytes.drain(..at + self.delimiter.len());
                        self.state = State::Delimiter;
                    }
                    None => {
                        self.keep_tail();
                        return Ok(Piece::More);
                    }
                },
                State::Delimiter => match self.delimiter_end()? {
                    Some(state) => self.state = state,
                    None => return Ok(Piece::More),
                },
                State::Head => return self.head(),
                State::Body => return Ok(self.data()),
                State::Epilogue => {
                    self.bytes.clear();
                    return Ok(Piece::End);
                }
            }
        }
    }

    /// Drops all bytes that cannot begin a delimiter, and gives them.
    fn keep_tail(&mut self) -> Vec<u8> {
        let tail = self.bytes.len().min(self.delimiter.len() - 1);
        let rest = self.bytes.split_off(self.bytes.len() - tail);
        std::mem::replace(&mut self.bytes, rest)
    }

    fn delimiter_end(&mut self) -> Result<Option<State>, MultipartError> {
        let blanks = self.bytes.iter().take_while(|b| matches!(b, b' ' | b'\t'));
        let blanks = blanks.count();
        if blanks > self.delimiter.len() {
            return Err(MultipartError::Delimiter);
        }
        let state = match self.bytes.get(blanks..blanks + 2) {
            None => return Ok(None),
            Some(b"--") => State::Epilogue,
            Some(b"\r\n") => State::Head,
            Some(_) => return Err(MultipartError::Delimiter),
        };
        // The line end stays: it may be the first half of the empty line that ends the head.
        self.bytes.drain(..blanks);
        Ok(Some(state))
    }

    fn head(&mut self) -> Result<Piece, MultipartError> {
        let Some(at) = find(&self.bytes, b"\r\n\r\n") else {
            if self.bytes.len() > bounds::PART_HEAD_BYTES {
                return Err(MultipartError::Head);
            }
            return Ok(Piece::More);
        };
        if at > bounds::PART_HEAD_BYTES {
            return Err(MultipartError::Head);
        }
        let head = String::from_utf8_lossy(&self.bytes[..at]).into_owned();
        self.bytes.drain(..at + 4);
        self.state = State::Body;
        Ok(Piece::Part(part_head(&head)))
    }

    fn data(&mut self) -> Piece {
        if let Some(at) = find(&self.bytes, &self.delimiter) {
            if at > 0 {
                let data = self.bytes.drain(..at).collect();
                return Piece::Data(data);
            }
            self.bytes.drain(..self.delimiter.len());
            self.state = State::Delimiter;
            return Piece::PartEnd;
        }
        let data = self.keep_tail();
        if data.is_empty() {
            Piece::More
        } else {
            Piece::Data(data)
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = *wanted.first()?;
    let mut from = 0;
    while let Some(step) = bytes.get(from..)?.iter().position(|byte| *byte == first) {
        let at = from + step;
        if bytes[at..].starts_with(wanted) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

fn part_head(head: &str) -> PartHead {
    let disposition = head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim()
            .eq_ignore_ascii_case("content-disposition")
            .then(|| value.trim())
    });
    let disposition = disposition.unwrap_or("");
    PartHead {
        name: parameter(disposition, "name").unwrap_or_default(),
        filename: extended(disposition).or_else(|| parameter(disposition, "filename")),
    }
}

/// `filename*=utf-8''…`.
fn extended(value: &str) -> Option<String> {
    let coded = parameter(value, "filename*")?;
    let (charset, rest) = coded.split_once('\'')?;
    let (_, coded) = rest.split_once('\'')?;
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    let plain = super::query::FilesQuery::parse(&format!("path={}", coded.replace('+', "%2B")))?;
    plain.path
}

/// A parameter of a header value: `kind; name=token; name="quoted \" text"`.
fn parameter(value: &str, wanted: &str) -> Option<String> {
    let mut rest = value.split_once(';')?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let (text, after) = parameter_value(after.trim_start())?;
        if name
            .trim_matches([' ', '\t', ';'])
            .eq_ignore_ascii_case(wanted)
        {
            return Some(text);
        }
        rest = after.split_once(';')?.1;
    }
}

/// A token or a quoted text, and what follows it.
fn parameter_value(value: &str) -> Option<(String, &str)> {
    let Some(quoted) = value.strip_prefix('"') else {
        let end = value.find(';').unwrap_or(value.len());
        return Some((value[..end].trim().to_owned(), &value[end..]));
    };
    let mut text = String::new();
    let mut letters = quoted.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((text, &quoted[at + 1..])),
            // Only before what needs it: some clients send plain backslashes.
            '\\' if letters
                .peek()
                .is_some_and(|(_, next)| matches!(next, '"' | '\\')) =>
            {
                text.extend(letters.next().map(|(_, next)| next));
            }
            letter => text.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=XyZ";

    /// Parses a body given in pieces of one size; gives each part's head and bytes.
    fn parse(body: &[u8], size: usize) -> Result<Vec<(PartHead, Vec<u8>)>, MultipartError> {
        let mut parser = Multipart::new(TYPE)?;
        let mut parts: Vec<(PartHead, Vec<u8>)> = Vec::new();
        let mut pieces = body.chunks(size);
        loop {
            match parser.next()? {
                Piece::Part(head) => parts.push((head, Vec::new())),
                Piece::Data(data) => parts.last_mut().unwrap().1.extend(data),
                Piece::PartEnd => {}
                Piece::End => return Ok(parts),
                Piece::More => match pieces.next() {
                    Some(piece) => parser.push(piece),
                    None => return Err(MultipartError::Cut),
                },
            }
        }
    }

    const BODY: &[u8] = b"--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/a/b \\\"c\\\".txt\"\r\n\r\none\r\n--Xy two\r\n--XyZ\r\ncontent-disposition: form-data; name=file\r\n\r\n\r\n--XyZ--\r\nepilogue";

    #[test]
    fn bodies_read_the_same_in_pieces_of_any_size() {
        let want = vec![
            (
                PartHead {
                    name: "file".into(),
                    filename: Some("/a/b \"c\".txt".into()),
                },
                b"one\r\n--Xy two".to_vec(),
            ),
            (
                PartHead {
                    name: "file".into(),
                    filename: None,
                },
                Vec::new(),
            ),
        ];
        for size in [1, 2, 3, 7, 64, 4_096] {
            assert_eq!(parse(BODY, size).as_ref(), Ok(&want), "{size}");
        }
        assert_eq!(parse(b"pre\r\n--XyZ--", 3), Ok(Vec::new()));
    }

    #[test]
    fn hostile_bodies_are_refused() {
        assert_eq!(parse(&BODY[..60], 5), Err(MultipartError::Cut));
        assert_eq!(parse(b"--XyZ!!", 9), Err(MultipartError::Delimiter));
        let mut long = b"--XyZ\r\n".to_vec();
        long.resize(100_000, b'a');
        assert_eq!(parse(&long, 1_000), Err(MultipartError::Head));
        let blanks = [&b"--XyZ"[..], &[b' '; 500]].concat();
        assert_eq!(parse(&blanks, 50), Err(MultipartError::Delimiter));
        for bad in [
            "multipart/form-data",
            "multipart/form-data; boundary=",
            TYPE,
        ] {
            let long = format!("{bad}{}", "x".repeat(80));
            assert!(Multipart::new(&long).is_err(), "{bad}");
        }
    }

    /// Bodies put together at random from what means something never panic, and never hold more than
    /// a head.
    #[test]
    fn random_bodies_are_survived() {
        let words: [&[u8]; 10] = [
            b"\r\n",
            b"--",
            b"--XyZ",
            b"\r\n--XyZ\r\n",
            b"\r\n--XyZ--",
            b"Content-Disposition: form-data; name=\"file",
            b"\"; filename*=utf-8''%",
            b"\xff\0;=\\",
            b" ",
            b"x",
        ];
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % below as u64) as usize
        };
        for _ in 0..20_000 {
            let body: Vec<u8> = (0..random(40))
                .flat_map(|_| words[random(words.len())])
                .copied()
                .collect();
            let _ = parse(&body, 1 + random(16));
        }
    }

    #[test]
    fn memory_does_not_grow_with_a_part() {
        let mut parser = Multipart::new(TYPE).unwrap();
        parser.push(b"--XyZ\r\nA: b\r\n\r\n");
        for _ in 0..1_000 {
            parser.push(&[b'\r'; 1_000]);
            while parser.next().unwrap() != Piece::More {}
            assert!(parser.bytes.len() < 64);
        }
    }

    #[test]
    fn extended_names_are_decoded() {
        let head =
            part_head("Content-Disposition: form-data; name=file; filename*=utf-8''%2Fa%20b+c");
        assert_eq!(head.filename.as_deref(), Some("/a b+c"));
    }
}
