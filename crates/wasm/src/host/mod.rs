//! The host process: it runs modules for one owner, over one socket, until that closes.
//!
//! Or for one run alone ([`one`]), without anybody to talk to.
//!
//! Everything happens on one thread: a run that computes lets the others go on at each tick of [`epoch`]. What
//! breaks the protocol ends the process, and so do its owner's end and the socket's; a module that traps, and
//! even a defect in what it calls, end the run alone.

pub mod epoch;
pub mod one;
mod runs;
pub mod server;

/// What a panic said.
pub(crate) fn said(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(other) => other
                .downcast_ref::<&str>()
                .map_or("", |text| *text)
                .to_owned(),
        },
        Err(error) => error.to_string(),
    }
}
