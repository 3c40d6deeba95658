//! Hostile bytes on the agent's connections (P93), and who may call what.

use std::io::Write as _;
use std::time::{Duration, Instant};

use leasehold_protocol::envd::bootstrap::{GuestUsage, Ports, ResetDone};
use leasehold_protocol::envd::channel::{Kind, PORT_CLOSED, PORT_OPEN};
use leasehold_protocol::envd::code::Code;
use leasehold_protocol::envd::frame;
use leasehold_protocol::envd::http::Metrics;
use serde_json::{Value, json};

use crate::client::{Agent, Connection};
use crate::sandbox::able;

const STREAM: &str = "content-type: application/connect+json";
const JSON: &str = "content-type: application/json";

/// The error of a stream that ends at once.
fn stream_error(agent: &Agent, path: &str, body: &[u8]) -> Code {
    let response = agent.ask("POST", path, &[STREAM], body);
    assert_eq!(response.status, 200);
    let mut frames = frame::Unwrapper::new();
    frames.push(&response.body);
    let (flags, end) = frames.take().unwrap().unwrap();
    assert_eq!(flags, frame::END, "{}", response.text());
    let end: leasehold_protocol::envd::code::StreamEnd = serde_json::from_slice(&end).unwrap();
    end.error.unwrap().code
}

