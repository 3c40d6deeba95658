//! Control groups for real: limits bite, kills reach everyone, removal converges. Runs as root on
//! whatever layout the host has and says which; without root it says what it skips.
#![allow(
    unsafe_code,
    reason = "children are forked here, to be hostile without any other program at hand"
)]
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test; the lints know only functions marked as such"
)]

#[path = "cgroup/counts.rs"]
mod counts;
#[path = "cgroup/rig.rs"]
mod rig;
#[path = "cgroup/user.rs"]
mod user;

use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_jail::cgroup::{CgroupError, Cgroups, Group, GroupLimits, Layout, warm_attach};
use rig::{BOUND, Bench, Shared, Way, bare_fork, bomb, fork_in, hog, raw, spin, until};
use rustix::event::{PollFd, Timespec, poll};

#[test]
fn root_has_every_control() {
    let Some(bench) = Bench::new("root_has_every_control") else {
        return;
    };
    let controls = bench.cgroups.can();
    eprintln!("{controls:?}\n{:?}", bench.cgroups.places());
    assert!(controls.memory && controls.pids && controls.cpu && controls.cpu_time);
}

#[test]
fn every_way_in_ends_in_every_hierarchy() {
    let Some(bench) = Bench::new("every_way_in_ends_in_every_hierarchy") else {
        return;
    };
    for way in [Way::Born, Way::Joins, Way::Moved] {
        let name = format!("{way:?}").to_lowercase();
        let group = bench.group(&name, GroupLimits::default());
        let seen = Shared::new();
        let child = fork_in(Some(&group), way, || {
            seen.get().store(1, Ordering::SeqCst);
            spin()
        });
        until("child runs", || seen.value() == 1);
        let place = format!("/leasehold-{}/{name}", bench.instance);
        let held = child.groups();
        let held = held.lines().filter(|line| line.ends_with(&place)).count();
        let shared = raw(&group.procs()).len() - bench.cgroups.places().len();
        assert_eq!(
            held + shared,
            group.procs().len(),
            "{way:?}: {}",
            child.groups()
        );
        assert!(group.populated().unwrap());
        assert_eq!(group.usage().pids, Some(1));
    }
}

#[test]
fn memory_is_bounded_and_its_end_is_seen() {
    let Some(bench) = Bench::new("memory_is_bounded_and_its_end_is_seen") else {
        return;
    };
    const LIMIT: u64 = 32 << 20;
    let group = bench.group(
        "hog",
        GroupLimits {
            memory_bytes: Some(LIMIT),
            ..GroupLimits::default()
        },
    );
    let watch = group.oom_watch().unwrap();
    let ready = |timeout_ms: i64| {
        let timeout = Timespec {
            tv_sec: timeout_ms / 1_000,
            tv_nsec: timeout_ms % 1_000 * 1_000_000,
        };
        let mut fds = [PollFd::new(&watch, watch.interest())];
        poll(&mut fds, Some(&timeout)).unwrap();
        fds[0].revents().intersects(watch.interest())
    };
    assert!(!ready(0), "the watch speaks before anything happened");
    let mut child = fork_in(Some(&group), Way::Born, || hog(256 << 20));
    assert!(ready(10_000), "the watch says nothing");
    assert_eq!(child.end() & 0x7f, libc::SIGKILL);
    let events = group.events();
    assert!(events.oom_kills >= 1, "{events:?}");
    assert_ne!(events.memory_hits, Some(0), "{events:?}");
    let peak = group.usage().memory_peak_bytes.unwrap_or(LIMIT);
    assert!(peak > LIMIT / 2 && peak <= LIMIT, "peak {peak}");
    watch.rearm();
    until("the watch is quiet", || {
        watch.rearm();
        !ready(0)
    });
    // Without the limit the same child lives.
    let free = bench.group("free", GroupLimits::default());
    assert_eq!(fork_in(Some(&free), Way::Born, || hog(64 << 20)).end(), 0);
    assert_eq!(free.events().oom_kills, 0);
}

