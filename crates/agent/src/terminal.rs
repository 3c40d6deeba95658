//! A terminal for a command: its own end becomes standard input, output and error and the
//! controlling terminal; the other end goes to whoever asked.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Result;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// Makes a terminal of `rows` and `columns` in the sandbox's own instance, takes it as controlling
/// terminal of this session and as the standard descriptors, and gives the other end. The caller must
/// lead a session without a terminal, and already have the identity that is to own it.
///
/// # Errors
/// As the calls it makes.
pub fn take(rows: u16, columns: u16) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::openat(CWD, "/dev/ptmx", flags, Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    // By descriptor: a path could be made to lead elsewhere.
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let own = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&own, size)?;
    rustix::process::ioctl_tiocsctty(&own)?;
    rustix::stdio::dup2_stdin(&own)?;
    rustix::stdio::dup2_stdout(&own)?;
    rustix::stdio::dup2_stderr(&own)?;
    Ok(master)
}
