//! Reading requests: headers with their bounds, bodies with theirs, and call messages.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use leasehold_protocol::envd::base64;
use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::envd::frame::{self, Unwrapper};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::bounds;

/// Head of a request, as far as calls look at it.
#[derive(Debug, Clone, Default)]
pub(super) struct Meta {
    /// User named by `Authorization: Basic`.
    pub(super) user: Option<String>,
    /// When the caller's patience ends.
    pub(super) deadline: Option<Instant>,
    /// Idle time after which a keepalive is sent.
    pub(super) keepalive: Duration,
}

/// A header's text, if it is there and visible ASCII.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn invalid(message: impl Into<String>) -> CallError {
    CallError::new(Code::InvalidArgument, message)
}

impl Meta {
    /// Reads what every call may carry.
    ///
    /// # Errors
    /// When a timeout is no number of at most ten digits, or a user name is no text.
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, CallError> {
        let keepalive = text(headers, "keepalive-ping-interval")
            .and_then(|text| text.parse::<u64>().ok())
            .filter(|seconds| bounds::KEEPALIVE.contains(seconds))
            .unwrap_or(bounds::KEEPALIVE_DEFAULT);
        Ok(Self {
            user: basic_user(headers)?,
            deadline: timeout(headers)?.map(|time| Instant::now() + time),
            keepalive: Duration::from_secs(keepalive),
        })
    }
}

fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, CallError> {
    let Some(value) = headers.get("connect-timeout-ms") else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or("");
    let digits = !text.is_empty() && text.len() <= 10 && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(0) if digits => Ok(None),
        Ok(ms) if digits => Ok(Some(Duration::from_millis(ms))),
        _ => Err(invalid(
            "connect-timeout-ms is not a number of at most ten digits",
        )),
    }
}

fn basic_user(headers: &HeaderMap) -> Result<Option<String>, CallError> {
    let Some(value) = headers.get(AUTHORIZATION) else {
        return Ok(None);
    };
    let wrong = || CallError::new(Code::Unauthenticated, "authorization is not a user name");
    let value = value.to_str().map_err(|_| wrong())?;
    // Another scheme is somebody else's business, as for the official agent.
    let Some(coded) = value.strip_prefix("Basic ") else {
        return Ok(None);
    };
    let pair = base64::decode(coded.trim()).map_err(|_| wrong())?;
    let pair = String::from_utf8(pair).map_err(|_| wrong())?;
    let user = pair.split_once(':').map_or(pair.as_str(), |(user, _)| user);
    Ok(Some(user.to_owned()))
}

/// What kind of contents a request says it has, without parameters, in lower case.
pub(super) fn media_type(headers: &HeaderMap) -> String {
    let whole = text(headers, CONTENT_TYPE.as_str()).unwrap_or("");
    let kind = whole.split(';').next().unwrap_or("");
    kind.trim().to_ascii_lowercase()
}

/// Refuses compressed messages; `identity` is what Python sends.
///
/// # Errors
/// When a compression is named.
pub(super) fn uncompressed(headers: &HeaderMap) -> Result<(), CallError> {
    for name in [CONTENT_ENCODING.as_str(), "connect-content-encoding"] {
        match text(headers, name) {
            None | Some("" | "identity") => {}
            Some(other) => {
                let message = format!("compression {other:?} is not supported, only identity");
                return Err(CallError::new(Code::Unimplemented, message));
            }
        }
    }
    Ok(())
}

/// Reads a whole body.
///
/// # Errors
/// When it is longer than `most`, too slow, or cut.
pub(super) async fn body(mut body: Incoming, most: usize) -> Result<Vec<u8>, CallError> {
    let read = async {
        let mut bytes = Vec::new();
        while let Some(piece) = piece(&mut body).await? {
            if bytes.len() + piece.len() > most {
                let message = format!("request body is longer than {most} bytes");
                return Err(CallError::new(Code::ResourceExhausted, message));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    };
    match tokio::time::timeout(bounds::BODY_TIME, read).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let seconds = bounds::BODY_TIME.as_secs();
            let message = format!("request body did not arrive within {seconds} s");
            Err(CallError::new(Code::DeadlineExceeded, message))
        }
    }
}

/// The next piece of a body; none at its end. Waits as long as it takes.
///
/// # Errors
/// When the body is cut or malformed.
pub(super) async fn piece(body: &mut Incoming) -> Result<Option<Bytes>, CallError> {
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
            Err(_) => return Err(CallError::new(Code::Canceled, "request body was cut")),
        }
    }
    Ok(None)
}

