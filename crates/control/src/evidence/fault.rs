//! What can be wrong with evidence. Closed; each says what was found and where.

use std::fmt;

use leasehold_core::digest::Digest;

use super::plain::plain;

/// Which chain a fault is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Of {
    /// The events of a run.
    Run,
    /// The log of a tenant.
    Log,
}

impl Of {
    fn link(self) -> &'static str {
        match self {
            Self::Run => "event",
            Self::Log => "log entry",
        }
    }

    fn whole(self) -> &'static str {
        match self {
            Self::Run => "the run's chain",
            Self::Log => "the tenant's log",
        }
    }
}

/// Which signed text a fault is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signed {
    /// What the run came to.
    Statement,
    /// A head of the tenant's log.
    Head,
    /// The list of keys.
    Keys,
}

impl Signed {
    fn word(self) -> &'static str {
        match self {
            Self::Statement => "the statement",
            Self::Head => "the log's head",
            Self::Keys => "the list of keys",
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Fault {
    /// It cannot be read as evidence at all.
    Unreadable(String),
    /// Its content is not what its digest says.
    Altered(Of, u64),
    /// Links from `from` to before `to` are not there, and later ones are.
    Cut {
        /// Of which chain.
        of: Of,
        /// First that is missing.
        from: u64,
        /// First that is there again.
        to: u64,
    },
    /// The end is not there.
    MissingTail {
        /// Of which chain.
        of: Of,
        /// Links that are there.
        have: u64,
        /// Links that were signed.
        signed: u64,
    },
    /// There is more than was signed.
    Added {
        /// To which chain.
        of: Of,
        /// Links that are there.
        have: u64,
        /// Links that were signed.
        signed: u64,
    },
    /// It stands in another place than its number says.
    Reordered(Of, u64),
    /// It is there twice.
    Duplicated(Of, u64),
    /// Two different ones claim one place.
    Forked(Of, u64),
    /// It is of another run or tenant.
    Foreign {
        /// In which chain.
        of: Of,
        /// Its number.
        seq: u64,
        /// Whose it is.
        whose: String,
    },
    /// None of it is there, although it was opened.
    Absent {
        /// Which chain.
        of: Of,
        /// Of which run or tenant.
        whose: String,
    },
    /// Its epoch is older than that of the one before.
    OldEpoch(u64),
    /// It is not one that may stand there (a second admission, a first that is none, another's contract).
    Misplaced(u64),
    /// An older copy: the log is known to be longer.
    OlderCopy {
        /// Entries of this copy.
        have: u64,
        /// Entries it is known to have had.
        known: u64,
    },
    /// The log is as long as a head that is known, and is another.
    OtherHistory {
        /// At which length.
        count: u64,
    },
    /// A part is not there.
    Missing(&'static str),
    /// A signed text says otherwise than what it comes with.
    Differs {
        /// Which text.
        signed: Signed,
        /// Which part.
        part: &'static str,
    },
    /// A signature that does not hold.
    BadSignature(Signed, Digest),
    /// It is not signed by a key that is trusted.
    UnknownKey(Signed, Digest),
    /// It was signed after its key was retired.
    RetiredKey {
        /// Which text.
        signed: Signed,
        /// Which key.
        key: Digest,
        /// When the key was retired, milliseconds since 1970.
        until_unix_ms: u64,
        /// When it says it was signed.
        at_unix_ms: u64,
    },
    /// It was signed before its key was in use.
    EarlyKey {
        /// Which text.
        signed: Signed,
        /// Which key.
        key: Digest,
        /// Since when the key was in use, milliseconds since 1970.
        from_unix_ms: u64,
        /// When it says it was signed.
        at_unix_ms: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(why) => write!(out, "unreadable: {}", plain(why)),
            Self::Missing(part) => write!(out, "missing: there is no {part}"),
            Self::Altered(..)
            | Self::Cut { .. }
            | Self::MissingTail { .. }
            | Self::Added { .. }
            | Self::Reordered(..)
            | Self::Duplicated(..)
            | Self::Forked(..)
            | Self::Foreign { .. }
            | Self::Absent { .. }
            | Self::OldEpoch(_)
            | Self::Misplaced(_)
            | Self::OlderCopy { .. }
            | Self::OtherHistory { .. } => out.write_str(&self.of_chain()),
            Self::Differs { .. }
            | Self::BadSignature(..)
            | Self::UnknownKey(..)
            | Self::RetiredKey { .. }
            | Self::EarlyKey { .. } => out.write_str(&self.of_signature()),
        }
    }
}

impl Fault {
    fn of_chain(&self) -> String {
        match self {
            Self::Altered(of, seq) => format!("altered: {} {seq}", of.link()),
            Self::Cut { of, from, to } => {
                let last = to.saturating_sub(1);
                let (link, whole) = (of.link(), of.whole());
                format!("cut: {link} {from} to {last} of {whole} are not there")
            }
            Self::MissingTail { of, have, signed } => format!(
                "missing tail: {} has {have} of the {signed} that were signed",
                of.whole()
            ),
            Self::Added { of, have, signed } => {
                format!(
                    "added: {} has {have}, only {signed} were signed",
                    of.whole()
                )
            }
            Self::Reordered(of, seq) => format!("reordered: {} {seq}", of.link()),
            Self::Duplicated(of, seq) => format!("duplicated: {} {seq}", of.link()),
            Self::Forked(of, seq) => {
                format!("forked: two different ones claim to be {} {seq}", of.link())
            }
            Self::Foreign { of, seq, whose } => {
                format!("another's: {} {seq} is of {}", of.link(), plain(whose))
            }
            Self::Absent { of, whose } => format!(
                "absent: {} of {} was opened and is not there",
                of.whole(),
                plain(whose)
            ),
            Self::OldEpoch(seq) => {
                format!("old epoch: event {seq} was written by a fenced writer")
            }
            Self::Misplaced(seq) => format!("misplaced: event {seq} may not stand there"),
            Self::OlderCopy { have, known } => format!(
                "truncated: this copy of the log has {have} entries, it is known to have had {known}"
            ),
            Self::OtherHistory { count } => {
                format!("forked: the log is not the one that was known at {count} entries")
            }
            _ => String::new(),
        }
    }

    fn of_signature(&self) -> String {
        match self {
            Self::Differs { signed, part } => {
                format!("differs: {} was signed for another {part}", signed.word())
            }
            Self::BadSignature(signed, key) => {
                format!(
                    "bad signature: {} was not signed by {key} as it is",
                    signed.word()
                )
            }
            Self::UnknownKey(signed, key) => format!(
                "wrong key: {} is signed by {key}, which is not trusted",
                signed.word()
            ),
            Self::RetiredKey {
                signed,
                key,
                until_unix_ms,
                at_unix_ms,
            } => format!(
                "retired key: {} is signed by {key} at {at_unix_ms}, it was retired at {until_unix_ms}",
                signed.word()
            ),
            Self::EarlyKey {
                signed,
                key,
                from_unix_ms,
                at_unix_ms,
            } => format!(
                "wrong key: {} is signed by {key} at {at_unix_ms}, it was in use only from {from_unix_ms}",
                signed.word()
            ),
            _ => String::new(),
        }
    }
}
