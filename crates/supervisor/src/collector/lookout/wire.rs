//! What the lookout and the supervisor tell each other, one message per datagram.
//!
//! The lookout reads hostile trees, so what it says is checked like any other hostile bytes.

use leasehold_core::record::LeftChange;

use super::super::names::{self, PATH_MAX};
use super::super::wire::{FAILED, failure, read_failure};

/// Why something may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Short {
    /// As many names as may be looked at.
    Entries,
    /// Directories deeper, or paths longer, than may be looked at.
    Depth,
    /// Its time was over.
    Time,
    /// More files of such names, or links to them, than may be kept.
    Files,
    /// More of the workspace's own mounts than may be held.
    Mounts,
    /// The workspace itself could not be read.
    Workspace,
}

impl Short {
    const ALL: [Self; 6] = [
        Self::Entries,
        Self::Depth,
        Self::Time,
        Self::Files,
        Self::Mounts,
        Self::Workspace,
    ];

    /// The word of the record.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Entries => "entries",
            Self::Depth => "depth",
            Self::Time => "time",
            Self::Files => "files",
            Self::Mounts => "mounts",
            Self::Workspace => "unreadable",
        }
    }

    fn encode(short: Option<Self>) -> u8 {
        short.map_or(u8::MAX, |short| short as u8)
    }

    fn decode(byte: u8) -> Option<Option<Self>> {
        match byte {
            u8::MAX => Some(None),
            byte => Self::ALL.get(usize::from(byte)).copied().map(Some),
        }
    }
}

/// One message of the lookout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// It knows how the workspace is before anything ran.
    Ready,
    /// One file that is not as it was.
    Row { change: LeftChange, path: Vec<u8> },
    /// It has seen what it could.
    Done(Option<Short>),
    /// It could not be confined.
    Failed { errno: i32, attempt: String },
}

/// The supervisor's only word: everything of the sandbox is dead, look again.
pub(super) const AGAIN: u8 = 1;

const READY: u8 = 1;
const ROW: u8 = 2;
const DONE: u8 = 3;
/// Most bytes of one message.
pub(super) const MESSAGE_MAX: usize = 2 + PATH_MAX;

const CHANGES: [LeftChange; 5] = [
    LeftChange::Created,
    LeftChange::Changed,
    LeftChange::Removed,
    LeftChange::Unreadable,
    LeftChange::Uncompared,
];

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Ready => vec![READY],
            Self::Row { change, path } => {
                let place = CHANGES.iter().position(|one| one == change);
                let mut message = vec![ROW, place.unwrap_or(CHANGES.len()) as u8];
                message.extend(path);
                message
            }
            Self::Done(short) => vec![DONE, Short::encode(*short)],
            Self::Failed { errno, attempt } => failure(*errno, attempt),
        }
    }

    /// Reads a message; `None` when it is none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [READY] => Some(Self::Ready),
            [ROW, change, path @ ..] => {
                names::check(path).ok()?;
                Some(Self::Row {
                    change: *CHANGES.get(usize::from(*change))?,
                    path: path.to_vec(),
                })
            }
            [DONE, short] => Some(Self::Done(Short::decode(*short)?)),
            [FAILED, rest @ ..] => {
                let (errno, attempt) = read_failure(rest)?;
                Some(Self::Failed { errno, attempt })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_back_and_hostile_ones_are_none() {
        let mut all = vec![
            Message::Ready,
            Message::Failed {
                errno: 1,
                attempt: "hide".into(),
            },
        ];
        all.extend(CHANGES.map(|change| Message::Row {
            change,
            path: b"a/\n".to_vec(),
        }));
        let shorts = Short::ALL.map(Some).into_iter().chain([None]);
        all.extend(shorts.map(Message::Done));
        for message in all {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        for bytes in [
            &[][..],
            &[READY, 0],
            &[ROW],
            &[ROW, 0],
            &[ROW, 5, b'a'],
            &[ROW, 0, b'/', b'a'],
            &[ROW, 0, b'a', b'/', b'.', b'.'],
            &[DONE],
            &[DONE, 6],
            &[FAILED, 0],
            &[9],
        ] {
            assert_eq!(Message::decode(bytes), None);
        }
    }
}