/// Fills connections of the loopback that nobody reads; gives the MiB that went in, at most 100.
fn fill_connections() -> i32 {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    let (mut kept, mut bytes) = (Vec::new(), 0);
    let part = vec![0; 64 << 10];
    while kept.len() < 80 && bytes < 100 << 20 {
        let mut near = TcpStream::connect(place).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while let Ok(count) = near.write(&part) {
            bytes += count;
        }
        kept.extend([near, far]);
    }
    (bytes >> 20) as i32
}

#[test]
fn network_buffers_are_bounded() {
    let Some(bench) = Bench::new("network_buffers_are_bounded") else {
        return;
    };
    if bench.cgroups.layout() == Layout::V2 {
        eprintln!("SKIP cgroup::network_buffers_are_bounded: v2 counts them as memory");
        return;
    }
    let fill = |name, memory_bytes| {
        let limits = GroupLimits {
            memory_bytes,
            ..GroupLimits::default()
        };
        let group = bench.group(name, limits);
        fork_in(Some(&group), Way::Born, fill_connections).end() >> 8
    };
    let (free, bounded) = (fill("free", None), fill("bounded", Some(64 << 20)));
    assert!(free > 40, "without a limit only {free} MiB went in");
    assert!(bounded < 20, "{bounded} MiB went in");
}

#[test]
fn v2_kills_the_whole_group_for_memory() {
    const TEST: &str = "v2_kills_the_whole_group_for_memory";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    if bench.cgroups.layout() != Layout::V2 {
        eprintln!("SKIP cgroup::{TEST}: v1 has no group kill; the supervisor's watch does it");
        return;
    }
    let group = bench.group(
        "hog",
        GroupLimits {
            memory_bytes: Some(32 << 20),
            ..GroupLimits::default()
        },
    );
    let mut bystander = fork_in(Some(&group), Way::Born, spin);
    let mut child = fork_in(Some(&group), Way::Born, || hog(256 << 20));
    assert_eq!(child.end() & 0x7f, libc::SIGKILL);
    assert_eq!(bystander.end() & 0x7f, libc::SIGKILL);
}

#[test]
fn a_fork_bomb_stops_at_the_pids_limit() {
    let Some(bench) = Bench::new("a_fork_bomb_stops_at_the_pids_limit") else {
        return;
    };
    let group = bench.group(
        "bomb",
        GroupLimits {
            pids: Some(8),
            ..GroupLimits::default()
        },
    );
    let mut child = fork_in(Some(&group), Way::Born, || bomb(20));
    assert_eq!(child.end() >> 8, 7, "itself and seven more");
    assert!(group.events().pids_denied >= 1);
    group.kill().unwrap();
    until("empty", || !group.populated().unwrap());
    let free = bench.group("free", GroupLimits::default());
    let mut child = fork_in(Some(&free), Way::Born, || bomb(20));
    assert_eq!(child.end() >> 8, 20, "without the limit it gets them all");
    assert_eq!(free.events().pids_denied, 0);
    free.kill().unwrap();
}

/// Cores used by four spinning processes, over about `secs`. The first half second is not counted:
/// what is overrun before the first look of the kernel is paid back afterwards.
fn cores_used(group: &Group, secs: f64) -> f64 {
    let _spinners: Vec<_> = (0..4)
        .map(|_| fork_in(Some(group), Way::Born, spin))
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    let before = group.cpu_micros().unwrap();
    std::thread::sleep(Duration::from_secs_f64(secs));
    let used = group.cpu_micros().unwrap() - before;
    let cores = used as f64 / start.elapsed().as_micros() as f64;
    group.kill().unwrap();
    cores
}

#[test]
fn the_processor_share_holds_for_small_and_large_shares() {
    const TEST: &str = "the_processor_share_holds_for_small_and_large_shares";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    // A period's end comes late on an emulated machine, which says so by this variable.
    let slack = match std::env::var_os("LEASEHOLD_PATIENCE") {
        None => 1.1,
        Some(_) => 1.3,
    };
    for milli in [50, 200, 1_000] {
        let limits = GroupLimits {
            cpu_milli: Some(milli),
            ..GroupLimits::default()
        };
        let group = bench.group(&format!("share-{milli}"), limits);
        let cores = cores_used(&group, 3.0);
        let share = f64::from(milli) / 1_000.0;
        eprintln!("share {share}: used {cores:.4} cores, {:?}", group.usage());
        assert!(cores <= share * slack, "share {share}: used {cores:.4}");
        // A whole core may not be free to be used up on a busy host; small shares always are.
        assert!(milli > 200 || group.usage().throttled_micros.unwrap() > 0);
    }
    let free = bench.group("free", GroupLimits::default());
    let cores = cores_used(&free, 1.0);
    assert!(
        cores > 0.06,
        "four spinners without a limit used only {cores:.3} cores"
    );
}

