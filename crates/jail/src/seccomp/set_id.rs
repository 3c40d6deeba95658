//! A second program, for a workload that works on files of the host: none of them may come to run as
//! its owner or group for whoever starts it on the host.
//!
//! Inside, no mount honours such a mode; outside, the file is the caller's, who may be root. A call
//! whose mode is behind a pointer cannot be looked at and does not exist then.

use super::Program;
use super::compile::{Range, assemble};
use super::rule::{Arch, Branch, Row, Rule, Test, Word};

const REFUSED: Rule = Rule::Errno(libc::EPERM as u16);
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
/// With these flags alone does an open take a mode.
const MAKES: u32 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;

const fn branch(arg: u8, bits: u32, then: Rule) -> Branch {
    Branch {
        word: Word::Low(arg),
        test: Test::AnyBit(bits),
        then,
        otherwise: Rule::Allow,
    }
}

static MODE_SECOND: Branch = branch(1, SET_ID, REFUSED);
static MODE_THIRD: Branch = branch(2, SET_ID, REFUSED);
static MODE_FOURTH: Branch = branch(3, SET_ID, REFUSED);
static OPEN: Branch = branch(1, MAKES, Rule::If(&MODE_THIRD));
static OPEN_AT: Branch = branch(2, MAKES, Rule::If(&MODE_FOURTH));

/// Every call that gives a file its mode.
const ROWS: [Row; 10] = [
    Row::new("open", Some(2), None, Rule::If(&OPEN)),
    Row::new("openat", Some(257), Some(56), Rule::If(&OPEN_AT)),
    Row::new("creat", Some(85), None, Rule::If(&MODE_SECOND)),
    Row::new("mknod", Some(133), None, Rule::If(&MODE_SECOND)),
    Row::new("mknodat", Some(259), Some(33), Rule::If(&MODE_THIRD)),
    Row::new("chmod", Some(90), None, Rule::If(&MODE_SECOND)),
    Row::new("fchmod", Some(91), Some(52), Rule::If(&MODE_SECOND)),
    Row::new("fchmodat", Some(268), Some(53), Rule::If(&MODE_THIRD)),
    Row::new("fchmodat2", Some(452), Some(452), Rule::If(&MODE_THIRD)),
    Row::new(
        "openat2",
        Some(437),
        Some(437),
        Rule::Errno(libc::ENOSYS as u16),
    ),
];

impl Program {
    /// A program that refuses set-user-id and set-group-id modes. It allows all else and is of use
    /// only on top of [`Program::native`].
    #[must_use]
    pub fn no_set_id() -> Self {
        let mut rows: Vec<(u32, Rule)> = ROWS
            .iter()
            .filter_map(|row| Some((row.number(Arch::NATIVE)?, row.rule)))
            .collect();
        rows.sort_unstable_by_key(|(number, _)| *number);
        let allowed = |start| Range {
            start,
            rule: Rule::Allow,
        };
        let mut ranges = vec![allowed(0)];
        for (number, rule) in rows {
            if ranges.last().is_some_and(|range| range.start == number) {
                ranges.pop();
            }
            ranges.push(Range {
                start: number,
                rule,
            });
            ranges.push(allowed(number + 1));
        }
        Self {
            instructions: assemble(Arch::NATIVE, &ranges),
        }
    }
}
