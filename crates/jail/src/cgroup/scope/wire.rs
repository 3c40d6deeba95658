//! The few bytes of D-Bus that one call and its answer need: writing the call, reading headers,
//! strings and numbers. Little-endian alone, since the other side is on this machine.
//!
//! What is read is not trusted: every length is checked against what is there. Opens nothing.

/// Most bytes of one message. Signals about other units pass by on the same connection; none of
/// them is near this.
pub(super) const MESSAGE_MAX: usize = 256 << 10;
/// Bytes of the fixed part of a header, its array's length included.
pub(super) const FIXED: usize = 16;

/// Writes values, each aligned as D-Bus wants it from the start of the message.
#[derive(Debug, Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    fn u32(&mut self, value: u32) {
        self.align(4);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.align(8);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn length(len: usize) -> u32 {
        u32::try_from(len).unwrap_or(u32::MAX)
    }

    pub(super) fn string(&mut self, text: &str) {
        self.u32(Self::length(text.len()));
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
    }

    /// Signatures here are a few letters.
    fn signature(&mut self, text: &str) {
        self.bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
    }

    /// An array whose elements are aligned to `to`; the padding before the first is not counted.
    pub(super) fn array(&mut self, to: usize, fill: impl FnOnce(&mut Self)) {
        self.u32(0);
        let length = self.bytes.len() - 4;
        self.align(to);
        let first = self.bytes.len();
        fill(self);
        let count = Self::length(self.bytes.len() - first).to_le_bytes();
        self.bytes[length..length + 4].copy_from_slice(&count);
    }

    /// One `(sv)`: a name and a value of any kind.
    pub(super) fn property(&mut self, name: &str, value: &Value<'_>) {
        self.align(8);
        self.string(name);
        match value {
            Value::Text(text) => {
                self.signature("s");
                self.string(text);
            }
            Value::Number(number) => {
                self.signature("t");
                self.u64(*number);
            }
            Value::Processes(pids) => {
                self.signature("au");
                self.array(4, |out| pids.iter().for_each(|pid| out.u32(*pid)));
            }
            Value::Texts(texts) => {
                self.signature("as");
                self.array(4, |out| texts.iter().for_each(|text| out.string(text)));
            }
        }
    }

    fn field(&mut self, code: u8, kind: &str, value: &str) {
        self.align(8);
        self.bytes.push(code);
        self.signature(kind);
        if kind == "g" {
            self.signature(value);
        } else {
            self.string(value);
        }
    }
}

/// A value of a unit's property.
#[derive(Debug)]
pub(super) enum Value<'a> {
    Text(&'a str),
    Number(u64),
    Processes(&'a [u32]),
    Texts(&'a [&'a str]),
}

/// What is called.
pub(super) struct Method<'a> {
    pub(super) destination: &'a str,
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
    pub(super) member: &'a str,
    pub(super) signature: &'a str,
}

/// A whole method call.
pub(super) fn call(serial: u32, method: &Method<'_>, body: &[u8]) -> Vec<u8> {
    let mut out = Writer {
        bytes: vec![b'l', Kind::Call as u8, 0, 1],
    };
    out.u32(Writer::length(body.len()));
    out.u32(serial);
    out.array(8, |out| {
        out.field(1, "o", method.path);
        out.field(2, "s", method.interface);
        out.field(3, "s", method.member);
        out.field(6, "s", method.destination);
        out.field(8, "g", method.signature);
    });
    out.align(8);
    out.bytes.extend_from_slice(body);
    out.bytes
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Call = 1,
    Return = 2,
    Error = 3,
    Signal = 4,
}

/// A message, taken apart.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) kind: Kind,
    /// The call it answers; 0 for none.
    pub(super) answers: u32,
    pub(super) member: &'a str,
    pub(super) error: &'a str,
    signature: &'a str,
    body: &'a [u8],
}

/// Bytes of the message that begins with this fixed part.
///
/// # Errors
/// What makes no sense about it, lengths beyond [`MESSAGE_MAX`] among it.
pub(super) fn length(fixed: &[u8; FIXED]) -> Result<usize, &'static str> {
    if fixed[0] != b'l' || fixed[3] != 1 {
        return Err("it is no little-endian message of version 1");
    }
    let number = |at: usize| {
        let bytes = [fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]];
        usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX)
    };
    let (body, fields) = (number(4), number(12));
    if body > MESSAGE_MAX || fields > MESSAGE_MAX {
        return Err("it is longer than 256 KiB");
    }
    Ok((FIXED + fields).next_multiple_of(8) + body)
}

/// Takes a whole message apart.
///
/// # Errors
/// What makes no sense about it.
pub(super) fn message(bytes: &[u8]) -> Result<Message<'_>, &'static str> {
    let mut reader = Reader { bytes, at: 1 };
    let kind = match reader.byte()? {
        1 => Kind::Call,
        2 => Kind::Return,
        3 => Kind::Error,
        4 => Kind::Signal,
        _ => return Err("its kind is unknown"),
    };
    reader.at = FIXED - 4;
    let end = FIXED + reader.u32()? as usize;
    let mut message = Message {
        kind,
        answers: 0,
        member: "",
        error: "",
        signature: "",
        body: &[],
    };
    while reader.at < end {
        reader.align(8);
        let code = reader.byte()?;
        match reader.signature()? {
            "u" => {
                let number = reader.u32()?;
                if code == 5 {
                    message.answers = number;
                }
            }
            "g" => {
                let signature = reader.signature()?;
                if code == 8 {
                    message.signature = signature;
                }
            }
            "s" | "o" => {
                let text = reader.string()?;
                match code {
                    3 => message.member = text,
                    4 => message.error = text,
                    _ => {}
                }
            }
            _ => return Err("a field of its header is of an unknown kind"),
        }
    }
    if reader.at != end {
        return Err("its header does not end where it says");
    }
    message.body = bytes
        .get(end.next_multiple_of(8)..)
        .ok_or("it is shorter than its header says")?;
    Ok(message)
}