/// A tree that is hard to kill: children in own sessions that ignore what can be ignored and fork on.
fn stubborn(count: &AtomicU32) -> i32 {
    for _ in 0..3 {
        if bare_fork() == 0 {
            // SAFETY: plain system calls.
            unsafe {
                libc::setsid();
                for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                    libc::signal(signal, libc::SIG_IGN);
                }
            }
            if bare_fork() == 0 {
                count.fetch_add(1, Ordering::SeqCst);
                // What ended waits to be reaped and holds numbers that the others need for their first fork.
                while count.load(Ordering::SeqCst) < 3 {
                    std::hint::spin_loop();
                }
                loop {
                    // Keeps replacing itself, so that no list of pids is right for long.
                    if bare_fork() > 0 {
                        // SAFETY: leaves at once.
                        unsafe { libc::_exit(0) };
                    }
                }
            }
            // SAFETY: leaves at once.
            unsafe { libc::_exit(0) };
        }
    }
    0
}

#[test]
fn killing_reaches_what_was_forked_away() {
    let Some(bench) = Bench::new("killing_reaches_what_was_forked_away") else {
        return;
    };
    for by_listing in [false, true] {
        let group = bench.group(
            if by_listing { "listing" } else { "kill" },
            GroupLimits {
                pids: Some(64),
                cpu_milli: Some(500),
                ..GroupLimits::default()
            },
        );
        let count = Shared::new();
        let mut child = fork_in(Some(&group), Way::Born, || stubborn(count.get()));
        assert_eq!(child.end(), 0);
        until("grandchildren", || count.value() == 3);
        assert!(group.populated().unwrap(), "they outlive their parent");
        let start = Instant::now();
        if by_listing {
            group.kill_by_listing(BOUND).unwrap();
        } else {
            group.kill().unwrap();
            group.kill().unwrap();
        }
        until("empty", || !group.populated().unwrap());
        eprintln!("by_listing {by_listing}: empty after {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(2));
        let removed = group.destroy(Duration::from_secs(2));
        assert!(removed.complete(), "{removed:?}");
    }
}

#[test]
fn i11_removal_converges_from_any_state() {
    let Some(bench) = Bench::new("i11_removal_converges_from_any_state") else {
        return;
    };
    let group = bench.group("gone", GroupLimits::default());
    let all = group.try_destroy();
    assert!(all.complete() && all.removed >= 1 && all.already_gone == 0);
    let again = group.try_destroy();
    assert_eq!((again.removed, again.already_gone), (0, all.removed));
    group.kill().unwrap();
    assert!(!group.populated().unwrap());
    assert!(bench.cgroups.open("gone").unwrap().is_none());

    // Half made: one hierarchy lost its directory.
    let half = bench.group("half", GroupLimits::default());
    std::fs::remove_dir(bench.cgroups.places()[0].join("half")).unwrap();
    let swept = bench.cgroups.open("half");
    if all.removed > 1 {
        let removed = swept.unwrap().unwrap().destroy(BOUND);
        assert!(removed.complete() && removed.removed == all.removed - 1);
    }
    drop(half);

    // Somebody is inside: it stays, says so, and goes afterwards.
    let full = bench.group("full", GroupLimits::default());
    let mut child = fork_in(Some(&full), Way::Born, spin);
    assert!(!full.try_destroy().complete());
    full.kill().unwrap();
    let removed = full.destroy(BOUND);
    assert!(removed.complete(), "{removed:?}");
    assert_eq!(child.end() & 0x7f, libc::SIGKILL);

    let taken = bench.group("taken", GroupLimits::default());
    let refused = bench.cgroups.create("taken", &GroupLimits::default());
    match refused {
        Err(CgroupError::Create { source, .. }) => {
            assert_eq!(source.kind(), std::io::ErrorKind::AlreadyExists);
        }
        other => panic!("{other:?}"),
    }
    assert!(
        bench.cgroups.open("taken").unwrap().is_some(),
        "undo took a group of another"
    );
    drop(taken);
}

#[test]
fn i3_a_successor_finds_what_is_left_wherever_it_was_made() {
    let Some(bench) = Bench::new("i3_a_successor_finds_what_is_left_wherever_it_was_made") else {
        return;
    };
    let group = bench.group("left", GroupLimits::default());
    let mut child = fork_in(Some(&group), Way::Born, spin);
    drop(group);
    let successor = Cgroups::discover(&bench.instance).unwrap();
    assert_eq!(successor.list().unwrap(), ["left"]);
    let found = successor.open("left").unwrap().unwrap();
    assert!(found.populated().unwrap());
    found.kill().unwrap();
    assert!(found.destroy(BOUND).complete());
    assert_eq!(child.end() & 0x7f, libc::SIGKILL);
    assert!(successor.list().unwrap().is_empty());

    // A predecessor that was started in another group made its directory there.
    let beside = bench.cgroups.places()[0]
        .parent()
        .unwrap()
        .join(format!("other-{}", bench.instance));
    let base = beside.join(format!("leasehold-{}", bench.instance));
    std::fs::create_dir(&beside).unwrap();
    std::fs::create_dir(&base).unwrap();
    std::fs::create_dir(base.join("astray")).unwrap();
    let successor = Cgroups::discover(&bench.instance).unwrap();
    let listed = successor.list();
    let removed = successor
        .open("astray")
        .map(|group| group.map(|group| group.destroy(BOUND)));
    let still = base.exists();
    let _ = std::fs::remove_dir(base.join("astray"));
    let _ = std::fs::remove_dir(&base);
    std::fs::remove_dir(&beside).unwrap();
    assert_eq!(listed.unwrap(), ["astray"]);
    let removed = removed.unwrap().unwrap();
    assert_eq!((removed.removed, removed.complete()), (1, true));
    assert!(!still, "the directory of the predecessor stays behind");
}

/// Status of opening, and its errno.
fn try_open(path: &std::ffi::CStr) -> i32 {
    // SAFETY: plain system call with a C string.
    unsafe {
        if libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_NONBLOCK) >= 0 {
            0
        } else {
            *libc::__errno_location()
        }
    }
}

