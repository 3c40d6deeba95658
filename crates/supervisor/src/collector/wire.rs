//! What the collector tells the supervisor, one message per datagram.
//!
//! The collector reads hostile trees, so what it says is checked like any other hostile bytes.

use super::names::PATH_MAX;

/// What became of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Copied whole.
    Taken,
    /// Copied while somebody wrote it: what was there, cut at its first size.
    Changed,
    /// A symbolic link; never followed.
    Symlink,
    /// A pipe, socket or device.
    NotRegular,
    /// Longer than one file may be.
    TooLarge,
    /// It could not be read.
    Unreadable,
    /// Some bound was reached.
    Limit,
}

impl Fate {
    const ALL: [Self; 7] = [
        Self::Taken,
        Self::Changed,
        Self::Symlink,
        Self::NotRegular,
        Self::TooLarge,
        Self::Unreadable,
        Self::Limit,
    ];

    /// Whether a copy is there.
    pub(super) fn taken(self) -> bool {
        matches!(self, Self::Taken | Self::Changed)
    }

    /// The word of the record; none for a file that was copied whole.
    pub(super) fn reason(self) -> Option<&'static str> {
        match self {
            Self::Taken => None,
            Self::Changed => Some("changed_while_read"),
            Self::Symlink => Some("symlink"),
            Self::NotRegular => Some("not_regular"),
            Self::TooLarge => Some("too_large"),
            Self::Unreadable => Some("unreadable"),
            Self::Limit => Some("limit"),
        }
    }
}

/// Why a collection ended before it had seen everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// As many files as may be taken.
    Files,
    /// As many names as may be looked at.
    Entries,
    /// As much as the record may hold.
    Record,
    /// Its time was over.
    Time,
    /// The host could not store a copy.
    Storage,
    /// The workspace itself could not be read.
    Workspace,
    /// The collector ended by itself.
    Died,
}

impl Cut {
    const ALL: [Self; 7] = [
        Self::Files,
        Self::Entries,
        Self::Record,
        Self::Time,
        Self::Storage,
        Self::Workspace,
        Self::Died,
    ];
}

/// One message of the collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// It needs a file to copy into.
    Want,
    /// One file is dealt with.
    Row {
        fate: Fate,
        bytes: u64,
        sha256: [u8; 32],
        path: Vec<u8>,
    },
    /// It has seen what it could. A bit per glob that nothing matched.
    Done { cut: Option<Cut>, unmatched: u64 },
    /// It could not be confined.
    Failed { errno: i32, attempt: String },
}

const WANT: u8 = 1;
const ROW: u8 = 2;
const DONE: u8 = 3;
/// Kind of a message that tells of a [`failure`], the collector's and the lookout's alike.
pub(super) const FAILED: u8 = 4;
const ROW_HEAD: usize = 2 + 8 + 32;

/// Most bytes of one message.
pub(super) const MESSAGE_MAX: usize = ROW_HEAD + PATH_MAX;
/// The supervisor's answer to [`Message::Want`] when a descriptor comes along.
pub(super) const TAKE: u8 = 1;
/// The supervisor's answer when there is no more room.
pub(super) const NO_MORE: u8 = 0;

/// The message of a process that could not be confined: what it tried, and how that failed.
pub(super) fn failure(errno: i32, attempt: &str) -> Vec<u8> {
    let mut message = vec![FAILED];
    message.extend(errno.to_le_bytes());
    message.extend(attempt.bytes());
    message
}

/// Reads what comes after the kind of such a message.
pub(super) fn read_failure(rest: &[u8]) -> Option<(i32, String)> {
    let (errno, attempt) = rest.split_first_chunk()?;
    let attempt = String::from_utf8_lossy(attempt).into_owned();
    Some((i32::from_le_bytes(*errno), attempt))
}

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Want => vec![WANT],
            Self::Row {
                fate,
                bytes,
                sha256,
                path,
            } => {
                let mut message = vec![ROW, *fate as u8];
                message.extend(bytes.to_le_bytes());
                message.extend(sha256);
                message.extend(path);
                message
            }
            Self::Done { cut, unmatched } => {
                let mut message = vec![DONE, cut.map_or(u8::MAX, |cut| cut as u8)];
                message.extend(unmatched.to_le_bytes());
                message
            }
            Self::Failed { errno, attempt } => failure(*errno, attempt),
        }
    }

    /// Reads a message; `None` when it is none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        match *kind {
            WANT if rest.is_empty() => Some(Self::Want),
            ROW => {
                let (fate, rest) = rest.split_first()?;
                let (bytes, rest) = rest.split_first_chunk()?;
                let (sha256, path) = rest.split_first_chunk()?;
                super::names::check(path).ok()?;
                Some(Self::Row {
                    fate: *Fate::ALL.get(usize::from(*fate))?,
                    bytes: u64::from_le_bytes(*bytes),
                    sha256: *sha256,
                    path: path.to_vec(),
                })
            }
            DONE => {
                let (cut, rest) = rest.split_first()?;
                let unmatched = u64::from_le_bytes(rest.try_into().ok()?);
                let cut = match *cut {
                    u8::MAX => None,
                    cut => Some(*Cut::ALL.get(usize::from(cut))?),
                };
                Some(Self::Done { cut, unmatched })
            }
            FAILED => {
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
    fn messages_read_back() {
        let mut all = vec![
            Message::Want,
            Message::Failed {
                errno: 1,
                attempt: "take the user".into(),
            },
        ];
        all.extend(Fate::ALL.map(|fate| Message::Row {
            fate,
            bytes: u64::MAX,
            sha256: [7; 32],
            path: b"a/\n".to_vec(),
        }));
        let cuts = Cut::ALL.map(Some).into_iter().chain([None]);
        all.extend(cuts.map(|cut| Message::Done { cut, unmatched: 5 }));
        for message in all {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn hostile_messages_are_none() {
        let row = |path: &[u8]| {
            Message::Row {
                fate: Fate::Taken,
                bytes: 0,
                sha256: [0; 32],
                path: path.to_vec(),
            }
            .encode()
        };
        let mut bad_fate = row(b"a");
        bad_fate[1] = 7;
        for bytes in [
            &[][..],
            &[9],
            &[WANT, 0],
            &row(b""),
            &row(b"/etc/passwd"),
            &row(b"a/../b"),
            &row(&[b'a'; 256]),
            &row(b"a")[..ROW_HEAD - 1],
            &bad_fate,
            &[DONE, 7, 0, 0, 0, 0, 0, 0, 0, 0],
            &[DONE, 0, 0],
            &[FAILED, 0],
        ] {
            assert_eq!(Message::decode(bytes), None);
        }
    }
}
