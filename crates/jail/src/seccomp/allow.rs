//! A program for a helper of ours: a short list of calls, everything else refused.

use super::Program;
use super::compile::{Range, assemble};
use super::rule::{Arch, Branch, Rule, Test, Word};

const REFUSED: Rule = Rule::Errno(libc::EPERM as u16);
const PROT_EXEC: u32 = libc::PROT_EXEC as u32;

/// The third argument asks for memory that can be executed.
pub(super) static WITHOUT_EXECUTION: Branch = Branch {
    word: Word::Low(2),
    test: Test::AnyBit(PROT_EXEC),
    then: REFUSED,
    otherwise: Rule::Allow,
};

/// Rows that allow the listed calls by number, and those of `unless_exec` while their third argument does not
/// ask for execution.
pub(super) fn allowing(
    calls: &[libc::c_long],
    unless_exec: &[libc::c_long],
) -> impl Iterator<Item = (libc::c_long, Rule)> {
    let careful = unless_exec
        .iter()
        .map(|call| (*call, Rule::If(&WITHOUT_EXECUTION)));
    let rows = calls.iter().map(|call| (*call, Rule::Allow));
    rows.chain(careful)
}

impl Program {
    /// A program of this machine that allows the listed calls by number, those of `unless_exec` while
    /// their third argument does not ask for execution, and refuses all others with `EPERM`.
    #[cfg(any(feature = "host", test))]
    pub(crate) fn allow_only(calls: &[libc::c_long], unless_exec: &[libc::c_long]) -> Self {
        Self::of_rows(allowing(calls, unless_exec))
    }

    /// A program of this machine that does with each call by number what its row says, and refuses all
    /// others with `EPERM`.
    pub(super) fn of_rows(rows: impl Iterator<Item = (libc::c_long, Rule)>) -> Self {
        let mut rows: Vec<(u32, Rule)> = rows
            .filter_map(|(call, rule)| Some((u32::try_from(call).ok()?, rule)))
            .collect();
        rows.sort_unstable_by_key(|(call, _)| *call);
        let mut ranges = Vec::new();
        let mut next = 0;
        for (call, rule) in rows {
            if call > next {
                ranges.push(Range {
                    start: next,
                    rule: REFUSED,
                });
            }
            ranges.push(Range { start: call, rule });
            next = call + 1;
        }
        ranges.push(Range {
            start: next,
            rule: REFUSED,
        });
        ranges.dedup_by_key(|range| range.rule);
        Self {
            instructions: assemble(Arch::NATIVE, &ranges),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::process::{WaitOptions, waitpid};

    use super::*;

    /// Runs `body` in a child under the program; gives its status.
    fn under(program: &Program, body: impl FnOnce() -> u8) -> i32 {
        let out = std::io::stdout();
        let child = crate::sys::spawn_child(&[out.as_fd()], || {
            if rustix::thread::set_no_new_privs(true).is_err() || program.load().is_err() {
                return 99;
            }
            body()
        });
        let (_, status) = waitpid(Some(child.unwrap()), WaitOptions::empty())
            .unwrap()
            .unwrap();
        status.exit_status().unwrap()
    }

    fn opens_a_socket() -> u8 {
        let (family, kind) = (
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
        );
        u8::from(rustix::net::socket(family, kind, None).is_ok())
    }

    #[test]
    fn only_listed_calls_reach_the_kernel() {
        let some = [libc::SYS_exit_group, libc::SYS_close, libc::SYS_munmap];
        let all = [&some[..], &[libc::SYS_socket]].concat();
        assert_eq!(under(&Program::allow_only(&some, &[]), opens_a_socket), 0);
        assert_eq!(under(&Program::allow_only(&all, &[]), opens_a_socket), 1);
    }
}
