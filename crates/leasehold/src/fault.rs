//! A failure of the command line itself: a chain of causes, a hint and an exit status.
//!
//! The end of a run is no failure of ours and never becomes one of these.

use std::error::Error;

use leasehold_core::end::EndReason;
use leasehold_core::error::PublicError;

/// Exit status for wrong flags, arguments and names.
const USAGE: u8 = 2;
/// Exit status when a run could not start or the host failed us.
const HOST: u8 = 125;

/// What went wrong, why, how to mend it, and the status to leave with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    status: u8,
    chain: Vec<String>,
    hint: Option<String>,
}

impl Fault {
    fn new(status: u8, message: impl Into<String>) -> Self {
        Self {
            status,
            chain: vec![message.into()],
            hint: None,
        }
    }

    /// The caller's mistake; the message names field, value and what is allowed.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    /// The host's or our own failure.
    pub(crate) fn host(message: impl Into<String>) -> Self {
        Self::new(HOST, message)
    }

    /// Says first what it was about.
    #[must_use]
    pub(crate) fn about(mut self, what: impl Into<String>) -> Self {
        self.chain.insert(0, what.into());
        self
    }

    /// Appends a cause and all of its own causes.
    #[must_use]
    pub(crate) fn because(mut self, cause: &dyn Error) -> Self {
        let mut next = Some(cause);
        while let Some(error) = next {
            self.chain.push(error.to_string());
            next = error.source();
        }
        self
    }

    /// Adds the mend.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A run that ended before anything of it was begun, with the status of that end.
    pub(crate) fn ended(end: &EndReason, message: impl Into<String>) -> Self {
        Self::new(end.cli_status(), message)
    }

    /// The exit status.
    pub(crate) fn status(&self) -> u8 {
        self.status
    }

    /// The whole chain on one line. A cause that only repeats what was said is left out.
    pub(crate) fn chain(&self) -> String {
        let mut said: Vec<&str> = Vec::with_capacity(self.chain.len());
        for text in &self.chain {
            if !said
                .last()
                .is_some_and(|last| last.ends_with(text.as_str()))
            {
                said.push(text);
            }
        }
        said.join(": ")
    }

    /// The mend, where one is known.
    pub(crate) fn mend(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl From<PublicError> for Fault {
    fn from(error: PublicError) -> Self {
        Self {
            status: error.kind.cli_status(),
            chain: vec![error.message],
            hint: error.hint,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::error::ErrorKind;

    #[test]
    fn the_chain_is_one_line_without_repetition() {
        let inner = std::io::Error::other("no room");
        let fault = Fault::host("cannot write the record: no room").because(&inner);
        assert_eq!(fault.chain(), "cannot write the record: no room");
        let fault = Fault::host("cannot write the record").because(&inner);
        assert_eq!(fault.chain(), "cannot write the record: no room");
        assert_eq!(fault.status(), 125);
    }

    #[test]
    fn a_public_error_keeps_kind_and_hint() {
        let error = PublicError::new(ErrorKind::Invalid, "`env` is wrong").hint("mend it");
        let fault = Fault::from(error);
        assert_eq!((fault.status(), fault.mend()), (2, Some("mend it")));
    }
}
