//! A registry of the test's own on loopback, which may lie. It writes down what it was asked.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use leasehold_core::digest::Digest;

use crate::layout::{MANIFEST, Made};

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    /// First byte that was asked for.
    pub(crate) from: usize,
    pub(crate) authorization: Option<String>,
}

/// One answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// What it says its length is; that of the body without.
    pub(crate) length: Option<usize>,
    /// The connection breaks after so many bytes of the body.
    pub(crate) cut: Option<usize>,
    /// It stands still after so many bytes, for a while.
    pub(crate) stall: Option<(usize, Duration)>,
    /// It sends one byte, then waits so long, and so on.
    pub(crate) drip: Option<Duration>,
}

impl Answer {
    pub(crate) fn new(status: u16, body: &[u8]) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.to_vec(),
            length: None,
            cut: None,
            stall: None,
            drip: None,
        }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The part of bytes that was asked for.
    pub(crate) fn part(bytes: &[u8], asked: &Asked) -> Self {
        match asked.from {
            0 => Self::new(200, bytes),
            from if from >= bytes.len() => Self::new(416, b""),
            from => {
                let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
                Self::new(206, &bytes[from..]).header("content-range", range)
            }
        }
    }
}

/// What answers, by the number of requests for the same path so far.
type Route = dyn Fn(&Asked, usize) -> Answer + Send + Sync;

/// A registry that runs until the test ends.
pub(crate) struct Server {
    pub(crate) host: String,
    log: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    pub(crate) fn start(route: impl Fn(&Asked, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let log: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let kept = Arc::clone(&log);
        let route: Arc<Route> = Arc::new(route);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, route) = (Arc::clone(&kept), Arc::clone(&route));
                thread::spawn(move || serve(stream, &log, &*route));
            }
        });
        Self { host, log }
    }

    /// A registry of one image, `x:1`, that does all right but where `wrong` says otherwise.
    pub(crate) fn of(
        made: Made,
        wrong: impl Fn(&Asked, usize, Answer) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |asked, before| {
            let good = right(&made, asked);
            wrong(asked, before, good)
        })
    }

    /// How often a path was asked for that ends so.
    pub(crate) fn count(&self, ending: &str) -> usize {
        self.asked(ending).len()
    }

    pub(crate) fn asked(&self, ending: &str) -> Vec<Asked> {
        let log = self.log.lock().unwrap();
        let these = log.iter().filter(|asked| asked.path.ends_with(ending));
        these.cloned().collect()
    }
}

/// What a registry answers that is as it should be.
pub(crate) fn right(made: &Made, asked: &Asked) -> Answer {
    let (_, last) = asked.path.rsplit_once('/').unwrap();
    if asked.path.contains("/manifests/") {
        let known = last == "1" || last == made.digest().to_string();
        return match known {
            true => Answer::new(200, &made.manifest).header("content-type", MANIFEST),
            false => Answer::new(
                404,
                br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#,
            ),
        };
    }
    let blob = made
        .blobs()
        .find(|blob| Digest::of(blob).to_string() == last);
    match blob {
        Some(blob) => Answer::part(blob, asked),
        None => Answer::new(404, b""),
    }
}

fn serve(stream: TcpStream, log: &Mutex<Vec<Asked>>, route: &Route) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut asked = Asked {
            path,
            from: 0,
            authorization: None,
        };
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").unwrap_or((line, ""));
            if name.eq_ignore_ascii_case("range") {
                let from = value.trim_start_matches("bytes=").trim_end_matches('-');
                asked.from = from.parse().unwrap();
            }
            if name.eq_ignore_ascii_case("authorization") {
                asked.authorization = Some(value.to_owned());
            }
        }
        let before = {
            let mut log = log.lock().unwrap();
            let before = log.iter().filter(|other| other.path == asked.path).count();
            log.push(asked.clone());
            before
        };
        if !answer(&mut stream, &route(&asked, before)) {
            return;
        }
    }
}

/// Sends an answer; whether the connection goes on.
fn answer(stream: &mut TcpStream, answer: &Answer) -> bool {
    let length = answer.length.unwrap_or(answer.body.len());
    let mut head = format!(
        "HTTP/1.1 {} X\r\ncontent-length: {length}\r\n",
        answer.status
    );
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    if stream.write_all(head.as_bytes()).is_err() {
        return false;
    }
    if let Some((after, pause)) = answer.stall {
        let after = after.min(answer.body.len());
        let _ = stream.write_all(&answer.body[..after]);
        thread::sleep(pause);
        return false;
    }
    if let Some(pause) = answer.drip {
        for byte in &answer.body {
            if stream.write_all(&[*byte]).is_err() {
                return false;
            }
            thread::sleep(pause);
        }
    }
    let most = answer.cut.unwrap_or(answer.body.len());
    let sent = stream.write_all(&answer.body[..most.min(answer.body.len())]);
    sent.is_ok() && answer.cut.is_none() && length == answer.body.len()
}
