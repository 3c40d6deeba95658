//! Callers that are not known yet: many connections, half requests, and a daemon without descriptors.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use leasehold_e2e::Daemon;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit, setrlimit};
use serde_json::{Value, json};

use super::{SOON, reason};

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

/// What is asked over a connection that is there while the daemon cannot open a single file more: each answer
/// is an admission or a refusal that says to come again, and no run that was admitted is lost.
#[test]
fn p87_without_descriptors_an_admission_is_typed_and_nothing_admitted_is_lost() {
    let daemon = Daemon::start(&["--warm", "0"], &[]);
    runs(&daemon);
    let pid = Pid::from_raw(daemon.pid().cast_signed());
    let folder = format!("/proc/{}/fd", daemon.pid());
    let limit = |current: u64| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let tight = Rlimit {
            current: Some(current),
            maximum,
        };
        prlimit(pid, Resource::Nofile, tight).expect("limit its descriptors");
    };
    let mut door = knock(&daemon);
    let ask = |door: &mut TcpStream, path: &str, kind: &str, body: &str| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            daemon.key(),
            body.len()
        );
        door.write_all(head.as_bytes()).expect("ask");
        door.write_all(body.as_bytes()).expect("ask");
        answer(door)
    };
    let command = |number: usize| {
        json!({ "command": ["sh", "-c", format!("echo run {number}")] }).to_string()
    };
    let json = "application/json";
    let (status, _) = ask(&mut door, "/v1/runs?wait=none", json, &command(0));
    assert_eq!(status, 202);
    // Everything that is open stays, and nothing can be opened.
    let highest = std::fs::read_dir(&folder).expect("its descriptors");
    let highest = highest.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    limit(highest.min().expect("one") + 3);
    let mut admitted = Vec::new();
    let mut refused = 0;
    for number in 1..=20 {
        let (status, told) = ask(&mut door, "/v1/runs?wait=none", json, &command(number));
        match status {
            202 => admitted.push((number, told["run"].as_str().expect("a run").to_owned())),
            429 | 503 => {
                assert_eq!(told["error"]["retryable"], true, "{told}");
                refused += 1;
            }
            other => panic!("{other}: {told}"),
        }
    }
    // An upload needs a file at once: the control that there was none to be had.
    let (status, told) = ask(
        &mut door,
        "/v1/uploads",
        "application/x-tar",
        &"\0".repeat(1_024),
    );
    assert_eq!(status, 503, "{told}");
    assert_eq!(told["error"]["retryable"], true, "{told}");
    assert!(!daemon.is_over(), "{}", daemon.log());
    limit(1_024);
    assert_eq!(admitted.len() + refused, 20);
    for (number, run) in admitted {
        let row = daemon.sealed(&run, SOON);
        let end = reason(&row);
        assert!(
            matches!(end, "completed" | "sandbox_unavailable"),
            "{row:#}"
        );
        if end == "completed" {
            let said = daemon.get(&format!("/v1/runs/{run}/logs/stdout"));
            assert_eq!(said.status_is(200).text, format!("run {number}\n"));
        }
    }
    runs(&daemon);
}

/// Status and body of one answer on a connection that stays open.
fn answer(door: &mut TcpStream) -> (u16, Value) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        door.read_exact(&mut byte).expect("its head");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head)
        .expect("a head")
        .to_ascii_lowercase();
    let status = head.split(' ').nth(1).expect("a status");
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length = length.expect("a length").trim().parse().expect("a number");
    let mut body = vec![0; length];
    door.read_exact(&mut body).expect("its body");
    let body = serde_json::from_slice(&body).expect("JSON");
    (status.parse().expect("a number"), body)
}

#[test]
fn p87_without_descriptors_silent_callers_are_given_up_and_the_next_is_answered() {
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
    // Whoever says nothing holds up nobody for ever, who came before or since.
    let mut last = knock(&daemon);
    last.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .ok();
    let told = said(last);
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    for silent in held {
        assert_eq!(said(silent), "");
    }
    assert!(!daemon.is_over(), "{}", daemon.log());
    limit(1_024);
    std::thread::sleep(Duration::from_millis(500));
    runs(&daemon);
}

/// Whoever read its log may be gone, or the disk it is kept on be full.
#[test]
fn a_log_that_nobody_takes_costs_nobody_an_answer() {
    let mut daemon = Daemon::prepared(&[]);
    daemon.restart_under(&["sh", "-c", "exec \"$@\" 2>/dev/full", "sh"]);
    runs(&daemon);
    let worker = daemon.supervisor().expect("a worker").cast_signed();
    let worker = Pid::from_raw(worker).expect("a process");
    kill_process(worker, Signal::STOP).expect("stop it");
    // A worker that keeps silent is a line of the log.
    let answer = daemon.get("/readyz");
    kill_process(worker, Signal::CONT).expect("let it go on");
    let text = &answer.text;
    assert_eq!(answer.status, 503, "{text}");
    assert!(text.contains("the worker cannot be asked"), "{text}");
    runs(&daemon);
}
