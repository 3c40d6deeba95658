//! A stub that is an interpreter: started, with what most programs import, before it is claimed.

/// Which interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Warm {
    /// `/usr/bin/python3`.
    Python,
}

/// User and group id inside of a workload that is parked before it is claimed.
pub const WORKLOAD_IDS: (u32, u32) = (1000, 1000);

/// Open files a warm interpreter may have until its request lowers it.
pub const FILES: u32 = 1 << 20;

impl Warm {
    /// Program and arguments.
    #[must_use]
    pub fn argv(self) -> Vec<Vec<u8>> {
        match self {
            Self::Python => [
                "/usr/bin/python3",
                "-I",
                "-X",
                "frozen_modules=on",
                "-c",
                include_str!("warm_python.py"),
            ]
            .map(|part| part.as_bytes().to_vec())
            .to_vec(),
        }
    }

    /// Its environment until it is claimed.
    #[must_use]
    pub fn env(self) -> Vec<Vec<u8>> {
        match self {
            Self::Python => vec![b"LANG=C.UTF-8".to_vec(), b"PYTHONUTF8=1".to_vec()],
        }
    }
}
