//! The records of a PAX extension: `LENGTH KEY=VALUE\n`, one after the other.

use super::TarError;

/// What an extension says about the entry after it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extension {
    /// Its name.
    pub path: Option<Vec<u8>>,
    /// Where it leads.
    pub link: Option<Vec<u8>>,
    /// Bytes of its data.
    pub size: Option<u64>,
    /// Owner.
    pub uid: Option<u64>,
    /// Group.
    pub gid: Option<u64>,
    /// Seconds and nanoseconds of the last change.
    pub mtime: Option<(u64, u32)>,
    /// Extended attributes.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Prefix of the keys that carry extended attributes.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// Whom an extension is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The next entry.
    Next,
    /// All that follow: what changes how they are read is refused.
    All,
}

/// Reads all records of an extension.
///
/// # Errors
/// With what is wrong. No record counts then.
pub fn parse(bytes: &[u8], about: About) -> Result<Extension, TarError> {
    let mut extension = Extension::default();
    let mut seen: Vec<&[u8]> = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (key, value, after) = record(rest).map_err(wrong)?;
        rest = after;
        if seen.contains(&key) {
            return Err(wrong("it has two records of one key"));
        }
        seen.push(key);
        if seen.len() > 128 {
            return Err(wrong("it has more than 128 records"));
        }
        take(&mut extension, key, value, about).map_err(|why| TarError::entry(key, why))?;
    }
    Ok(extension)
}

fn wrong(why: &str) -> TarError {
    TarError::entry(b"PAX extension", why)
}

/// Key, value and what is after them.
type Record<'a> = (&'a [u8], &'a [u8], &'a [u8]);

/// The first record.
fn record(bytes: &[u8]) -> Result<Record<'_>, &'static str> {
    let digits = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if digits == 0 || digits > 8 || bytes[0] == b'0' || bytes.get(digits) != Some(&b' ') {
        return Err("the length of a record is no number");
    }
    let length = bytes[..digits]
        .iter()
        .fold(0usize, |sum, digit| sum * 10 + usize::from(digit - b'0'));
    let body = bytes
        .get(digits + 1..length)
        .ok_or("a record is longer than the extension")?;
    let Some((b'\n', body)) = body.split_last() else {
        return Err("a record does not end with its line");
    };
    let equals = body.iter().position(|byte| *byte == b'=');
    let equals = equals.filter(|at| *at > 0).ok_or("a record has no key")?;
    Ok((&body[..equals], &body[equals + 1..], &bytes[length..]))
}

fn take(
    extension: &mut Extension,
    key: &[u8],
    value: &[u8],
    about: About,
) -> Result<(), &'static str> {
    const FRAMING: [&[u8]; 8] = [
        b"path",
        b"linkpath",
        b"size",
        b"uid",
        b"gid",
        b"mtime",
        b"hdrcharset",
        b"charset",
    ];
    if about == About::All && (FRAMING.contains(&key) || key.starts_with(ATTRIBUTE)) {
        return Err("it is set for all entries that follow, which is not read");
    }
    match key {
        b"path" => extension.path = Some(name(value)?),
        b"linkpath" => extension.link = Some(name(value)?),
        b"size" => extension.size = Some(decimal(value)?),
        b"uid" => extension.uid = Some(decimal(value)?),
        b"gid" => extension.gid = Some(decimal(value)?),
        b"mtime" => extension.mtime = Some(time(value)?),
        b"hdrcharset" if !matches!(value, b"BINARY" | b"ISO-IR 10646 2000 UTF-8") => {
            return Err("it names an unknown set of characters");
        }
        b"hdrcharset" | b"atime" | b"ctime" | b"uname" | b"gname" | b"comment" => {}
        _ if key.starts_with(b"GNU.sparse.") => {
            return Err("the file is sparse, which is not read");
        }
        _ if key.starts_with(ATTRIBUTE) => {
            let attribute = &key[ATTRIBUTE.len()..];
            if attribute.is_empty() || attribute.contains(&0) {
                return Err("it names no extended attribute");
            }
            extension
                .attributes
                .push((attribute.to_vec(), value.to_vec()));
        }
        // Of one maker of archives; it says nothing that is read.
        _ if key.contains(&b'.') => {}
        _ => return Err("the key is not known"),
    }
    Ok(())
}

