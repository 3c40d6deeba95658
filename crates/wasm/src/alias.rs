//! Directories of one run must not overlap, by name or by place: what is read-only under one name must not be
//! writable under another.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use leasehold_protocol::wasm::Preopen;
use rustix::fs::{Mode, OFlags};

/// Most levels above a directory that are looked at; deeper ones are refused.
const DEPTH_MAX: usize = 256;

type Place = (u64, u64);

fn place(directory: BorrowedFd<'_>) -> Result<Place, String> {
    let stat = rustix::fs::fstat(directory)
        .map_err(|error| format!("a directory cannot be looked at: {error}"))?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
        return Err("what was passed as a directory is none".to_owned());
    }
    Ok((stat.st_dev, stat.st_ino))
}

/// The directory and all above it, as far as this process can climb.
fn lineage(directory: &OwnedFd) -> Result<Vec<Place>, String> {
    let mut all = vec![place(directory.as_fd())?];
    let mut at = directory.try_clone().map_err(|error| error.to_string())?;
    for _ in 0..DEPTH_MAX {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Where it may not climb nobody can have given it what lies above.
        let Ok(above) = rustix::fs::openat(&at, "..", flags, Mode::empty()) else {
            return Ok(all);
        };
        let next = place(above.as_fd())?;
        if all.last() == Some(&next) {
            return Ok(all);
        }
        all.push(next);
        at = above;
    }
    Err(format!("a directory lies deeper than {DEPTH_MAX} levels"))
}

/// Whether one name is the other or lies below it.
fn nested(one: &str, other: &str) -> bool {
    let parts = |name: &'_ str| -> Vec<String> {
        name.split('/')
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let (one, other) = (parts(one), parts(other));
    let shorter = one.len().min(other.len());
    one[..shorter] == other[..shorter]
}

/// What is wrong with these directories, if anything.
pub(crate) fn check(preopens: &[(Preopen, OwnedFd)]) -> Result<(), String> {
    for (preopen, _) in preopens {
        let name = &preopen.guest;
        let odd = |part: &str| matches!(part, "." | "..");
        if !name.starts_with('/')
            || name.contains('\0')
            || name.len() > 255
            || name.split('/').any(odd)
        {
            return Err(format!(
                "directory `{name}` is not an absolute path inside of at most 255 bytes"
            ));
        }
    }
    let lines = preopens
        .iter()
        .map(|(_, fd)| lineage(fd))
        .collect::<Result<Vec<_>, _>>()?;
    for (at, (one, _)) in preopens.iter().enumerate() {
        for (behind, (other, _)) in preopens.iter().enumerate().skip(at + 1) {
            let overlap =
                lines[at].contains(&lines[behind][0]) || lines[behind].contains(&lines[at][0]);
            if overlap || nested(&one.guest, &other.guest) {
                return Err(format!(
                    "directories `{}` and `{}` overlap: what is read-only under one could be written under the other",
                    one.guest, other.guest
                ));
            }
        }
    }
    Ok(())
}
