//! One connection: HTTP/1.1 with its bounds, or raw bytes to a guest port.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use leasehold_protocol::envd::channel::{Kind, PORT_CLOSED, PORT_OPEN};
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpStream, UnixStream};

use super::bounds;
use super::route::route;
use super::state::State;

/// Time in which a guest port must accept.
const DIAL_TIME: Duration = Duration::from_secs(10);

/// Counts an open connection.
struct Open(State);

impl Open {
    fn new(state: &State) -> Option<Self> {
        if state.connections.get() >= bounds::CONNECTIONS {
            return None;
        }
        state.connections.set(state.connections.get() + 1);
        Some(Self(state.clone()))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get() - 1);
    }
}

/// Serves a connection to its end. One too many is closed at once; the host's own are not counted.
pub(super) async fn serve(state: State, kind: Kind, socket: OwnedFd) {
    let open = match kind {
        Kind::Host => None,
        Kind::Client | Kind::Port(_) => match Open::new(&state) {
            None => return,
            open => open,
        },
    };
    let Ok(stream) = adopt(socket) else {
        return;
    };
    let mut cuts = state.cuts.subscribe();
    let work = async {
        match kind {
            Kind::Port(port) => carry(stream, port).await,
            Kind::Client | Kind::Host => speak(state, kind, stream).await,
        }
    };
    match kind {
        Kind::Host => work.await,
        Kind::Client | Kind::Port(_) => {
            tokio::select! {
                () = work => {}
                _ = cuts.changed() => {}
            }
        }
    }
    drop(open);
}

fn adopt(socket: OwnedFd) -> io::Result<UnixStream> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    UnixStream::from_std(socket.into())
}

async fn speak(state: State, kind: Kind, stream: UnixStream) {
    let service = service_fn(move |request| {
        let answer = route(state.clone(), kind, request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds::HEAD_TIME)
        .max_headers(bounds::HEADERS)
        .max_buf_size(bounds::HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // How a connection ends is the client's affair.
    let _ = connection.await;
}

/// Carries bytes between the host and a port on the guest's loopback.
async fn carry(mut stream: UnixStream, port: u16) {
    let dial = async {
        match TcpStream::connect(("127.0.0.1", port)).await {
            Err(_) => TcpStream::connect(("::1", port)).await,
            connected => connected,
        }
    };
    match tokio::time::timeout(DIAL_TIME, dial).await {
        Ok(Ok(mut guest)) => {
            if stream.write_all(&[PORT_OPEN]).await.is_ok() {
                let _ = copy_bidirectional(&mut stream, &mut guest).await;
            }
        }
        _ => {
            let _ = stream.write_all(&[PORT_CLOSED]).await;
        }
    }
}
