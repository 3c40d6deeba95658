//! Which request goes where, who may make it, and the headers browsers want.

use hyper::body::Incoming;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ALLOW, HeaderMap,
};
use hyper::{Method, Request, StatusCode};
use leasehold_protocol::envd::channel::Kind;
use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::envd::http::ComposeRequest;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::acting::Done;
use super::query::FilesQuery;
use super::reply::{self, Refusal, Reply, call_error, empty, set, stream_error, unary, whole};
use super::request::{self, Meta, media_type, text};
use super::state::State;
use super::token::{Operation, Signed};
use super::{bootstrap, bounds, compose, download, filesystem, metrics, process, upload, watcher};

const TOKEN: &str = "x-access-token";

/// Answers one request.
pub(super) async fn route(state: State, kind: Kind, request: Request<Incoming>) -> Reply {
    let browser = request.headers().contains_key("origin");
    let mut reply = answer(state, kind, request).await;
    if browser {
        share(&mut reply);
    }
    reply
}

/// Lets pages of any origin see the answer; what protects it is the token.
fn share(reply: &mut Reply) {
    set(reply, ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    set(
        reply,
        ACCESS_CONTROL_EXPOSE_HEADERS,
        "Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, Location, Cache-Control, X-Content-Type-Options",
    );
}

fn preflight() -> Reply {
    let mut reply = empty(StatusCode::NO_CONTENT);
    let methods = "HEAD, GET, POST, PUT, PATCH, DELETE";
    set(&mut reply, ACCESS_CONTROL_ALLOW_METHODS, methods);
    set(&mut reply, ACCESS_CONTROL_ALLOW_HEADERS, "*, Authorization");
    set(&mut reply, ACCESS_CONTROL_MAX_AGE, "7200");
    reply
}

async fn answer(state: State, kind: Kind, request: Request<Incoming>) -> Reply {
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    if method == Method::OPTIONS {
        return preflight();
    }
    if path == "/health" {
        return only(&[Method::GET, Method::HEAD], &method)
            .unwrap_or_else(|| empty(StatusCode::NO_CONTENT));
    }
    if path == "/files" {
        return files(&state, kind, request)
            .await
            .unwrap_or_else(Refusal::reply);
    }
    if !allowed(&state, kind, request.headers()) {
        let message = "unauthorized access, please provide a valid access token or method signing if supported";
        return Refusal::new(StatusCode::UNAUTHORIZED, message).reply();
    }
    match path.as_str() {
        "/envs" => only(&[Method::GET], &method)
            .unwrap_or_else(|| reply::json(StatusCode::OK, &state.settings.borrow().envs)),
        "/metrics" => only(&[Method::GET], &method)
            .unwrap_or_else(|| reply::json(StatusCode::OK, &metrics::metrics(&state))),
        "/files/compose" => match only(&[Method::POST], &method) {
            Some(refusal) => refusal,
            None => composition(&state, request)
                .await
                .unwrap_or_else(Refusal::reply),
        },
        _ => call(state, kind, &method, &path, request).await,
    }
}

/// The refusal of a method that a path does not have.
fn only(methods: &[Method], method: &Method) -> Option<Reply> {
    if methods.contains(method) {
        return None;
    }
    let mut reply = empty(StatusCode::METHOD_NOT_ALLOWED);
    let post = methods.contains(&Method::POST);
    set(&mut reply, ALLOW, if post { "POST" } else { "GET" });
    Some(reply)
}

/// Whether the request carries the token, or needs none.
fn allowed(state: &State, kind: Kind, headers: &HeaderMap) -> bool {
    let settings = state.settings.borrow();
    match (&settings.token, kind) {
        (_, Kind::Host) | (None, _) => true,
        (Some(token), _) => text(headers, TOKEN).is_some_and(|text| token.is(text)),
    }
}

/// `/files` takes the token or a signature.
fn check_link(
    state: &State,
    kind: Kind,
    headers: &HeaderMap,
    query: &FilesQuery,
    operation: Operation,
) -> Result<(), Refusal> {
    let refuse = |message: &str| Refusal::new(StatusCode::UNAUTHORIZED, message);
    let settings = state.settings.borrow();
    let (Some(token), Kind::Client) = (&settings.token, kind) else {
        return Ok(());
    };
    if let Some(value) = headers.get(TOKEN).filter(|value| !value.is_empty()) {
        return match value.to_str() {
            Ok(text) if token.is(text) => Ok(()),
            _ => Err(refuse("access token present in header but does not match")),
        };
    }
    let Some(signature) = &query.signature else {
        return Err(refuse("missing signature query parameter"));
    };
    let link = Signed {
        path: query.path.as_deref().unwrap_or(""),
        user: query.username.as_deref().unwrap_or(""),
        signature,
        expiration: query.signature_expiration.as_deref(),
    };
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    token.check(link, operation, now).map_err(refuse)
}

async fn files(state: &State, kind: Kind, request: Request<Incoming>) -> Result<Reply, Refusal> {
    let operation = match *request.method() {
        Method::GET => Operation::Read,
        Method::POST => Operation::Write,
        _ => return Ok(empty(StatusCode::METHOD_NOT_ALLOWED)),
    };
    let query = FilesQuery::parse(request.uri().query().unwrap_or(""))
        .ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, "query is not UTF-8"))?;
    check_link(state, kind, request.headers(), &query, operation)?;
    let user = state.user(query.username.as_deref())?;
    let (head, body) = request.into_parts();
    match operation {
        Operation::Read => {
            let path = state.path(query.path.as_deref().unwrap_or(""), &user)?;
            download::get(state, &user, &path, &head.headers).await
        }
        Operation::Write => {
            upload::post(state, &user, query.path.as_deref(), &head.headers, body).await
        }
    }
}

