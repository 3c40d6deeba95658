//! A small HTTP client for the agent, and the agent in a sandbox of its own.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use leasehold_protocol::envd::channel::{Kind, READY, open};
use leasehold_protocol::envd::code::{CallError, StreamEnd};
use leasehold_protocol::envd::frame;
use leasehold_protocol::envd::process::{
    Data, Ended, EventMessage, ProcessConfig, ProcessEvent, StartRequest,
};
use leasehold_protocol::guest::Control;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, agent_program};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// An agent in a sandbox.
pub(crate) struct Agent {
    pub(crate) channel: UnixStream,
    /// Process id of the agent inside.
    pub(crate) pid: u32,
    /// Held for its end.
    _sandbox: Sandbox,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// Code of a failed call.
    pub(crate) fn code(&self) -> String {
        assert_ne!(self.status, 200, "{}", self.text());
        let value: Value = self.json();
        value["code"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// One connection.
pub(crate) struct Connection {
    pub(crate) socket: UnixStream,
    bytes: Vec<u8>,
}

impl Agent {
    /// Boots a sandbox and starts the agent in it.
    pub(crate) fn boot() -> Self {
        let sandbox = Sandbox::parked(&[]);
        let (channel, theirs) = UnixStream::pair().unwrap();
        sandbox.say(
            Control::StartAgent,
            &[&OwnedFd::from(theirs), &agent_program()],
        );
        let pid = match sandbox.hear() {
            Some(Control::Agent { pid, errno: 0 }) => pid,
            other => panic!("{other:?}"),
        };
        channel.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut ready = [0];
        (&channel).read_exact(&mut ready).unwrap();
        assert_eq!(ready, [READY]);
        Self {
            channel,
            pid,
            _sandbox: sandbox,
        }
    }

    pub(crate) fn open(&self, kind: Kind) -> Connection {
        let socket = UnixStream::from(open(&self.channel, kind).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        Connection {
            socket,
            bytes: Vec::new(),
        }
    }

    pub(crate) fn client(&self) -> Connection {
        self.open(Kind::Client)
    }

    /// One request on a connection of its own.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Response {
        self.client().ask(method, path, headers, body)
    }

    /// A unary call.
    pub(crate) fn call(&self, path: &str, message: &impl Serialize) -> Response {
        self.client().call(path, &[], message)
    }

    /// A call only the host may make.
    pub(crate) fn host(&self, method: &str, message: &impl Serialize) -> Response {
        let path = format!("/leasehold.Bootstrap/{method}");
        self.open(Kind::Host).call(&path, &[], message)
    }

    /// Starts a shell script; gives the stream and the process id.
    pub(crate) fn script(&self, script: &str) -> (Stream, u32) {
        self.start(&shell(script), &[])
    }

    pub(crate) fn start(&self, request: &StartRequest, headers: &[&str]) -> (Stream, u32) {
        let mut stream = self
            .client()
            .stream("/process.Process/Start", headers, request);
        match stream.event() {
            Some(ProcessEvent::Start(started)) => (stream, started.pid),
            other => panic!("{other:?} {:?}", stream.end),
        }
    }

    /// Runs a shell script to its end.
    pub(crate) fn run(&self, script: &str) -> Output {
        self.script(script).0.finish()
    }

    pub(crate) fn upload(&self, path: &str, bytes: &[u8]) -> Response {
        let path = format!("/files?path={path}");
        self.ask(
            "POST",
            &path,
            &["content-type: application/octet-stream"],
            bytes,
        )
    }

    pub(crate) fn download(&self, path: &str) -> Response {
        self.ask("GET", &format!("/files?path={path}"), &[], b"")
    }
}

pub(crate) fn shell(script: &str) -> StartRequest {
    StartRequest {
        process: ProcessConfig {
            cmd: "/bin/bash".into(),
            args: vec!["-c".into(), script.into()],
            ..ProcessConfig::default()
        },
        stdin: Some(false),
        ..StartRequest::default()
    }
}

pub(crate) fn selector(pid: u32) -> Value {
    json!({"process": {"pid": pid}})
}

/// What a process wrote and how it ended.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) terminal: String,
    pub(crate) ended: Option<Ended>,
    pub(crate) error: Option<CallError>,
}

impl Connection {
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[&str], body: &[u8]) {
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: agent\r\n");
        for header in headers {
            text.push_str(header);
            text.push_str("\r\n");
        }
        text.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        self.socket.write_all(text.as_bytes()).unwrap();
        // A refusal may come, and the connection close, before all of it is sent.
        let _ = self.socket.write_all(body);
    }

    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: &[u8],
    ) -> Response {
        self.send(method, path, headers, body);
        self.response()
    }

    pub(crate) fn call(
        &mut self,
        path: &str,
        headers: &[&str],
        message: &impl Serialize,
    ) -> Response {
        let body = serde_json::to_vec(message).unwrap();
        let headers = [&["content-type: application/json"], headers].concat();
        self.ask("POST", path, &headers, &body)
    }