/// The next piece of a long body, which may not be silent for too long.
///
/// # Errors
/// As [`piece`], or after [`bounds::SILENCE`].
pub(super) async fn patient_piece(body: &mut Incoming) -> Result<Option<Bytes>, CallError> {
    match tokio::time::timeout(bounds::SILENCE, piece(body)).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let seconds = bounds::SILENCE.as_secs();
            let message = format!("request body was silent for {seconds} s");
            Err(CallError::new(Code::DeadlineExceeded, message))
        }
    }
}

/// Reads the message of a unary call. An empty body is an empty message.
///
/// # Errors
/// When the contents are no such message or break a bound.
pub(super) async fn unary<T: DeserializeOwned>(
    headers: &HeaderMap,
    incoming: Incoming,
    most: usize,
) -> Result<T, CallError> {
    uncompressed(headers)?;
    parse(&body(incoming, most).await?)
}

/// Reads the one message of a server stream's request.
///
/// # Errors
/// When there is not exactly one, or it is no such message, or a bound is broken.
pub(super) async fn single<T: DeserializeOwned>(
    headers: &HeaderMap,
    incoming: Incoming,
) -> Result<T, CallError> {
    uncompressed(headers)?;
    let bytes = body(incoming, frame::MESSAGE_MAX + 2 * frame::HEAD).await?;
    let mut unwrapper = Unwrapper::new();
    unwrapper.push(&bytes);
    let refuse = |error: frame::EnvelopeError| invalid(error.to_string());
    let message = match unwrapper.take().map_err(refuse)? {
        Some((0, message)) => message,
        Some(_) | None => return Err(invalid("request stream holds no message")),
    };
    match unwrapper.take().map_err(refuse)? {
        None => unwrapper.finish().map_err(refuse)?,
        // Some clients close their side with an end frame.
        Some((frame::END, _)) => unwrapper.finish().map_err(refuse)?,
        Some(_) => return Err(invalid("request stream holds more than one message")),
    }
    parse(&message)
}

/// Reads one JSON message. Its nesting is bounded by the parser.
///
/// # Errors
/// When it is no such message.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CallError> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes)
        .map_err(|error| invalid(format!("message is not understood: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.insert(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_head_of_a_call_is_read() {
        let map = headers(&[
            ("authorization", "Basic cm9vdDo="),
            ("connect-timeout-ms", "1500"),
            ("keepalive-ping-interval", "50"),
        ]);
        let meta = Meta::read(&map).unwrap();
        assert_eq!(meta.user.as_deref(), Some("root"));
        assert_eq!(meta.keepalive, Duration::from_secs(50));
        assert!(meta.deadline.unwrap() <= Instant::now() + Duration::from_millis(1500));
        let bare = Meta::read(&headers(&[("connect-timeout-ms", "0")])).unwrap();
        assert_eq!((bare.user, bare.deadline), (None, None));
        assert_eq!(bare.keepalive, Duration::from_secs(90));
    }

    #[test]
    fn hostile_heads_are_refused() {
        for value in ["", "-1", "1e3", "12345678901", "+5", " 5"] {
            let map = headers(&[]);
            let mut map = map;
            map.insert("connect-timeout-ms", HeaderValue::from_static(value));
            assert!(timeout(&map).is_err(), "{value:?}");
        }
        assert!(basic_user(&headers(&[("authorization", "Basic ***")])).is_err());
        assert!(
            basic_user(&headers(&[("authorization", "Bearer x")]))
                .unwrap()
                .is_none()
        );
        let keepalive = Meta::read(&headers(&[("keepalive-ping-interval", "0")])).unwrap();
        assert_eq!(keepalive.keepalive, Duration::from_secs(90));
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_crash() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse::<serde_json::Value>(deep.as_bytes()).is_err());
        assert!(parse::<serde_json::Value>(b"\xff").is_err());
        assert!(
            parse::<std::collections::BTreeMap<String, String>>(b"")
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn only_identity_is_uncompressed() {
        assert!(uncompressed(&headers(&[("content-encoding", "identity")])).is_ok());
        assert!(uncompressed(&headers(&[("content-encoding", "gzip")])).is_err());
        assert!(uncompressed(&headers(&[("connect-content-encoding", "gzip")])).is_err());
    }
}
