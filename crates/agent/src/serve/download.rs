//! `GET /files`: the bytes of one file, whole, by range, or compressed.
//!
//! The file is opened by a child with the user's rights; here it is only read, piece by piece as the
//! client takes them, so that neither its size nor its growth costs memory.

use std::io;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_RANGE,
    CONTENT_TYPE, HeaderMap, HeaderValue, IF_RANGE, RANGE, VARY,
};
use hyper::{Response, StatusCode};
use leasehold_protocol::envd::base64::Base64;
use leasehold_protocol::envd::code::{CallError, Code};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::acting::{self, Done};
use super::reply::{Refusal, Reply, ReplyBody, set};
use super::request::text;
use super::state::Shared;
use super::users::User;
use super::{bounds, paths, tree};

/// What the child says of an opened file.
#[derive(Debug, Serialize, Deserialize)]
struct Opened {
    size: u64,
    /// Contents of a file that tells no size. Those of `/proc` may be readable by their opener alone.
    contents: Option<Base64>,
}

/// Runs in the child.
fn open(path: &str) -> Result<Done, CallError> {
    let (file, stat) = tree::open_to_read(path)?;
    let size = stat.st_size.max(0).cast_unsigned();
    let contents = if size == 0 {
        Some(Base64(sizeless(&file, path)?))
    } else {
        None
    };
    Ok(Done {
        file: Some(file),
        ..Done::json(&Opened { size, contents })?
    })
}

/// The rest of a file as a body.
pub(super) struct FileBody {
    file: OwnedFd,
    at: u64,
    left: u64,
    gzip: Option<GzEncoder<Vec<u8>>>,
}

impl FileBody {
    /// Bytes still to come, where that is known.
    pub(super) fn left(&self) -> Option<u64> {
        self.gzip.is_none().then_some(self.left)
    }

    /// The next piece. A file that became shorter ends in an error, which cuts the connection: the
    /// length was promised.
    pub(super) fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if self.left == 0 {
                let rest = self.gzip.take()?.finish();
                return Some(rest.map(Bytes::from));
            }
            let mut piece = vec![0; bounds::DOWNLOAD_PIECE.min(self.left as usize)];
            let got = match rustix::io::pread(&self.file, &mut piece[..], self.at) {
                Ok(0) => return Some(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(got) => got,
                Err(Errno::INTR) => continue,
                Err(error) => return Some(Err(error.into())),
            };
            piece.truncate(got);
            self.at += got as u64;
            self.left -= got as u64;
            let Some(gzip) = &mut self.gzip else {
                return Some(Ok(piece.into()));
            };
            if let Err(error) = io::Write::write_all(gzip, &piece) {
                return Some(Err(error));
            }
            let ready = std::mem::take(gzip.get_mut());
            if !ready.is_empty() {
                return Some(Ok(ready.into()));
            }
        }
    }
}

/// How a body is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Identity,
    Gzip,
}

/// Chooses by `Accept-Encoding`. Plain bytes are preferred: the way here is short, and only a
/// client that asks for nothing else gets gzip.
///
/// # Errors
/// When neither is accepted.
fn coding(headers: &HeaderMap) -> Result<Coding, Refusal> {
    let accepted = text(headers, ACCEPT_ENCODING.as_str()).unwrap_or("");
    let (mut gzip, mut identity, mut any, mut others) = (None, None, None, false);
    for item in accepted
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        let mut parts = item.split(';').map(str::trim);
        let name = parts.next().unwrap_or("").to_ascii_lowercase();
        let quality = parts
            .find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")))
            .map_or(Some(1.0), |text| text.parse::<f32>().ok())
            .unwrap_or(1.0);
        match name.as_str() {
            "gzip" => gzip = Some(quality > 0.0),
            "identity" => identity = Some(quality > 0.0),
            "*" => any = Some(quality > 0.0),
            _ => others = true,
        }
    }
    let plain = identity.or(any.filter(|any| !any)).unwrap_or(true);
    let packed = gzip.or(any).unwrap_or(false);
    let only_gzip = gzip == Some(true) && identity.is_none() && any.is_none() && !others;
    match (plain, packed) {
        (_, true) if only_gzip || !plain => Ok(Coding::Gzip),
        (true, _) => Ok(Coding::Identity),
        (false, _) => Err(Refusal::new(
            StatusCode::NOT_ACCEPTABLE,
            "no acceptable encoding found, supported: [identity, gzip]",
        )),
    }
}

