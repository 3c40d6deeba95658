//! `POST /files`: one or more files, raw or multipart, plain or compressed, written as they arrive.
//!
//! Each file is opened by a child with the user's rights; here bytes are only written to it. Nothing
//! is held but one piece, so a long upload costs disk and not memory.

use std::io::Write;
use std::os::fd::OwnedFd;

use flate2::write::MultiGzDecoder;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::envd::http::Uploaded;
use rustix::io::Errno;

use super::acting::{self, Done, refused};
use super::metadata::{self, Metadata};
use super::multipart::{Multipart, MultipartError, Piece};
use super::reply::{Refusal, Reply, json};
use super::request::{media_type, patient_piece, text};
use super::state::Shared;
use super::users::User;
use super::{bounds, paths, tree};

/// Bytes of a compressed body that are unpacked at once: they become at most about a thousand times
/// as many.
const PACKED_PIECE: usize = 1 << 10;

fn bad(message: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, message)
}

/// An upload in progress.
struct Upload<'a> {
    shared: &'a Shared,
    user: &'a User,
    /// Path of the query, as the caller wrote it.
    path: Option<&'a str>,
    metadata: Metadata,
    done: Vec<Uploaded>,
    open: Option<(String, OwnedFd)>,
}

/// Takes an upload and answers what was written.
///
/// # Errors
/// 400 for what is no upload, 507 when the disk is full, others as the file work says.
pub(super) async fn post(
    shared: &Shared,
    user: &User,
    path: Option<&str>,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Reply, Refusal> {
    let metadata = metadata::of_headers(headers)
        .map_err(|message| bad(format!("invalid metadata: {message}")))?;
    let mut upload = Upload {
        shared,
        user,
        path,
        metadata,
        done: Vec::new(),
        open: None,
    };
    let mut plain = Plain::new(headers, body)?;
    match media_type(headers).as_str() {
        "application/octet-stream" => upload.raw(&mut plain).await?,
        kind if kind.starts_with("multipart/") => {
            let kind = text(headers, CONTENT_TYPE.as_str()).unwrap_or("");
            let parser = Multipart::new(kind).map_err(|error| bad(error.to_string()))?;
            upload.parts(parser, &mut plain).await?;
        }
        kind => {
            return Err(bad(format!(
                "unsupported content type: {kind:?}, expected multipart/form-data or application/octet-stream"
            )));
        }
    }
    Ok(json(StatusCode::OK, &upload.done))
}

impl Upload<'_> {
    async fn raw(&mut self, plain: &mut Plain) -> Result<(), Refusal> {
        let path = self
            .path
            .ok_or_else(|| bad("path query parameter is required for raw body upload"))?;
        self.begin(path).await?;
        while let Some(bytes) = plain.next().await? {
            self.write(&bytes)?;
        }
        self.open = None;
        Ok(())
    }

    async fn parts(&mut self, mut parser: Multipart, plain: &mut Plain) -> Result<(), Refusal> {
        loop {
            match parser.next().map_err(|error| bad(error.to_string()))? {
                Piece::Part(head) if head.name == "file" => {
                    let path = self.path.or(head.filename.as_deref());
                    let path = path.ok_or_else(|| bad("multipart part `file` has no file name"))?;
                    self.begin(path).await?;
                }
                Piece::Data(bytes) => self.write(&bytes)?,
                Piece::Part(_) | Piece::PartEnd => self.open = None,
                Piece::End => {
                    // What follows the last boundary belongs to nobody; the body must be read.
                    while plain.next().await?.is_some() {}
                    return Ok(());
                }
                Piece::More => match plain.next().await? {
                    Some(bytes) => parser.push(&bytes),
                    None => return Err(bad(MultipartError::Cut.to_string())),
                },
            }
        }
    }

    /// Opens the file that the next bytes are for.
    async fn begin(&mut self, path: &str) -> Result<(), Refusal> {
        let path = self.shared.path(path, self.user)?;
        if self.done.iter().any(|file| file.path == path) {
            return Err(bad(format!(
                "you cannot upload multiple files to the same path '{path}' in one upload request, only the first specified file was uploaded"
            )));
        }
        if self.done.len() == bounds::UPLOADS {
            let most = bounds::UPLOADS;
            return Err(bad(format!("more than {most} files in one upload request")));
        }
        let (user, wanted) = (self.user, &self.metadata);
        let time = bounds::OPERATION_TIME;
        let opened = acting::ask::<Metadata>(self.shared, user, time, || {
            let file = tree::open_to_write(&path, user, 0o666)?;
            let kept = metadata::replace(&file, wanted)
                .map_err(|errno| refused(&format!("cannot attach metadata to '{path}'"), errno))?;
            Ok(Done {
                file: Some(file),
                ..Done::json(&kept)?
            })
        });
        let (metadata, file) = opened.await?;
        let file = file.ok_or_else(|| CallError::new(Code::Internal, "file work gave no file"))?;
        self.done.push(Uploaded {
            name: paths::name(&path).to_owned(),
            path: path.clone(),
            kind: "file".to_owned(),
            metadata,
        });
        self.open = Some((path, file));
        Ok(())
    }

    fn write(&self, mut bytes: &[u8]) -> Result<(), Refusal> {
        // Parts that are no file are read and dropped.
        let Some((path, file)) = &self.open else {
            return Ok(());
        };
        while !bytes.is_empty() {
            match rustix::io::write(file, bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(refused(&format!("cannot write '{path}'"), errno).into()),
            }
        }
        Ok(())
    }
}

/// A body without its compression.
struct Plain {
    body: Incoming,
    packed: bytes::Bytes,
    gzip: Option<MultiGzDecoder<Vec<u8>>>,
}

impl Plain {
    fn new(headers: &HeaderMap, body: Incoming) -> Result<Self, Refusal> {
        let coding = text(headers, CONTENT_ENCODING.as_str()).unwrap_or("");
        let gzip = match coding.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => None,
            "gzip" => Some(MultiGzDecoder::new(Vec::new())),
            other => {
                return Err(bad(format!(
                    "unsupported content encoding: {other:?}, supported: [gzip]"
                )));
            }
        };
        Ok(Self {
            body,
            packed: bytes::Bytes::new(),
            gzip,
        })
    }

    /// The next bytes; none at the end.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Refusal> {
        loop {
            if self.packed.is_empty() {
                match patient_piece(&mut self.body).await? {
                    Some(piece) => self.packed = piece,
                    None => return self.rest(),
                }
            }
            let Some(gzip) = &mut self.gzip else {
                return Ok(Some(std::mem::take(&mut self.packed).into()));
            };
            let piece = self.packed.split_to(PACKED_PIECE.min(self.packed.len()));
            gzip.write_all(&piece).map_err(unpacking)?;
            let plain = std::mem::take(gzip.get_mut());
            if !plain.is_empty() {
                return Ok(Some(plain));
            }
        }
    }

    /// What the decoder still holds at the end of the body.
    fn rest(&mut self) -> Result<Option<Vec<u8>>, Refusal> {
        let Some(gzip) = self.gzip.take() else {
            return Ok(None);
        };
        let plain = gzip.finish().map_err(unpacking)?;
        Ok((!plain.is_empty()).then_some(plain))
    }
}

fn unpacking(error: std::io::Error) -> Refusal {
    bad(format!("error decompressing request body: {error}"))
}
