//! What the command line and the daemon say to the supervisor.
//!
//! One connection carries [`Call`] frames one way and [`Notice`] frames the other; `tag` is chosen by
//! the caller and repeated in every notice that belongs to the call. The socket admits only its
//! own user (peer credentials).

use leasehold_core::contract::Contract;
use leasehold_core::digest::Digest;
use leasehold_core::end::CancelledBy;
use leasehold_core::error::PublicError;
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::record::{Observed, RunRecord, Usage};
use leasehold_core::sandbox::state::State;
use leasehold_core::spec::{ExecSpec, SandboxSpec};
use leasehold_core::stage::StageTime;
use serde::{Deserialize, Serialize};

use crate::socket::{FrameError, frame};

/// Version of this protocol. Both sides refuse another one.
pub const VERSION: u32 = 4;

/// Name of the copy of a collected file below `runs/<run>/artifacts` of the state directory; `place` is
/// that of its row in the record.
#[must_use]
pub fn artifact_name(place: usize) -> String {
    format!("{:04}", place + 1)
}

/// One request and the tag its answers carry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Chosen by the caller, unique among its open calls.
    pub tag: u64,
    /// What is wanted.
    pub request: Request,
}

/// Where a command is to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A sandbox made for it (or claimed from the pool where one fits), destroyed afterwards.
    New(SandboxSpec),
    /// A sandbox that was provisioned before; it is destroyed afterwards.
    Parked(SandboxId),
}

/// A program that comes with its run, and is executed by descriptor in the place of a program of the sandbox.
/// It is a sealed memory file (see [`crate::memory`]), and no script; its environment is empty, its working
/// directory `/`. The command that comes with it is what contract and record tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supplied {
    /// Its arguments, its own name first; within the bounds of any command's.
    pub argv: Vec<String>,
    /// Descriptors it gets as 3, 4 and so on; at most [`PASSED_MAX`]. They follow the program in the message.
    #[serde(default)]
    pub passed: u8,
    /// Whether it gets one more, the last: a memory file of [`crate::wasm::REPORT_LEN`] zero bytes that it
    /// cannot make longer, and where a [`crate::wasm::Report`] is looked for when every process is dead.
    #[serde(default)]
    pub report: bool,
    /// Whether the run is work of our own for its caller: it ends as soon as the connection does, is told in
    /// no list of runs, and its record goes with its sandbox.
    #[serde(default)]
    pub bound: bool,
    /// Of the program's file, for the contract. The caller's word: it made the file.
    pub digest: Digest,
}

/// Most descriptors that a supplied program is passed.
pub const PASSED_MAX: u8 = 6;

/// What a caller wants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Must come first. Answer: [`Event::Hello`].
    Hello {
        /// [`VERSION`] of the caller.
        version: u32,
    },
    /// Run one command. Descriptors, in this order: the workspace directory, where the mode needs one; the
    /// directory of an image's unpacked layers and the lease that keeps them, where the sandbox has an image; the
    /// supplied program; what is passed to it.
    /// Answers: `Accepted` (or `Refused`), then `Stage` and `Output`, then `Ended`, then `Cleaned`.
    Run {
        /// Id chosen by the caller; a second run of the same id is refused.
        run: RunId,
        /// Where.
        target: Target,
        /// What.
        exec: Box<ExecSpec>,
        /// The program that is executed, where it is not one of the sandbox.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        supplied: Option<Box<Supplied>>,
    },
    /// Take up a run again, after the reader went away. Answers as for `Run`, from its present
    /// state; output is read from the spool descriptors at any offset.
    Attach {
        /// Which run.
        run: RunId,
    },
    /// End a run. Answer: `Done`; the run's own notices follow on its connection.
    Cancel {
        /// Which run.
        run: RunId,
        /// For whom.
        by: CancelledBy,
        /// Without the grace between TERM and KILL.
        at_once: bool,
    },
    /// Make a sandbox and leave it parked; none with an image. A workspace directory as for `Run`. Answer: `Provisioned`.
    Provision {
        /// Which.
        sandbox: SandboxSpec,
        /// Only for this caller: ended with its connection, unless a run has claimed it by then.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        held: bool,
    },
    /// Keep so many untouched sandboxes of this kind parked. Answer: `Done` once that many are there.
    Pool {
        /// Which kind.
        sandbox: SandboxSpec,
        /// How many; 0 empties the pool of this kind.
        count: u32,
        /// Only for this caller: let go when it has been away for the time after which a supervisor
        /// with nothing to do leaves, unless somebody asks for it anew.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        held: bool,
    },
    /// Start the agent in a provisioned sandbox: one descriptor, its program in a sealed memory file (see
    /// [`crate::memory`]). Answer: `Channel` with a stream socket to it.
    Agent {
        /// Which sandbox.
        sandbox: SandboxId,
    },
    /// What a sandbox uses now. Answer: `Usage`.
    Usage {
        /// Which sandbox.
        sandbox: SandboxId,
    },
    /// End a provisioned sandbox. Idempotent. Answer: `Destroyed`.
    Destroy {
        /// Which sandbox.
        sandbox: SandboxId,
    },
    /// Keep a file for whoever comes later, while the supervisor lives and until others push it out: one
    /// descriptor, of a sealed memory file (see [`crate::memory`]). Answer: `Done`.
    Keep {
        /// Digest of its bytes. The caller's word: who may say it may run anything here.
        digest: Digest,
    },
    /// Asks for a file that was kept. Answer: `Kept`.
    Kept {
        /// Digest of its bytes.
        digest: Digest,
    },
    /// What there is. Answer: `Status`.
    Status,
    /// End everything and go. Answer: `Done`, then the connection closes.
    Stop,
}

