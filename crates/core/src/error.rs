//! What kind of failure an error is, and its two texts.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The closed set of failure kinds. Every error of every crate maps to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request itself is wrong.
    Invalid,
    /// Nobody knows who asks.
    Unauthenticated,
    /// Known, and not allowed.
    Forbidden,
    /// Not there, or not yours.
    NotFound,
    /// Already there.
    Exists,
    /// Somebody else changed it meanwhile.
    Conflict,
    /// Right request, wrong moment.
    WrongState,
    /// A quota of the tenant is used up.
    Quota,
    /// The host or fleet has no room.
    NoCapacity,
    /// This host cannot do it.
    Unsupported,
    /// It took too long.
    Timeout,
    /// A needed part is down.
    Unavailable,
    /// Our bug or a broken host.
    Internal,
}

impl ErrorKind {
    /// Whether the same request may succeed later without a change.
    #[must_use]
    pub fn retryable(self) -> bool {
        match self {
            Self::Conflict | Self::Quota | Self::NoCapacity | Self::Timeout | Self::Unavailable => {
                true
            }
            Self::Invalid
            | Self::Unauthenticated
            | Self::Forbidden
            | Self::NotFound
            | Self::Exists
            | Self::WrongState
            | Self::Unsupported
            | Self::Internal => false,
        }
    }

    /// HTTP status on our own API.
    #[must_use]
    pub fn http_status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthenticated => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Exists | Self::Conflict | Self::WrongState => 409,
            Self::Quota => 429,
            Self::NoCapacity | Self::Unsupported | Self::Unavailable => 503,
            Self::Timeout => 504,
            Self::Internal => 500,
        }
    }

    /// Exit status of the command line for a failure that is not a run's own end.
    ///
    /// 2 is the caller's mistake (as for wrong flags), 125 a run that could not start.
    #[must_use]
    pub fn cli_status(self) -> u8 {
        match self {
            Self::Invalid
            | Self::NotFound
            | Self::Exists
            | Self::Forbidden
            | Self::Unauthenticated => 2,
            Self::Conflict
            | Self::WrongState
            | Self::Quota
            | Self::NoCapacity
            | Self::Unsupported
            | Self::Timeout
            | Self::Unavailable
            | Self::Internal => 125,
        }
    }
}

/// A failure as it may be shown to a caller: no host paths, no other tenant's names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct PublicError {
    /// What kind of failure.
    pub kind: ErrorKind,
    /// One sentence, lower case, no full stop; names the field, the value and the limit.
    pub message: String,
    /// The mend, where one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Milliseconds after which the same request may be answered otherwise, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl PublicError {
    /// An error of a kind, without a hint.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
            retry_after_ms: None,
        }
    }

    /// Says after how many milliseconds it may be tried again.
    #[must_use]
    pub fn retry_after_ms(mut self, after_ms: u64) -> Self {
        self.retry_after_ms = Some(after_ms);
        self
    }

    /// Adds the mend.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Text for the operator's log alone. It has no `Display`, so it cannot reach a caller by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Internal(String);

impl Internal {
    /// Wraps a text for the log.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Reads it, for the log.
    #[must_use]
    pub fn for_log(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Internal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Internal(..)")
    }
}