#[test]
fn i10_p93_hostile_messages_are_typed_errors() {
    if !able("p93_hostile_messages_are_typed_errors") {
        return;
    }
    let agent = Agent::boot();
    let start = "/process.Process/Start";
    let deep = format!(
        "{{\"process\":{}{}}}",
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    let good = br#"{"process":{"cmd":"true"}}"#;
    let two = [frame::wrap(0, good), frame::wrap(0, good)].concat();
    let cases: Vec<Vec<u8>> = vec![
        vec![],
        vec![0, 0, 0],
        vec![0, 0xff, 0xff, 0xff, 0xff],
        vec![0, 0, 0x40, 0, 1],
        frame::wrap(1, good),
        frame::wrap(0x80, good),
        frame::wrap(2, b"{}"),
        two,
        frame::wrap(0, good)[..9].to_vec(),
        frame::wrap(0, b"null"),
        frame::wrap(0, b"{\"process\":{\"cmd\":\"a\",\"cmd\":\"b\"}}"),
        frame::wrap(0, b"{\"process\":{\"cmd\":\"\xff\"}}"),
        frame::wrap(0, b"{\"process\":{\"cmd\":1e999}}"),
        frame::wrap(0, deep.as_bytes()),
        frame::wrap(0, b"{\"process\":{\"cmd\":\"a\\u0000b\"}}"),
        frame::wrap(
            0,
            b"{\"process\":{\"cmd\":\"true\"},\"pty\":{\"size\":{\"cols\":4294967295}}}",
        ),
    ];
    for body in cases {
        let code = stream_error(&agent, start, &body);
        assert_eq!(
            code,
            Code::InvalidArgument,
            "{:?}",
            String::from_utf8_lossy(&body)
        );
    }
}

#[test]
fn i10_p93_what_is_too_long_or_no_message_is_refused() {
    if !able("p93_what_is_too_long_or_no_message_is_refused") {
        return;
    }
    let agent = Agent::boot();
    let start = "/process.Process/Start";
    let long = vec![b' '; (4 << 20) + 100];
    let code = stream_error(&agent, start, &long);
    assert_eq!(code, Code::ResourceExhausted);
    for (path, body) in [
        (
            "/process.Process/SendInput",
            &b"{\"process\":{\"pid\":-1}}"[..],
        ),
        (
            "/process.Process/SendInput",
            b"{\"process\":{\"pid\":1},\"input\":{\"stdin\":\"!\"}}",
        ),
        ("/process.Process/List", b"["),
        ("/filesystem.Filesystem/Stat", b"{\"path\":3}"),
    ] {
        let response = agent.ask("POST", path, &[JSON], body);
        assert_eq!(response.code(), "invalid_argument");
        assert_eq!(response.status, 400);
    }
    let list = agent.ask(
        "POST",
        "/process.Process/List",
        &[JSON],
        &vec![b' '; 5 << 20],
    );
    assert_eq!(list.code(), "resource_exhausted");
    // Our own init is no process of the API.
    let signal = json!({"process": {"pid": 1}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(
        agent.call("/process.Process/SendSignal", &signal).code(),
        "not_found"
    );
    assert_eq!(agent.run("echo fine").stdout, "fine\n");
}

#[test]
fn the_wrong_shape_is_refused() {
    if !able("the_wrong_shape_is_refused") {
        return;
    }
    let agent = Agent::boot();
    for (method, path, headers, status) in [
        ("GET", "/process.Process/List", &[][..], 405),
        (
            "POST",
            "/process.Process/List",
            &["content-type: application/proto"],
            415,
        ),
        ("POST", "/process.Process/List", &[STREAM], 415),
        ("POST", "/process.Process/Start", &[JSON], 415),
        ("POST", "/process.Process/Fly", &[JSON], 501),
        (
            "POST",
            "/process.Process/List",
            &[JSON, "content-encoding: gzip"],
            501,
        ),
        ("POST", "/init", &[JSON], 404),
        ("POST", "/freeze", &[JSON], 404),
        ("GET", "/", &[], 404),
        ("GET", "/elsewhere", &[], 404),
        ("POST", "/leasehold.Bootstrap/Usage", &[JSON], 404),
        ("POST", "/leasehold.Bootstrap/Inject", &[JSON], 404),
    ] {
        let response = agent.ask(method, path, headers, b"{}");
        assert_eq!(response.status, status, "{method} {path} {headers:?}");
    }
    let good = [
        JSON,
        "content-encoding: identity",
        "connect-protocol-version: 1",
    ];
    let mut client = agent.client();
    for _ in 0..3 {
        // One connection serves any number of requests.
        let list = client.ask("POST", "/process.Process/List", &good, b"{}");
        assert_eq!(list.text(), r#"{"processes":[]}"#);
    }
    let page = agent.ask("GET", "/health", &["origin: https://x"], b"");
    assert_eq!(page.header("access-control-allow-origin"), Some("*"));
    let preflight = agent.ask(
        "OPTIONS",
        "/process.Process/List",
        &["origin: https://x"],
        b"",
    );
    assert_eq!(preflight.status, 204);
    assert!(preflight.header("access-control-allow-headers").is_some());
}

fn raw(agent: &Agent, bytes: &[u8]) -> Connection {
    let mut client = agent.client();
    let _ = client.socket.write_all(bytes);
    client
}

#[test]
fn i10_p93_hostile_heads_close_their_connection_alone() {
    if !able("p93_hostile_heads_close_their_connection_alone") {
        return;
    }
    let agent = Agent::boot();
    let many: String = (0..200).map(|n| format!("h{n}: x\r\n")).collect();
    let long = "x".repeat(200_000);
    for head in [
        "\0\0\0\0\r\n\r\n".to_owned(),
        "GET /health HTTP/9.9\r\n\r\n".to_owned(),
        format!("GET /health HTTP/1.1\r\n{many}\r\n"),
        format!("GET /health HTTP/1.1\r\na: {long}\r\n\r\n"),
        format!("GET /{long} HTTP/1.1\r\n\r\n"),
        "POST /files HTTP/1.1\r\ncontent-length: -1\r\n\r\n".to_owned(),
        "POST /files HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n".to_owned(),
        "POST /files HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\nzz\r\n"
            .to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ] {
        let mut client = raw(&agent, head.as_bytes());
        // Answered with an error or closed, never served.
        let mut seen = Vec::new();
        let mut piece = [0; 4_096];
        while let Ok(got @ 1..) = std::io::Read::read(&mut client.socket, &mut piece) {
            seen.extend_from_slice(&piece[..got]);
        }
        let text = String::from_utf8_lossy(&seen);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    // One byte at a time is slow, not wrong.
    let mut slow = agent.client();
    for byte in b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n" {
        slow.socket.write_all(&[*byte]).unwrap();
    }
    assert_eq!(slow.response().status, 204);
}

#[test]
fn connections_are_bounded_and_come_free() {
    if !able("connections_are_bounded_and_come_free") {
        return;
    }
    let agent = Agent::boot();
    let mut open: Vec<Connection> = (0..512).map(|_| agent.client()).collect();
    assert_eq!(open[511].ask("GET", "/health", &[], b"").status, 204);
    assert!(agent.client().closed());
    // The host's own connection is not counted among them.
    let usage: GuestUsage = agent.host("Usage", &json!({})).json();
    assert_eq!(usage.connections, 512);
    open.truncate(100);
    let start = Instant::now();
    while agent
        .host("Usage", &json!({}))
        .json::<GuestUsage>()
        .connections
        > 100
    {
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(agent.ask("GET", "/health", &[], b"").status, 204);
}

#[test]
fn the_token_is_needed_where_there_is_one() {
    if !able("the_token_is_needed_where_there_is_one") {
        return;
    }
    let agent = Agent::boot();
    let inject = json!({"accessToken": "t0ken", "envs": {"SEEN": "yes"}});
    assert_eq!(agent.host("Inject", &inject).text(), "{}");
    assert_eq!(agent.ask("GET", "/health", &[], b"").status, 204);
    let token = "x-access-token: t0ken";
    for path in ["/envs", "/metrics", "/elsewhere"] {
        assert_eq!(agent.ask("GET", path, &[], b"").status, 401);
        assert_eq!(
            agent
                .ask("GET", path, &["x-access-token: t0kem"], b"")
                .status,
            401
        );
    }
    assert_eq!(agent.call("/process.Process/List", &json!({})).status, 401);
    let envs = agent.ask("GET", "/envs", &[token], b"");
    assert_eq!(envs.text(), r#"{"SEEN":"yes"}"#);
    let metrics: Metrics = agent.ask("GET", "/metrics", &[token], b"").json();
    assert!(metrics.mem_total > 0 && metrics.cpu_count > 0 && metrics.disk_total > 0);
    assert!(metrics.ts > 1_600_000_000);
    // The environment reaches processes; the host needs no token.
    let start = json!({"process": {"cmd": "/bin/sh", "args": ["-c", "echo $SEEN $MORE"], "envs": {"MORE": "m"}}});
    let stream = agent
        .client()
        .stream("/process.Process/Start", &[token], &start);
    assert_eq!(stream.finish().stdout, "yes m\n");
    assert_eq!(
        agent
            .open(Kind::Host)
            .call("/process.Process/List", &[], &json!({}))
            .status,
        200
    );
}

#[test]
fn files_take_the_token_or_a_signature_of_exactly_this() {
    if !able("files_take_the_token_or_a_signature_of_exactly_this") {
        return;
    }
    let agent = Agent::boot();
    let file = json!({"path": "conf/x", "content": "aGk=", "mode": 0o600});
    let inject = json!({"accessToken": "t0ken", "files": [file]});
    assert_eq!(agent.host("Inject", &inject).status, 200);
    let token = "x-access-token: t0ken";
    assert_eq!(agent.download("conf/x").status, 401);
    assert_eq!(
        agent.ask("GET", "/files?path=conf/x", &[token], b"").text(),
        "hi"
    );
    let wrong = ["x-access-token: no"];
    assert_eq!(
        agent.ask("GET", "/files?path=conf/x", &wrong, b"").status,
        401
    );
    let signed = |path: &str, operation: &str, end: &str| {
        use sha2::Digest as _;
        let mut text = format!("{path}:{operation}::t0ken");
        if !end.is_empty() {
            text = format!("{text}:{end}");
        }
        let digest = leasehold_protocol::envd::base64::encode_unpadded(&sha2::Sha256::digest(text));
        let signature = format!("v1_{digest}")
            .replace('+', "%2B")
            .replace('/', "%2F");
        format!("/files?path={path}&signature={signature}&signature_expiration={end}")
    };
    assert_eq!(
        agent
            .ask("GET", &signed("conf/x", "read", ""), &[], b"")
            .text(),
        "hi"
    );
    let late = agent.ask("GET", &signed("conf/x", "read", "1000"), &[], b"");
    assert_eq!(late.status, 401);
    assert_eq!(
        late.text(),
        r#"{"code":401,"message":"signature is already expired"}"#
    );
    assert_eq!(
        agent
            .ask("GET", &signed("conf/x", "write", ""), &[], b"")
            .status,
        401
    );
    let raw = "content-type: application/octet-stream";
    assert_eq!(
        agent
            .ask("POST", &signed("new", "write", ""), &[raw], b"n")
            .status,
        200
    );
}

#[test]
fn rearming_cuts_everybody_and_changes_the_token() {
    if !able("rearming_cuts_everybody_and_changes_the_token") {
        return;
    }
    let agent = Agent::boot();
    let mut idle = agent.client();
    assert_eq!(idle.ask("GET", "/envs", &[], b"").status, 200);
    let watcher = agent.call(
        "/filesystem.Filesystem/CreateWatcher",
        &json!({"path": "/tmp"}),
    );
    assert_eq!(watcher.status, 200);
    assert_eq!(agent.host("Rearm", &json!({})).code(), "invalid_argument");
    let rearmed: Value = agent.host("Rearm", &json!({"accessToken": "new"})).json();
    assert_eq!(rearmed["watchersDropped"], 1);
    assert!(rearmed["connectionsCut"].as_u64().unwrap() >= 1);
    assert!(idle.closed());
    assert_eq!(agent.ask("GET", "/envs", &[], b"").status, 401);
    assert_eq!(
        agent
            .ask("GET", "/envs", &["x-access-token: new"], b"")
            .status,
        200
    );
}

#[test]
fn a_reset_tells_what_it_saw() {
    if !able("a_reset_tells_what_it_saw") {
        return;
    }
    let agent = Agent::boot();
    agent.host("Inject", &json!({"envs": {"OLD": "1"}}));
    let hide = "cd /; (setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 0.01; done' &) ; \
                mkdir -p /tmp/a/b ~/c; touch /tmp/a/b/c ~/c/d /dev/shm/e; echo done";
    assert_eq!(agent.run(hide).stdout, "done\n");
    let root = crate::client::shell("(setsid sleep 300 &); touch /tmp/by-root; echo done");
    let root = agent.start(&root, &["authorization: Basic cm9vdDo="]);
    assert_eq!(root.0.finish().stdout, "done\n");
    let (_running, _) = agent.script("sleep 300");
    let done: ResetDone = agent.host("Reset", &json!({})).json();
    assert!(done.processes_killed >= 3, "{done:?}");
    assert!(done.processes_gone && done.scratch_empty, "{done:?}");
    assert_eq!(agent.ask("GET", "/envs", &[], b"").text(), "{}");
    let left = agent.run("ls -A /tmp ~ /dev/shm; set -- /proc/[0-9]*; echo $#");
    // Init, stub, agent, and the script.
    assert_eq!(
        left.stdout, "/dev/shm:\n\n/home/user:\n\n/tmp:\n4\n",
        "{left:?}"
    );
}

#[test]
fn guest_ports_are_told_and_reached() {
    if !able("guest_ports_are_told_and_reached") {
        return;
    }
    let agent = Agent::boot();
    let server = "python3 -u -c '
import socket
s = socket.socket()
s.bind((\"127.0.0.1\", 0)); s.listen()
print(s.getsockname()[1])
while True:
    c, _ = s.accept()
    while data := c.recv(65536): c.sendall(data.upper())
    c.close()'";
    let up = agent.run("ip link set lo up 2>/dev/null; python3 -c 'import socket; s=socket.socket(); s.bind((\"127.0.0.1\",0)); s.listen(); socket.create_connection(s.getsockname())' && echo up");
    if up.stdout != "up\n" {
        eprintln!(
            "SKIP guest_ports_are_told_and_reached: loopback of the test's namespace is down"
        );
        return;
    }
    let (mut stream, _) = agent.script(server);
    let port: u16 = stream.until("\n").trim().parse().unwrap();
    let ports: Ports = agent.host("Ports", &json!({})).json();
    assert_eq!(ports.ports.len(), 1);
    assert_eq!((ports.ports[0].port, ports.ports[0].uid), (port, 1000));
    let mut tunnel = agent.open(Kind::Port(port)).socket;
    let mut byte = [9];
    std::io::Read::read_exact(&mut tunnel, &mut byte).unwrap();
    assert_eq!(byte, [PORT_OPEN]);
    tunnel.write_all(b"hello").unwrap();
    tunnel.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut tunnel, &mut answer).unwrap();
    assert_eq!(answer, "HELLO");
    let mut closed = agent.open(Kind::Port(1)).socket;
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut closed, &mut all).unwrap();
    assert_eq!(all, [PORT_CLOSED]);
}
