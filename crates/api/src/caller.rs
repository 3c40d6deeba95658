//! Who sent a request: the key in its one `Authorization` header.

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use leasehold_control::auth::bearer;
use leasehold_core::tenant::Principal;

use crate::Api;
use crate::error::Refusal;

/// The principal that a valid key proves. Every route but health takes one.
#[derive(Debug, Clone)]
pub(crate) struct Caller(pub(crate) Principal);

/// The token of the one header that may hold it. A key in the query is not looked for, since addresses
/// end up in logs.
fn token(headers: &HeaderMap) -> &str {
    let values = headers.get_all(AUTHORIZATION).iter().take(2);
    let values: Vec<&[u8]> = values.map(HeaderValue::as_bytes).collect();
    bearer(&values)
}

impl FromRequestParts<Api> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Refusal> {
        // A request without a usable token costs what one with a wrong token costs.
        let principal = api.control.authenticate(token(&parts.headers)).await?;
        Ok(Self(principal))
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
        assert_eq!(token(&headers(&["Bearer lh_x"])), "lh_x");
        assert_eq!(token(&headers(&["bearer lh_x"])), "lh_x");
        for bad in [
            vec![],
            vec!["lh_x"],
            vec!["Basic lh_x"],
            vec!["Bearer lh_x", "Bearer lh_x"],
        ] {
            assert_eq!(token(&headers(&bad)), "", "{bad:?}");
        }
    }
}
