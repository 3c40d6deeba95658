//! What an owner and a WebAssembly host say to each other.
//!
//! One stream socket. A frame is a head of 12 bytes, little endian (`u32` bytes of body, `u8` kind, `u8` number
//! of descriptors, two zero bytes, `u32` id), and its body: JSON for what is asked and told, plain bytes for
//! streams. Descriptors ride on the first byte of their frame and are given to frames in their order. The
//! owner does not trust the host, which may have been taken over by a module: every length is checked first.

mod one;
mod report;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use leasehold_core::end::{ExitStatus, LimitHit};
pub use leasehold_core::spec::Determinism;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::one::{
    ONE_BYTES_MAX, ONE_CODE_FD, ONE_CONFIG_FD, ONE_REPORT_FD, One, REPORT_LEN, one_argv, one_place,
};
pub use self::report::printable;
use crate::socket::{FDS_MAX, FrameError, recv_with_fds};

/// Version of this protocol, in [`Ready`].
pub const VERSION: u32 = 1;
/// Name and version of the engine that compiler and host are made with.
pub const ENGINE: &str = "wasmtime-48.0";
/// Bytes of a frame's head.
pub const HEAD_LEN: usize = 12;
/// Most bytes of a body.
pub const BODY_MAX: usize = 4 << 20;
/// Most bytes of a stream in one frame.
pub const CHUNK_MAX: usize = 64 << 10;
/// Most bytes of standard input that may be on the way to one run: sent, and not told as taken.
pub const STDIN_WINDOW: u64 = 256 << 10;
/// Most directories of one run.
pub const PREOPENS_MAX: usize = 8;

/// What a module is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A core module that speaks WASI preview 1 and exports `_start`.
    Core,
    /// A component that exports `wasi:cli/run` 0.2.
    Component,
}

impl Kind {
    /// What the first eight bytes of a binary say it is.
    #[must_use]
    pub fn of(wasm: &[u8]) -> Option<Self> {
        match wasm.first_chunk::<8>()? {
            b"\0asm\x01\0\0\0" => Some(Self::Core),
            b"\0asm\x0d\0\x01\0" => Some(Self::Component),
            _ => None,
        }
    }
}

/// How the code was compiled, which the host must match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flavour {
    /// As fast as it gets; bounded by time.
    Plain,
    /// Counts instructions and is exact to the bit: for limits of fuel and for deterministic runs.
    Metered,
}

impl Flavour {
    /// The word used in keys and flags.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Metered => "metered",
        }
    }
}

/// What bounds one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLimits {
    /// Bytes of linear memories and tables together.
    pub memory_bytes: u64,
    /// Whether reaching `memory_bytes` ends the run; else growing fails, which the program may handle.
    pub memory_kill: bool,
    /// Elements of one table.
    pub table_elements: u32,
    /// Core instances of one run.
    pub instances: u32,
    /// Things of the host it may hold at one time: open files, streams, pollables.
    pub handles: u32,
    /// Bytes of the headers of one HTTP message, as they are held in memory.
    pub header_bytes: u32,
    /// Wall time in milliseconds, start section included.
    pub wall_ms: u64,
    /// Processor time in milliseconds.
    pub cpu_time_ms: Option<u64>,
    /// Instructions, as the engine weighs them; needs [`Flavour::Metered`].
    pub fuel: Option<u64>,
    /// Bytes kept of each of standard output and standard error.
    pub output_bytes: u64,
    /// Whether more than `output_bytes` ends the run; else further bytes are counted and dropped.
    pub output_kill: bool,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 512 << 20,
            memory_kill: false,
            table_elements: 1 << 20,
            instances: 128,
            handles: 1_024,
            header_bytes: 64 << 10,
            wall_ms: 600_000,
            cpu_time_ms: None,
            fuel: None,
            output_bytes: 64 << 20,
            output_kill: false,
        }
    }
}

/// A directory of the host's that a run may use. Its descriptor comes with the frame, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preopen {
    /// Where the program finds it: an absolute path.
    pub guest: String,
    /// Whether it may change anything there.
    pub writable: bool,
}

/// Body of [`ToHost::Load`]: the compiled code is the one descriptor, a sealed memory file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// What it is.
    pub kind: Kind,
    /// How it was compiled.
    pub flavour: Flavour,
}

/// Body of [`ToHost::Start`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Id of the module, as loaded.
    pub module: u32,
    /// Arguments, the program's name first.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Whether standard input comes in frames; else it is empty.
    pub stdin: bool,
    /// Directories; their descriptors come along.
    pub preopens: Vec<Preopen>,
    /// What bounds it.
    pub limits: RunLimits,
    /// Fixed clocks and seeded random; needs [`Flavour::Metered`].
    pub determinism: Option<Determinism>,
}

