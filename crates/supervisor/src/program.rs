//! What the supervisor's program is told by its arguments and its environment, the word it waits for, and the
//! program of its sandboxes that it is given.
//!
//! It is a program apart from the command line, static and small: it is loaded in a fraction of the time, every
//! sandbox is copied from it, and what it has not, such as a reader of images or a network, nobody can misuse in it.
//! Standard input is init's program, a memory file that may still be empty. A *leashed* one is begun before it is
//! known whether it is wanted: its standard output is a socket at which it is told so ([`GO`](leash::GO)), and then that the
//! init's file is whole and sealed ([`WHOLE`](leash::WHOLE)); the other end is held by who began it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use leasehold_protocol::{leash, memory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::log;
use crate::paths::{Paths, PathsError};
use crate::retention::{Retention, RetentionError};
use crate::start::{self, Config, IDLE_EXIT};

/// Its first argument, which lists of processes show.
pub const WORD: &str = "supervisor";
/// The flag before the seconds without anything to do after which it goes.
pub const IDLE_FLAG: &str = "--idle";
/// Environment variable: whether systemd may be asked for control groups.
pub const SCOPE_VARIABLE: &str = "LEASEHOLD_SCOPE";

/// How long whoever wants us may take to fill init's file.
const FILL_PATIENCE: Duration = Duration::from_secs(10);

/// What [`SCOPE_VARIABLE`] holds is neither of its words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{SCOPE_VARIABLE}` is `{0}`: `auto` and `off` are its words")]
pub struct ScopeError(String);

