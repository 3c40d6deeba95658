//! Signals as something to poll: nothing happens inside a handler but a flag and a byte.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};

/// What signals asked for since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// To end: INT, TERM or HUP came.
    pub(crate) end: bool,
    /// The terminal has another size.
    pub(crate) resized: bool,
}

/// The signals that are ours from now on. They stay taken until the process ends.
#[derive(Debug)]
pub(crate) struct Signals {
    readable: UnixStream,
    end: Arc<AtomicBool>,
    resized: Arc<AtomicBool>,
}

impl Signals {
    /// Takes INT, TERM, HUP and WINCH.
    ///
    /// # Errors
    /// When the kernel refuses a socket pair or a handler.
    pub(crate) fn take() -> io::Result<Self> {
        let (readable, writable) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        let signals = Self {
            readable,
            end: Arc::default(),
            resized: Arc::default(),
        };
        for (signal, flag) in [
            (SIGINT, &signals.end),
            (SIGTERM, &signals.end),
            (SIGHUP, &signals.end),
            (SIGWINCH, &signals.resized),
        ] {
            // The flag comes first: whoever is woken by the byte finds it.
            signal_hook::flag::register(signal, Arc::clone(flag))?;
            signal_hook::low_level::pipe::register(signal, writable.try_clone()?)?;
        }
        Ok(signals)
    }

    /// What was asked since the last look. Several of one kind count once.
    pub(crate) fn asked(&self) -> Asked {
        let mut bytes = [0; 64];
        while rustix::io::read(&self.readable, &mut bytes).is_ok_and(|got| got == bytes.len()) {}
        Asked {
            end: self.end.swap(false, Ordering::SeqCst),
            resized: self.resized.swap(false, Ordering::SeqCst),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
