//! What a request is answered with: bodies, plain errors, call errors and streams.
//!
//! A streaming body is a bounded channel: who writes into it waits for the client to read, and sees
//! at once that the client went away.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use leasehold_protocol::envd::code::{CallError, Code, StreamEnd};
use leasehold_protocol::envd::frame;
use leasehold_protocol::envd::http::HttpError;
use serde::Serialize;
use tokio::sync::mpsc;

use super::bounds;
use super::download::FileBody;

/// The answer to a request.
pub(super) type Reply = Response<ReplyBody>;

/// Contents of an answer.
pub(super) enum ReplyBody {
    /// All at once.
    Whole(Option<Bytes>),
    /// Piece by piece, as somebody sends them.
    Stream(mpsc::Receiver<Bytes>),
    /// From a file.
    File(FileBody),
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(pieces) => pieces
                .poll_recv(cx)
                .map(|piece| piece.map(|bytes| Ok(Frame::data(bytes)))),
            Self::File(file) => Poll::Ready(file.next().map(|piece| piece.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Stream(_) => SizeHint::default(),
            Self::File(file) => file
                .left()
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

/// An answer without contents.
pub(super) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(ReplyBody::Whole(None));
    *reply.status_mut() = status;
    reply
}

/// An answer with these contents.
pub(super) fn whole(status: StatusCode, kind: &'static str, bytes: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(ReplyBody::Whole(Some(bytes.into())));
    *reply.status_mut() = status;
    set(&mut reply, CONTENT_TYPE, kind);
    reply
}

/// Sets a header whose value is known to be well formed.
pub(super) fn set(reply: &mut Reply, name: HeaderName, value: &'static str) {
    reply
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
}

/// An answer with JSON contents.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(bytes) => whole(status, "application/json", bytes),
        Err(_) => empty(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// A failure of a plain HTTP route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// HTTP status.
    pub(super) status: StatusCode,
    /// One sentence.
    pub(super) message: String,
}

impl Refusal {
    /// A failure of this status.
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// The answer that tells it.
    pub(super) fn reply(self) -> Reply {
        let body = HttpError {
            code: self.status.as_u16(),
            message: self.message,
        };
        json(self.status, &body)
    }
}

impl From<CallError> for Refusal {
    fn from(error: CallError) -> Self {
        let status = match error.code {
            Code::ResourceExhausted if error.message == NO_SPACE => {
                StatusCode::INSUFFICIENT_STORAGE
            }
            code => StatusCode::from_u16(code.http_status())
                .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        };
        Self::new(status, error.message)
    }
}

/// What a full disk is called; plain HTTP has a status of its own for it.
pub(super) const NO_SPACE: &str = "not enough disk space available";

/// The answer to a unary call.
pub(super) fn unary<T: Serialize>(outcome: Result<T, CallError>) -> Reply {
    match outcome {
        Ok(value) => json(StatusCode::OK, &value),
        Err(error) => call_error(&error),
    }
}

/// The answer to a unary call that failed.
pub(super) fn call_error(error: &CallError) -> Reply {
    let status =
        StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json(status, error)
}

/// The writing end of a stream.
pub(super) type Frames = mpsc::Sender<Bytes>;

/// A stream: the answer, and the end to write messages into.
pub(super) fn stream() -> (Reply, Frames) {
    let (frames, pieces) = mpsc::channel(bounds::QUEUED_FRAMES);
    let mut reply = Response::new(ReplyBody::Stream(pieces));
    set(&mut reply, CONTENT_TYPE, "application/connect+json");
    (reply, frames)
}

/// A stream that ends before its first message. The status is 200 even so.
pub(super) fn stream_error(error: CallError) -> Reply {
    whole(StatusCode::OK, "application/connect+json", end(Some(error)))
}

/// One message in its envelope.
pub(super) fn message(value: &impl Serialize) -> Bytes {
    // The types of this surface have no map keys or numbers that JSON cannot write.
    let text = serde_json::to_vec(value).unwrap_or_default();
    frame::wrap(0, &text).into()
}

/// The last frame of a stream.
pub(super) fn end(error: Option<CallError>) -> Bytes {
    let text = serde_json::to_vec(&StreamEnd { error }).unwrap_or_default();
    frame::wrap(frame::END, &text).into()
}
