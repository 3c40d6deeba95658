//! Errors as they go over the wire: `{"error": {code, message, type, retryable, details, hint}}`.
//!
//! The one place where a kind of failure becomes a status. What is not yours and what is not there are
//! the same answer.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold_core::end::EndReason;
use leasehold_core::error::{ErrorKind, PublicError};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// The closed list of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// No valid key came with the request.
    Unauthenticated,
    /// The key may not do it.
    Forbidden,
    /// The tenant has no such tool or version.
    ToolNotFound,
    /// Not there, or not yours.
    NotFound,
    /// The request itself is wrong.
    InvalidInput,
    /// It does not fit what is there already.
    Conflict,
    /// The tool's output breaks its own schema.
    InvalidOutput,
    /// It took longer than its limit.
    Timeout,
    /// A limit ended it.
    ResourceExceeded,
    /// No computer that is strong enough, in time.
    SandboxUnavailable,
    /// The tool failed.
    ToolError,
    /// Too many requests or too long a queue.
    RateLimited,
    /// Somebody cancelled it.
    Cancelled,
    /// Its lease ran out.
    LeaseExpired,
    /// The host or our part on it failed.
    SandboxCrashed,
    /// Our fault.
    Internal,
}

/// What is wrong, for programs and for people.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ErrorObject {
    /// One of a closed list.
    pub code: Code,
    /// One sentence; names the field, the value and what is allowed.
    pub message: String,
    /// Whose fault: `caller`, `tool`, `capacity` or `server`.
    #[serde(rename = "type")]
    pub fault: &'static str,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// More for programs, by code; null where there is nothing.
    pub details: Value,
    /// The mend, where one is known.
    pub hint: Option<String>,
}

/// The body of every refusal.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong.
    pub error: ErrorObject,
}

/// A refusal on its way out.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    status: StatusCode,
    body: ErrorBody,
}

impl Refusal {
    /// The status it goes out with.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// A refusal of a kind with a code of its own.
    #[must_use]
    pub fn with_code(mut self, code: Code) -> Self {
        self.body.error.code = code;
        self
    }

    /// Adds details for programs.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.body.error.details = details;
        self
    }
}

fn code(kind: ErrorKind) -> (Code, &'static str) {
    match kind {
        ErrorKind::Invalid => (Code::InvalidInput, "caller"),
        ErrorKind::Unauthenticated => (Code::Unauthenticated, "caller"),
        ErrorKind::Forbidden => (Code::Forbidden, "caller"),
        ErrorKind::NotFound => (Code::NotFound, "caller"),
        ErrorKind::Exists | ErrorKind::Conflict | ErrorKind::WrongState => {
            (Code::Conflict, "caller")
        }
        ErrorKind::Quota => (Code::RateLimited, "capacity"),
        ErrorKind::NoCapacity | ErrorKind::Unsupported => (Code::SandboxUnavailable, "capacity"),
        ErrorKind::Timeout => (Code::Timeout, "capacity"),
        ErrorKind::Unavailable => (Code::SandboxUnavailable, "server"),
        ErrorKind::Internal => (Code::Internal, "server"),
    }
}

impl From<PublicError> for Refusal {
    fn from(error: PublicError) -> Self {
        let (code, fault) = code(error.kind);
        Self {
            status: StatusCode::from_u16(error.kind.http_status())
                .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            body: ErrorBody {
                error: ErrorObject {
                    code,
                    message: error.message,
                    fault,
                    retryable: error.kind.retryable(),
                    details: Value::Null,
                    hint: error.hint,
                },
            },
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body)).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

/// The error object of an end that is no success; `None` for a run that completed, and for what a bare
/// command did by itself, which is its own affair.
#[must_use]
pub fn of_end(end: &EndReason, is_tool: bool) -> Option<(StatusCode, ErrorObject)> {
    let (code, fault, retryable) = match end {
        EndReason::Completed => return None,
        EndReason::ToolError { .. } if !is_tool => return None,
        EndReason::ToolError { .. } => (Code::ToolError, "tool", false),
        EndReason::SandboxUnavailable { .. } => (Code::SandboxUnavailable, "capacity", true),
        EndReason::Cancelled { .. } => (Code::Cancelled, "caller", false),
        EndReason::LeaseExpired { .. } => (Code::LeaseExpired, "caller", false),
        EndReason::Timeout { .. } => (Code::Timeout, "tool", false),
        EndReason::ResourceExceeded { .. } => (Code::ResourceExceeded, "tool", false),
        EndReason::HostLost | EndReason::SandboxCrashed { .. } => {
            (Code::SandboxCrashed, "server", true)
        }
        EndReason::InvalidOutput { .. } => (Code::InvalidOutput, "tool", false),
    };
    let object = ErrorObject {
        code,
        message: end.phrase(),
        fault,
        retryable,
        details: serde_json::to_value(end).unwrap_or(Value::Null),
        hint: None,
    };
    let status =
        StatusCode::from_u16(end.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Some((status, object))
}

#[cfg(test)]
mod tests {
    use leasehold_core::end::ExitStatus;

    use super::*;

    #[test]
    fn each_kind_has_its_status_and_code() {
        let rows = [
            (ErrorKind::Unauthenticated, 401, "unauthenticated"),
            (ErrorKind::Forbidden, 403, "forbidden"),
            (ErrorKind::NotFound, 404, "not_found"),
            (ErrorKind::Invalid, 400, "invalid_input"),
            (ErrorKind::Conflict, 409, "conflict"),
            (ErrorKind::Quota, 429, "rate_limited"),
            (ErrorKind::NoCapacity, 503, "sandbox_unavailable"),
            (ErrorKind::Internal, 500, "internal"),
        ];
        for (kind, status, code) in rows {
            let refusal = Refusal::from(PublicError::new(kind, "why"));
            assert_eq!(refusal.status.as_u16(), status);
            let body = serde_json::to_value(&refusal.body).unwrap();
            assert_eq!(body["error"]["code"], code);
            assert_eq!(body["error"]["message"], "why");
        }
    }

    #[test]
    fn a_bare_command_that_fails_is_no_error_of_the_request() {
        let end = EndReason::ToolError {
            exit: ExitStatus::Exit { code: 3 },
        };
        assert_eq!(of_end(&end, false), None);
        let (status, object) = of_end(&end, true).unwrap();
        assert_eq!((status.as_u16(), object.code), (422, Code::ToolError));
        assert_eq!(of_end(&EndReason::Completed, true), None);
        let (status, _) = of_end(&EndReason::Timeout { limit_ms: 1 }, false).unwrap();
        assert_eq!(status.as_u16(), 504);
    }
}
