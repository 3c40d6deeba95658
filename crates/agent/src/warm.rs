//! A stub that is an interpreter: started, with what most programs import, before it is claimed.

/// Which interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Warm {
    /// `/usr/bin/python3`.
    Python,
}

/// User and group id inside of a workload that has its identity before it is claimed: 1000, or 0
/// where this user namespace has only that one (single-uid mode).
#[must_use]
pub fn workload_ids() -> (u32, u32) {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if maps(&map, WORKLOAD_ID) {
        (WORKLOAD_ID, WORKLOAD_ID)
    } else {
        (0, 0)
    }
}

const WORKLOAD_ID: u32 = 1000;

/// Whether a map of ids (`inside outside count` a line) has `id` inside.
fn maps(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut words = line
            .split_whitespace()
            .map(|word| word.parse::<u64>().unwrap_or(0));
        let (first, count) = (words.next().unwrap_or(0), words.nth(1).unwrap_or(0));
        (first..first.saturating_add(count)).contains(&u64::from(id))
    })
}

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
            Self::Python => vec![b"LANG=C.UTF-8".to_vec()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_maps_are_read() {
        assert!(maps("         0     100000      65536\n", 1000));
        assert!(maps("0 0 1\n1000 500 1\n", 1000));
        assert!(maps("0 0 4294967295\n", 1000));
        for map in ["", "0 1000 1\n", "1001 0 5\n", "x y z\n", "0\n"] {
            assert!(!maps(map, 1000), "{map:?}");
        }
    }
}
