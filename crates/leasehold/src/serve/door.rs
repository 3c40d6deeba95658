//! The door: connections of callers that are not trusted yet, and how many, how slow and how large they
//! may be.
//!
//! A head must come whole within a bound, which is also how long a kept-alive connection may say nothing.
//! One caller too many is told so and let go. Without descriptors callers wait before the door for a
//! moment; then one is given up, so that the next caller is let go and does not hang for ever. A handler that panics costs its caller the answer and nobody
//! anything else.

use std::convert::Infallible;
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use leasehold_api::error::Refusal;
use leasehold_core::error::{ErrorKind, PublicError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

/// Most connections at once.
const CONNECTIONS_MAX: usize = 1_024;
/// Most callers beyond them that are told so at once; the next are let go without a word.
const TOLD_MAX: usize = 64;
/// How long a head may take to come, and a connection may say nothing.
const HEAD: Duration = Duration::from_secs(30);
/// The same for a caller that is only told that it is one too many.
const TOLD_HEAD: Duration = Duration::from_secs(1);
/// Most bytes of a head.
const HEAD_MAX: usize = 32 << 10;
/// Bytes that are read ahead for one connection, at most.
const AHEAD_MAX: usize = 64 << 10;
/// Descriptors that are asked for, where the host gives so many.
const DESCRIPTORS: u64 = 65_536;
/// How long callers wait before the door while there are no descriptors; then one after another is let go.
const STUCK: Duration = Duration::from_secs(2);
/// Pause after a caller could not be let in.
const PAUSE: Duration = Duration::from_millis(50);
/// Time between two words about that in the log.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// How many and how slow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Width {
    /// Most connections at once; at least one.
    connections: usize,
    /// How long a head may take.
    head: Duration,
}

impl Width {
    /// What this process can hold: as many as there are, and never more than a quarter of its descriptors,
    /// since runs need some too. Raises how many it may have.
    pub(crate) fn settle() -> Self {
        let found = getrlimit(Resource::Nofile);
        let most = found.maximum.unwrap_or(DESCRIPTORS).min(DESCRIPTORS);
        let mut have = found.current.unwrap_or(DESCRIPTORS);
        if have < most {
            let raised = Rlimit {
                current: Some(most),
                maximum: found.maximum,
            };
            have = setrlimit(Resource::Nofile, raised).map_or(have, |()| most);
        }
        let quarter = usize::try_from(have / 4).unwrap_or(CONNECTIONS_MAX);
        Self {
            connections: quarter.clamp(1, CONNECTIONS_MAX),
            head: HEAD,
        }
    }
}

/// Serves until `closing` says so, then lets what is under way come to its end.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    width: Width,
    mut closing: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(width.connections));
    let told = Arc::new(Semaphore::new(TOLD_MAX));
    let mut hinge = Hinge::new();
    let router = TowerToHyperService::new(router);
    let until = closing.clone();
    loop {
        let accepted = tokio::select! {
            biased;
            () = closed(&mut closing) => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => {
                hinge.stuck_since = None;
                stream
            }
            Err(error) => {
                hinge.jammed(&listener, &error).await;
                continue;
            }
        };
        // An answer is one small packet that somebody waits for.
        let _ = stream.set_nodelay(true);
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            let router = router.clone();
            let answer = service_fn(move |request| answered(router.clone(), request));
            let door = door(width.head, true);
            tokio::spawn(hold(place, door, stream, answer, until.clone()));
        } else if let Ok(place) = Arc::clone(&told).try_acquire_owned() {
            let answer = service_fn(|_| std::future::ready(Ok(full())));
            let door = door(width.head.min(TOLD_HEAD), false);
            tokio::spawn(hold(place, door, stream, answer, until.clone()));
        }
    }
    drop(listener);
    let all = u32::try_from(width.connections).unwrap_or(u32::MAX);
    // It is never closed; the last connection gives the last place back.
    let _ = places.acquire_many(all).await;
}

fn door(head: Duration, again: bool) -> http1::Builder {
    let mut door = http1::Builder::new();
    door.timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_header_size(HEAD_MAX)
        .max_buf_size(AHEAD_MAX)
        .keep_alive(again);
    door
}

/// Waits until the door is to be closed.
async fn closed(closing: &mut watch::Receiver<bool>) {
    // A sender that is gone means the end as well.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// One connection to its end.
async fn hold<S>(
    place: OwnedSemaphorePermit,
    door: http1::Builder,
    stream: TcpStream,
    service: S,
    mut closing: watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
{
    let mut connection = pin!(door.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // How a connection ends is its caller's affair.
        _ = connection.as_mut() => {}
        () = closed(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
    drop(place);
}

/// The answer of a route, or of us where the route fell over.
async fn answered(
    router: TowerToHyperService<Router>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let mut answer = pin!(async move { router.call(request).await });
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context)));
        polled.unwrap_or_else(|_| Poll::Ready(Ok(fell_over())))
    })
    .await
}

fn fell_over() -> Response<Body> {
    let error = PublicError::new(ErrorKind::Internal, "the request could not be answered");
    Refusal::from(error).into_response()
}

fn full() -> Response<Body> {
    let error = PublicError::new(
        ErrorKind::Unavailable,
        "the daemon has as many connections as it may have",
    )
    .hint("close what is not needed, or use one connection for several requests");
    Refusal::from(error).into_response()
}

/// Keeps the door moving when there are no descriptors.
struct Hinge {
    /// Given up so that a caller can be let in and let go.
    spare: Option<File>,
    said: Option<Instant>,
    /// Since when nobody could be let in.
    stuck_since: Option<Instant>,
}

impl Hinge {
    fn new() -> Self {
        Self {
            spare: File::open("/dev/null").ok(),
            said: None,
            stuck_since: None,
        }
    }

    /// Somebody could not be let in.
    async fn jammed(&mut self, listener: &TcpListener, error: &io::Error) {
        let gone = [
            io::ErrorKind::ConnectionAborted,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::ConnectionRefused,
        ];
        if gone.contains(&error.kind()) {
            return;
        }
        if self.said.is_none_or(|said| said.elapsed() > SAY_EVERY) {
            self.said = Some(Instant::now());
            tracing::warn!(%error, "callers cannot be let in");
        }
        let since = *self.stuck_since.get_or_insert_with(Instant::now);
        if since.elapsed() > STUCK {
            self.spare = None;
            // Whoever waited longest learns that nobody answers.
            let _ = tokio::time::timeout(PAUSE, listener.accept()).await;
            self.spare = File::open("/dev/null").ok();
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests;
