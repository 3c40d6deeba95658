//! Reading and writing the small files of a control group relative to its directory descriptor.
//! No path is ever put together here.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};

/// Most bytes read of one file. The longest needed one, `memory.stat`, is never read; `cgroup.procs`
/// is read in pieces of this size.
pub(super) const READ_MAX: usize = 4_096;

/// Opens a group's directory: a handle for `openat`, `unlinkat` and `CLONE_INTO_CGROUP`.
pub(super) fn open_dir(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Opens one file of a group.
pub(super) fn open(dir: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat(
        dir,
        name,
        flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// Writes a value in one call, as the kernel wants it.
pub(super) fn write(dir: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> rustix::io::Result<()> {
    let file = open(dir, name, OFlags::WRONLY)?;
    write_open(file.as_fd(), value)
}

/// Writes a value to a file that is open.
pub(super) fn write_open(file: BorrowedFd<'_>, value: &[u8]) -> rustix::io::Result<()> {
    let taken = rustix::io::retry_on_intr(|| rustix::io::write(file, value))?;
    if taken == value.len() {
        Ok(())
    } else {
        Err(rustix::io::Errno::IO)
    }
}

/// Writes a number.
pub(super) fn write_number(dir: BorrowedFd<'_>, name: &CStr, value: u64) -> rustix::io::Result<()> {
    write(dir, name, rustix::path::DecInt::new(value).as_bytes())
}

/// The text of one small file. Bytes that are not UTF-8 do not occur and end the text.
pub(super) struct Text {
    bytes: [u8; READ_MAX],
    len: usize,
}

impl Text {
    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or("")
    }

    /// The text as one number; `max` is `u64::MAX`.
    pub(super) fn number(&self) -> Option<u64> {
        match self.as_str().trim_ascii() {
            "max" => Some(u64::MAX),
            digits => digits.parse().ok(),
        }
    }

    /// The number behind a key in a `key number` per line file.
    pub(super) fn value_of(&self, key: &str) -> Option<u64> {
        self.as_str().lines().find_map(|line| {
            let (name, value) = line.split_once(' ')?;
            (name == key).then(|| value.trim_ascii().parse().ok())?
        })
    }
}

/// Reads one small file from its start.
pub(super) fn read(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<Text> {
    read_open(open(dir, name, OFlags::RDONLY)?.as_fd())
}

/// Reads an open file from its start, which also re-arms its change notice.
pub(super) fn read_open(file: BorrowedFd<'_>) -> rustix::io::Result<Text> {
    let mut text = Text {
        bytes: [0; READ_MAX],
        len: 0,
    };
    text.len = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut text.bytes, 0))?;
    Ok(text)
}

/// Whether a group has such a file.
pub(super) fn exists(dir: BorrowedFd<'_>, name: &CStr) -> bool {
    rustix::fs::statat(dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Calls `each` with every process id of `cgroup.procs`, at most `most` of them. Ids may repeat;
/// ids of other pid namespaces show as 0 and are passed over.
pub(super) fn each_pid(
    dir: BorrowedFd<'_>,
    most: usize,
    mut each: impl FnMut(i32),
) -> io::Result<usize> {
    let file = open(dir, c"cgroup.procs", OFlags::RDONLY)?;
    let mut buffer = [0; READ_MAX];
    let (mut count, mut value, mut digits) = (0, 0_i32, false);
    loop {
        let got = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut buffer))?;
        if got == 0 {
            return Ok(count);
        }
        for byte in &buffer[..got] {
            if byte.is_ascii_digit() {
                value = value
                    .saturating_mul(10)
                    .saturating_add(i32::from(byte - b'0'));
                digits = true;
                continue;
            }
            if digits && value > 0 {
                each(value);
                count += 1;
                if count == most {
                    return Ok(count);
                }
            }
            (value, digits) = (0, false);
        }
    }
}
