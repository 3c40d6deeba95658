//! Connect's closed set of error codes and the error body.

use serde::{Deserialize, Serialize};

/// What went wrong, as Connect names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The caller gave up.
    Canceled,
    /// Nothing better is known.
    Unknown,
    /// The request itself is wrong.
    InvalidArgument,
    /// The time the caller allowed is over.
    DeadlineExceeded,
    /// Not there.
    NotFound,
    /// Already there.
    AlreadyExists,
    /// The acting user may not.
    PermissionDenied,
    /// A bound is reached.
    ResourceExhausted,
    /// Right request, wrong state of the system.
    FailedPrecondition,
    /// Lost to a concurrent change.
    Aborted,
    /// Past the end of something.
    OutOfRange,
    /// No such call, or not in this form.
    Unimplemented,
    /// Our bug or a broken sandbox.
    Internal,
    /// The sandbox is gone or cannot be reached.
    Unavailable,
    /// Data is lost.
    DataLoss,
    /// Nobody knows who asks.
    Unauthenticated,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 16] = [
        Self::Canceled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// HTTP status of a unary call that ends so.
    #[must_use]
    pub fn http_status(self) -> u16 {
        match self {
            Self::Canceled => 499,
            Self::InvalidArgument | Self::FailedPrecondition | Self::OutOfRange => 400,
            Self::DeadlineExceeded => 504,
            Self::NotFound => 404,
            Self::AlreadyExists | Self::Aborted => 409,
            Self::PermissionDenied => 403,
            Self::ResourceExhausted => 429,
            Self::Unimplemented => 501,
            Self::Unknown | Self::Internal | Self::DataLoss => 500,
            Self::Unavailable => 503,
            Self::Unauthenticated => 401,
        }
    }
}

/// An error as a call reports it: the body of a failed unary call, or `error` in the last frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// What kind of failure.
    pub code: Code,
    /// One sentence about it.
    #[serde(default)]
    pub message: String,
}

impl CallError {
    /// An error of a kind.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// Body of the last frame of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamEnd {
    /// The failure; none when the stream ended as it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_named_as_connect_names_them() {
        for code in Code::ALL {
            let text = serde_json::to_string(&code).unwrap();
            assert!(
                text[1..text.len() - 1]
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b == b'_')
            );
            assert!((400..600).contains(&code.http_status()));
            assert_eq!(serde_json::from_str::<Code>(&text).unwrap(), code);
        }
        assert_eq!(serde_json::to_string(&StreamEnd::default()).unwrap(), "{}");
    }
}
