//! What the supervisor and the two waiting programs of a sandbox say to each other.
//!
//! *Init* (PID 1) has a `SOCK_SEQPACKET` socket on which every message is [`Control`], 32 bytes.
//! The *stub* has a `SOCK_STREAM` socket: it says [`StubReply::Ready`] once, then takes exactly one
//! [`ExecHeader`] with its payload, and either vanishes into the new program (the socket closes on
//! exec) or says [`StubReply::Failed`]. All integers are little endian.

/// Descriptor number of init's control socket after its exec.
pub const INIT_FD: i32 = 3;
/// Descriptor number of the stub's socket, both in init before it starts the stub and in the stub.
pub const STUB_FD: i32 = 4;

/// Bytes of one control message.
pub const CONTROL_LEN: usize = 32;

/// A message that is not of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GuestError {
    /// Wrong number of bytes.
    #[error("guest message has {got} bytes instead of {want}")]
    Length {
        /// Bytes received.
        got: usize,
        /// Bytes of such a message.
        want: usize,
    },
    /// Unknown kind or magic number.
    #[error("guest message kind {0:#x} is unknown")]
    Kind(u32),
    /// A length or count above its bound.
    #[error("guest message field `{field}` is {value}: most is {high}")]
    Bound {
        /// The field.
        field: &'static str,
        /// What it says.
        value: u64,
        /// Most allowed.
        high: u64,
    },
    /// The payload does not hold the strings the header promises.
    #[error("guest message payload does not match its header")]
    Payload,
}

/// Which processes a signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalTarget {
    /// The process group of the main command.
    Main,
    /// Every process of the sandbox but init.
    Everything,
}

/// One message on init's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Host to init: send a signal.
    Signal {
        /// Signal number, 1 to 64.
        signal: u32,
        /// To whom.
        target: SignalTarget,
    },
    /// Host to init: start the agent on the one descriptor that comes with this message.
    StartAgent,
    /// Host to init: end everything.
    Shutdown,
    /// Init to host: the stub is parked.
    Ready {
        /// The stub's process id inside.
        stub: u32,
    },
    /// Init to host: the main command ended.
    MainExited {
        /// Wait status as `wait4(2)` gives it.
        status: i32,
    },
    /// Init to host: the agent runs (pid inside) or could not be started (errno).
    Agent {
        /// Process id inside; 0 when it could not be started.
        pid: u32,
        /// Error number of the attempt; 0 when it runs.
        errno: i32,
    },
    /// Init to host: a set-up step inside failed; the sandbox is unusable.
    SetupFailed {
        /// One of [`SetupStep`].
        step: u32,
        /// Error number.
        errno: i32,
    },
}

/// Set-up steps inside a sandbox that can fail, for diagnostics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum SetupStep {
    /// Taking the init posture (capabilities, securebits, dumpable).
    Posture = 1,
    /// Loading the seccomp program.
    Seccomp = 2,
    /// Starting the stub.
    Stub = 3,
    /// Restricting by Landlock.
    Landlock = 4,
    /// Signals, sockets and the event loop.
    Loop = 5,
}

const SIGNAL: u32 = 1;
const START_AGENT: u32 = 2;
const SHUTDOWN: u32 = 3;
const READY: u32 = 16;
const MAIN_EXITED: u32 = 17;
const AGENT: u32 = 18;
const SETUP_FAILED: u32 = 19;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Control {
    /// The message as bytes.
    #[must_use]
    pub fn encode(self) -> [u8; CONTROL_LEN] {
        let (kind, a, b) = match self {
            Self::Signal {
                signal,
                target: SignalTarget::Main,
            } => (SIGNAL, signal, 0),
            Self::Signal {
                signal,
                target: SignalTarget::Everything,
            } => (SIGNAL, signal, 1),
            Self::StartAgent => (START_AGENT, 0, 0),
            Self::Shutdown => (SHUTDOWN, 0, 0),
            Self::Ready { stub } => (READY, stub, 0),
            Self::MainExited { status } => (MAIN_EXITED, 0, status),
            Self::Agent { pid, errno } => (AGENT, pid, errno),
            Self::SetupFailed { step, errno } => (SETUP_FAILED, step, errno),
        };
        let mut bytes = [0; CONTROL_LEN];
        bytes[0..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&a.to_le_bytes());
        bytes[8..12].copy_from_slice(&b.to_le_bytes());
        bytes
    }

    /// Reads a message.
    ///
    /// # Errors
    /// When length, kind or a value is out of the protocol; trailing bytes must be zero.
    pub fn decode(bytes: &[u8]) -> Result<Self, GuestError> {
        if bytes.len() != CONTROL_LEN {
            return Err(GuestError::Length {
                got: bytes.len(),
                want: CONTROL_LEN,
            });
        }
        if bytes[12..].iter().any(|byte| *byte != 0) {
            return Err(GuestError::Payload);
        }
        let (kind, a, b) = (word(bytes, 0), word(bytes, 4), word(bytes, 8).cast_signed());
        match kind {
            SIGNAL if !(1..=64).contains(&a) => Err(GuestError::Bound {
                field: "signal",
                value: a.into(),
                high: 64,
            }),
            SIGNAL if b == 0 => Ok(Self::Signal {
                signal: a,
                target: SignalTarget::Main,
            }),
            SIGNAL if b == 1 => Ok(Self::Signal {
                signal: a,
                target: SignalTarget::Everything,
            }),
            SIGNAL => Err(GuestError::Bound {
                field: "target",
                value: u64::from(b.unsigned_abs()),
                high: 1,
            }),
            START_AGENT => Ok(Self::StartAgent),
            SHUTDOWN => Ok(Self::Shutdown),
            READY => Ok(Self::Ready { stub: a }),
            MAIN_EXITED => Ok(Self::MainExited { status: b }),
            AGENT => Ok(Self::Agent { pid: a, errno: b }),
            SETUP_FAILED => Ok(Self::SetupFailed { step: a, errno: b }),
            other => Err(GuestError::Kind(other)),
        }
    }
}

