//! One header block.

use super::BLOCK;

/// Which format a header says it is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Without a magic number.
    Old,
    /// POSIX.
    Posix,
    /// GNU.
    Gnu,
}

/// The fields of a block, as they are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Its format.
    pub format: Format,
    /// Its type.
    pub flag: u8,
    /// Name, with its prefix where the format has one.
    pub name: Vec<u8>,
    /// Where a link leads.
    pub link: Vec<u8>,
    /// Bytes of data that follow.
    pub size: u64,
    /// Mode, without the bits of the type.
    pub mode: u32,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Seconds of the last change; 0 for what was before 1970.
    pub mtime: u64,
}

/// The part of a field before its first NUL.
fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0);
    &field[..end.unwrap_or(field.len())]
}

/// A number in octal, or in binary where its first bit says so. `None` when it is negative.
fn number(field: &[u8]) -> Result<Option<u64>, &'static str> {
    match field[0] {
        0x80 => {
            let (high, low) = field[1..].split_at(field.len() - 1 - 8);
            if high.iter().any(|byte| *byte != 0) || low[0] & 0x80 != 0 {
                return Err("is too large");
            }
            let value = low.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            Ok(Some(value))
        }
        0xff => Ok(None),
        byte if byte & 0x80 != 0 => Err("is too large"),
        _ => octal(field).map(Some),
    }
}

fn octal(field: &[u8]) -> Result<u64, &'static str> {
    let start = field.iter().position(|byte| *byte != b' ');
    let field = &field[start.unwrap_or(field.len())..];
    let end = field
        .iter()
        .position(|byte| matches!(byte, 0 | b' '))
        .unwrap_or(field.len());
    let (digits, rest) = field.split_at(end);
    if rest.iter().any(|byte| !matches!(byte, 0 | b' ')) {
        return Err("has something after its end");
    }
    digits.iter().try_fold(0u64, |sum, digit| match digit {
        b'0'..=b'7' => Ok(sum << 3 | u64::from(digit - b'0')),
        _ => Err("is no octal number"),
    })
}

impl Header {
    /// Reads a block that is not all zeros.
    ///
    /// # Errors
    /// With the name as far as it can be read, and what is wrong.
    pub fn parse(block: &[u8; BLOCK]) -> Result<Self, (Vec<u8>, String)> {
        let named = |why: String| (text(&block[..100]).to_vec(), why);
        let stated = octal(&block[148..156]).map_err(|why| named(format!("its checksum {why}")))?;
        let sum: u64 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| {
                u64::from(if (148..156).contains(&at) {
                    b' '
                } else {
                    *byte
                })
            })
            .sum();
        if sum != stated {
            return Err(named("its checksum is wrong".to_owned()));
        }
        let format = match (&block[257..263], &block[263..265]) {
            (b"ustar\0", b"00") if &block[508..512] == b"tar\0" => {
                return Err(named(
                    "it is of the format star, which is not read".to_owned(),
                ));
            }
            (b"ustar\0", b"00") => Format::Posix,
            (b"ustar ", b" \0") => Format::Gnu,
            (magic, _) if magic.iter().all(|byte| *byte == 0) => Format::Old,
            _ => return Err(named("its magic number is of no known format".to_owned())),
        };
        let mut name = text(&block[..100]).to_vec();
        if format == Format::Posix {
            let prefix = text(&block[345..500]);
            if !prefix.is_empty() {
                name = [prefix, b"/", &name].concat();
            }
        }
        let field = |what: &str, range: std::ops::Range<usize>| {
            number(&block[range]).map_err(|why| named(format!("its {what} {why}")))
        };
        let positive = |what: &str, value: Option<u64>| {
            value.ok_or_else(|| named(format!("its {what} is negative")))
        };
        let mode = positive("mode", field("mode", 100..108)?)?;
        Ok(Self {
            format,
            flag: block[156],
            link: text(&block[157..257]).to_vec(),
            size: positive("size", field("size", 124..136)?)?,
            // What is above are the bits of the type, which the flag says already.
            mode: (mode & 0o7777) as u32,
            uid: positive("owner", field("owner", 108..116)?)?,
            gid: positive("group", field("group", 116..124)?)?,
            mtime: field("time", 136..148)?.unwrap_or(0),
            name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_reading() {
        for (field, value) in [
            (&b"0000644\0"[..], Ok(Some(0o644))),
            (b"  644 \0\0", Ok(Some(0o644))),
            (b"\0\0\0\0\0\0\0\0", Ok(Some(0))),
            (b"\x80\0\0\0\0\0\0\0\0\0\x01\x00", Ok(Some(256))),
            (
                b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
                Ok(None),
            ),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", Err("is too large")),
            (b"\x80\0\x01\0\0\0\0\0\0\0\0\0", Err("is too large")),
            (b"12\x0034\0\0\0", Err("has something after its end")),
            (b"0000648\0", Err("is no octal number")),
            (b"-000644\0", Err("is no octal number")),
        ] {
            assert_eq!(number(field), value, "{field:?}");
        }
    }
}
