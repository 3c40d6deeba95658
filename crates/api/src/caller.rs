//! Who sent a request: the key in its one `Authorization` header.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::tenant::Principal;

use crate::Api;
use crate::error::Refusal;

/// Longest token that is looked at; ours are far shorter.
const TOKEN_MAX: usize = 256;

/// The principal that a valid key proves. Every route but health takes one.
#[derive(Debug, Clone)]
pub(crate) struct Caller(pub(crate) Principal);

fn refused() -> Refusal {
    PublicError::new(
        ErrorKind::Unauthenticated,
        "no valid API key came with the request",
    )
    .hint("send `Authorization: Bearer lh_…`; `leasehold key create` makes a key")
    .into()
}

/// The token of the one header that may hold it. A key in the query is not looked for, since addresses
/// end up in logs.
fn token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    if values.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && token.len() <= TOKEN_MAX).then_some(token)
}

impl FromRequestParts<Api> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Refusal> {
        // A request without a usable token costs what one with a wrong token costs.
        let token = token(&parts.headers).unwrap_or_default();
        api.control
            .authenticate(token)
            .await
            .map(Self)
            .map_err(|error| match error.kind {
                ErrorKind::Unauthenticated => refused(),
                _ => error.into(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn one_bearer_header_or_nothing() {
        assert_eq!(token(&headers(&["Bearer lh_x"])), Some("lh_x"));
        assert_eq!(token(&headers(&["bearer lh_x"])), Some("lh_x"));
        let long = format!("Bearer {}", "x".repeat(TOKEN_MAX + 1));
        for bad in [
            vec![],
            vec!["lh_x"],
            vec!["Basic lh_x"],
            vec!["Bearer lh_x", "Bearer lh_x"],
            vec![long.as_str()],
        ] {
            assert_eq!(token(&headers(&bad)), None, "{bad:?}");
        }
    }
}
