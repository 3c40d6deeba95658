//! What a command has as standard input, output and error, made while its sandbox waits.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Gid, Uid, fchown};

use crate::spool::output_pipe;

/// Both output pipes of one command, and its input where it has none of its own.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Opened anew for each: of one open file all sandboxes would share flags and locks.
    pub(crate) null: OwnedFd,
    /// Our ends of standard output and error, which do not block.
    pub(crate) readers: [OwnedFd; 2],
    pub(crate) writers: [OwnedFd; 2],
}

impl Streams {
    /// Makes them. `owner` are the host's numbers of the workload's user and group, where it is not our own: it opens
    /// `/dev/stderr` by name, and a pipe that is not its own would be refused.
    pub(crate) fn make(owner: Option<(u32, u32)>) -> io::Result<Self> {
        let pipe = || -> io::Result<(OwnedFd, OwnedFd)> {
            let (reader, writer) = output_pipe()?;
            if let Some((uid, gid)) = owner {
                let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
                fchown(&writer, Some(user), Some(group))?;
            }
            Ok((reader, writer))
        };
        let ((out, out_end), (error, error_end)) = (pipe()?, pipe()?);
        Ok(Self {
            null: crate::start::open_null()?,
            readers: [out, error],
            writers: [out_end, error_end],
        })
    }
}
