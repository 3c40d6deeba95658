//! One group in every hierarchy: who is in it, ending it, removing it.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::locate::Controller;
use super::{CgroupError, GroupLimits, Tree, file, limits, make_dir, remove_dir, stray};

/// Most processes looked at in one round of killing without `cgroup.kill`.
const KILL_ROUND_MAX: usize = 8_192;
/// How deep removal follows directories that somebody made inside a group.
const REMOVE_DEPTH_MAX: u32 = 8;

/// This group in one hierarchy.
#[derive(Debug)]
struct Seat {
    tree: Arc<Tree>,
    dir: OwnedFd,
    /// v1: `tasks`; v2: `cgroup.procs`. Open until [`Group::seated`].
    entry: Option<OwnedFd>,
}

/// The group of one sandbox. Dropping it closes descriptors and removes nothing.
#[derive(Debug)]
pub struct Group {
    name: CString,
    seats: Vec<Seat>,
    /// Files of counts that are open, by directory and name.
    counts: Vec<Count>,
}

/// An open file of a group.
#[derive(Debug)]
struct Count {
    dir: RawFd,
    name: &'static CStr,
    file: OwnedFd,
}

/// What one removal saw.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    /// Hierarchies in which the group was removed now.
    pub removed: u32,
    /// Hierarchies in which it was gone already.
    pub already_gone: u32,
    /// Where it still is, and why.
    pub left: Vec<(PathBuf, String)>,
}

impl Removed {
    /// Whether nothing is left.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.left.is_empty()
    }
}

impl Group {
    pub(super) fn empty(name: CString) -> Self {
        Self {
            name,
            seats: Vec::with_capacity(6),
            counts: Vec::new(),
        }
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    /// Number of hierarchies in which it has a directory of its own.
    pub(super) fn count(&self) -> usize {
        self.own().count()
    }

    fn own(&self) -> impl Iterator<Item = &Seat> {
        self.seats.iter().filter(|seat| !seat.tree.shared())
    }

    /// Makes it in one hierarchy.
    pub(super) fn add_new(&mut self, tree: &Arc<Tree>) -> rustix::io::Result<()> {
        let dir = if tree.shared() {
            file::open_dir(tree.base.as_fd(), c".")?
        } else {
            if !make_dir(&tree.base, &self.name)? {
                return Err(Errno::EXIST);
            }
            match file::open_dir(tree.base.as_fd(), &self.name) {
                Ok(dir) => dir,
                Err(error) => {
                    let _ = remove_dir(&tree.base, &self.name);
                    return Err(error);
                }
            }
        };
        let entry = if tree.v2 { c"cgroup.procs" } else { c"tasks" };
        let entry = file::open(dir.as_fd(), entry, OFlags::WRONLY);
        self.seats.push(Seat {
            tree: tree.clone(),
            dir,
            entry: None,
        });
        if let Some(seat) = self.seats.last_mut() {
            seat.entry = Some(entry?);
        }
        Ok(())
    }

    /// Takes it up in one hierarchy if it is there.
    pub(super) fn add_present(&mut self, tree: &Arc<Tree>) -> Result<(), CgroupError> {
        if tree.shared() {
            return Ok(());
        }
        match file::open_dir(tree.base.as_fd(), &self.name) {
            Ok(dir) => self.seats.push(Seat {
                tree: tree.clone(),
                dir,
                entry: None,
            }),
            Err(Errno::NOENT | Errno::NODEV) => {}
            Err(error) => {
                return Err(CgroupError::Open {
                    path: tree.path.join(self.name()),
                    source: error.into(),
                });
            }
        }
        Ok(())
    }

    /// Removes what `add_new` made, after a failure. Nobody was in it yet.
    pub(super) fn undo(&self) {
        for seat in self.own() {
            let _ = remove_dir(&seat.tree.base, &self.name);
        }
    }

    pub(super) fn first_limits(&self, limits: &GroupLimits) -> Result<(), CgroupError> {
        for seat in self.own() {
            limits.apply(&seat.tree, seat.dir.as_fd())?;
            limits::finish_new(&seat.tree, seat.dir.as_fd())?;
        }
        Ok(())
    }

    /// Changes limits. Lowering memory below what is in use is refused by v1 and kills on v2.
    ///
    /// # Errors
    /// When the kernel refuses; limits before the refused one are then changed already.
    pub fn set_limits(&self, limits: &GroupLimits) -> Result<(), CgroupError> {
        self.own()
            .try_for_each(|seat| limits.apply(&seat.tree, seat.dir.as_fd()))
    }

    /// One descriptor per hierarchy; writing a process id in decimal to each moves that process, which
    /// must have one thread, and writing `0` moves the writer. Moving another process can take
    /// 5 to 16 ms: see the module text for the two ways that do not.
    #[must_use]
    pub fn procs(&self) -> Vec<BorrowedFd<'_>> {
        self.entries(|_| true)
    }

