//! Server-sent events, read as they come.

use std::io::{BufRead, BufReader, Read};

use serde_json::Value;

use crate::fault::Fault;

/// Longest line of a stream, and most data of one event, in bytes; a frame carries far less.
const LINE_MAX: u64 = 4 << 20;
/// Most lines of one event; each of ours has three.
const LINES_MAX: u32 = 64;

/// One event.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Frame {
    /// Where to go on after it.
    pub(crate) id: Option<String>,
    /// What kind.
    pub(crate) event: String,
    /// Its data.
    pub(crate) data: Value,
}

/// The events of a stream.
#[derive(Debug)]
pub(crate) struct Frames<R> {
    lines: BufReader<R>,
}

impl<R: Read> Frames<R> {
    /// Reads events from bytes.
    pub(crate) fn new(bytes: R) -> Self {
        Self {
            lines: BufReader::new(bytes),
        }
    }

    /// The next event; `None` when the stream ended.
    ///
    /// # Errors
    /// When the connection broke or the bytes are no such stream.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Fault> {
        let broken = |error: std::io::Error| Fault::host("the stream broke off").because(&error);
        let mut frame = Frame::default();
        let mut data = String::new();
        let mut line = Vec::new();
        let mut lines = 0;
        loop {
            line.clear();
            let mut bounded = (&mut self.lines).take(LINE_MAX);
            if bounded.read_until(b'\n', &mut line).map_err(broken)? == 0 {
                return Ok(None);
            }
            if line.last() != Some(&b'\n') {
                return Err(Fault::host("the stream has a line that is cut or too long"));
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches(['\r', '\n']);
            let (field, value) = text.split_once(':').unwrap_or((text, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match (text.is_empty(), field) {
                // A sign of life, with no event before it.
                (true, _) if frame.event.is_empty() && data.is_empty() => lines = 0,
                (true, _) => {
                    frame.data = serde_json::from_str(&data).map_err(|error| {
                        Fault::host("the stream has an event that is no JSON").because(&error)
                    })?;
                    return Ok(Some(frame));
                }
                (_, "id") => frame.id = Some(value.to_owned()),
                (_, "event") => value.clone_into(&mut frame.event),
                (_, "data") => data.push_str(value),
                _ => {}
            }
            lines += 1;
            if lines > LINES_MAX || data.len() as u64 > LINE_MAX {
                return Err(Fault::host("the stream has an event that is too long"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_apart() {
        let text = b": hello\n\nid: a.1\nevent: stdout\ndata: {\"text\":\"x\"}\n\nevent: done\r\ndata: null\r\n\r\n";
        let mut frames = Frames::new(&text[..]);
        let first = frames.next().unwrap().unwrap();
        assert_eq!(
            (first.id.as_deref(), first.event.as_str()),
            (Some("a.1"), "stdout")
        );
        assert_eq!(first.data["text"], "x");
        assert_eq!(frames.next().unwrap().unwrap().event, "done");
        assert_eq!(frames.next().unwrap(), None);
        assert!(Frames::new(&b"data: {\n\n"[..]).next().is_err());
        // However many signs of life come, and an event that never ends.
        let alive = format!("{}event: done\ndata: null\n\n", ": hello\n\n".repeat(1_000));
        assert_eq!(
            Frames::new(alive.as_bytes()).next().unwrap().unwrap().event,
            "done"
        );
        let endless = std::io::repeat(b'x').take(1 << 40);
        assert!(Frames::new(endless).next().is_err());
        let lines = "data: x\n".repeat(1_000);
        assert!(Frames::new(lines.as_bytes()).next().is_err());
        let long = format!("data: {}\n", "x".repeat(1 << 20)).repeat(8);
        assert!(Frames::new(long.as_bytes()).next().is_err());
    }
}
