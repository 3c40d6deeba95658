//! Bounded reads of small text files and what `/proc` says, for metrics, usage and ports.
//!
//! Everything here is the guest's own view and is labelled so by whoever passes it on.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

/// Reads a regular text file of at most `most` bytes (longer ones are cut). Never waits: a FIFO or a
/// device is refused.
///
/// # Errors
/// When it cannot be opened or read, or is no regular file.
pub(super) fn small_file(path: &Path, most: usize) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut bytes = vec![0; 8_192.min(most)];
    let mut filled = 0;
    while filled < most {
        if filled == bytes.len() {
            bytes.resize((filled * 2).min(most), 0);
        }
        match rustix::io::read(&file, &mut bytes[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// One live process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    /// Its id.
    pub(super) pid: i32,
    /// Whether it has ended and waits to be reaped.
    pub(super) zombie: bool,
    /// Processor time of it and its reaped children, in clock ticks.
    pub(super) ticks: u64,
    /// Resident memory in pages.
    pub(super) pages: u64,
    /// When it started, in clock ticks since boot; tells apart users of one id.
    pub(super) started: u64,
}

/// Reads the one line of `/proc/<pid>/stat`. The name in it is hostile: everything is counted from
/// its last closing parenthesis.
fn parse_stat(line: &str) -> Option<Process> {
    let pid = line.split(' ').next()?.parse().ok()?;
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at - 3).and_then(|text| text.parse::<u64>().ok());
    Some(Process {
        pid,
        zombie: matches!(*fields.first()?, "Z" | "X"),
        ticks: number(14)? + number(15)? + number(16).unwrap_or(0) + number(17).unwrap_or(0),
        pages: number(24)?,
        started: number(22)?,
    })
}

/// Every process that `/proc` shows, up to 65,536.
pub(super) fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .take(65_536)
        .filter_map(|pid| small_file(Path::new(&format!("/proc/{pid}/stat")), 4_096).ok())
        .filter_map(|line| parse_stat(&line))
        .collect()
}

/// A value of `/proc/meminfo`, in bytes.
pub(super) fn memory(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_does_not_shift_the_fields() {
        let line = "42 (a) R 1 (b)) S 1 42 42 0 -1 4194560 100 0 0 0 7 5 2 1 20 0 1 0 999 1000 55 18446744073709551615";
        let process = parse_stat(line).unwrap();
        assert_eq!(
            process,
            Process {
                pid: 42,
                zombie: false,
                ticks: 15,
                pages: 55,
                started: 999
            }
        );
        assert_eq!(parse_stat("42 (x"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn we_see_ourselves() {
        let me = std::process::id().cast_signed();
        assert!(
            processes()
                .iter()
                .any(|process| process.pid == me && !process.zombie)
        );
    }

    #[test]
    fn what_is_not_a_regular_file_is_refused_without_waiting() {
        for path in ["/dev/zero", "/proc", "/proc/self/exe"] {
            assert!(small_file(Path::new(path), 10).is_err(), "{path}");
        }
        assert_eq!(
            small_file(Path::new("/proc/self/stat"), 2).unwrap().len(),
            2
        );
    }

    #[test]
    fn memory_values_are_bytes() {
        let text = "MemTotal:       16 kB\nMemAvailable:   4 kB\n";
        assert_eq!(memory(text, "MemTotal"), Some(16_384));
        assert_eq!(memory(text, "Mem"), None);
    }
}