    /// Opens a stream with one message.
    pub(crate) fn stream(
        mut self,
        path: &str,
        headers: &[&str],
        message: &impl Serialize,
    ) -> Stream {
        let body = frame::wrap(0, &serde_json::to_vec(message).unwrap());
        let headers = [&["content-type: application/connect+json"], headers].concat();
        self.send("POST", path, &headers, &body);
        let (status, head) = self.head();
        assert_eq!(status, 200, "{head}");
        Stream {
            whole: content_length(&head),
            connection: self,
            unwrapper: frame::Unwrapper::new(),
            end: None,
        }
    }

    /// Reads more. 0 is the end.
    fn fill(&mut self) -> usize {
        let mut piece = [0; 65_536];
        let got = self
            .socket
            .read(&mut piece)
            .unwrap_or_else(|error| match error.kind() {
                std::io::ErrorKind::ConnectionReset => 0,
                _ => panic!("{error}"),
            });
        self.bytes.extend_from_slice(&piece[..got]);
        got
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        while self.bytes.len() < count {
            assert!(
                self.fill() > 0,
                "cut after {} of {count} bytes",
                self.bytes.len()
            );
        }
        self.bytes.drain(..count).collect()
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(at) = self.bytes.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.take(at + 2);
                return String::from_utf8_lossy(&line[..at]).into_owned();
            }
            assert!(self.fill() > 0, "cut within a line");
        }
    }

    fn head(&mut self) -> (u16, String) {
        let status = self.line();
        let status = status.split(' ').nth(1).unwrap().parse().unwrap();
        let mut head = String::new();
        loop {
            match self.line().as_str() {
                "" => return (status, head),
                line => {
                    head.push_str(line);
                    head.push('\n');
                }
            }
        }
    }

    /// The next chunk of a chunked body; empty at its end.
    fn chunk(&mut self) -> Vec<u8> {
        let size = usize::from_str_radix(&self.line(), 16).unwrap();
        let chunk = self.take(size);
        assert_eq!(self.line(), "");
        chunk
    }

    pub(crate) fn response(&mut self) -> Response {
        let (status, head) = self.head();
        let body = match content_length(&head) {
            Some(length) => self.take(length),
            None if head.contains("transfer-encoding: chunked") => {
                let mut body = Vec::new();
                loop {
                    match self.chunk() {
                        chunk if chunk.is_empty() => break body,
                        chunk => body.extend(chunk),
                    }
                }
            }
            None => Vec::new(),
        };
        Response { status, head, body }
    }

    /// Whether the agent closes the connection.
    pub(crate) fn closed(&mut self) -> bool {
        self.fill() == 0
    }
}

fn content_length(head: &str) -> Option<usize> {
    head.lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map(|length| length.parse().unwrap())
}

/// A stream of messages.
pub(crate) struct Stream {
    connection: Connection,
    /// Length of a stream that came whole.
    whole: Option<usize>,
    unwrapper: frame::Unwrapper,
    /// How the stream ended.
    pub(crate) end: Option<StreamEnd>,
}

impl Stream {
    /// The next message; none at the end, which is then in `end`.
    pub(crate) fn message<T: DeserializeOwned>(&mut self) -> Option<T> {
        loop {
            match self.unwrapper.take().unwrap() {
                Some((frame::END, text)) => {
                    self.end = Some(serde_json::from_slice(&text).unwrap());
                    return None;
                }
                Some((_, text)) => {
                    let text = String::from_utf8(text).unwrap();
                    return Some(
                        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")),
                    );
                }
                None => {}
            }
            let piece = match self.whole.take() {
                Some(length) => self.connection.take(length),
                None => self.connection.chunk(),
            };
            assert!(!piece.is_empty(), "stream ended without its last frame");
            self.unwrapper.push(&piece);
        }
    }

    pub(crate) fn event(&mut self) -> Option<ProcessEvent> {
        self.message::<EventMessage>().map(|message| message.event)
    }

    /// Reads output until `wanted` is in it.
    pub(crate) fn until(&mut self, wanted: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(wanted) {
            match self.event() {
                Some(ProcessEvent::Data(
                    Data::Stdout(bytes) | Data::Stderr(bytes) | Data::Pty(bytes),
                )) => {
                    seen.push_str(&String::from_utf8_lossy(&bytes.0));
                }
                Some(ProcessEvent::Keepalive(_)) => {}
                other => panic!("{other:?} before {wanted:?}, after {seen:?}"),
            }
        }
        seen
    }

    /// Reads to the end.
    pub(crate) fn finish(mut self) -> Output {
        let mut output = Output::default();
        while let Some(event) = self.event() {
            match event {
                ProcessEvent::Data(Data::Stdout(bytes)) => {
                    output.stdout.push_str(&String::from_utf8_lossy(&bytes.0));
                }
                ProcessEvent::Data(Data::Stderr(bytes)) => {
                    output.stderr.push_str(&String::from_utf8_lossy(&bytes.0));
                }
                ProcessEvent::Data(Data::Pty(bytes)) => {
                    output.terminal.push_str(&String::from_utf8_lossy(&bytes.0));
                }
                ProcessEvent::End(ended) => output.ended = Some(ended),
                ProcessEvent::Start(_) | ProcessEvent::Keepalive(_) => {}
            }
        }
        output.error = self.end.and_then(|end| end.error);
        output
    }
}