    /// Like [`Group::procs`] without cgroup2: a new process that was made with
    /// [`Group::into_cgroup`] writes `0` to each of these before it does anything else.
    #[must_use]
    pub fn joins(&self) -> Vec<BorrowedFd<'_>> {
        self.entries(|seat| !seat.tree.v2)
    }

    fn entries(&self, want: impl Fn(&Seat) -> bool) -> Vec<BorrowedFd<'_>> {
        let seats = self.seats.iter().filter(|seat| want(seat));
        seats
            .filter_map(|seat| seat.entry.as_ref().map(AsFd::as_fd))
            .collect()
    }

    /// The cgroup2 directory for `CLONE_INTO_CGROUP`.
    #[must_use]
    pub fn into_cgroup(&self) -> Option<BorrowedFd<'_>> {
        self.tracker().map(|seat| seat.dir.as_fd())
    }

    /// Closes the descriptors of [`Group::procs`]: the sandbox is in. A parked sandbox should hold few
    /// descriptors.
    pub fn seated(&mut self) {
        for seat in &mut self.seats {
            seat.entry = None;
        }
    }

    /// A group on a host without any hierarchy must not pass for an empty one.
    fn somewhere(&self) -> Result<(), CgroupError> {
        if self.count() > 0 {
            return Ok(());
        }
        Err(CgroupError::NotHere {
            control: "kill",
            reason: "no control group could be made".to_owned(),
        })
    }

    fn tracker(&self) -> Option<&Seat> {
        self.seats.iter().find(|seat| seat.tree.v2)
    }

    pub(super) fn with(&self, controller: Controller) -> Option<(&Tree, BorrowedFd<'_>)> {
        self.own()
            .find(|seat| seat.tree.set.has(controller))
            .map(|seat| (&*seat.tree, seat.dir.as_fd()))
    }

    /// Opens files that are read later, each at most once. One that cannot be is opened when it is
    /// read.
    pub(super) fn keep_open(&mut self, controller: Option<Controller>, names: &[&'static CStr]) {
        let dir = match controller {
            Some(controller) => self.with(controller).map(|(_, dir)| dir),
            None => self.v2(),
        };
        let Some(dir) = dir else { return };
        let opened: Vec<Count> = names
            .iter()
            .filter_map(|name| {
                let file = file::open(dir, name, OFlags::RDONLY).ok()?;
                let dir = dir.as_raw_fd();
                Some(Count { dir, name, file })
            })
            .collect();
        self.counts.extend(opened);
    }

    /// Reads one small file of one of its directories.
    pub(super) fn read(&self, dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<file::Text> {
        let at = dir.as_raw_fd();
        let open = |count: &&Count| count.dir == at && count.name == name;
        match self.counts.iter().find(open) {
            Some(count) => file::read_open(count.file.as_fd()),
            None => file::read(dir, name),
        }
    }

    /// Whether files of counts are open.
    pub(super) fn keeps_counts(&self) -> bool {
        !self.counts.is_empty()
    }

    pub(super) fn v2(&self) -> Option<BorrowedFd<'_>> {
        self.tracker().map(|seat| seat.dir.as_fd())
    }

    /// Whether any process is in it. A group that is gone has none.
    ///
    /// # Errors
    /// When the group is there and cannot be read, or this host has no groups at all.
    pub fn populated(&self) -> Result<bool, CgroupError> {
        self.somewhere()?;
        if let Some(dir) = self.v2() {
            return match file::read(dir, c"cgroup.events") {
                Ok(text) => Ok(text.value_of("populated") != Some(0)),
                Err(Errno::NOENT | Errno::NODEV) => self.populated_v1(),
                Err(error) => Err(unreadable("cgroup.events", error.into())),
            };
        }
        self.populated_v1()
    }

    /// By listing: every hierarchy, since each is joined by itself.
    fn populated_v1(&self) -> Result<bool, CgroupError> {
        for seat in self.own().filter(|seat| !seat.tree.v2) {
            match file::each_pid(seat.dir.as_fd(), 1, |_| {}) {
                Ok(0) => {}
                Ok(_) => return Ok(true),
                Err(error) if gone(&error) => {}
                Err(error) => return Err(unreadable("cgroup.procs", error)),
            }
        }
        Ok(false)
    }

    /// A descriptor that is ready with `POLLPRI` (`EPOLLPRI`) after the group became empty or was
    /// frozen; read [`Group::populated`] then. Only where there is a cgroup2.
    #[must_use]
    pub fn change_watch(&self) -> Option<OwnedFd> {
        let file = file::open(self.v2()?, c"cgroup.events", OFlags::RDONLY).ok()?;
        // Only a change after the first read counts.
        file::read_open(file.as_fd()).ok()?;
        Some(file)
    }

    /// Kills every process in it, whatever they do meanwhile, and does not wait for their end where
    /// `cgroup.kill` exists. Without it: shuts the pids limit and freezes where that is possible, and
    /// signals what is listed until nothing is, at most two seconds. Idempotent. The group is over:
    /// whoever is cloned into it afterwards is killed by the kernel too.
    ///
    /// # Errors
    /// When processes remain, the kernel refuses, or this host has no groups at all.
    pub fn kill(&self) -> Result<(), CgroupError> {
        self.somewhere()?;
        if let Some(dir) = self.v2() {
            match file::write(dir, c"cgroup.kill", b"1") {
                Ok(()) => return Ok(()),
                Err(Errno::NOENT | Errno::NODEV) => {}
                Err(error) => return Err(unreadable("cgroup.kill", error.into())),
            }
        }
        self.kill_by_listing(Duration::from_secs(2))
    }

    /// Kills without `cgroup.kill`. Public so that the way of old kernels can be tested on new ones.
    ///
    /// # Errors
    /// When processes remain after `bound`.
    pub fn kill_by_listing(&self, bound: Duration) -> Result<(), CgroupError> {
        let start = Instant::now();
        if let Some((_, dir)) = self.with(Controller::Pids) {
            // No fork can outrun the listing once none is possible. The group is about to go.
            let _ = file::write(dir, c"pids.max", b"0");
        }
        let mut left;
        loop {
            left = 0;
            for seat in self.own() {
                left = left.max(kill_listed(seat.dir.as_fd())?);
            }
            if left == 0 {
                return Ok(());
            }
            if start.elapsed() > bound {
                return Err(CgroupError::StillThere {
                    left,
                    waited_ms: bound.as_millis().try_into().unwrap_or(u64::MAX),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops or resumes every process in it and waits at most a second for it to be so. Killing works
    /// on a frozen group on cgroup2; on v1 it must be thawed afterwards.
    ///
    /// # Errors
    /// When there is no freezer or the state does not come.
    pub fn freeze(&self, frozen: bool) -> Result<(), CgroupError> {
        let bound = Instant::now() + Duration::from_secs(1);
        if let Some(dir) = self.v2() {
            let watch = self.change_watch();
            file::write(dir, c"cgroup.freeze", if frozen { b"1" } else { b"0" })
                .map_err(|error| unreadable("cgroup.freeze", error.into()))?;
            let want = u64::from(frozen);
            return await_state(bound, watch.as_ref(), "cgroup.freeze", || {
                let text = file::read(dir, c"cgroup.events").ok()?;
                Some(text.value_of("frozen") == Some(want))
            });
        }
        let Some((_, dir)) = self.with(Controller::Freezer) else {
            return Err(CgroupError::NotHere {
                control: "freeze",
                reason: "neither cgroup2 nor a v1 freezer is in use".to_owned(),
            });
        };
        let word = if frozen { "FROZEN" } else { "THAWED" };
        file::write(dir, c"freezer.state", word.as_bytes())
            .map_err(|error| unreadable("freezer.state", error.into()))?;
        await_state(bound, None, "freezer.state", || {
            let text = file::read(dir, c"freezer.state").ok()?;
            Some(text.as_str().trim_ascii() == word)
        })
    }

    /// Removes it from every hierarchy, once, without waiting. Idempotent. While a process is in it
    /// (a killed one takes a moment to go) it stays and is reported in [`Removed::left`].
    #[must_use]
    pub fn try_destroy(&self) -> Removed {
        let mut seen = Removed::default();
        for seat in self.own() {
            match remove_tree(&seat.tree.base, &self.name, REMOVE_DEPTH_MAX) {
                Ok(true) => seen.removed += 1,
                Ok(false) => seen.already_gone += 1,
                Err(error) => seen
                    .left
                    .push((seat.tree.path.join(self.name()), error.to_string())),
            }
            if seat.tree.stray {
                // Refused while it holds other groups.
                let _ = std::fs::remove_dir(&seat.tree.path);
            }
        }
        seen
    }

    /// As [`Group::try_destroy`], repeated until all is gone or `bound` has passed. Kills nothing but
    /// what stands in a v1 hierarchy alone, where `cgroup.kill` does not reach: a process that was
    /// moved in and whose way into cgroup2 failed.
    #[must_use]
    pub fn destroy(&self, bound: Duration) -> Removed {
        let end = Instant::now() + bound;
        let watch = self.change_watch();
        let mut first = self.try_destroy();
        while !first.complete() && Instant::now() < end {
            let pause = Duration::from_millis(2);
            match &watch {
                Some(watch) if self.populated().unwrap_or(false) => wait_change(watch, pause),
                Some(_) => {
                    let _ = self.kill_by_listing(Duration::from_millis(100));
                }
                None => std::thread::sleep(Duration::from_micros(200)),
            }
            let again = self.try_destroy();
            first.removed += again.removed;
            first.left = again.left;
        }
        first
    }
}

fn unreadable(file: &'static str, source: io::Error) -> CgroupError {
    CgroupError::File { file, source }
}

fn gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NODEV)
    )
}

/// Removes a group and, first, what somebody made inside it.
fn remove_tree(parent: &OwnedFd, name: &CString, depth: u32) -> rustix::io::Result<bool> {
    match remove_dir(parent, name) {
        Err(Errno::BUSY | Errno::NOTEMPTY) if depth > 0 => {}
        other => return other,
    }
    let Ok(dir) = file::open_dir(parent.as_fd(), name) else {
        return remove_dir(parent, name);
    };
    let mut inside: Vec<CString> = Vec::new();
    let _ = stray::each_directory(dir.as_fd(), &mut |name| inside.push(name.to_owned()));
    if inside.is_empty() {
        return Err(Errno::BUSY);
    }
    for child in inside {
        remove_tree(&dir, &child, depth - 1)?;
    }
    remove_dir(parent, name)
}

/// Sends `SIGKILL` to every process listed. Returns how many were listed.
///
/// A number is a process of this group when it is still listed after its pidfd was opened: then the
/// pidfd is that process, or one that took the same number in the same group.
fn kill_listed(dir: BorrowedFd<'_>) -> Result<usize, CgroupError> {
    let mut pids = Vec::new();
    match file::each_pid(dir, KILL_ROUND_MAX, |pid| pids.push(pid)) {
        Ok(_) => {}
        Err(error) if gone(&error) => return Ok(0),
        Err(error) => return Err(unreadable("cgroup.procs", error)),
    }
    let own = rustix::process::getpid().as_raw_nonzero().get();
    // In pieces, so that few descriptors are open at a time.
    for piece in pids.chunks(64) {
        let handles: Vec<_> = piece
            .iter()
            .filter(|pid| **pid != own)
            .filter_map(|pid| {
                Some((
                    *pid,
                    pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok()?,
                ))
            })
            .collect();
        let mut still: Vec<i32> = Vec::with_capacity(pids.len());
        file::each_pid(dir, KILL_ROUND_MAX, |pid| still.push(pid))
            .map_err(|error| unreadable("cgroup.procs", error))?;
        for (pid, handle) in handles {
            if still.contains(&pid) {
                let _ = pidfd_send_signal(&handle, Signal::KILL);
            }
        }
    }
    Ok(pids.len())
}

fn wait_change(watch: &OwnedFd, most: Duration) {
    let timeout = Timespec {
        tv_sec: most.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: most.subsec_nanos().into(),
    };
    let _ = poll(&mut [PollFd::new(watch, PollFlags::PRI)], Some(&timeout));
}

fn await_state(
    bound: Instant,
    watch: Option<&OwnedFd>,
    what: &'static str,
    reached: impl Fn() -> Option<bool>,
) -> Result<(), CgroupError> {
    loop {
        if reached() == Some(true) {
            return Ok(());
        }
        if Instant::now() > bound {
            return Err(unreadable(what, io::ErrorKind::TimedOut.into()));
        }
        match watch {
            Some(watch) => {
                wait_change(watch, Duration::from_millis(20));
                let _ = file::read_open(watch.as_fd());
            }
            None => std::thread::sleep(Duration::from_micros(500)),
        }
    }
}
