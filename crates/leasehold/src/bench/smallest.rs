//! The smallest service that keeps the same two promises: a row is durable before the run is given to the
//! supervisor, and another before its end is answered. One thread, one kept-alive connection, one engine of rows with
//! its usual settings; no key is looked at and nothing else is kept. What the daemon takes more than this is its own.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread::JoinHandle;

use leasehold_backend::process::client::Client;
use leasehold_core::spec::SandboxSpec;
use leasehold_protocol::supervisor::{Event, Target};
use rusqlite::Connection;

use super::arena::{self, Arena};
use super::wire::Wire;
use crate::fault::Fault;

/// Bytes of each row: about those of a contract, or of an outcome with its events.
const ROW: usize = 4 << 10;
/// Bytes that the log has from the start.
const LOG: usize = 4 << 20;
/// Most bytes of one line of a request.
const LINE_MAX: u64 = 8 << 10;

/// One that serves one connection, which is [`Smallest::wire`]; it ends when that is closed.
#[derive(Debug)]
pub(crate) struct Smallest {
    pub(crate) wire: Wire,
    _serving: JoinHandle<()>,
}

impl Smallest {
    /// Starts it; it gives its runs to this supervisor.
    ///
    /// # Errors
    /// When its files or its address cannot be had.
    pub(crate) fn start(
        arena: &Arena,
        program: &'static str,
        worker: Client,
    ) -> Result<Self, Fault> {
        let failed =
            |error: io::Error| Fault::host("cannot start the smallest service").because(&error);
        let rows = rows(&arena.directory().join("smallest.db"))
            .map_err(|error| Fault::host("cannot open its rows").because(&error))?;
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).map_err(failed)?;
        let wire = Wire::open(listener.local_addr().map_err(failed)?, "none").map_err(failed)?;
        let (stream, _) = listener.accept().map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let mut service = Service {
            stream: BufReader::new(stream),
            rows,
            worker,
            program,
        };
        // One that fails closes its connection, which its caller sees.
        let serving = std::thread::spawn(move || while service.serve().unwrap_or(false) {});
        Ok(Self {
            wire,
            _serving: serving,
        })
    }
}

fn rows(path: &Path) -> rusqlite::Result<Connection> {
    let rows = Connection::open(path)?;
    rows.pragma_update(None, "journal_mode", "wal")?;
    rows.pragma_update(None, "synchronous", "full")?;
    rows.execute_batch("CREATE TABLE rows (id INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT")?;
    // A log that is written over costs less to sync than one that grows; where it cannot be had, it grows.
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    if let Ok(mut log) = OpenOptions::new().append(true).open(log) {
        let _ = log.write_all(&vec![0; LOG]).and_then(|()| log.sync_all());
    }
    Ok(rows)
}

struct Service {
    stream: BufReader<TcpStream>,
    rows: Connection,
    worker: Client,
    program: &'static str,
}

impl Service {
    /// Answers one request; `false` when there is none any more.
    fn serve(&mut self) -> Result<bool, Fault> {
        let broken = |error: io::Error| Fault::host("a request broke off").because(&error);
        let Some(request) = self.request().map_err(broken)? else {
            return Ok(false);
        };
        self.keep(&request)?;
        let target = Target::New(SandboxSpec::default());
        let command = arena::command(&[self.program]);
        let tag = arena::begin(&mut self.worker, target, command, &[])?;
        let mut answered = false;
        loop {
            let notice = arena::next(&mut self.worker)?;
            match notice.event {
                _ if notice.tag != tag => {}
                Event::Ended(record) => {
                    let body = serde_json::to_vec(&record)
                        .map_err(|error| Fault::host("a record has no form").because(&error))?;
                    self.keep(&body)?;
                    self.answer(&body).map_err(broken)?;
                    answered = true;
                }
                Event::Cleaned(record) => {
                    arena::completed(&record)?;
                    return Ok(answered);
                }
                _ => {}
            }
        }
    }

    /// The body of the next request.
    fn request(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut length = 0;
        for first in std::iter::once(true).chain(std::iter::repeat(false)) {
            let mut line = String::new();
            self.stream.by_ref().take(LINE_MAX).read_line(&mut line)?;
            if line.is_empty() {
                return Ok(None);
            }
            if line == "\r\n" && !first {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
        let mut body = Vec::new();
        self.stream.by_ref().take(length).read_to_end(&mut body)?;
        Ok(Some(body))
    }

    /// Keeps bytes durably, filled up to the length of a row.
    fn keep(&self, bytes: &[u8]) -> Result<(), Fault> {
        let mut row = bytes.to_vec();
        row.resize(ROW, b' ');
        self.rows
            .prepare_cached("INSERT INTO rows (bytes) VALUES (?)")
            .and_then(|mut insert| insert.execute([row]))
            .map(drop)
            .map_err(|error| Fault::host("a row was not kept").because(&error))
    }

    fn answer(&mut self, body: &[u8]) -> io::Result<()> {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        let mut answer = head.into_bytes();
        answer.extend_from_slice(body);
        self.stream.get_mut().write_all(&answer)
    }
}
