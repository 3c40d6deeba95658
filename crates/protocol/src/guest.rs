//! What the supervisor and the two waiting programs of a sandbox say to each other.
//!
//! *Init* (PID 1) has a `SOCK_SEQPACKET` socket on which every message is [`Control`], 32 bytes.
//! The *stub* has a `SOCK_STREAM` socket: it says [`StubReply::Ready`] once, then takes exactly one
//! [`ExecHeader`] with its payload, before which any number of bytes [`ROUSE`] may come, and either vanishes into the new program (the socket closes on
//! exec) or says [`StubReply::Failed`]. All integers are little endian.

mod exec;

pub use self::exec::{EXEC_HEADER_LEN, EXEC_PASSED_MAX, EXEC_PAYLOAD_MAX, ExecHeader, ExecRequest};

/// Descriptor number of init's control socket after its exec.
pub const INIT_FD: i32 = 3;
/// Descriptor number of the stub's socket, both in init before it starts the stub and in the stub.
pub const STUB_FD: i32 = 4;

/// A byte that says nothing but that the message to the stub may come in a moment; no message begins
/// with it. For stubs that are not an interpreter.
pub const ROUSE: u8 = 0;

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
