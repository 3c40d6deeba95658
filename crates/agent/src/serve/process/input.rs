//! Bytes for a process: its standard input or its terminal.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::envd::process::{ProcessInput, Size};
use rustix::io::Errno;
use rustix::termios::Winsize;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;

use super::super::bounds;

/// Where bytes for a process go. The locks keep the order of what several callers send.
pub(super) enum Input {
    /// A pipe; none once it is closed.
    Pipe(Mutex<Option<AsyncFd<OwnedFd>>>),
    /// The master side of a terminal.
    Terminal(Rc<AsyncFd<OwnedFd>>, Mutex<()>),
}

fn wrong(message: &str) -> CallError {
    CallError::new(Code::FailedPrecondition, message)
}

impl Input {
    /// Sends bytes and waits until the process's side has taken them.
    ///
    /// # Errors
    /// When they are for another kind of input, or it is closed.
    pub(super) async fn send(&self, input: &ProcessInput) -> Result<(), CallError> {
        match (self, &input.stdin, &input.pty) {
            (Self::Pipe(pipe), Some(bytes), None) => {
                let pipe = pipe.lock().await;
                let pipe = pipe
                    .as_ref()
                    .ok_or_else(|| wrong("error writing to stdin: it is not enabled or closed"))?;
                write(pipe, &bytes.0)
                    .await
                    .map_err(|error| wrong(&format!("error writing to stdin: {error}")))
            }
            (Self::Terminal(master, order), None, Some(bytes)) => {
                let _order = order.lock().await;
                write(master, &bytes.0)
                    .await
                    .map_err(|error| wrong(&format!("error writing to tty: {error}")))
            }
            (Self::Pipe(_), None, Some(_)) => Err(wrong(
                "error writing to tty: the process has none, its input is stdin",
            )),
            (Self::Terminal(..), Some(_), None) => Err(wrong(
                "error writing to stdin: the process has a tty, its input is pty",
            )),
            _ => Err(CallError::new(
                Code::InvalidArgument,
                "input is not exactly one of stdin and pty",
            )),
        }
    }

    /// Closes a pipe; twice is a success.
    ///
    /// # Errors
    /// For a terminal.
    pub(super) async fn close(&self) -> Result<(), CallError> {
        match self {
            Self::Pipe(pipe) => {
                *pipe.lock().await = None;
                Ok(())
            }
            Self::Terminal(..) => Err(wrong(
                "cannot close stdin for PTY process — send Ctrl+D (0x04) instead",
            )),
        }
    }

    /// Sets the size of the terminal.
    ///
    /// # Errors
    /// When there is none, or the size is out of bounds.
    pub(super) fn resize(&self, size: Size) -> Result<(), CallError> {
        match self {
            Self::Pipe(_) => Err(wrong("error resizing tty: the process has none")),
            Self::Terminal(master, _) => {
                let size = window(size)?;
                rustix::termios::tcsetwinsize(master.get_ref(), size)
                    .map_err(|errno| wrong(&format!("error resizing tty: {errno}")))
            }
        }
    }
}

/// A size within its bounds, as the kernel takes it.
///
/// # Errors
/// When a side is longer than [`bounds::TERMINAL_SIDE`].
pub(super) fn window(size: Size) -> Result<Winsize, CallError> {
    let side = |name: &str, value: u32| match u16::try_from(value) {
        Ok(side) if value <= bounds::TERMINAL_SIDE => Ok(side),
        _ => {
            let most = bounds::TERMINAL_SIDE;
            let message = format!("terminal {name} is {value}: most is {most}");
            Err(CallError::new(Code::InvalidArgument, message))
        }
    };
    Ok(Winsize {
        ws_row: side("rows", size.rows)?,
        ws_col: side("cols", size.cols)?,
        ws_xpixel: 0,
        ws_ypixel: 0,
    })
}

async fn write(to: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut guard = to.writable().await?;
        match guard.try_io(|to| Ok(rustix::io::write(to.get_ref(), bytes)?)) {
            Ok(Ok(written)) => bytes = &bytes[written..],
            Ok(Err(error)) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
    Ok(())
}