/// Bytes of [`ExecHeader`].
pub const EXEC_HEADER_LEN: usize = 64;
/// Most bytes of an exec payload.
pub const EXEC_PAYLOAD_MAX: usize = leasehold_core::spec::EXEC_BYTES_MAX + 8_192;
const EXEC_MAGIC: u32 = 0x3158_484c;

/// Most descriptors that are passed to a program which comes by descriptor: what a caller may pass, and a report.
pub const EXEC_PASSED_MAX: u8 = crate::supervisor::PASSED_MAX + 1;

/// What the stub is to become. With a terminal no descriptor comes along and the stub answers
/// [`StubReply::Tty`]; else three descriptors do: standard input, output and error. A program that comes by
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

/// Bytes of [`StubReply`].
pub const STUB_REPLY_LEN: usize = 16;

/// What the stub says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StubReply {
    /// It is parked: everything is loaded, it waits for its one message.
    Ready,
    /// The master side of its terminal comes with this message.
    Tty,
    /// It could not become the command.
    Failed {
        /// What it tried.
        step: ExecStep,
        /// Error number.
        errno: i32,
    },
}

/// What a stub does between its message and the new program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ExecStep {
    /// Reading the message.
    Message = 1,
    /// Opening the terminal.
    Tty = 2,
    /// Taking standard input, output and error.
    Stdio = 3,
    /// Entering the working directory.
    Cwd = 4,
    /// Resource limits.
    Rlimits = 5,
    /// Taking the workload's identity and posture.
    Posture = 6,
    /// Becoming the program.
    Exec = 7,
}

impl ExecStep {
    /// The step of this number, if there is one.
    #[must_use]
    pub fn from_word(value: u32) -> Option<Self> {
        [
            Self::Message,
            Self::Tty,
            Self::Stdio,
            Self::Cwd,
            Self::Rlimits,
            Self::Posture,
            Self::Exec,
        ]
        .into_iter()
        .find(|step| *step as u32 == value)
    }
}

impl StubReply {
    /// The reply as bytes.
    #[must_use]
    pub fn encode(self) -> [u8; STUB_REPLY_LEN] {
        let (kind, step, errno) = match self {
            Self::Ready => (1u32, 0, 0),
            Self::Tty => (2, 0, 0),
            Self::Failed { step, errno } => (3, step as u32, errno),
        };
        let mut bytes = [0; STUB_REPLY_LEN];
        bytes[0..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&step.to_le_bytes());
        bytes[8..12].copy_from_slice(&errno.to_le_bytes());
        bytes
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// When length, kind or step is unknown.
    pub fn decode(bytes: &[u8]) -> Result<Self, GuestError> {
        if bytes.len() != STUB_REPLY_LEN {
            return Err(GuestError::Length {
                got: bytes.len(),
                want: STUB_REPLY_LEN,
            });
        }
        let (kind, step, errno) = (word(bytes, 0), word(bytes, 4), word(bytes, 8).cast_signed());
        match kind {
            1 => Ok(Self::Ready),
            2 => Ok(Self::Tty),
            3 => ExecStep::from_word(step)
                .map(|step| Self::Failed { step, errno })
                .ok_or(GuestError::Kind(step)),
            other => Err(GuestError::Kind(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_read_back() {
        let all = [
            Control::Signal {
                signal: 15,
                target: SignalTarget::Main,
            },
            Control::Signal {
                signal: 9,
                target: SignalTarget::Everything,
            },
            Control::StartAgent,
            Control::Shutdown,
            Control::Ready { stub: 2 },
            Control::MainExited { status: -1 },
            Control::Agent { pid: 0, errno: 13 },
            Control::SetupFailed {
                step: SetupStep::Seccomp as u32,
                errno: 1,
            },
        ];
        for message in all {
            assert_eq!(Control::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn hostile_control_messages_are_refused() {
        assert!(Control::decode(&[]).is_err());
        assert!(Control::decode(&[0; 33]).is_err());
        assert!(Control::decode(&[0xff; CONTROL_LEN]).is_err());
        let mut signal = Control::Signal {
            signal: 9,
            target: SignalTarget::Main,
        }
        .encode();
        signal[4] = 65;
        assert!(Control::decode(&signal).is_err());
        let mut trailing = Control::Shutdown.encode();
        trailing[31] = 1;
        assert_eq!(Control::decode(&trailing), Err(GuestError::Payload));
    }

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
        for (passed, descriptors) in [(0, 4), (EXEC_PASSED_MAX, 4 + 9)] {
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

    #[test]
    fn stub_replies_read_back() {
        for reply in [
            StubReply::Ready,
            StubReply::Tty,
            StubReply::Failed {
                step: ExecStep::Exec,
                errno: 2,
            },
        ] {
            assert_eq!(StubReply::decode(&reply.encode()), Ok(reply));
        }
        assert!(StubReply::decode(&[9; STUB_REPLY_LEN]).is_err());
    }
}
