//! The one message to a stub: what it is to become.

use super::{GuestError, word};

/// Bytes of [`ExecHeader`].
pub const EXEC_HEADER_LEN: usize = 64;
/// Most bytes of an exec payload.
pub const EXEC_PAYLOAD_MAX: usize = leasehold_core::spec::EXEC_BYTES_MAX + 8_192;
const EXEC_MAGIC: u32 = 0x3158_484c;

/// Most descriptors that are passed to a program which comes by descriptor: what a caller may pass, and a report.
pub const EXEC_PASSED_MAX: u8 = crate::supervisor::PASSED_MAX + 1;

/// What the stub is to become. With a terminal no descriptor comes along and the stub answers
/// [`super::StubReply::Tty`]; else three descriptors do: standard input, output and error. A program that comes by
/// descriptor, and what it is passed, follow them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    /// Absolute working directory inside.
    pub cwd: Vec<u8>,
    /// Program and arguments.
    pub argv: Vec<Vec<u8>>,
    /// `NAME=value` entries, the whole environment.
    pub env: Vec<Vec<u8>>,
    /// User and group id inside.
    pub ids: (u32, u32),
    /// Size of the terminal, lines and columns, if one is wanted.
    pub tty: Option<(u16, u16)>,
    /// RLIMIT_NOFILE, soft and hard.
    pub files: u32,
    /// RLIMIT_CPU in seconds as a second net; 0 for none.
    pub cpu_seconds: u32,
    /// Of a program that comes by descriptor: how many more descriptors come, which it is to have as 3, 4 and
    /// so on. `None` where the first argument names a program of the sandbox.
    pub passed: Option<u8>,
}

impl ExecRequest {
    /// Descriptors that come with the message.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        let standard = if self.tty.is_some() { 0 } else { 3 };
        standard + self.passed.map_or(0, |passed| 1 + usize::from(passed))
    }
}

/// The fixed part of an exec message, as read from the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecHeader {
    argc: u32,
    envc: u32,
    payload: u32,
    ids: (u32, u32),
    tty: Option<(u16, u16)>,
    files: u32,
    cpu_seconds: u32,
    passed: Option<u8>,
}

/// In the word of flags: a terminal is wanted.
const WITH_TTY: u32 = 1;
/// In the word of flags: the program comes by descriptor.
const WITH_PROGRAM: u32 = 2;

impl ExecHeader {
    /// Reads the fixed part.
    ///
    /// # Errors
    /// When a magic number, count or length is out of bounds.
    pub fn decode(bytes: &[u8; EXEC_HEADER_LEN]) -> Result<Self, GuestError> {
        if word(bytes, 0) != EXEC_MAGIC {
            return Err(GuestError::Kind(word(bytes, 0)));
        }
        let flags = word(bytes, 4);
        let header = Self {
            argc: word(bytes, 8),
            envc: word(bytes, 12),
            payload: word(bytes, 16),
            ids: (word(bytes, 20), word(bytes, 24)),
            tty: (flags & WITH_TTY != 0).then(|| {
                (
                    u16::from_le_bytes([bytes[28], bytes[29]]),
                    u16::from_le_bytes([bytes[30], bytes[31]]),
                )
            }),
            files: word(bytes, 32),
            cpu_seconds: word(bytes, 36),
            // Looked at below: what is cut off here is out of bounds.
            passed: (flags & WITH_PROGRAM != 0).then_some(bytes[40]),
        };
        if flags & WITH_PROGRAM == 0 && word(bytes, 40) != 0 || flags == WITH_TTY | WITH_PROGRAM {
            return Err(GuestError::Payload);
        }
        let bounds = [
            ("flags", flags as usize, (WITH_TTY | WITH_PROGRAM) as usize),
            ("passed", word(bytes, 40) as usize, EXEC_PASSED_MAX.into()),
            ("argc", header.argc as usize, leasehold_core::spec::ARGS_MAX),
            (
                "envc",
                header.envc as usize,
                leasehold_core::spec::ENV_MAX + 64,
            ),
            ("payload", header.payload as usize, EXEC_PAYLOAD_MAX),
        ];
        for (field, value, high) in bounds {
            if value > high {
                return Err(GuestError::Bound {
                    field,
                    value: value as u64,
                    high: high as u64,
                });
            }
        }
        Ok(header)
    }

