//! Children that are in a group from their first step on, and the groups of one test.
#![allow(
    unsafe_code,
    reason = "children are forked here, to be hostile without any other program at hand"
)]

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_jail::cgroup::{Cgroups, Controls, Group, GroupLimits, Layout};

/// How long anything is awaited.
pub(crate) const BOUND: Duration = Duration::from_secs(10);
/// Its constant in `libc` is too narrow.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Groups of one test, all gone afterwards.
pub(crate) struct Bench {
    pub(crate) cgroups: Cgroups,
    pub(crate) instance: String,
    /// One test at a time: they measure the processor, and forks would share descriptors.
    _alone: std::sync::MutexGuard<'static, ()>,
}

impl Bench {
    pub(crate) fn new(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIP cgroup::{test}: needs root");
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let alone = ALONE
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let instance = format!("t{}x{count}", std::process::id());
        let cgroups = Cgroups::discover(&instance).unwrap();
        eprintln!("cgroup::{test}: layout {}", cgroups.layout().word());
        if cgroups.layout() == Layout::None {
            eprintln!("SKIP cgroup::{test}: no hierarchy can be used here");
            return None;
        }
        Some(Self {
            cgroups,
            instance,
            _alone: alone,
        })
    }

    /// Skips loudly when the host lacks a control; root on a host of ours has all of them.
    pub(crate) fn needs(&self, test: &str, control: &str, has: impl Fn(&Controls) -> bool) -> bool {
        let controls = self.cgroups.can();
        if !has(controls) {
            eprintln!("SKIP cgroup::{test}: {}", controls.reason(control));
        }
        has(controls)
    }

    pub(crate) fn group(&self, name: &str, limits: GroupLimits) -> Group {
        self.cgroups.create(name, &limits).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for name in self.cgroups.list().unwrap_or_default() {
            if let Ok(Some(group)) = self.cgroups.open(&name) {
                let _ = group.kill();
                let _ = group.destroy(Duration::from_secs(5));
            }
        }
        self.cgroups.remove_base();
    }
}

/// A forked child; killed and reaped when dropped.
pub(crate) struct Child {
    pid: i32,
    reaped: bool,
}

impl Child {
    /// Wait status of its end, awaited at most [`BOUND`].
    pub(crate) fn end(&mut self) -> i32 {
        let start = Instant::now();
        let mut status = 0;
        loop {
            // SAFETY: `status` is ours; the pid is an unreaped child of this process.
            let got = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) };
            if got == self.pid {
                self.reaped = true;
                return status;
            }
            assert!(start.elapsed() < BOUND, "child {} does not end", self.pid);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn groups(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            // SAFETY: kills and reaps our own unreaped child.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// Ways into a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    /// `CLONE_INTO_CGROUP` and writing 0 to the v1 files.
    Born,
    /// The child writes 0 everywhere.
    Joins,
    /// The parent writes the pid everywhere.
    Moved,
}

/// Forks a child that is in the group before `body` starts. The body must not allocate.
pub(crate) fn fork_in(group: Option<&Group>, way: Way, body: impl FnOnce() -> i32) -> Child {
    let procs: Vec<RawFd> = group.map_or(Vec::new(), |group| raw(&group.procs()));
    let joins: Vec<RawFd> = group.map_or(Vec::new(), |group| raw(&group.joins()));
    let into = group
        .and_then(Group::into_cgroup)
        .filter(|_| way == Way::Born);
    let (read, write) = rustix::pipe::pipe().unwrap();
    let (joined, joins_told) = rustix::pipe::pipe().unwrap();
    // SAFETY: an all-zero `clone_args` is a valid plain fork.
    let mut order: libc::clone_args = unsafe { std::mem::zeroed() };
    order.exit_signal = libc::SIGCHLD as u64;
    if let Some(into) = into {
        order.flags = CLONE_INTO_CGROUP;
        order.cgroup = into.as_raw_fd() as u64;
    }
    // SAFETY: a fork with its own address space; the child only makes system calls and runs a body
    // that does not allocate, then leaves by `_exit`.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const order,
            size_of::<libc::clone_args>(),
        )
    };
    assert!(pid >= 0, "clone3: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: plain system calls on descriptors of ours, in the child.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let own = match way {
                Way::Born if into.is_some() => joins.as_slice(),
                Way::Born | Way::Joins => procs.as_slice(),
                Way::Moved => &[],
            };
            for file in own {
                if libc::write(*file, b"0".as_ptr().cast(), 1) != 1 {
                    libc::_exit(99);
                }
            }
            libc::write(joins_told.as_raw_fd(), b"j".as_ptr().cast(), 1);
            let mut byte = 0_u8;
            if libc::read(read.as_raw_fd(), (&raw mut byte).cast(), 1) != 1 {
                libc::_exit(98);
            }
            libc::_exit(body());
        }
    }
    let child = Child {
        pid: pid as i32,
        reaped: false,
    };
    drop(joins_told);
    // Ends at once when the child could not join; its status says so.
    rustix::io::read(&joined, &mut [0_u8]).unwrap();
    if way == Way::Moved {
        for file in group.map_or(Vec::new(), Group::procs) {
            let text = child.pid.to_string();
            assert_eq!(rustix::io::write(file, text.as_bytes()), Ok(text.len()));
        }
    }
    rustix::io::write(&write, b"x").unwrap();
    child
}

pub(crate) fn raw(files: &[std::os::fd::BorrowedFd<'_>]) -> Vec<RawFd> {
    files.iter().map(AsRawFd::as_raw_fd).collect()
}

/// Waits for a level.
pub(crate) fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < BOUND, "never came: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Touches so many bytes and says whether it could.
pub(crate) fn hog(bytes: usize) -> i32 {
    // SAFETY: a fresh anonymous mapping, written within its length.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if at == libc::MAP_FAILED {
            return 2;
        }
        for page in (0..bytes).step_by(4096) {
            at.cast::<u8>().add(page).write_volatile(1);
        }
    }
    0
}

pub(crate) fn spin() -> i32 {
    loop {
        std::hint::spin_loop();
    }
}

/// Forks without the C library, as a child of a process with several threads must.
pub(crate) fn bare_fork() -> i64 {
    // SAFETY: the child only makes system calls.
    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }
}

/// A counter that parent and child share.
pub(crate) struct Shared(*mut AtomicU32);

impl Shared {
    pub(crate) fn new() -> Self {
        // SAFETY: one fresh shared page; zero is a valid counter.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast())
    }

    pub(crate) fn get(&self) -> &AtomicU32 {
        // SAFETY: the mapping lives as long as this process.
        unsafe { &*self.0 }
    }

    pub(crate) fn value(&self) -> u32 {
        self.get().load(Ordering::SeqCst)
    }
}

/// Forks until refused; returns how many children it got.
pub(crate) fn bomb(most: i32) -> i32 {
    for count in 0..most {
        match bare_fork() {
            0 => {
                spin();
            }
            pid if pid < 0 => return count,
            _ => {}
        }
    }
    most
}
