//! The door: connections of callers that are not trusted yet, and how many, how slow and how large they
//! may be.
//!
//! A head must come whole within a bound, which is also how long a kept-alive connection may say nothing.
//! One caller too many is told so and let go. Without descriptors the connections that say nothing are given up, and
//! callers come in a few at a time, on numbers that were set aside for them, each for a short while: one may want
//! the end of something. A handler that panics costs its caller the answer and nobody anything else.

use std::convert::Infallible;
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
use leasehold_control::engine::descriptors::{Descriptors, Lent};
use leasehold_core::error::{ErrorKind, PublicError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// Most connections at once.
const CONNECTIONS_MAX: usize = 1_024;
/// Most callers beyond them that are told so at once; the next are let go without a word.
const TOLD_MAX: usize = 64;
/// How long a head may take to come, and a connection may say nothing.
const HEAD: Duration = Duration::from_secs(30);
/// The same for a caller that is only told that it is one too many, or that came in for want of descriptors.
const TOLD_HEAD: Duration = Duration::from_secs(1);
/// How long a caller that came in for want of descriptors may stay in all.
const SHORT_STAY: Duration = Duration::from_secs(10);
/// How long a connection may say nothing before it is given up for want of descriptors.
const FRESH: Duration = Duration::from_millis(250);
/// Most bytes of a head.
const HEAD_MAX: usize = 32 << 10;
/// Bytes that are read ahead for one connection, at most.
const AHEAD_MAX: usize = 64 << 10;
/// Descriptors that are asked for, where the host gives so many.
const DESCRIPTORS: u64 = 65_536;
/// Pause after a caller could not be let in.
const PAUSE: Duration = Duration::from_millis(50);
/// Time between two words about that in the log.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// How many and how slow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Width {
    /// Descriptors of this process.
    pub(crate) descriptors: u64,
    /// Most connections at once; at least one.
    pub(crate) connections: usize,
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
            descriptors: have,
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
    descriptors: Arc<Descriptors>,
    mut closing: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(width.connections));
    let told = Arc::new(Semaphore::new(TOLD_MAX));
    let mut hinge = Hinge::new(descriptors);
    let router = TowerToHyperService::new(router);
    let until = closing.clone();
    loop {
        let came = tokio::select! {
            biased;
            () = closed(&mut closing) => break,
            came = hinge.next(&listener) => came,
        };
        let Some((stream, lent)) = came else {
            continue;
        };
        // An answer is one small packet that somebody waits for.
        let _ = stream.set_nodelay(true);
        let mut stay = Stay {
            until: None,
            idle: Some(hinge.idle.subscribe()),
            closing: until.clone(),
        };
        if let Some(lent) = lent {
            let router = router.clone();
            let answer = service_fn(move |request| answered(router.clone(), request));
            let door = door(width.head.min(TOLD_HEAD), false);
            (stay.until, stay.idle) = (Some(Instant::now() + SHORT_STAY), None);
            tokio::spawn(hold(lent, door, stream, answer, stay));
        } else if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            let router = router.clone();
            let answer = service_fn(move |request| answered(router.clone(), request));
            let door = door(width.head, true);
            tokio::spawn(hold(place, door, stream, answer, stay));
        } else if let Ok(place) = Arc::clone(&told).try_acquire_owned() {
            let answer = service_fn(|_| std::future::ready(Ok(full())));
            let door = door(width.head.min(TOLD_HEAD), false);
            tokio::spawn(hold(place, door, stream, answer, stay));
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

/// How long a connection may stay.
struct Stay {
    /// When it ends, whatever it is at.
    until: Option<Instant>,
    /// Tells that it is given up unless it is at something.
    idle: Option<watch::Receiver<()>>,
    closing: watch::Receiver<bool>,
}

impl Stay {
    /// Waits until the connection is to end once it has nothing under way.
    async fn over(&mut self) {
        let fresh = Instant::now() + FRESH;
        let unwanted = async {
            if let Some(idle) = &mut self.idle
                && idle.changed().await.is_ok()
            {
                tokio::time::sleep_until(fresh).await;
            } else {
                std::future::pending().await
            }
        };
        tokio::select! {
            () = closed(&mut self.closing) => {}
            () = unwanted => {}
        }
    }
}

/// One connection to its end. Its place is given back when its descriptor is closed.
async fn hold<P, S>(place: P, door: http1::Builder, stream: TcpStream, service: S, mut stay: Stay)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
{
    let until = stay.until;
    let served = async move {
        let mut connection = pin!(door.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            // How a connection ends is its caller's affair.
            _ = connection.as_mut() => {}
            () = stay.over() => {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        }
    };
    match until {
        Some(until) => drop(tokio::time::timeout_at(until, served).await),
        None => served.await,
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
    descriptors: Arc<Descriptors>,
    said: Option<Instant>,
    /// The last caller could not be let in.
    jammed: bool,
    /// Told when connections that say nothing are given up.
    idle: watch::Sender<()>,
}

impl Hinge {
    fn new(descriptors: Arc<Descriptors>) -> Self {
        Self {
            descriptors,
            said: None,
            jammed: false,
            idle: watch::Sender::new(()),
        }
    }

    /// The next caller, and the number it came in on where there was no other. `None` when nobody could be let
    /// in, or nobody came who could be while there are too few.
    async fn next(&mut self, listener: &TcpListener) -> Option<(TcpStream, Option<Lent>)> {
        if !self.jammed && !self.descriptors.are_scarce() {
            return match listener.accept().await {
                Ok((stream, _)) => Some((stream, None)),
                Err(error) => {
                    self.stuck(&error).await;
                    None
                }
            };
        }
        let Some(lent) = self.descriptors.for_a_caller() else {
            tokio::time::sleep(PAUSE).await;
            return None;
        };
        match tokio::time::timeout(PAUSE, listener.accept()).await {
            Ok(Ok((stream, _))) => {
                self.jammed = false;
                Some((stream, Some(lent)))
            }
            Ok(Err(error)) => {
                drop(lent);
                self.stuck(&error).await;
                None
            }
            // Nobody waits before the door.
            Err(_) => {
                self.jammed = false;
                None
            }
        }
    }

    /// Somebody could not be let in.
    async fn stuck(&mut self, error: &io::Error) {
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
        self.idle.send_replace(());
        if std::mem::replace(&mut self.jammed, true) {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests;