/// Kinds of frames from owner to host. The frame's id is the module's for the first two, else the run's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ToHost {
    /// Load a module; body [`Load`]. Answer: `Loaded` or `Refused`.
    Load = 1,
    /// Forget a module. Runs that have it go on.
    Unload = 2,
    /// Start a run; body [`Start`]. Answer: `Stdout` and `Stderr`, then `Ended`, or `Refused`.
    Start = 3,
    /// Bytes of standard input, at most [`STDIN_WINDOW`] ahead of what was taken.
    Stdin = 4,
    /// The end of standard input.
    StdinEnd = 5,
    /// End a run. `Ended` follows.
    Cancel = 6,
}

/// Kinds of frames from host to owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FromHost {
    /// Locked down and waiting; body [`Ready`].
    Ready = 1,
    /// The module is there.
    Loaded = 2,
    /// It could not be loaded or started; body [`Refused`].
    Refused = 3,
    /// Bytes of standard output.
    Stdout = 4,
    /// Bytes of standard error.
    Stderr = 5,
    /// So many bytes of standard input were taken; body: `u32`.
    StdinTaken = 6,
    /// The run is over and its output was sent; body [`Report`].
    Ended = 7,
}

impl ToHost {
    /// The kind of this number.
    #[must_use]
    pub fn of(kind: u8) -> Option<Self> {
        use ToHost::{Cancel, Load, Start, Stdin, StdinEnd, Unload};
        [Load, Unload, Start, Stdin, StdinEnd, Cancel]
            .into_iter()
            .find(|each| *each as u8 == kind)
    }
}

impl FromHost {
    /// The kind of this number.
    #[must_use]
    pub fn of(kind: u8) -> Option<Self> {
        use FromHost::{Ended, Loaded, Ready, Refused, Stderr, StdinTaken, Stdout};
        [Ready, Loaded, Refused, Stdout, Stderr, StdinTaken, Ended]
            .into_iter()
            .find(|each| *each as u8 == kind)
    }
}

/// Body of [`FromHost::Ready`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// [`VERSION`] of the host.
    pub version: u32,
    /// Whether Landlock holds it.
    pub landlock: bool,
    /// SHA-256 of its seccomp program, hexadecimal.
    pub seccomp_sha256: String,
}

/// Body of [`FromHost::Refused`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Why.
    pub message: String,
}

/// One output stream of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Bytes the program wrote.
    pub total: u64,
    /// Bytes kept of them, from the beginning.
    pub kept: u64,
}

/// What the host saw of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How the program ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitStatus>,
    /// The limit that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killed_by: Option<LimitHit>,
    /// Limits that denied it something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<LimitHit>,
    /// The wall limit ended it.
    #[serde(default)]
    pub wall_expired: bool,
    /// It was cancelled.
    #[serde(default)]
    pub cancelled: bool,
    /// Something of ours failed under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crashed: Option<String>,
    /// Why the program could not be started, or what the trap said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Functions of the program at a trap, innermost first; the program's own names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backtrace: Vec<String>,
    /// Standard output.
    #[serde(default)]
    pub stdout: Counted,
    /// Standard error.
    #[serde(default)]
    pub stderr: Counted,
    /// Most bytes of memories and tables at one time.
    #[serde(default)]
    pub memory_peak_bytes: u64,
    /// Instructions, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuel_used: Option<u64>,
    /// Processor time in microseconds.
    #[serde(default)]
    pub cpu_us: u64,
    /// Wall time in microseconds.
    #[serde(default)]
    pub wall_us: u64,
    /// Outgoing HTTP requests that were denied.
    #[serde(default)]
    pub http_denied: u64,
    /// Where the first of them were to go: method and authority.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub http_denied_to: Vec<String>,
}

/// Puts a frame together.
///
/// # Errors
/// When the body is longer than [`BODY_MAX`].
pub fn frame(kind: u8, fds: u8, id: u32, body: &[u8]) -> Result<Vec<u8>, FrameError> {
    let mut bytes = Vec::with_capacity(HEAD_LEN + body.len());
    push_frame(&mut bytes, kind, fds, id, body)?;
    Ok(bytes)
}

/// Appends a frame to `bytes`.
///
/// # Errors
/// When the body is longer than [`BODY_MAX`]; nothing is appended then.
pub fn push_frame(
    bytes: &mut Vec<u8>,
    kind: u8,
    fds: u8,
    id: u32,
    body: &[u8],
) -> Result<(), FrameError> {
    if body.len() > BODY_MAX {
        return Err(FrameError::TooLong(body.len()));
    }
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[kind, fds, 0, 0]);
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(body);
    Ok(())
}

/// A body as JSON.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn body<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    serde_json::to_vec(message).map_err(FrameError::Body)
}

/// One frame as received.
#[derive(Debug)]
pub struct Frame {
    /// Its kind, not yet looked at.
    pub kind: u8,
    /// Of what.
    pub id: u32,
    /// Its body.
    pub body: Vec<u8>,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
}

impl Frame {
    /// The body, read as JSON.
    ///
    /// # Errors
    /// When it is no such message.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, FrameError> {
        serde_json::from_slice(&self.body).map_err(FrameError::Body)
    }
}

/// Puts frames together from whatever pieces the socket gives. Holds one frame and one read at most.
#[derive(Debug)]
pub struct Reader {
    bytes: Vec<u8>,
    at: usize,
    fds: VecDeque<OwnedFd>,
    buffer: Vec<u8>,
    /// Descriptors that may wait; 0 where none are expected.
    fds_max: usize,
}

