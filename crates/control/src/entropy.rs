//! Where ids come from.

use leasehold_core::error::{ErrorKind, PublicError};

/// Bytes nobody can guess.
pub trait Entropy: Send + Sync + 'static {
    /// Draws 13 bytes, enough for an id.
    ///
    /// # Errors
    /// When the system has none.
    fn draw(&self) -> Result<leasehold_core::id::Entropy, PublicError>;
}

/// The system's.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn draw(&self) -> Result<leasehold_core::id::Entropy, PublicError> {
        let mut bytes = [0; 13];
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes, flags) {
            Ok(13) => Ok(bytes),
            _ => Err(PublicError::new(
                ErrorKind::Internal,
                "the system gave no random bytes",
            )),
        }
    }
}