/// Why a supervisor does not begin.
#[derive(Debug, thiserror::Error)]
enum ProgramError {
    #[error("the arguments are `supervisor [--idle SECONDS]`, and `{0}` is not of them")]
    Argument(String),
    #[error("standard input is not init's program: `leasehold supervisor` begins one")]
    NoInit,
    #[error("cannot tell the directories")]
    Paths(#[from] PathsError),
    #[error(transparent)]
    Scope(#[from] ScopeError),
    #[error(transparent)]
    Retention(#[from] RetentionError),
    #[error("cannot close the caller's descriptors")]
    Descriptors(#[source] std::io::Error),
}

/// Is the supervisor. The process must have one thread.
#[must_use]
pub fn main() -> ExitCode {
    // Executed from memory, it would be called by the number of a descriptor.
    let _ = rustix::thread::set_name(c"leasehold");
    let began = Words::read(std::env::args_os().skip(1)).and_then(|words| {
        if words.leashed && !hears(io::stdout(), leash::GO) {
            return Ok(None);
        }
        config(&words).map(Some)
    });
    match began {
        Ok(Some(config)) => start::main(config),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            log::failure("no supervisor can begin", &error);
            ExitCode::from(2)
        }
    }
}

fn config(words: &Words) -> Result<Config, ProgramError> {
    // A pipe or lock of the caller would be held for as long as we live.
    leasehold_jail::sys::close_inherited().map_err(ProgramError::Descriptors)?;
    let duplicate = |fd: &dyn AsFd| rustix::io::fcntl_dupfd_cloexec(fd, 3);
    let file = duplicate(&io::stdin())
        .ok()
        .filter(|file| memory::can_be_sealed(file))
        .ok_or(ProgramError::NoInit)?;
    let leash = words
        .leashed
        .then(|| duplicate(&io::stdout()))
        .transpose()
        .map_err(|errno| ProgramError::Descriptors(errno.into()))?;
    Ok(Config {
        idle_exit: words.idle,
        paths: Paths::from_env()?,
        init: InitProgram {
            file,
            leash: leash.map(|leash| (leash, Instant::now() + FILL_PATIENCE)),
        },
        scope: scope_from_env()?,
        retention: Retention::from_env()?,
    })
}

/// Whether the next byte at the leash is this one; its end is none.
fn hears(leash: impl AsFd, expected: u8) -> bool {
    let mut byte = [0];
    rustix::io::retry_on_intr(|| rustix::io::read(&leash, &mut byte)) == Ok(1)
        && byte[0] == expected
}

/// Init's program, which every sandbox executes.
#[derive(Debug)]
pub struct InitProgram {
    file: OwnedFd,
    /// Where it is told that the file is whole, and when it must have been, until it was.
    leash: Option<(OwnedFd, Instant)>,
}

impl InitProgram {
    /// One that is in its file already.
    #[must_use]
    pub fn whole(file: OwnedFd) -> Self {
        Self { file, leash: None }
    }

    /// Another descriptor of its file.
    pub(crate) fn share(&self) -> io::Result<OwnedFd> {
        self.file.try_clone()
    }

    /// Whether it was not yet seen whole.
    pub(crate) fn is_awaited(&self) -> bool {
        self.leash.is_some()
    }

    /// Looks whether the file is whole by now, and that nobody can change it any more.
    ///
    /// # Errors
    /// When whoever began us went away before that, takes too long, or left the file open.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        let Some((held, until)) = &self.leash else {
            return Ok(());
        };
        let mut polled = [PollFd::new(held, PollFlags::IN)];
        if poll(&mut polled, Some(&Timespec::default())) == Ok(0) && Instant::now() < *until {
            return Ok(());
        }
        let told = !polled[0].revents().is_empty() && hears(held, leash::WHOLE);
        self.leash = None;
        match (told, memory::is_sealed(&self.file)) {
            (true, true) => Ok(()),
            (true, false) => Err(io::Error::other("its file is not sealed")),
            (false, _) => Err(io::Error::other(
                "whoever began this supervisor did not fill its file",
            )),
        }
    }
}

/// What [`SCOPE_VARIABLE`] says: whether systemd may be asked. It may where nobody says otherwise.
///
/// # Errors
/// When it is set to something else than its two words.
pub fn scope_from_env() -> Result<bool, ScopeError> {
    scope_word(&std::env::var_os(SCOPE_VARIABLE).unwrap_or_default())
}

fn scope_word(value: &OsStr) -> Result<bool, ScopeError> {
    match value.to_str() {
        Some("" | "auto") => Ok(true),
        Some("off") => Ok(false),
        _ => Err(ScopeError(shown(value))),
    }
}

/// The arguments.
#[derive(Debug, PartialEq, Eq)]
struct Words {
    idle: Duration,
    leashed: bool,
}

impl Words {
    fn read(mut words: impl Iterator<Item = OsString>) -> Result<Self, ProgramError> {
        match words.next() {
            Some(word) if word == WORD => {}
            other => return Err(ProgramError::Argument(shown(&other.unwrap_or_default()))),
        }
        let mut read = Self {
            idle: IDLE_EXIT,
            leashed: false,
        };
        while let Some(word) = words.next() {
            if word == leash::FLAG {
                read.leashed = true;
                continue;
            }
            if word != IDLE_FLAG {
                return Err(ProgramError::Argument(shown(&word)));
            }
            let seconds = words.next().unwrap_or_default();
            read.idle = seconds
                .to_str()
                .and_then(|text| text.parse().ok())
                .map(Duration::from_secs)
                .ok_or_else(|| ProgramError::Argument(shown(&seconds)))?;
        }
        Ok(read)
    }
}

/// The beginning of a word of somebody else's.
fn shown(word: &OsStr) -> String {
    word.to_string_lossy().chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_word_that_is_none_is_refused() {
        let word = |text: &str| scope_word(OsStr::new(text)).ok();
        assert_eq!(
            [word(""), word("auto"), word("off")],
            [Some(true), Some(true), Some(false)]
        );
        assert_eq!([word("on"), word("OFF"), word("0")], [None; 3]);
    }

    #[test]
    fn arguments_are_understood_or_named() {
        let read = |words: &[&str]| {
            Words::read(words.iter().map(OsString::from)).map_err(|error| error.to_string())
        };
        let words = |seconds, leashed| {
            Ok(Words {
                idle: Duration::from_secs(seconds),
                leashed,
            })
        };
        let usual = IDLE_EXIT.as_secs();
        assert_eq!(read(&["supervisor"]), words(usual, false));
        assert_eq!(read(&["supervisor", "--idle", "7"]), words(7, false));
        assert_eq!(
            read(&["supervisor", leash::FLAG, "--idle", "0"]),
            words(0, true)
        );
        for (words, named) in [
            (&["serve"][..], "`serve`"),
            (&["supervisor", "-i"], "`-i`"),
            (&["supervisor", "--idle"], "``"),
            (&["supervisor", "--idle", "soon"], "`soon`"),
            (&["supervisor", "--idle", "7", "8"], "`8`"),
            (&[], "``"),
        ] {
            let error = read(words).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }

    /// One whose file is open, and the other end of its leash.
    fn awaited(patience: Duration) -> (InitProgram, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let init = InitProgram {
            file: memory::create("test").unwrap(),
            leash: Some((theirs.into(), Instant::now() + patience)),
        };
        (init, ours)
    }

    #[test]
    fn an_init_is_awaited_until_it_is_whole_and_sealed() {
        let (mut init, mut ours) = awaited(FILL_PATIENCE);
        init.look().unwrap();
        assert!(init.is_awaited(), "nobody has said anything");
        memory::seal(&init.file).unwrap();
        ours.write_all(&[leash::WHOLE]).unwrap();
        init.look().unwrap();
        assert!(!init.is_awaited());
        init.look().unwrap();
    }

    #[test]
    fn an_init_that_does_not_come_whole_is_told() {
        let told = |mut init: InitProgram| init.look().unwrap_err().to_string();
        let (open, mut ours) = awaited(FILL_PATIENCE);
        ours.write_all(&[leash::WHOLE]).unwrap();
        assert!(told(open).contains("not sealed"));
        let (unsaid, mut ours) = awaited(FILL_PATIENCE);
        memory::seal(&unsaid.file).unwrap();
        ours.write_all(b"x").unwrap();
        assert!(told(unsaid).contains("did not fill"));
        let (left, ours) = awaited(FILL_PATIENCE);
        drop(ours);
        assert!(told(left).contains("did not fill"));
        let (late, _ours) = awaited(Duration::ZERO);
        assert!(told(late).contains("did not fill"));
    }
}