/// Part of a file: first byte and length.
type Part = (u64, u64);

/// Reads a `Range` header. Several ranges, other units and malformed ones are ignored, as the
/// protocol allows; a range outside the file is refused.
///
/// # Errors
/// The whole length, when the range lies outside of it.
fn range(headers: &HeaderMap, size: u64) -> Result<Option<Part>, u64> {
    let wanted = text(headers, RANGE.as_str()).and_then(|text| text.strip_prefix("bytes="));
    let Some((first, last)) = wanted.and_then(|wanted| wanted.trim().split_once('-')) else {
        return Ok(None);
    };
    // We send no validators, so that a condition on one cannot hold.
    if headers.contains_key(IF_RANGE) || last.contains(',') {
        return Ok(None);
    }
    let part = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), _) if last.is_empty() => (first, size.saturating_sub(first)),
        (Ok(first), Ok(last)) if first <= last => (
            first,
            last.min(size.saturating_sub(1))
                .saturating_add(1)
                .saturating_sub(first),
        ),
        (Err(_), Ok(count)) if first.is_empty() => {
            let count = count.min(size);
            (size - count, count)
        }
        _ => return Ok(None),
    };
    if part.1 == 0 || part.0 >= size {
        return Err(size);
    }
    Ok(Some(part))
}

/// Answers with a file's bytes.
///
/// # Errors
/// 400 for what is no regular file, 404, 406, 416.
pub(super) async fn get(
    shared: &Shared,
    user: &User,
    path: &str,
    headers: &HeaderMap,
) -> Result<Reply, Refusal> {
    let (opened, file) =
        acting::ask::<Opened>(shared, user, bounds::OPERATION_TIME, || open(path)).await?;
    let file = file.ok_or_else(|| CallError::new(Code::Internal, "file work gave no file"))?;
    let coding = coding(headers)?;
    let mut reply = match opened.contents {
        Some(contents) => Response::new(ReplyBody::Whole(Some(contents.0.into()))),
        None => sized(file, opened.size, coding, headers)?,
    };
    set(&mut reply, VARY, "Accept-Encoding");
    set(&mut reply, CONTENT_TYPE, "application/octet-stream");
    let disposition = disposition(paths::name(path));
    if let Ok(value) = HeaderValue::from_str(&disposition) {
        reply.headers_mut().insert(CONTENT_DISPOSITION, value);
    }
    Ok(reply)
}

fn sized(file: OwnedFd, size: u64, coding: Coding, headers: &HeaderMap) -> Result<Reply, Refusal> {
    let part = range(headers, size).map_err(|size| {
        Refusal::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            format!("range is outside of the file's {size} bytes"),
        )
    })?;
    let (at, left) = part.unwrap_or((0, size));
    let gzip = (part.is_none() && coding == Coding::Gzip)
        .then(|| GzEncoder::new(Vec::new(), Compression::fast()));
    let packed = gzip.is_some();
    let mut reply = Response::new(ReplyBody::File(FileBody {
        file,
        at,
        left,
        gzip,
    }));
    if packed {
        set(&mut reply, CONTENT_ENCODING, "gzip");
        return Ok(reply);
    }
    set(&mut reply, ACCEPT_RANGES, "bytes");
    if part.is_some() {
        *reply.status_mut() = StatusCode::PARTIAL_CONTENT;
        let text = format!("bytes {at}-{}/{size}", at + left - 1);
        if let Ok(value) = HeaderValue::from_str(&text) {
            reply.headers_mut().insert(CONTENT_RANGE, value);
        }
    }
    Ok(reply)
}