    /// Bytes of payload that follow.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload as usize
    }

    /// Puts header and payload together.
    ///
    /// # Errors
    /// When the payload does not hold exactly the promised strings.
    pub fn with_payload(&self, payload: &[u8]) -> Result<ExecRequest, GuestError> {
        if payload.len() != self.payload_len() || payload.last().is_some_and(|byte| *byte != 0) {
            return Err(GuestError::Payload);
        }
        let mut parts: Vec<Vec<u8>> = payload
            .split(|byte| *byte == 0)
            .map(<[u8]>::to_vec)
            .collect();
        parts.pop();
        if parts.len() != 1 + self.argc as usize + self.envc as usize || self.argc == 0 {
            return Err(GuestError::Payload);
        }
        let env = parts.split_off(1 + self.argc as usize);
        let argv = parts.split_off(1);
        let cwd = parts.remove(0);
        Ok(ExecRequest {
            cwd,
            argv,
            env,
            ids: self.ids,
            tty: self.tty,
            files: self.files,
            cpu_seconds: self.cpu_seconds,
            passed: self.passed,
        })
    }
}

impl ExecRequest {
    /// Header and payload as bytes. The strings must hold no NUL byte; `ExecSpec::check` saw to that.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        for part in std::iter::once(&self.cwd)
            .chain(&self.argv)
            .chain(&self.env)
        {
            payload.extend_from_slice(part);
            payload.push(0);
        }
        let (rows, cols) = self.tty.unwrap_or((0, 0));
        let mut bytes = vec![0; EXEC_HEADER_LEN];
        let tty = self.tty.map_or(0, |_| WITH_TTY);
        let program = self.passed.map_or(0, |_| WITH_PROGRAM);
        let words: [(usize, u32); 11] = [
            (0, EXEC_MAGIC),
            (4, tty | program),
            (8, self.argv.len() as u32),
            (12, self.env.len() as u32),
            (16, payload.len() as u32),
            (20, self.ids.0),
            (24, self.ids.1),
            (28, u32::from(rows) | u32::from(cols) << 16),
            (32, self.files),
            (36, self.cpu_seconds),
            (40, self.passed.unwrap_or(0).into()),
        ];
        for (at, value) in words {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes.extend_from_slice(&payload);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> ExecRequest {
        ExecRequest {
            cwd: b"/workspace".to_vec(),
            argv: vec![b"sh".to_vec(), b"-c".to_vec(), Vec::new()],
            env: vec![b"A=\xff".to_vec()],
            ids: (1000, 1000),
            tty: Some((24, 80)),
            files: 64,
            cpu_seconds: 3,
            passed: None,
        }
    }

    fn decode(bytes: &[u8]) -> Result<ExecRequest, GuestError> {
        let fixed: [u8; EXEC_HEADER_LEN] = bytes[..EXEC_HEADER_LEN].try_into().unwrap();
        ExecHeader::decode(&fixed)?.with_payload(&bytes[EXEC_HEADER_LEN..])
    }

    #[test]
    fn exec_requests_read_back() {
        for tty in [None, Some((24, 80))] {
            let request = ExecRequest { tty, ..request() };
            assert_eq!(decode(&request.encode()), Ok(request));
        }
        for (passed, descriptors) in [(0, 4), (EXEC_PASSED_MAX, 4 + 7)] {
            let request = ExecRequest {
                tty: None,
                passed: Some(passed),
                ..request()
            };
            assert_eq!(request.descriptors(), descriptors);
            assert_eq!(decode(&request.encode()), Ok(request));
        }
    }

    #[test]
    fn hostile_exec_requests_are_refused() {
        let good = request().encode();
        for (at, value) in [(0, 0), (11, 0xff), (15, 0xff), (19, 0xff), (8, 4), (12, 9)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(decode(&bad).is_err(), "byte {at}");
        }
        // A terminal and a program, flags nobody knows, and descriptors without a program.
        for (at, value) in [(4, 3), (4, 4), (5, 1), (40, 1), (43, 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(decode(&bad).is_err(), "byte {at} is {value}");
        }
        let program = ExecRequest {
            tty: None,
            passed: Some(EXEC_PASSED_MAX),
            ..request()
        };
        let good_program = program.encode();
        assert!(decode(&good_program).is_ok());
        for (at, value) in [(40, EXEC_PASSED_MAX + 1), (40, 0xff), (41, 1), (43, 0x80)] {
            let mut bad = good_program.clone();
            bad[at] = value;
            assert!(decode(&bad).is_err(), "byte {at} is {value}");
        }
        let mut cut = good.clone();
        cut.pop();
        assert!(decode(&cut).is_err());
    }
}
