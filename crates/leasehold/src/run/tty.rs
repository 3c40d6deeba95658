//! The caller's terminal: its size, and raw mode that is undone on every way out.

use std::os::fd::{AsFd, OwnedFd};

use leasehold_core::spec::TtySize;
use rustix::termios::{
    OptionalActions, Termios, Winsize, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};

use crate::fault::Fault;

/// Size of the terminal, if there is one at both standard input and output.
pub(crate) fn size() -> Option<TtySize> {
    let stdin = std::io::stdin();
    if !isatty(&stdin) || !isatty(std::io::stdout()) {
        return None;
    }
    let size = tcgetwinsize(&stdin).ok()?;
    Some(TtySize {
        rows: if size.ws_row == 0 { 24 } else { size.ws_row },
        cols: if size.ws_col == 0 { 80 } else { size.ws_col },
    })
}

/// Gives the terminal of the sandbox the size of ours. A sandbox that is gone needs none.
pub(crate) fn resize(master: &OwnedFd) {
    if let Some(size) = size() {
        let size = Winsize {
            ws_row: size.rows,
            ws_col: size.cols,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let _ = tcsetwinsize(master, size);
    }
}

/// Standard input in raw mode until this is dropped.
#[derive(Debug)]
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    /// Sets raw mode.
    ///
    /// # Errors
    /// When standard input is no terminal or cannot be set.
    pub(crate) fn enter() -> Result<Self, Fault> {
        let failed = |errno: rustix::io::Errno| {
            Fault::host("cannot set the terminal to raw mode").because(&errno)
        };
        let stdin = std::io::stdin();
        let before = tcgetattr(stdin.as_fd()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin.as_fd(), OptionalActions::Now, &raw).map_err(failed)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let stdin = std::io::stdin();
        // TCSADRAIN waits for output of ours that is still on its way.
        let _ = tcsetattr(stdin.as_fd(), OptionalActions::Drain, &self.before);
    }
}
