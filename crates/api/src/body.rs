//! Bodies, paths and queries of requests, refused in our own words.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use leasehold_core::error::{ErrorKind, PublicError};
use serde::de::DeserializeOwned;

use crate::error::Refusal;

/// Most bytes of a JSON body: input, environment and a small standard input fit.
const BODY_MAX: usize = 16 << 20;
/// How long a JSON body may take to come.
const BODY_PATIENCE: Duration = Duration::from_secs(30);

fn invalid(message: impl Into<String>) -> Refusal {
    PublicError::new(ErrorKind::Invalid, message).into()
}

/// The bytes of a JSON body; what they mean is for whoever parses them.
pub(crate) struct JsonBody(pub(crate) Vec<u8>);

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let json = request
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split(';').next())
            .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
        if !json {
            return Err(invalid("`content-type` must be application/json"));
        }
        let body = whole(request.into_body(), "body", BODY_MAX, BODY_PATIENCE);
        Ok(Self(body.await?.to_vec()))
    }
}

/// All of a body that has at most so many bytes and comes in time.
pub(crate) async fn whole(
    body: Body,
    what: &str,
    most: usize,
    patience: Duration,
) -> Result<Bytes, Refusal> {
    match tokio::time::timeout(patience, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(invalid(format!(
            "the {what} is cut or longer than {most} bytes"
        ))),
        Err(_) => Err(invalid(format!(
            "the {what} took longer than {} s to come",
            patience.as_secs()
        ))),
    }
}

impl JsonBody {
    /// Reads a small administrative body.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        serde_json::from_slice(&self.0).map_err(|error| invalid(format!("body: {error}")))
    }
}

/// Parts of the path. What is no id or name cannot be there, and is answered like it.
pub(crate) struct At<T>(pub(crate) T);

impl<T, S> FromRequestParts<S> for At<T>
where
    T: DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let path: Result<Path<T>, PathRejection> = Path::from_request_parts(parts, state).await;
        path.map(|Path(value)| Self(value)).map_err(|_| not_found())
    }
}

/// The one answer for what is not there and what is not yours.
pub(crate) fn not_found() -> Refusal {
    PublicError::new(ErrorKind::NotFound, "there is no such thing here").into()
}

/// A query, and what each of its parameters may be.
pub(crate) trait Parameters: DeserializeOwned {
    /// Name and what is allowed.
    const ALLOWED: &'static [(&'static str, &'static str)];
}

/// The query.
pub(crate) struct Asked<T>(pub(crate) T);

/// What is wrong with a query: parameter, value, what is allowed.
fn mistake<T: Parameters>(query: &str) -> String {
    let pairs = |query: &str| -> Option<Vec<(String, String)>> {
        let uri = Uri::builder().path_and_query(format!("/?{query}")).build();
        Some(Query::try_from_uri(&uri.ok()?).ok()?.0)
    };
    let mut seen = BTreeSet::new();
    for part in query.split('&') {
        let Some((name, value)) = pairs(part).and_then(|mut pairs| pairs.pop()) else {
            continue;
        };
        let shown = |text: &str| text.chars().take(80).collect::<String>();
        let Some((_, allowed)) = T::ALLOWED.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = T::ALLOWED.iter().map(|(known, _)| *known).collect();
            return format!(
                "{:?}: unknown: known here are {}",
                shown(&name),
                known.join(", ")
            );
        };
        let uri = Uri::builder().path_and_query(format!("/?{part}")).build();
        let good = uri.is_ok_and(|uri| Query::<T>::try_from_uri(&uri).is_ok());
        if !good {
            return format!("{name}: {:?}: expected {allowed}", shown(&value));
        }
        if !seen.insert(name.clone()) {
            return format!("{name}: it is there twice");
        }
    }
    "it cannot be read".to_owned()
}

impl<T, S> FromRequestParts<S> for Asked<T>
where
    T: Parameters,
    S: Send + Sync,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let query: Result<Query<T>, QueryRejection> = Query::from_request_parts(parts, state).await;
        query.map(|Query(value)| Self(value)).map_err(|_| {
            let query = parts.uri.query().unwrap_or_default();
            invalid(format!("query: {}", mistake::<T>(query)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        let told = |refused: Result<Bytes, Refusal>| format!("{:?}", refused.unwrap_err());
        let never = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
        let late = whole(Body::from_stream(never), "body", 8, SHORT).await;
        assert!(told(late).contains("took longer than 0 s"));
        let long = whole(Body::from("123456789"), "archive", 8, SHORT).await;
        assert!(told(long).contains("the archive is cut or longer than 8 bytes"));
        let good = whole(Body::from("12345678"), "body", 8, SHORT).await;
        assert_eq!(good.unwrap(), "12345678");
    }
}