async fn composition(state: &State, request: Request<Incoming>) -> Result<Reply, Refusal> {
    let bytes = request::body(request.into_body(), bounds::UNARY_BYTES).await?;
    let wanted: ComposeRequest = request::parse(&bytes)?;
    let user = state.user(wanted.username.as_deref())?;
    compose::post(state, &user, wanted).await
}

/// A request of a call, taken apart.
struct Call {
    meta: Meta,
    /// Bytes its message may have.
    most: usize,
    headers: HeaderMap,
    body: Incoming,
}

async fn call(
    state: State,
    kind: Kind,
    method: &Method,
    path: &str,
    request: Request<Incoming>,
) -> Reply {
    let Some((service, name)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
        return not_found();
    };
    let streams = matches!(
        (service, name),
        ("process.Process", "Start" | "Connect" | "StreamInput")
            | ("filesystem.Filesystem", "WatchDir")
    );
    let known = matches!(service, "process.Process" | "filesystem.Filesystem")
        || (service == "leasehold.Bootstrap" && kind == Kind::Host);
    if !known {
        return not_found();
    }
    if let Some(refusal) = only(&[Method::POST], method) {
        return refusal;
    }
    let wanted = if streams {
        "application/connect+json"
    } else {
        "application/json"
    };
    if media_type(request.headers()) != wanted {
        let mut reply = empty(StatusCode::UNSUPPORTED_MEDIA_TYPE);
        set(
            &mut reply,
            hyper::header::HeaderName::from_static("accept-post"),
            wanted,
        );
        return reply;
    }
    let (head, body) = request.into_parts();
    let meta = match Meta::read(&head.headers) {
        Ok(meta) => meta,
        Err(error) if streams => return stream_error(error),
        Err(error) => return call_error(&error),
    };
    let most = match kind {
        Kind::Host => bounds::HOST_UNARY_BYTES,
        Kind::Client | Kind::Port(_) => bounds::UNARY_BYTES,
    };
    let call = Call {
        meta,
        most,
        headers: head.headers,
        body,
    };
    if streams {
        return stream(state, service, name, call).await;
    }
    let deadline = call.meta.deadline;
    let answer = once(&state, service, name, call);
    match deadline {
        None => answer.await,
        Some(deadline) => match tokio::time::timeout_at(deadline, answer).await {
            Ok(reply) => reply,
            Err(_) => call_error(&CallError::new(
                Code::DeadlineExceeded,
                "context deadline exceeded",
            )),
        },
    }
}

fn not_found() -> Reply {
    Refusal::new(StatusCode::NOT_FOUND, "no such path").reply()
}

async fn stream(state: State, service: &str, name: &str, call: Call) -> Reply {
    macro_rules! message {
        () => {
            match request::single(&call.headers, call.body).await {
                Ok(message) => message,
                Err(error) => return stream_error(error),
            }
        };
    }
    match (service, name) {
        ("process.Process", "Start") => process::start(state, call.meta, message!()).await,
        ("process.Process", "Connect") => process::connect(&state, &call.meta, &message!()),
        ("process.Process", "StreamInput") => match request::uncompressed(&call.headers) {
            Ok(()) => process::stream_input(state, call.meta, call.body).await,
            Err(error) => stream_error(error),
        },
        ("filesystem.Filesystem", "WatchDir") => {
            watcher::stream(state, call.meta, message!()).await
        }
        _ => stream_error(unknown(service, name)),
    }
}

