//! What a supervisor sheds of whoever happened to start it.
//!
//! It outlives its starter and serves other callers, so what holds for the one must not hold for all:
//! limits on resources, ignored and blocked signals, the working directory, the mode mask. Every
//! sandbox would inherit them too. A hard limit that an ordinary user cannot raise stays; one that
//! leaves no room to work is a refusal, any other is told in the posture of each run.

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use leasehold_jail::sys;

use crate::server::FDS_PER_SANDBOX;

const MIB: u64 = 1 << 20;
/// Descriptors the supervisor keeps for itself.
pub(crate) const FDS_RESERVED: u64 = 128;

/// A limit that counts for the supervisor or for what it starts.
struct Kind {
    resource: Resource,
    /// As in `RLIMIT_…`.
    name: &'static str,
    /// What it limits, in words, and the letter that `ulimit` has for it.
    what: &'static str,
    letter: char,
    /// The least a supervisor can work with, in the kernel's unit; none is enough for one that ends.
    least: Option<u64>,
}

const FILE_SIZE: Kind = Kind {
    resource: Resource::Fsize,
    name: "fsize",
    what: "bytes of one file",
    letter: 'f',
    // Twice the output that is kept of a stream by default.
    least: Some(128 * MIB),
};

impl Kind {
    /// What to raise it to, as a shell writes it and as a unit of systemd does.
    fn enough(&self) -> (&'static str, &'static str) {
        match self.resource {
            // The kernel knows no number without end here.
            Resource::Nofile => ("65536", "65536"),
            _ => ("unlimited", "infinity"),
        }
    }
}

const KINDS: [Kind; 5] = [
    FILE_SIZE,
    Kind {
        resource: Resource::Cpu,
        name: "cpu",
        what: "seconds of processor time",
        letter: 't',
        least: None,
    },
    Kind {
        resource: Resource::As,
        name: "as",
        what: "bytes of address space",
        letter: 'v',
        least: Some(256 * MIB),
    },
    Kind {
        resource: Resource::Data,
        name: "data",
        what: "bytes of data",
        letter: 'd',
        least: Some(64 * MIB),
    },
    Kind {
        resource: Resource::Nproc,
        name: "nproc",
        what: "processes of this user",
        letter: 'u',
        least: Some(16),
    },
];

/// Descriptors: with fewer no sandbox can be made, with more there is a bound on how many.
const FILES: Kind = Kind {
    resource: Resource::Nofile,
    name: "nofile",
    what: "open files of one process",
    letter: 'n',
    least: Some(FDS_RESERVED + FDS_PER_SANDBOX),
};
/// So many descriptors are asked for where a starter's limit leaves no room to work.
const FILES_ROOMY: u64 = 1 << 16;

/// Why no supervisor can work here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the hard limit on {what} is {limit}, and a supervisor that is started under it {why}; raise it where \
     this is started from: as root `ulimit -{letter} {}`, or `{setting}={}` in its systemd unit", enough.0, enough.1
)]
pub struct Shortage {
    what: &'static str,
    limit: u64,
    why: String,
    letter: char,
    /// The name of the limit in a unit of systemd.
    setting: String,
    /// A value that is enough, as a shell writes it and as a unit does.
    enough: (&'static str, &'static str),
}

/// Sheds all that can be shed. Returns the hard limits that stay, for the posture.
///
/// # Errors
/// When a hard limit leaves no room to work.
pub(crate) fn shed() -> Result<Vec<String>, Shortage> {
    // The root directory is always there, and nobody wants it unmounted.
    let _ = rustix::process::chdir("/");
    rustix::process::umask(Mode::from_raw_mode(0o077));
    // The runtime ignores broken pipes, and so it stays: who wrote is told by an error.
    let _ = sys::reset_signals().and_then(|()| sys::ignore_broken_pipes());
    let mut stay = Vec::new();
    for kind in &KINDS {
        let Some(limit) = raise(kind.resource) else {
            continue;
        };
        judge(kind, limit)?;
        // Every user has a number of processes; that it is finite is nothing to tell.
        if kind.resource != Resource::Nproc {
            stay.push(format!("rlimit {} {limit}", kind.name));
        }
    }
    Ok(stay)
}

/// Raises how long a file of this process may be, as far as it goes. Whoever begins a supervisor writes its program
/// and the agent's, and would be killed at the limit.
///
/// # Errors
/// When the hard limit leaves no room for a supervisor either.
pub fn raise_file_size() -> Result<(), Shortage> {
    raise(FILE_SIZE.resource).map_or(Ok(()), |limit| judge(&FILE_SIZE, limit))
}

/// Raises the number of descriptors as far as the starter's hard limit goes, and beyond it where that leaves no room
/// to work and this process may. Returns it.
///
/// # Errors
/// When too few stay.
pub(crate) fn descriptors() -> Result<u64, Shortage> {
    let Some(most) = raise(FILES.resource) else {
        return Ok(1 << 20);
    };
    if judge(&FILES, most).is_ok() {
        return Ok(most);
    }
    let roomy = Rlimit {
        current: Some(FILES_ROOMY),
        maximum: Some(FILES_ROOMY),
    };
    match setrlimit(FILES.resource, roomy) {
        Ok(()) => Ok(FILES_ROOMY),
        Err(_) => judge(&FILES, most).map(|()| most),
    }
}

fn judge(kind: &Kind, limit: u64) -> Result<(), Shortage> {
    let why = match kind.least {
        None => "would be killed at it".to_owned(),
        Some(least) if limit < least => format!("needs at least {least}"),
        Some(_) => return Ok(()),
    };
    Err(Shortage {
        what: kind.what,
        limit,
        why,
        letter: kind.letter,
        setting: format!("Limit{}", kind.name.to_uppercase()),
        enough: kind.enough(),
    })
}

/// Raises a limit as far as it goes; what it is then, unless that is no limit.
fn raise(resource: Resource) -> Option<u64> {
    let none = Rlimit {
        current: None,
        maximum: None,
    };
    let found = getrlimit(resource);
    found.current?;
    if setrlimit(resource, none).is_ok() {
        return None;
    }
    let raised = Rlimit {
        current: found.maximum,
        maximum: found.maximum,
    };
    match setrlimit(resource, raised) {
        Ok(()) => found.maximum,
        Err(_) => found.current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_ends_the_supervisor_is_refused_and_a_roomy_one_is_told() {
        let [fsize, cpu, ..] = &KINDS;
        assert_eq!(judge(fsize, 128 * MIB), Ok(()));
        let error = judge(fsize, MIB).unwrap_err().to_string();
        assert!(
            error.contains("bytes of one file is 1048576")
                && error.contains("`ulimit -f unlimited`"),
            "{error}"
        );
        assert!(error.contains("`LimitFSIZE=infinity`"), "{error}");
        let least = FDS_RESERVED + FDS_PER_SANDBOX;
        assert_eq!(judge(&FILES, least), Ok(()));
        let error = judge(&FILES, least - 1).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "the hard limit on open files of one process is {}, and a supervisor that is started under it \
                 needs at least {least}; raise it where this is started from: as root `ulimit -n 65536`, or \
                 `LimitNOFILE=65536` in its systemd unit",
                least - 1
            )
        );
        let error = judge(cpu, 1 << 40).unwrap_err().to_string();
        assert!(error.contains("would be killed at it"), "{error}");
    }
}