fn name(value: &[u8]) -> Result<Vec<u8>, &'static str> {
    if value.is_empty() || value.contains(&0) {
        return Err("it is empty or has a NUL in it");
    }
    Ok(value.to_vec())
}

fn decimal(value: &[u8]) -> Result<u64, &'static str> {
    if value.is_empty() || value.len() > 18 {
        return Err("it is no number of 1 to 18 digits");
    }
    value.iter().try_fold(0u64, |sum, digit| match digit {
        b'0'..=b'9' => Ok(sum * 10 + u64::from(digit - b'0')),
        _ => Err("it is no number of 1 to 18 digits"),
    })
}

/// Most digits of a fraction of a second. What is beyond nanoseconds says nothing.
const FRACTION_MAX: usize = 32;

/// Seconds with a fraction and one sign at most; what was before 1970 is 0.
fn time(value: &[u8]) -> Result<(u64, u32), &'static str> {
    let before = value.strip_prefix(b"-");
    let value = before.unwrap_or(value);
    let dot = value.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = match dot {
        Some(at) => (&value[..at], &value[at + 1..]),
        None => (value, &[][..]),
    };
    if fraction.len() > FRACTION_MAX || !fraction.iter().all(u8::is_ascii_digit) {
        return Err("it is no time");
    }
    let nanos = (0..9).fold(0, |sum, at| {
        sum * 10 + fraction.get(at).map_or(0, |digit| u32::from(digit - b'0'))
    });
    let seconds = decimal(whole)?;
    Ok(match before {
        Some(_) => (0, 0),
        None => (seconds, nanos),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_and_wrong_ones_named() {
        let bytes = b"12 path=a/b\n20 mtime=12.5000001\n29 SCHILY.xattr.user.a=x\ny=z\n";
        let read = parse(bytes, About::Next).unwrap();
        assert_eq!(read.path.as_deref(), Some(&b"a/b"[..]));
        assert_eq!(read.mtime, Some((12, 500_000_100)));
        assert_eq!(read.attributes, [(b"user.a".to_vec(), b"x\ny=z".to_vec())]);
        for (bytes, why) in [
            (&b"11 path=a/b\n"[..], "does not end"),
            (b"13 path=a/b\n", "longer than"),
            (b"012 path=a/b\n", "no number"),
            (b"12 path=a/b\n12 path=a/c\n", "two records"),
            (b"9 =abcde\n", "no key"),
            (b"11 size=-1\n", "no number of"),
            (b"12 path=a\0b\n", "NUL"),
            (b"22 GNU.sparse.major=1\n", "sparse"),
            (b"8 siz=1\n", "not known"),
            (b"x", "no number"),
        ] {
            let error = parse(bytes, About::Next).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(parse(b"12 path=a/b\n", About::All).is_err());
        assert!(parse(b"15 comment=abc\n", About::All).is_ok());
    }

    /// As deep a recursion as there are signs would end the process.
    #[test]
    fn a_time_has_one_sign_and_few_digits() {
        assert_eq!(time(b"-1.5"), Ok((0, 0)));
        assert_eq!(time(b"1.000000001999"), Ok((1, 1)));
        let (signs, digits) = (vec![b'-'; 1_000_000], vec![b'1'; 1_000_000]);
        let fraction = [&b"1."[..], &digits].concat();
        for value in [&signs[..], &digits, &fraction, b"--1", b"-", b"+1", b"1.-1"] {
            assert!(time(value).is_err(), "{:?}", &value[..value.len().min(8)]);
        }
    }
}