#[test]
fn only_harmless_devices_open() {
    const TEST: &str = "only_harmless_devices_open";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    if !bench.needs(TEST, "devices", |controls| controls.devices) {
        return;
    }
    let group = bench.group("dev", GroupLimits::default());
    let node = std::env::temp_dir().join(format!("node-{}", bench.instance));
    let node = std::ffi::CString::new(node.into_os_string().into_encoded_bytes()).unwrap();
    let open = |group, path: &'static std::ffi::CStr| {
        fork_in(group, Way::Born, || try_open(path)).end() >> 8
    };
    let make = |group| {
        let node = node.clone();
        fork_in(group, Way::Born, || {
            let device = libc::makedev(1, 3);
            // SAFETY: plain system calls with a C string.
            let made = unsafe { libc::mknod(node.as_ptr(), libc::S_IFCHR | 0o600, device) };
            // SAFETY: as above.
            unsafe { libc::unlink(node.as_ptr()) };
            made.unsigned_abs() as i32
        })
        .end()
            >> 8
    };
    for path in [c"/dev/null", c"/dev/zero", c"/dev/urandom"] {
        assert_eq!(open(Some(&group), path), 0, "{path:?}");
    }
    assert_eq!(open(Some(&group), c"/dev/kmsg"), libc::EPERM);
    assert_eq!(make(Some(&group)), 1, "a node was made");
    assert_eq!(open(None, c"/dev/kmsg"), 0, "outside the group it opens");
    assert_eq!(make(None), 0, "outside the group a node can be made");
}

