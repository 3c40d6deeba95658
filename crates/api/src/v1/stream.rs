//! `/v1/runs/{run}/events`: a run as it happens, as server-sent events.
//!
//! Every event has an id from which `Last-Event-ID` goes on, during the run and after it. Exactly one
//! event is terminal: `done` for a run that completed (and for what a bare command returned by itself),
//! `error` for every other end. A daemon that ends closes its streams with `leaving`: the run goes on, and
//! so does its stream from there once a daemon is back. A reader that goes away holds up nobody.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_core::Stream;
use leasehold_control::control::{Cursor, Update};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use serde_json::{Value, json};

use super::view::{Inline, RunView};
use crate::Api;
use crate::body::At;
use crate::caller::Caller;
use crate::error::{ErrorBody, Refusal};

/// Time between two signs of life on a silent stream.
const HEARTBEAT: Duration = Duration::from_secs(15);

fn cursor(headers: &HeaderMap) -> Result<Cursor, Refusal> {
    let Some(value) = headers.get("last-event-id") else {
        return Ok(Cursor::default());
    };
    value
        .to_str()
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| {
            PublicError::new(
                ErrorKind::Invalid,
                "`Last-Event-ID` is no id of an event of this stream",
            )
            .hint("leave it out to begin at the first byte")
            .into()
        })
}

/// A piece of output on its way, cut between characters where it is text.
fn output(bytes: &[u8]) -> Value {
    let Inline { text, base64, .. } = Inline::of(bytes, bytes.len() as u64);
    match text {
        Some(text) => json!({ "text": text }),
        None => json!({ "base64": base64 }),
    }
}

fn event(update: Update, at: &Cursor) -> Event {
    let (name, data) = match update {
        Update::Queued { ahead } => ("queued", json!({ "ahead": ahead })),
        Update::Compiling { module } => ("compiling", json!({ "module": module })),
        Update::Compiled { module, micros } => {
            ("compiled", json!({ "module": module, "micros": micros }))
        }
        Update::Pulling { image } => ("pulling", json!({ "image": image })),
        Update::Pulled { image, micros } => ("pulled", json!({ "image": image, "micros": micros })),
        Update::Start { sandbox, warm } => ("start", json!({ "sandbox": sandbox, "warm": warm })),
        Update::Stdout(bytes) => ("stdout", output(&bytes)),
        Update::Stderr(bytes) => ("stderr", output(&bytes)),
        Update::Progress(value) => ("progress", value),
        Update::Log(text) => ("log", json!({ "text": text })),
        Update::Stage(time) => ("stage", json!(time)),
        Update::Over(row) => {
            let view = RunView::from(*row);
            let name = if view.failed() { "error" } else { "done" };
            (name, json!(view))
        }
        Update::Leaving => (
            "leaving",
            json!({ "message": "the daemon ends; the run goes on, and its events from here once a daemon is back" }),
        ),
    };
    Event::default()
        .id(at.to_string())
        .event(name)
        .data(data.to_string())
}

/// Follows a run from its first byte, or from behind `Last-Event-ID`.
#[utoipa::path(
    get, path = "/v1/runs/{run}/events", tag = "runs",
    params(("run" = RunId, Path), ("Last-Event-ID" = Option<String>, Header, description = "id of the last event that was seen")),
    responses((status = 200, description = "queued, compiling, compiled, pulling, pulled, start, stdout, stderr, progress, log, stage; then one of done, error, or leaving when the daemon ends", content_type = "text/event-stream", body = String), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn events(
    State(api): State<Api>,
    Caller(who): Caller,
    At(run): At<RunId>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    let from = cursor(&headers)?;
    let mut follower = api.control.follow(&who, &run, from).await?;
    let following = api.followers.enter(&who.tenant)?;
    let stream = async_stream::stream! {
        let _following = following;
        while let Some((update, at)) = follower.next().await {
            yield Ok(event(update, &at));
        }
    };
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(HEARTBEAT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_text_where_it_can_be() {
        assert_eq!(output(b"hi\n"), json!({"text": "hi\n"}));
        assert_eq!(output(&[0xff, 0x00]), json!({"base64": "/wA="}));
    }
}