impl Request {
    /// A run of a program of the sandbox.
    #[must_use]
    pub fn run(run: RunId, target: Target, exec: ExecSpec) -> Self {
        Self::Run {
            run,
            target,
            exec: Box::new(exec),
            supplied: None,
        }
    }

    /// A run of a program that comes along.
    #[must_use]
    pub fn run_supplied(run: RunId, target: Target, exec: ExecSpec, supplied: Supplied) -> Self {
        Self::Run {
            run,
            target,
            exec: Box::new(exec),
            supplied: Some(Box::new(supplied)),
        }
    }
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// Tag of the call it belongs to.
    pub tag: u64,
    /// What happened.
    pub event: Event,
}

/// What the supervisor tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Answer to `Hello`.
    Hello {
        /// [`VERSION`] of the supervisor.
        version: u32,
        /// Its process id.
        pid: u32,
    },
    /// The call failed; nothing else comes for its tag.
    Refused(PublicError),
    /// The run is recorded and will be carried out. Descriptors: the spools of standard output and
    /// standard error (readable at any offset), and, where the command has a standard input or a
    /// terminal, the writable end of it. A terminal does not block, since the supervisor reads it.
    Accepted {
        /// The run.
        run: RunId,
        /// Its sandbox.
        sandbox: SandboxId,
        /// Whether a third descriptor (standard input or terminal) is there.
        input: bool,
        /// Whether a parked sandbox serves it.
        #[serde(default)]
        warm: bool,
    },
    /// A stage ended.
    Stage(StageTime),
    /// So many bytes are in the spools now. Sent when there is room; the newest is what counts.
    Output {
        /// Bytes of standard output (or of the terminal).
        stdout: u64,
        /// Bytes of standard error.
        stderr: u64,
    },
    /// The outcome is fixed and recorded. Removal goes on.
    Ended(Box<RunRecord>),
    /// Removal was observed; the record is complete.
    Cleaned(Box<RunRecord>),
    /// Answer to `Provision`.
    Provisioned {
        /// The parked sandbox.
        sandbox: SandboxId,
        /// What it promises.
        contract: Box<Contract>,
    },
    /// Answer to `Agent`; the descriptor is the channel.
    Channel,
    /// Answer to `Usage`.
    Usage(Usage),
    /// Answer to `Destroy`.
    Destroyed(Observed),
    /// Answer to `Kept`.
    Kept {
        /// Whether the file is there; it is the descriptor then.
        there: bool,
    },
    /// Answer to `Status`.
    Status {
        /// Every sandbox this supervisor knows.
        sandboxes: Vec<SandboxStatus>,
    },
    /// The call is carried out.
    Done,
}

/// Which word of a run's record an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordWord {
    /// [`Event::Ended`].
    Ended,
    /// [`Event::Cleaned`].
    Cleaned,
}

/// The frame of a notice with a record that is encoded already, so that what is written and told to any
/// number of callers is encoded once. `record` is its JSON.
///
/// # Errors
/// When the frame is longer than one may be.
pub fn record_frame(tag: u64, word: RecordWord, record: &[u8]) -> Result<Vec<u8>, FrameError> {
    let word = match word {
        RecordWord::Ended => "ended",
        RecordWord::Cleaned => "cleaned",
    };
    let head = format!(r#"{{"tag":{tag},"event":{{"{word}":"#);
    let body = [head.as_bytes(), record, b"}}"].concat();
    frame(&body)
}

/// One sandbox in [`Event::Status`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxStatus {
    /// Which.
    pub sandbox: SandboxId,
    /// Where it is in its life.
    pub state: State,
    /// Host process id of its init; 0 when there is none.
    pub init_pid: u32,
    /// The run in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// Whether it is one of those kept parked: the next run may have it at any moment.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pooled: bool,
    /// Whether it is work of our own that ends with its caller's connection. Its run is not told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bound: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::{FRAME_MAX, encode_frame};

    #[test]
    fn a_run_without_a_supplied_program_says_nothing_of_one() {
        let run = RunId::from_entropy(&[1; 13]);
        let target = Target::New(SandboxSpec::default());
        let plain = Request::run(run, target, ExecSpec::command(["true"]));
        let text = serde_json::to_string(&plain).unwrap();
        assert!(!text.contains("supplied"), "{text}");
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), plain);
        let digest = Digest::of(b"program");
        let least = format!(r#"{{"argv":["host"],"digest":"{digest}"}}"#);
        let supplied: Supplied = serde_json::from_str(&least).unwrap();
        assert_eq!(
            (supplied.passed, supplied.report, supplied.bound),
            (0, false, false)
        );
    }

    #[test]
    fn an_encoded_record_is_told_as_any_other() {
        let run = RunId::from_entropy(&[1; 13]);
        let sandbox = SandboxId::from_entropy(&[2; 13]);
        let record = RunRecord::accepted(run, sandbox, 7);
        let text = serde_json::to_vec(&record).unwrap();
        for (word, event) in [
            (RecordWord::Ended, Event::Ended(Box::new(record.clone()))),
            (
                RecordWord::Cleaned,
                Event::Cleaned(Box::new(record.clone())),
            ),
        ] {
            let plain = encode_frame(&Notice { tag: 3, event }).unwrap();
            assert_eq!(record_frame(3, word, &text).unwrap(), plain);
        }
        assert!(record_frame(3, RecordWord::Ended, &vec![b' '; FRAME_MAX]).is_err());
    }
}
