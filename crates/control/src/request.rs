//! What a caller asks for.

use leasehold_core::error::{ErrorKind, PublicError};

/// A request for a run, parsed and bounded; nothing of it is believed yet.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRequest {}

impl RunRequest {
    /// Reads a JSON body.
    ///
    /// # Errors
    /// Names every field that is wrong, its value and what is allowed.
    pub fn parse(_body: &[u8]) -> Result<Self, PublicError> {
        Err(PublicError::new(
            ErrorKind::Unsupported,
            "runs cannot be asked for here",
        ))
    }
}