impl<'a> Message<'a> {
    /// The texts in its body, by its signature, in their order; numbers are passed over. Stops at
    /// the first value that is neither.
    ///
    /// # Errors
    /// When the body is shorter than its signature says.
    pub(super) fn texts(&self) -> Result<Vec<&'a str>, &'static str> {
        let mut reader = Reader {
            bytes: self.body,
            at: 0,
        };
        let mut texts = Vec::new();
        for kind in self.signature.bytes() {
            match kind {
                b's' | b'o' => texts.push(reader.string()?),
                b'u' | b'i' => {
                    reader.u32()?;
                }
                _ => break,
            }
        }
        Ok(texts)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

const SHORT: &str = "it is shorter than its lengths say";

impl<'a> Reader<'a> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], &'static str> {
        let end = self.at.checked_add(count).ok_or(SHORT)?;
        let taken = self.bytes.get(self.at..end).ok_or(SHORT)?;
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.align(4);
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn text(&mut self, count: usize) -> Result<&'a str, &'static str> {
        let text = std::str::from_utf8(self.take(count)?).map_err(|_| "a text is not UTF-8")?;
        if self.byte()? != 0 {
            return Err("a text does not end where it says");
        }
        Ok(text)
    }

    fn string(&mut self) -> Result<&'a str, &'static str> {
        let count = self.u32()? as usize;
        self.text(count)
    }

    fn signature(&mut self) -> Result<&'a str, &'static str> {
        let count = usize::from(self.byte()?);
        self.text(count)
    }
}

/// Answers and signals as a manager would write them, for the tests' own.
#[cfg(test)]
pub(super) fn answer(kind: Kind, answers: u32, names: [&str; 2], body: (&str, &[&str])) -> Vec<u8> {
    let [member, error] = names;
    let (signature, texts) = body;
    let mut written = Writer::default();
    let mut texts = texts.iter();
    for letter in signature.bytes() {
        match letter {
            b'u' => written.u32(7),
            _ => written.string(texts.next().unwrap()),
        }
    }
    let body = written.bytes();
    let mut out = Writer {
        bytes: vec![b'l', kind as u8, 1, 1],
    };
    out.u32(Writer::length(body.len()));
    out.u32(9);
    out.array(8, |out| {
        if answers != 0 {
            out.align(8);
            out.bytes.push(5);
            out.signature("u");
            out.u32(answers);
        }
        if !member.is_empty() {
            out.field(3, "s", member);
        }
        if !error.is_empty() {
            out.field(4, "s", error);
        }
        out.field(7, "s", "org.freedesktop.systemd1");
        if !signature.is_empty() {
            out.field(8, "g", signature);
        }
    });
    out.align(8);
    out.bytes.extend_from_slice(&body);
    out.bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let names = ["JobRemoved", ""];
        let body: (&str, &[&str]) = ("uoss", &["/job/1", "a.scope", "done"]);
        let bytes = answer(Kind::Signal, 0, names, body);
        let fixed = bytes[..FIXED].try_into().unwrap();
        assert_eq!(length(&fixed), Ok(bytes.len()));
        let read = message(&bytes).unwrap();
        assert_eq!((read.kind, read.member), (Kind::Signal, "JobRemoved"));
        assert_eq!(read.texts().unwrap(), ["/job/1", "a.scope", "done"]);
    }

    #[test]
    fn every_cut_and_every_flipped_byte_is_survived() {
        let names = ["", "org.freedesktop.systemd1.UnitExists"];
        let bytes = answer(Kind::Error, 3, names, ("s", &["it exists"]));
        let whole = message(&bytes).unwrap();
        assert_eq!((whole.answers, whole.error), (3, names[1]));
        for cut in FIXED..bytes.len() {
            if let Ok(read) = message(&bytes[..cut]) {
                assert!(read.texts().is_err(), "a body cut at {cut} was read");
            }
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bent = bytes.clone();
                bent[at] ^= 1 << bit;
                let fixed = bent[..FIXED].try_into().unwrap();
                assert!(length(&fixed).is_err() || length(&fixed) < Ok(3 * MESSAGE_MAX));
                let _ = message(&bent).map(|read| read.texts().map(|texts| texts.len()));
            }
        }
    }

    #[test]
    fn lengths_beyond_the_bound_are_refused_before_anything_is_read() {
        for at in [4, 12] {
            let mut fixed = [0; FIXED];
            (fixed[0], fixed[3]) = (b'l', 1);
            fixed[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            assert!(length(&fixed).is_err());
        }
        assert!(length(b"HTTP/1.1 400 Bad").is_err());
    }
}
