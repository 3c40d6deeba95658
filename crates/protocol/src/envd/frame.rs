//! The envelope of messages in a stream: one byte of flags, a big-endian `u32` length, the JSON.

/// Most bytes of one message, in both directions.
pub const MESSAGE_MAX: usize = 4 << 20;
/// Flag of the last frame of a stream.
pub const END: u8 = 0x02;
/// Flag of a compressed frame; nobody here compresses, so it is refused.
pub const COMPRESSED: u8 = 0x01;
/// Bytes before the message.
pub const HEAD: usize = 5;

/// A stream that breaks the envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// The other side says it sends more than is allowed.
    #[error("message of {0} bytes: most is {MESSAGE_MAX}")]
    TooLong(usize),
    /// Flags nobody defined, or compression.
    #[error("message flags {0:#04x} are not supported")]
    Flags(u8),
    /// The stream ended within a message.
    #[error("stream ended within a message")]
    Cut,
}

/// Puts a message into its envelope. Longer messages than [`MESSAGE_MAX`] are the caller's mistake;
/// the other side will refuse them.
#[must_use]
pub fn wrap(flags: u8, message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + message.len());
    bytes.push(flags);
    bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

/// Takes messages out of whatever pieces arrive. Holds at most one message and one piece.
#[derive(Debug, Default)]
pub struct Unwrapper {
    bytes: Vec<u8>,
}

impl Unwrapper {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a piece.
    pub fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    /// Takes the next whole message and its flags, if it is there.
    ///
    /// # Errors
    /// When the announced length or the flags are not allowed; the length is refused before any of
    /// the message is waited for.
    pub fn take(&mut self) -> Result<Option<(u8, Vec<u8>)>, EnvelopeError> {
        let Some(head) = self.bytes.first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let flags = head[0];
        if flags & !END != 0 {
            return Err(EnvelopeError::Flags(flags));
        }
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > MESSAGE_MAX {
            return Err(EnvelopeError::TooLong(length));
        }
        if self.bytes.len() < HEAD + length {
            return Ok(None);
        }
        let message = self.bytes[HEAD..HEAD + length].to_vec();
        self.bytes.drain(..HEAD + length);
        Ok(Some((flags, message)))
    }

    /// To be called at the end of the stream.
    ///
    /// # Errors
    /// When part of a message is left over.
    pub fn finish(&self) -> Result<(), EnvelopeError> {
        if self.bytes.is_empty() {
            Ok(())
        } else {
            Err(EnvelopeError::Cut)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_from_single_bytes() {
        let mut stream = wrap(0, b"{\"a\":1}");
        stream.extend(wrap(END, b"{}"));
        let mut unwrapper = Unwrapper::new();
        let mut got = Vec::new();
        for byte in stream {
            unwrapper.push(&[byte]);
            got.extend(unwrapper.take().unwrap());
        }
        assert_eq!(got, [(0, b"{\"a\":1}".to_vec()), (END, b"{}".to_vec())]);
        assert_eq!(unwrapper.finish(), Ok(()));
    }

    #[test]
    fn hostile_envelopes_are_refused() {
        for (bytes, error) in [
            (
                [0, 0xff, 0xff, 0xff, 0xff],
                EnvelopeError::TooLong(u32::MAX as usize),
            ),
            ([0, 0, 0x40, 0, 1], EnvelopeError::TooLong(MESSAGE_MAX + 1)),
            ([COMPRESSED, 0, 0, 0, 0], EnvelopeError::Flags(1)),
            ([0x80, 0, 0, 0, 0], EnvelopeError::Flags(0x80)),
        ] {
            let mut unwrapper = Unwrapper::new();
            unwrapper.push(&bytes);
            assert_eq!(unwrapper.take(), Err(error));
        }
        let mut cut = Unwrapper::new();
        cut.push(&wrap(0, b"{}")[..6]);
        assert_eq!(cut.take(), Ok(None));
        assert_eq!(cut.finish(), Err(EnvelopeError::Cut));
    }
}
