//! The one seccomp program of a sandbox.
//!
//! [`table`] says what is allowed, [`Program::native`] compiles it, [`Program::load`] puts it on
//! every thread of the process for good. It is loaded once, by init, and everything in the sandbox
//! inherits it: init, stub, agent and workload live within the same table. A workload that works on
//! files of the host takes a second, small one: [`Program::no_set_id`].

#![allow(unsafe_code, reason = "seccomp(2) takes a pointer to the program")]

mod allow;
mod compile;
mod rule;
mod set_id;
mod table;
#[cfg(feature = "host")]
mod unpack;
mod wasm;

use std::fmt::Write as _;
use std::io;

use sha2::{Digest as _, Sha256};

pub use compile::Instruction;
pub use rule::{Arch, Branch, Row, Rule, Test, Word};
pub use table::{NEWEST, gaps, table};

/// Why the program is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The kernel refused it: no `no_new_privs`, no seccomp, or a bad program.
    #[error("cannot load a seccomp program of {instructions} instructions")]
    Load {
        /// Length of the program.
        instructions: usize,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A thread could not take it.
    #[error("thread {0} cannot take the seccomp program")]
    Thread(i64),
}

impl SeccompError {
    /// The error number behind it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Load { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::Thread(_) => libc::ESRCH,
        }
    }
}

/// A compiled table.
#[derive(Debug, Clone)]
pub struct Program {
    instructions: Vec<Instruction>,
}

impl Program {
    /// The program of this machine.
    #[must_use]
    pub fn native() -> Self {
        Self::for_arch(Arch::NATIVE)
    }

    /// The program of an instruction set. Only [`Program::native`] can be loaded to an effect other
    /// than the death of the process.
    #[must_use]
    pub fn for_arch(arch: Arch) -> Self {
        Self {
            instructions: compile::compile(arch),
        }
    }

    /// Its instructions, first to last.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Digest of the program in hexadecimal, for receipts.
    #[must_use]
    pub fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        for instruction in &self.instructions {
            hash.update(instruction.code.to_le_bytes());
            hash.update([instruction.jt, instruction.jf]);
            hash.update(instruction.k.to_le_bytes());
        }
        hex(&hash.finalize())
    }

    /// Puts the program on every thread of this process, for good. `no_new_privs` must be set.
    ///
    /// # Errors
    /// When the kernel refuses it. Nothing is loaded then.
    pub fn load(&self) -> Result<(), SeccompError> {
        let mut filter: Vec<libc::sock_filter> = self
            .instructions
            .iter()
            .map(|instruction| libc::sock_filter {
                code: instruction.code,
                jt: instruction.jt,
                jf: instruction.jf,
                k: instruction.k,
            })
            .collect();
        let program = libc::sock_fprog {
            // The kernel takes at most 4,096.
            len: u16::try_from(filter.len()).unwrap_or(u16::MAX),
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: `program` and the instructions it points to live until the call returns, and the
        // kernel copies them.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::c_long::from(libc::SECCOMP_SET_MODE_FILTER),
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &raw const program,
            )
        };
        match answer {
            0 => Ok(()),
            thread if thread > 0 => Err(SeccompError::Thread(thread)),
            _ => Err(SeccompError::Load {
                instructions: filter.len(),
                source: io::Error::last_os_error(),
            }),
        }
    }
}

/// Bytes as hexadecimal text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
