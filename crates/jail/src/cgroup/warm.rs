//! Paying the wait of the first attach ahead of time.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::locate::{Hierarchy, Located};
use super::{CgroupError, base, file};

/// Moves the calling process into the group it is in already, which changes nothing but makes the
/// kernel take the lock under which processes are moved. When nobody has done that for some tens of
/// milliseconds it costs 4 to 16 ms, most of it waiting; attaches of other processes in the next 10 ms
/// or so then cost some tens of microseconds each. Not needed where the two ways of the module text
/// are used. Safe from any thread; must not be called by a process that another one moves meanwhile.
///
/// Returns how long it took, `None` where there is nothing to warm.
///
/// # Errors
/// When `/proc/self` cannot be read.
pub fn warm_attach() -> Result<Option<Duration>, CgroupError> {
    let located = Located::read(super::OWN_GROUPS)?;
    let all = located.v1.iter().map(|one| (one, false));
    for (hierarchy, v2) in all.chain(located.v2.iter().map(|one| (one, true))) {
        let start = Instant::now();
        if reattach(hierarchy, v2).is_some() {
            return Ok(Some(start.elapsed()));
        }
    }
    Ok(None)
}

fn reattach(hierarchy: &Hierarchy, v2: bool) -> Option<()> {
    let path = hierarchy.mount.join(hierarchy.own.as_ref()?);
    let (dir, _) = base::open_mount(&path, v2).ok()?;
    // Not `tasks`: a thread that moves itself does not take the lock.
    let procs = file::open(dir.as_fd(), c"cgroup.procs", OFlags::WRONLY).ok()?;
    file::write_open(procs.as_fd(), b"0").ok()
}
