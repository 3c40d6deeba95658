//! Callers that are not known yet: many connections, half requests, and a daemon without descriptors.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use leasehold_e2e::Daemon;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use serde_json::json;

/// As many connections as a daemon takes, and some.
const MANY: usize = 1_024;
const BEYOND: usize = 16;

fn knock(daemon: &Daemon) -> TcpStream {
    let address = daemon.url().strip_prefix("http://").expect("its address");
    let stream = TcpStream::connect(address).expect("reach the daemon");
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).expect("bound a read");
    stream
}

/// What it says until it closes; a connection that is broken off has said what came before.
fn said(mut stream: TcpStream) -> String {
    let mut said = Vec::new();
    let mut piece = [0; 4_096];
    while let Ok(bytes) = stream.read(&mut piece) {
        if bytes == 0 {
            break;
        }
        said.extend_from_slice(&piece[..bytes]);
    }
    String::from_utf8_lossy(&said).into_owned()
}

fn runs(daemon: &Daemon) {
    let command = json!({ "command": ["/usr/bin/true"] });
    let answer = daemon.post("/v1/runs", &[], &command).status_is(200);
    assert_eq!(answer.json["outcome"]["exit"]["code"], 0, "{}", answer.text);
}

/// Room for both ends of the connections of a test.
fn roomy() -> bool {
    let found = getrlimit(Resource::Nofile);
    let most = found.maximum.unwrap_or(u64::MAX);
    let wanted = (MANY * 2) as u64;
    let current = Some(found.current.unwrap_or(u64::MAX).max(wanted));
    let raised = Rlimit { current, ..found };
    most >= 4 * MANY as u64 && setrlimit(Resource::Nofile, raised).is_ok()
}

#[test]
fn half_requests_hold_up_nobody() {
    let daemon = Daemon::start(&[], &[]);
    let half: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = knock(&daemon);
            let head = b"POST /v1/runs HTTP/1.1\r\nhost: x\r\nauthoriz";
            stream.write_all(head).expect("send half a head");
            stream
        })
        .collect();
    runs(&daemon);
    drop(half);
    runs(&daemon);
}

#[test]
fn one_connection_too_many_is_told_so() {
    if !roomy() {
        leasehold_e2e::skip(
            "one_connection_too_many_is_told_so",
            "this host gives a process too few descriptors",
        );
        return;
    }
    let daemon = Daemon::start(&[], &[]);
    let mut held: Vec<TcpStream> = (0..MANY).map(|_| knock(&daemon)).collect();
    let mut told = 0;
    for _ in 0..BEYOND {
        let mut stream = knock(&daemon);
        let asked = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
        asked.expect("ask");
        let said = said(stream);
        assert!(!said.starts_with("HTTP/1.1 200"), "{said}");
        told += usize::from(said.starts_with("HTTP/1.1 503") && said.contains("connections"));
    }
    assert_eq!(told, BEYOND);
    // Those that were there first are served all the same.
    let first = held.first_mut().expect("one");
    let asked = first.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    asked.expect("ask");
    let first = held.swap_remove(0);
    let said = said(first);
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    drop(held);
    std::thread::sleep(Duration::from_millis(200));
    runs(&daemon);
}

#[test]
fn without_descriptors_a_caller_is_let_go_and_the_next_run_goes() {
    let daemon = Daemon::start(&[], &[]);
    runs(&daemon);
    let pid = daemon.pid();
    let folder = format!("/proc/{pid}/fd");
    let open = std::fs::read_dir(folder).expect("its descriptors").count();
    let pid = Pid::from_raw(pid.cast_signed());
    let limit = |current: u64| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let tight = Rlimit {
            current: Some(current),
            maximum,
        };
        prlimit(pid, Resource::Nofile, tight).expect("limit its descriptors");
    };
    limit(open as u64 + 4);
    let held: Vec<TcpStream> = (0..64).map(|_| knock(&daemon)).collect();
    // Nobody waits for ever: whoever was not let in is closed.
    let mut last = knock(&daemon);
    last.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .ok();
    let said = said(last);
    assert!(!said.starts_with("HTTP/1.1 200"), "{said}");
    assert!(!daemon.is_over(), "{}", daemon.log());
    drop(held);
    limit(1_024);
    std::thread::sleep(Duration::from_millis(500));
    runs(&daemon);
}