/// Reads a file that says it is empty: it may be one of `/proc`, which tells no sizes.
fn sizeless(file: &OwnedFd, path: &str) -> Result<Vec<u8>, CallError> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4_096];
    loop {
        match rustix::io::read(file, &mut piece[..]) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(bytes),
            Ok(got) => bytes.extend_from_slice(&piece[..got]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(acting::refused(&format!("cannot read '{path}'"), errno)),
        }
        if bytes.len() > bounds::SIZELESS_BYTES {
            let most = bounds::SIZELESS_BYTES;
            return Err(CallError::new(
                Code::InvalidArgument,
                format!("'{path}' tells no size and has more than {most} bytes"),
            ));
        }
    }
}

/// Names the file for who stores it. Only harmless letters stay as they are.
fn disposition(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.bytes().all(plain) {
        return format!("inline; filename={name}");
    }
    let coded: String = name
        .bytes()
        .map(|byte| match byte {
            byte if plain(byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    format!("inline; filename*=utf-8''{coded}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderName;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn encodings_are_chosen_by_what_is_accepted() {
        for (accepted, want) in [
            ("", Some(Coding::Identity)),
            ("gzip", Some(Coding::Gzip)),
            ("gzip, deflate", Some(Coding::Identity)),
            ("identity;q=0, gzip", Some(Coding::Gzip)),
            ("*;q=0, gzip", Some(Coding::Gzip)),
            ("*", Some(Coding::Identity)),
            ("gzip;q=0", Some(Coding::Identity)),
            ("br", Some(Coding::Identity)),
            ("identity;q=0", None),
            ("*;q=0", None),
        ] {
            let got = coding(&headers(ACCEPT_ENCODING, accepted));
            assert_eq!(got.ok(), want, "{accepted}");
        }
    }

    #[test]
    fn ranges_are_cut_to_the_file() {
        for (wanted, want) in [
            ("bytes=0-3", Ok(Some((0, 4)))),
            ("bytes=8-", Ok(Some((8, 2)))),
            ("bytes=-3", Ok(Some((7, 3)))),
            ("bytes=-99", Ok(Some((0, 10)))),
            ("bytes=5-99", Ok(Some((5, 5)))),
            ("bytes=0-18446744073709551615", Ok(Some((0, 10)))),
            ("bytes=10-", Err(10)),
            ("bytes=-0", Err(10)),
            ("bytes=12-15", Err(10)),
            ("bytes=3-1", Ok(None)),
            ("bytes=0-1,3-4", Ok(None)),
            ("lines=1-2", Ok(None)),
            ("bytes=x-y", Ok(None)),
        ] {
            assert_eq!(range(&headers(RANGE, wanted), 10), want, "{wanted}");
        }
    }

    #[test]
    fn hostile_names_stay_one_header() {
        assert_eq!(disposition("a.txt"), "inline; filename=a.txt");
        assert_eq!(
            disposition("a\"\r\nx: y"),
            "inline; filename*=utf-8''a%22%0D%0Ax%3A%20y"
        );
    }

    #[test]
    fn a_file_that_shrinks_is_an_error_and_one_that_grows_is_cut() {
        let path = std::env::temp_dir().join(format!("download-{}", std::process::id()));
        std::fs::write(&path, vec![1; 10]).unwrap();
        let body = |left| FileBody {
            file: std::fs::File::open(&path).unwrap().into(),
            at: 0,
            left,
            gzip: None,
        };
        let mut short = body(20);
        assert_eq!(short.next().unwrap().unwrap().len(), 10);
        assert!(short.next().unwrap().is_err());
        let mut long = body(4);
        assert_eq!(long.next().unwrap().unwrap().len(), 4);
        assert!(long.next().is_none());
        std::fs::remove_file(&path).unwrap();
    }
}
