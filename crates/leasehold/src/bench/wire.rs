//! One kept-alive HTTP connection with as little of a client in it as can be, so that what is measured is
//! the daemon. It speaks what our own daemon answers: a `content-length`, no chunks.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::arena::PATIENCE;

/// Most bytes of one line of an answer's head.
const LINE_MAX: u64 = 8 << 10;
/// Most bytes of an answer's body.
const BODY_MAX: u64 = 16 << 20;

/// A connection and the key it shows.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: BufReader<TcpStream>,
    key: String,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its status.
    pub(crate) status: u16,
    /// Its body.
    pub(crate) body: Vec<u8>,
}

impl Wire {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens there.
    pub(crate) fn open(address: SocketAddr, key: &str) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::new(stream),
            key: key.to_owned(),
        })
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// When the connection ends, or the answer is none of our daemon's.
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<Answer> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: leasehold\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.key,
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request)?;
        let strange = || io::Error::from(io::ErrorKind::InvalidData);
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(strange)?;
        let mut length = None;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok();
            }
        }
        let length: u64 = length
            .filter(|length| *length <= BODY_MAX)
            .ok_or_else(strange)?;
        let mut body = Vec::new();
        self.stream.by_ref().take(length).read_to_end(&mut body)?;
        Ok(Answer { status, body })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.by_ref().take(LINE_MAX).read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn answers_on_one_connection_are_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let answers: [&[u8]; 2] = [
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
                b"HTTP/1.1 503 no\r\ncontent-length: 0\r\n\r\n",
            ];
            for answer in answers {
                let mut head = [0; 4096];
                assert!(stream.read(&mut head).unwrap() > 0);
                stream.write_all(answer).unwrap();
            }
        });
        let mut wire = Wire::open(address, "lh_x").unwrap();
        let first = wire.ask("GET", "/", b"").unwrap();
        assert_eq!((first.status, &first.body[..]), (200, &b"hi"[..]));
        assert_eq!(wire.ask("POST", "/", b"{}").unwrap().status, 503);
        served.join().unwrap();
        assert!(wire.ask("GET", "/", b"").is_err());
    }
}