#[test]
fn freezing_stops_and_thawing_goes_on() {
    const TEST: &str = "freezing_stops_and_thawing_goes_on";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    if !bench.needs(TEST, "freeze", |controls| controls.freeze) {
        return;
    }
    let group = bench.group("ice", GroupLimits::default());
    let count = Shared::new();
    let mut child = fork_in(Some(&group), Way::Born, || {
        loop {
            count.get().fetch_add(1, Ordering::SeqCst);
        }
    });
    until("counting", || count.value() > 1_000);
    group.freeze(true).unwrap();
    let frozen = count.value();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(count.value(), frozen);
    group.freeze(false).unwrap();
    until("counting again", || count.value() != frozen);
    group.freeze(true).unwrap();
    group.kill().unwrap();
    if group.into_cgroup().is_none() {
        group.freeze(false).unwrap();
    }
    assert_eq!(
        child.end() & 0x7f,
        libc::SIGKILL,
        "a frozen group can be killed"
    );
}

#[test]
fn limits_can_be_raised_and_lowered() {
    let Some(bench) = Bench::new("limits_can_be_raised_and_lowered") else {
        return;
    };
    let limits = |mib: u64, pids: u32, cpu: u32| GroupLimits {
        memory_bytes: Some(mib << 20),
        pids: Some(pids),
        cpu_milli: Some(cpu),
    };
    let group = bench.group("claim", limits(64, 10, 500));
    for next in [
        limits(256, 100, 2_000),
        limits(16, 3, 200),
        limits(64, 10, 500),
    ] {
        group.set_limits(&next).unwrap();
        let mut child = fork_in(Some(&group), Way::Joins, || {
            bomb(3) + 10 * i32::from(hog(4 << 20) == 0)
        });
        let got = if next.pids == Some(3) { 12 } else { 13 };
        let status = child.end();
        assert_eq!(status, got << 8, "{next:?}: {:?}", group.events());
        group.kill().unwrap();
        // The dead count until somebody reaps them.
        until("empty", || group.usage().pids == Some(0));
    }
}

/// Not a promise, a look: what the ways in cost when nobody moved anything for a while.
#[test]
fn the_ways_in_are_timed() {
    let Some(bench) = Bench::new("the_ways_in_are_timed") else {
        return;
    };
    let quiet = Duration::from_millis(60);
    for way in [Way::Moved, Way::Joins, Way::Born] {
        let mut times = Vec::new();
        for round in 0..5 {
            let group = bench.group(
                &format!("{way:?}-{round}").to_lowercase(),
                GroupLimits::default(),
            );
            let (mut read, write) = std::io::pipe().unwrap();
            let write: OwnedFd = write.into();
            std::thread::sleep(quiet);
            let start = Instant::now();
            let mut child = fork_in(Some(&group), way, || {
                // SAFETY: one byte from a static.
                unsafe { libc::write(write.as_raw_fd(), b"x".as_ptr().cast(), 1) };
                0
            });
            read.read_exact(&mut [0]).unwrap();
            times.push(start.elapsed());
            child.end();
        }
        times.sort_unstable();
        eprintln!(
            "{way:?}: fork to first word {:?} (median of 5, cold)",
            times[2]
        );
    }
    std::thread::sleep(quiet);
    eprintln!("warm_attach: cold {:?}", warm_attach().unwrap());
    eprintln!("warm_attach: again {:?}", warm_attach().unwrap());
    let start = Instant::now();
    let limits = GroupLimits {
        memory_bytes: Some(64 << 20),
        pids: Some(64),
        cpu_milli: Some(500),
    };
    for round in 0..50 {
        let group = bench.group(&format!("cost-{round}"), limits);
        assert!(group.try_destroy().complete());
    }
    eprintln!("create with limits and destroy: {:?}", start.elapsed() / 50);
    let start = Instant::now();
    for _ in 0..20 {
        Cgroups::discover(&bench.instance).unwrap();
    }
    eprintln!("discover: {:?}", start.elapsed() / 20);
    // SAFETY: -1 is no descriptor; this only shows that descriptors are not leaked by the loop above.
    let next = unsafe { libc::dup(2) };
    assert!(next < 200, "descriptors leak: next is {next}");
    // SAFETY: it was made by the call above.
    drop(unsafe { OwnedFd::from_raw_fd(next) });
}
