//! What uploads attach to files: extended attributes `user.e2b.<key>`.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use hyper::HeaderMap;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::bounds;

const PREFIX: &str = "user.e2b.";
const HEADER: &str = "x-metadata-";
/// Bytes of all attribute names of a file that are looked at.
const NAMES_BYTES: usize = 64 << 10;

/// Metadata of a file.
pub(super) type Metadata = BTreeMap<String, String>;

/// Takes the metadata out of an upload's headers and checks its bounds.
///
/// # Errors
/// Says what is out of bounds.
pub(super) fn of_headers(headers: &HeaderMap) -> Result<Metadata, String> {
    let mut found = Metadata::new();
    for name in headers.keys() {
        let Some(key) = name
            .as_str()
            .strip_prefix(HEADER)
            .filter(|key| !key.is_empty())
        else {
            continue;
        };
        let value = headers.get(name).map_or(&b""[..], |value| value.as_bytes());
        if let Some(byte) = value.iter().find(|byte| !(0x20..0x7f).contains(*byte)) {
            return Err(format!(
                "metadata value of {key:?} holds byte {byte:#04x}, which is not printable ASCII"
            ));
        }
        if key.len() > bounds::METADATA_KEY {
            let most = bounds::METADATA_KEY;
            return Err(format!(
                "metadata key of {} bytes: most is {most}",
                key.len()
            ));
        }
        found.insert(key.to_owned(), String::from_utf8_lossy(value).into_owned());
    }
    let size: usize = found
        .iter()
        .map(|(key, value)| PREFIX.len() + key.len() + value.len())
        .sum();
    if size > bounds::METADATA_BYTES {
        let most = bounds::METADATA_BYTES;
        return Err(format!("metadata of {size} bytes: most is {most}"));
    }
    Ok(found)
}

fn keys(list: &[u8]) -> impl Iterator<Item = &str> {
    list.split(|byte| *byte == 0)
        .filter_map(|name| std::str::from_utf8(name).ok()?.strip_prefix(PREFIX))
}

/// Reads the metadata of a path, following links. What cannot be read is left out.
pub(super) fn of_path(path: &str) -> Metadata {
    let mut list = vec![0; NAMES_BYTES];
    let Ok(length) = rustix::fs::listxattr(path, &mut list[..]) else {
        return Metadata::new();
    };
    let mut value = [0; bounds::METADATA_BYTES];
    keys(&list[..length])
        .filter_map(|key| {
            let length =
                rustix::fs::getxattr(path, format!("{PREFIX}{key}"), &mut value[..]).ok()?;
            let text = std::str::from_utf8(&value[..length]).ok()?;
            Some((key.to_owned(), text.to_owned()))
        })
        .collect()
}

/// Replaces the metadata of an open file. Returns what is there afterwards: nothing where the file
/// system has no such attributes.
///
/// # Errors
/// As the calls it makes.
pub(super) fn replace(file: impl AsFd, wanted: &Metadata) -> Result<Metadata, Errno> {
    let mut list = vec![0; NAMES_BYTES];
    let length = match rustix::fs::flistxattr(&file, &mut list[..]) {
        Err(Errno::NOTSUP) => return Ok(Metadata::new()),
        other => other?,
    };
    for key in keys(&list[..length]).filter(|key| !wanted.contains_key(*key)) {
        match rustix::fs::fremovexattr(&file, format!("{PREFIX}{key}")) {
            Err(Errno::NODATA) | Ok(()) => {}
            Err(error) => return Err(error),
        }
    }
    for (key, value) in wanted {
        let name = format!("{PREFIX}{key}");
        match rustix::fs::fsetxattr(&file, name, value.as_bytes(), XattrFlags::empty()) {
            Err(Errno::NOTSUP) => return Ok(Metadata::new()),
            other => other?,
        }
    }
    Ok(wanted.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};

    fn headers(pairs: &[(&str, &[u8])]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_bytes(name.as_bytes()).unwrap(),
                    HeaderValue::from_bytes(value).unwrap(),
                )
            })
            .collect()
    }

    #[test]
    fn metadata_comes_from_its_headers_alone() {
        let map = headers(&[("X-Metadata-Author", b"mish"), ("x-other", b"1")]);
        let found = of_headers(&map).unwrap();
        assert_eq!(found, Metadata::from([("author".into(), "mish".into())]));
    }

    #[test]
    fn metadata_is_bounded() {
        let long = format!("x-metadata-{}", "k".repeat(247));
        assert!(of_headers(&headers(&[(&long, b"v")])).is_err());
        assert!(of_headers(&headers(&[("x-metadata-a", &[b'v'; 4_090])])).is_err());
        assert!(of_headers(&headers(&[("x-metadata-a", b"\xe4")])).is_err());
        assert!(of_headers(&headers(&[("x-metadata-a", &[b'v'; 4_000])])).is_ok());
    }
}
