//! The door against callers that are slow, many, or meet a handler that falls over.

use std::net::SocketAddr;
use std::time::Instant as Clock;

use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(20);

/// A door before two routes: one that answers, one that falls over.
async fn opened(connections: usize) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/ok", get(|| async { "here" }))
        .route(
            "/slow",
            get(|| async {
                tokio::time::sleep(SHORT).await;
                "late"
            }),
        )
        .route(
            "/falls",
            get(|| async {
                let empty: [u8; 0] = [];
                let place = std::hint::black_box(1);
                (empty[place..][0]).to_string()
            }),
        );
    let width = Width {
        descriptors: 1_024,
        connections,
        head: SHORT,
    };
    let (close, closing) = watch::channel(false);
    let descriptors = Descriptors::unbounded();
    tokio::spawn(serve(listener, router, width, descriptors, closing));
    (address, close)
}

/// What comes until the connection ends.
async fn rest(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    let read = stream.read_to_end(&mut said);
    let _ = tokio::time::timeout(LONG, read)
        .await
        .expect("it is closed");
    String::from_utf8_lossy(&said).into_owned()
}

async fn ask(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    rest(&mut stream).await
}

#[tokio::test]
async fn half_a_head_and_a_silent_connection_are_let_go() {
    let (address, _close) = opened(8).await;
    for begun in ["", "GET /ok HTTP/1.1\r\nhost: x\r\n"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        let since = Clock::now();
        rest(&mut stream).await;
        assert!(since.elapsed() >= SHORT / 2, "{begun:?}");
    }
    // One that was answered may stay as long and no longer.
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(rest(&mut stream).await.ends_with("here"));
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused() {
    let (address, _close) = opened(8).await;
    let ask = |bytes: usize| async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "GET /ok HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-long: {}\r\n\r\n",
            "a".repeat(bytes)
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        rest(&mut stream).await
    };
    assert!(ask(HEAD_MAX / 2).await.starts_with("HTTP/1.1 200"));
    assert!(ask(HEAD_MAX + 1).await.starts_with("HTTP/1.1 431"));
}

#[tokio::test]
async fn one_too_many_is_told_and_a_place_that_is_free_is_given() {
    let (address, _close) = opened(2).await;
    let first = TcpStream::connect(address).await.unwrap();
    let second = TcpStream::connect(address).await.unwrap();
    // In the order in which they came.
    tokio::time::sleep(SHORT / 6).await;
    let told = ask(address, "/ok").await;
    assert!(told.starts_with("HTTP/1.1 503"), "{told}");
    assert!(told.contains("as many connections"), "{told}");
    drop((first, second));
    tokio::time::sleep(SHORT / 6).await;
    assert!(ask(address, "/ok").await.ends_with("here"));
}

#[tokio::test]
async fn a_handler_that_falls_over_takes_nobody_along() {
    let (address, _close) = opened(2).await;
    for _ in 0..4 {
        let told = ask(address, "/falls").await;
        assert!(told.starts_with("HTTP/1.1 500"), "{told}");
        assert!(told.contains("\"internal\""), "{told}");
    }
    assert!(ask(address, "/ok").await.ends_with("here"));
}

#[tokio::test]
async fn what_is_under_way_is_answered_after_the_door_is_closed() {
    let (address, close) = opened(8).await;
    let slow = tokio::spawn(async move { ask(address, "/slow").await });
    tokio::time::sleep(SHORT / 3).await;
    close.send_replace(true);
    assert!(slow.await.unwrap().ends_with("late"));
    assert!(TcpStream::connect(address).await.is_err());
}