impl Reader {
    /// A reader that takes descriptors with frames, or none at all.
    #[must_use]
    pub fn new(with_fds: bool) -> Self {
        Self {
            bytes: Vec::new(),
            at: 0,
            fds: VecDeque::new(),
            buffer: vec![0; CHUNK_MAX],
            fds_max: if with_fds { FDS_MAX * 4 } else { 0 },
        }
    }

    /// Reads once from the socket. Returns whether the other side is still there.
    ///
    /// # Errors
    /// When the socket fails (`WouldBlock` included) or more descriptors pile up than may wait.
    pub fn fill(&mut self, socket: impl AsFd) -> Result<bool, FrameError> {
        let mut fds = Vec::new();
        let got = recv_with_fds(socket, &mut self.buffer, &mut fds);
        self.fds.extend(fds);
        if self.fds.len() > self.fds_max {
            return Err(FrameError::TooManyFds);
        }
        let count = got.map_err(FrameError::Io)?;
        if self.at > 0 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(&self.buffer[..count]);
        Ok(count > 0)
    }

    /// Takes the next whole frame, if one is there.
    ///
    /// # Errors
    /// When its head breaks the protocol, or promises descriptors that did not come.
    pub fn take(&mut self) -> Result<Option<Frame>, FrameError> {
        let rest = &self.bytes[self.at..];
        let Some(head) = rest.first_chunk::<HEAD_LEN>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let (kind, fds) = (head[4], usize::from(head[5]));
        let id = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if length > BODY_MAX {
            return Err(FrameError::TooLong(length));
        }
        if fds > FDS_MAX {
            return Err(FrameError::TooManyFds);
        }
        let Some(body) = rest.get(HEAD_LEN..HEAD_LEN + length) else {
            return Ok(None);
        };
        if fds > self.fds.len() {
            return Err(FrameError::MissingFds);
        }
        let frame = Frame {
            kind,
            id,
            body: body.to_vec(),
            fds: self.fds.drain(..fds).collect(),
        };
        self.at += HEAD_LEN + length;
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::socket::send_with_fds;

    #[test]
    fn frames_arrive_in_order_with_their_descriptors() {
        let (left, right) = UnixStream::pair().unwrap();
        let mut bytes = frame(ToHost::Load as u8, 1, 7, b"{}").unwrap();
        send_with_fds(&left, &bytes, &[left.as_fd()]).unwrap();
        bytes.clear();
        push_frame(&mut bytes, ToHost::Stdin as u8, 0, 8, b"abc").unwrap();
        push_frame(&mut bytes, ToHost::StdinEnd as u8, 0, 8, b"").unwrap();
        (&left).write_all(&bytes).unwrap();
        let mut reader = Reader::new(true);
        let mut got = Vec::new();
        while got.len() < 3 {
            assert!(reader.fill(&right).unwrap());
            while let Some(frame) = reader.take().unwrap() {
                got.push((
                    ToHost::of(frame.kind).unwrap(),
                    frame.id,
                    frame.body,
                    frame.fds.len(),
                ));
            }
        }
        assert_eq!(got[0], (ToHost::Load, 7, b"{}".to_vec(), 1));
        assert_eq!(got[1], (ToHost::Stdin, 8, b"abc".to_vec(), 0));
        assert_eq!(got[2], (ToHost::StdinEnd, 8, Vec::new(), 0));
        drop(left);
        assert!(!reader.fill(&right).unwrap());
    }

    #[test]
    fn what_breaks_a_bound_is_refused() {
        let (mut left, right) = UnixStream::pair().unwrap();
        let mut reader = Reader::new(false);
        let mut head = [0; HEAD_LEN];
        head[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        left.write_all(&head).unwrap();
        reader.fill(&right).unwrap();
        assert!(matches!(reader.take(), Err(FrameError::TooLong(_))));
        send_with_fds(&left, b"x", &[left.as_fd()]).unwrap();
        assert!(matches!(reader.fill(&right), Err(FrameError::TooManyFds)));
        let mut reader = Reader::new(true);
        left.write_all(&frame(1, 2, 0, b"").unwrap()).unwrap();
        reader.fill(&right).unwrap();
        assert!(matches!(reader.take(), Err(FrameError::MissingFds)));
        assert!(frame(1, 0, 0, &vec![0; BODY_MAX + 1]).is_err());
    }

    #[test]
    fn binaries_are_told_apart() {
        assert_eq!(Kind::of(b"\0asm\x01\0\0\0rest"), Some(Kind::Core));
        assert_eq!(Kind::of(b"\0asm\x0d\0\x01\0"), Some(Kind::Component));
        for other in [
            &b""[..],
            b"\0asm",
            b"\x7fELF\x02\x01\x01\0",
            b"\0asm\x02\0\0\0",
        ] {
            assert_eq!(Kind::of(other), None);
        }
        assert_eq!(ToHost::of(0), None);
        assert_eq!(FromHost::of(8), None);
    }
}