fn unknown(service: &str, name: &str) -> CallError {
    CallError::new(
        Code::Unimplemented,
        format!("{service} has no method {name:?}"),
    )
}

/// Reads a message, carries it out, answers.
async fn handle<T: DeserializeOwned, R: Serialize>(
    call: Call,
    work: impl AsyncFnOnce(Meta, T) -> Result<R, CallError>,
) -> Reply {
    match request::unary(&call.headers, call.body, call.most).await {
        Ok(message) => unary(work(call.meta, message).await),
        Err(error) => call_error(&error),
    }
}

/// As [`handle`], for work whose answer is JSON already.
async fn pass<T: DeserializeOwned>(
    call: Call,
    work: impl AsyncFnOnce(Meta, T) -> Result<Done, CallError>,
) -> Reply {
    let outcome = match request::unary(&call.headers, call.body, call.most).await {
        Ok(message) => work(call.meta, message).await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok(done) => whole(StatusCode::OK, "application/json", done.json),
        Err(error) => call_error(&error),
    }
}

async fn once(state: &State, service: &str, name: &str, call: Call) -> Reply {
    match service {
        "process.Process" => once_process(state, name, call).await,
        "filesystem.Filesystem" => once_filesystem(state, name, call).await,
        _ => once_bootstrap(state, name, call).await,
    }
}

async fn once_process(state: &State, name: &str, call: Call) -> Reply {
    use leasehold_protocol::envd::process::Empty;
    match name {
        "List" => handle(call, async |_, _: Empty| Ok(process::list(state))).await,
        "Update" => handle(call, async |_, message| process::update(state, &message)).await,
        "SendInput" => {
            handle(call, async |_, message| {
                process::send_input(state, message).await
            })
            .await
        }
        "SendSignal" => {
            handle(call, async |_, message| {
                process::send_signal(state, message).await
            })
            .await
        }
        "CloseStdin" => {
            handle(call, async |_, message| {
                process::close_stdin(state, message).await
            })
            .await
        }
        _ => call_error(&unknown("process.Process", name)),
    }
}

async fn once_filesystem(state: &State, name: &str, call: Call) -> Reply {
    match name {
        "Stat" => {
            pass(call, async |meta, message| {
                filesystem::stat(state, &meta, message).await
            })
            .await
        }
        "MakeDir" => {
            pass(call, async |meta, message| {
                filesystem::make_dir(state, &meta, message).await
            })
            .await
        }
        "Move" => {
            pass(call, async |meta, message| {
                filesystem::rename(state, &meta, message).await
            })
            .await
        }
        "ListDir" => {
            pass(call, async |meta, message| {
                filesystem::list(state, &meta, message).await
            })
            .await
        }
        "Remove" => {
            pass(call, async |meta, message| {
                filesystem::remove(state, &meta, message).await
            })
            .await
        }
        "CreateWatcher" => {
            handle(call, async |meta, message| {
                watcher::create(state, &meta, message).await
            })
            .await
        }
        "GetWatcherEvents" => {
            handle(call, async |_, message| {
                watcher::events(state, message).await
            })
            .await
        }
        "RemoveWatcher" => handle(call, async |_, message| watcher::remove(state, &message)).await,
        _ => call_error(&unknown("filesystem.Filesystem", name)),
    }
}

async fn once_bootstrap(state: &State, name: &str, call: Call) -> Reply {
    use leasehold_protocol::envd::process::Empty;
    match name {
        "Inject" => {
            handle(call, async |_, message| {
                bootstrap::inject(state, message).await
            })
            .await
        }
        "Rearm" => handle(call, async |_, message| bootstrap::rearm(state, message)).await,
        "Reset" => handle(call, async |_, _: Empty| bootstrap::reset(state).await).await,
        "Usage" => handle(call, async |_, _: Empty| Ok(metrics::usage(state))).await,
        "Ports" => handle(call, async |_, _: Empty| Ok(metrics::ports())).await,
        _ => call_error(&unknown("leasehold.Bootstrap", name)),
    }
}
