//! What is said to a supervisor that was begun before it was known whether one is wanted, one byte each, at the socket
//! that is its standard output. The end of the socket means that it is not wanted.

/// The flag of a supervisor that waits for these.
pub const FLAG: &str = "--leashed";
/// It is wanted.
pub const GO: u8 = b'g';
/// Init's program, its standard input, is whole and sealed.
pub const WHOLE: u8 = b'w';
