//! The program in the kernel: every row as the table says, and what it takes away.

#![allow(
    unsafe_code,
    reason = "raw system calls, a foreign entry into the kernel"
)]

use leasehold_jail::seccomp::{Arch, Program, Rule, Test, table};
use std::collections::BTreeSet;

use crate::child::{Ended, Shared, answer, call, child};

const MARK: i64 = 4000;

fn forbid_new_privileges() {
    rustix::thread::set_no_new_privs(true).unwrap();
}

/// Answers every call but the end of the process with [`MARK`] instead of doing it, unless a filter
/// loaded later refuses it first. So the kernel's verdict on any call can be seen without the call.
fn load_marker() {
    let step = |code: u16, jt: u8, jf: u8, k: u32| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        step(0x20, 0, 0, 0),
        step(0x15, 4, 0, libc::SYS_exit_group as u32),
        step(0x15, 0, 2, libc::SYS_seccomp as u32),
        step(0x20, 0, 0, 24),
        step(0x15, 1, 0, libc::SECCOMP_FILTER_FLAG_TSYNC as u32),
        step(0x06, 0, 0, 0x0005_0000 | MARK as u32),
        step(0x06, 0, 0, 0x7fff_0000),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program lives through the call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    assert_eq!(answer, 0);
}

fn values_of(rule: Rule, into: &mut BTreeSet<u64>) {
    let Rule::If(branch) = rule else { return };
    let values: Vec<u32> = match branch.test {
        Test::OneOf(values) | Test::MaskedOneOf(_, values) => values.to_vec(),
        Test::AnyBit(bits) => (0..32).map(|bit| bits & 1 << bit).collect(),
    };
    for value in values.into_iter().map(u64::from) {
        into.extend([
            value,
            value + 1,
            value | 0xdead_0000_0000_0000,
            value ^ 0x8_0000,
        ]);
    }
    values_of(branch.then, into);
    values_of(branch.otherwise, into);
}

fn arguments(rule: Rule) -> Vec<[u64; 6]> {
    let mut values = BTreeSet::from([0, u64::MAX]);
    values_of(rule, &mut values);
    let thirds = [0, 1, 6, 17, 1 << 32, u64::MAX, 0x8000_0000];
    let pairs = values.iter().flat_map(|a| values.iter().map(|b| (*a, *b)));
    pairs
        .flat_map(|(a, b)| thirds.map(|c| [a, b, c, b, 0, 0]))
        .collect()
}

fn expected(rule: Rule, args: [u64; 6]) -> i64 {
    match rule.decide(args) {
        Rule::Allow => -MARK,
        Rule::Errno(errno) => -i64::from(errno),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_row_is_what_the_kernel_does() {
    let rows: Vec<_> = table()
        .filter_map(|row| {
            Some((
                row.name,
                row.number(Arch::NATIVE)?,
                row.rule,
                arguments(row.rule),
            ))
        })
        .filter(|(name, ..)| *name != "exit_group")
        .collect();
    let shared = Shared::new();
    let ended = child(|| {
        forbid_new_privileges();
        load_marker();
        Program::native().load().unwrap();
        for (at, (_, nr, rule, args)) in rows.iter().enumerate() {
            for args in args {
                // The marker lets this one through, for the program to be loaded.
                let loads = i64::from(*nr) == libc::SYS_seccomp && args[1] as u32 == 1;
                let got = if loads {
                    expected(*rule, *args)
                } else {
                    call((*nr).into(), *args)
                };
                if got != expected(*rule, *args) {
                    shared.set(0, at as i64 + 1);
                    shared.set(1, got);
                    (0..6).for_each(|n| shared.set(2 + n, args[n] as i64));
                    return 1;
                }
            }
            shared.set(10, at as i64 + 1);
        }
        0
    });
    let name = rows
        .get((shared.get(0) - 1).max(0) as usize)
        .map(|row| row.0);
    let args: Vec<i64> = (2..8).map(|at| shared.get(at)).collect();
    assert_eq!(
        ended,
        Ended::Status(0),
        "{name:?} {args:x?} gave {}",
        shared.get(1)
    );
    assert_eq!(shared.get(10), rows.len() as i64);
    assert!(rows.len() > 300);
}

/// The marker alone, so that the test above can fail: every call gets the mark.
#[test]
fn without_the_program_the_marker_answers_everything() {
    let got = answer(|| {
        forbid_new_privileges();
        load_marker();
        call(libc::SYS_mount, [0; 6])
    });
    assert_eq!(got, -MARK);
}

#[test]
fn unlisted_calls_are_refused_or_absent() {
    for (nr, want) in [
        (libc::SYS_acct, -libc::EPERM),
        (400, -libc::ENOSYS),
        (470, -libc::ENOSYS),
        (511, -libc::ENOSYS),
        (100_000, -libc::ENOSYS),
        (-1, -libc::ENOSYS),
    ] {
        let got = answer(|| {
            forbid_new_privileges();
            load_marker();
            Program::native().load().unwrap();
            call(nr, [0; 6])
        });
        assert_eq!(got, i64::from(want), "{nr}");
    }
}

fn pointer<T>(value: &T) -> u64 {
    std::ptr::from_ref(value) as u64
}

/// A call that has a bad effect without the program.
struct Case {
    name: &'static str,
    nr: i64,
    args: [u64; 6],
    errno: i32,
}

fn case(name: &'static str, nr: i64, args: [u64; 3], errno: i32) -> Case {
    let [a, b, c] = args;
    Case {
        name,
        nr,
        args: [a, b, c, 0, 0, 0],
        errno,
    }
}

fn attempt(case: &Case) {
    let Case {
        name,
        nr,
        args,
        errno,
    } = *case;
    let without = answer(|| call(nr, args));
    let with = answer(|| {
        forbid_new_privileges();
        Program::native().load().unwrap();
        call(nr, args)
    });
    assert_eq!(with, -i64::from(errno), "{name}");
    if with == without && matches!(errno, libc::ENOSYS | libc::EAFNOSUPPORT) {
        eprintln!("SKIP the_program_takes_away: this kernel has no {name}");
        return;
    }
    assert_ne!(with, without, "{name}: refused without the program too");
}

#[test]
fn the_program_takes_away_calls() {
    use libc::{ENOSYS, EPERM};
    let queue = [0u64; 16];
    let (text, root) = (c"none".as_ptr() as u64, c"/".as_ptr() as u64);
    let ring = [4, pointer(&queue), 0];
    for case in [
        case(
            "new user namespace",
            libc::SYS_unshare,
            [libc::CLONE_NEWUSER as u64, 0, 0],
            EPERM,
        ),
        case(
            "new mounts",
            libc::SYS_unshare,
            [libc::CLONE_NEWNS as u64, 0, 0],
            EPERM,
        ),
        case("new time namespace", libc::SYS_unshare, [0x80, 0, 0], EPERM),
        case("clone3", libc::SYS_clone3, [0; 3], ENOSYS),
        case("ptrace", libc::SYS_ptrace, [0; 3], EPERM),
        case("io_uring", libc::SYS_io_uring_setup, ring, ENOSYS),
        case("userfaultfd", libc::SYS_userfaultfd, [0; 3], ENOSYS),
        case("keyring", libc::SYS_keyctl, [1, 0, 0], ENOSYS),
        case("aio", libc::SYS_io_setup, [1, pointer(&queue), 0], EPERM),
        case(
            "file handles",
            libc::SYS_name_to_handle_at,
            [0, text, 0],
            EPERM,
        ),
        case("another root", libc::SYS_chroot, [root, 0, 0], EPERM),
    ] {
        attempt(&case);
    }
}

#[test]
fn the_program_takes_away_arguments() {
    use libc::{EINVAL, EPERM};
    let limit: [u64; 2] = [0, 0];
    let (one, zero) = (1u64, 0u64);
    let (one, zero, limit) = (pointer(&one), pointer(&zero), pointer(&limit));
    // No more descriptors than there are, so that it may be set.
    let roomy: [u64; 2] = [64, 64];
    let roomy = pointer(&roomy);
    let scheduler = libc::SYS_sched_setscheduler;
    for case in [
        case(
            "personality",
            libc::SYS_personality,
            [0x0040_0000, 0, 0],
            EPERM,
        ),
        case(
            "priority",
            libc::SYS_setpriority,
            [0, 0, -5i64 as u64],
            EPERM,
        ),
        case("affinity", libc::SYS_sched_setaffinity, [0, 8, one], EPERM),
        case("batch scheduling", scheduler, [0, 3, zero], EPERM),
        case("core limit", libc::SYS_setrlimit, [4, limit, 0], EINVAL),
        case(
            "core limit by id",
            libc::SYS_prlimit64,
            [0, 4, limit],
            EINVAL,
        ),
        case(
            "limit of a named process",
            libc::SYS_prlimit64,
            [u64::from(std::process::id()), 7, roomy],
            EPERM,
        ),
    ] {
        attempt(&case);
    }
}

#[test]
fn the_program_takes_away_sockets() {
    let socket = |name, family: i32, kind: i32, protocol: i32, errno| {
        let args = [family as u64, kind as u64, protocol as u64];
        case(name, libc::SYS_socket, args, errno)
    };
    let (none, raw) = (libc::EAFNOSUPPORT, libc::SOCK_RAW);
    for case in [
        socket("packets", libc::AF_PACKET, raw, 0, none),
        socket("kernel crypto", libc::AF_ALG, libc::SOCK_SEQPACKET, 0, none),
        socket("audit", libc::AF_NETLINK, raw, libc::NETLINK_AUDIT, none),
        socket("routes", libc::AF_NETLINK, raw, libc::NETLINK_ROUTE, none),
        socket(
            "raw network",
            libc::AF_INET,
            raw | libc::SOCK_CLOEXEC,
            1,
            libc::EPERM,
        ),
    ] {
        attempt(&case);
    }
}

/// Kernel memory of the host that no control group counts.
#[test]
fn the_program_takes_away_uncounted_memory() {
    use libc::{ENOMEM, EPERM};
    let huge = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB) as u64;
    let filter = [libc::sock_filter {
        code: 6,
        jt: 0,
        jf: 0,
        k: 0,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: filter.as_ptr().cast_mut(),
    };
    let attach = |option: i32, program: u64| {
        let socket = call(libc::SYS_socket, [libc::AF_UNIX as u64, 2, 0, 0, 0, 0]);
        let level = libc::SOL_SOCKET as u64;
        let length = size_of::<libc::sock_fprog>() as u64;
        let option = option as u64;
        call(
            libc::SYS_setsockopt,
            [socket as u64, level, option, program, length, 0],
        )
    };
    let with = |act: &dyn Fn() -> i64| {
        answer(|| {
            forbid_new_privileges();
            Program::native().load().unwrap();
            act()
        })
    };
    let filtered = || attach(libc::SO_ATTACH_FILTER, pointer(&program));
    assert_eq!(answer(filtered), 0, "without the program");
    assert_eq!(with(&filtered), -i64::from(EPERM));
    let one = 1u32;
    let sized = || attach(libc::SO_PASSCRED, pointer(&one));
    assert_ne!(with(&sized), -i64::from(EPERM), "other options are allowed");
    let (name, flags) = (c"x".as_ptr() as u64, u64::from(libc::MFD_HUGETLB));
    let file = || call(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0]);
    assert!(answer(file) >= 0 || answer(file) == -i64::from(libc::ENODEV));
    assert_eq!(with(&file), -i64::from(ENOMEM));
    // Without a pool it fails with this even without the program, so one of no length is asked for.
    let pages = |flags: u64| move || call(libc::SYS_mmap, [0, 0, 3, flags, u64::MAX, 0]);
    assert_eq!(answer(pages(huge)), -i64::from(libc::EINVAL));
    assert_eq!(with(&pages(huge)), -i64::from(ENOMEM));
    let segment = [0, 4096, (libc::SHM_HUGETLB | 0o1600) as u64, 0, 0, 0];
    assert_eq!(
        with(&|| call(libc::SYS_shmget, segment)),
        -i64::from(ENOMEM)
    );
}

/// In a child with the second program or without, by each way: how many files came to run as their
/// owner, and how many of the same calls with an ordinary mode were let through.
fn set_id_files(program: bool, folder: &std::path::Path) -> (i64, i64) {
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::PermissionsExt as _;
    let path = std::ffi::CString::new(folder.join("file").as_os_str().as_bytes()).unwrap();
    let (at, here) = (path.as_ptr() as u64, libc::AT_FDCWD as u64);
    let made = (libc::O_CREAT | libc::O_WRONLY) as u64;
    let try_all = |bits: u64| {
        let how: [u64; 3] = [made, 0o700 | bits, 0];
        let ways = [
            (libc::SYS_openat, [here, at, made, 0o700 | bits]),
            (libc::SYS_openat2, [here, at, pointer(&how), 24]),
            (libc::SYS_mknodat, [here, at, 0o10_0700 | bits, 0]),
            (libc::SYS_fchmodat, [here, at, 0o700 | bits, 0]),
            (libc::SYS_fchmodat2, [here, at, 0o700 | bits, 0]),
            (libc::SYS_fchmod, [u64::MAX, 0o700 | bits, 0, 0]),
        ];
        let mut count = 0;
        for (nr, [a, b, c, d]) in ways {
            let a = match nr {
                libc::SYS_fchmod => call(libc::SYS_openat, [here, at, made, 0o600, 0, 0]) as u64,
                libc::SYS_fchmodat | libc::SYS_fchmodat2 => {
                    std::fs::write(folder.join("file"), "").unwrap();
                    a
                }
                _ => a,
            };
            call(nr, [a, b, c, d, 0, 0]);
            let mode = std::fs::metadata(folder.join("file"))
                .map_or(0, |found| u64::from(found.permissions().mode()));
            count += i64::from(mode & 0o6777 == 0o700 | bits);
            let _ = std::fs::remove_file(folder.join("file"));
        }
        count
    };
    let shared = Shared::new();
    let ended = child(|| {
        forbid_new_privileges();
        rustix::process::umask(rustix::fs::Mode::empty());
        Program::native().load().unwrap();
        if program {
            Program::no_set_id().load().unwrap();
        }
        shared.set(0, try_all(0o4000) + try_all(0o2000));
        shared.set(1, try_all(0));
        // Without O_CREAT the fourth argument means nothing.
        let open = call(
            libc::SYS_openat,
            [here, c"/".as_ptr() as u64, 0, 0o4000, 0, 0],
        );
        u8::from(open < 0)
    });
    assert_eq!(ended, Ended::Status(0));
    (shared.get(0), shared.get(1))
}

#[test]
fn no_file_comes_to_run_as_its_owner() {
    let folder = std::env::temp_dir().join(format!("set-id-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let (without, with) = (set_id_files(false, &folder), set_id_files(true, &folder));
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(without, (12, 6), "without the program every way is one");
    assert_eq!(with, (0, 5), "all but openat2 are left for other modes");
}

#[test]
fn a_listener_cannot_be_put_on_top() {
    let filter = [libc::sock_filter {
        code: 6,
        jt: 0,
        jf: 0,
        k: 0x7fff_0000,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: filter.as_ptr().cast_mut(),
    };
    let stack = |flags: u64| {
        let args = [
            libc::SECCOMP_SET_MODE_FILTER.into(),
            flags,
            pointer(&program),
            0,
            0,
            0,
        ];
        move || {
            forbid_new_privileges();
            Program::native().load().unwrap();
            call(libc::SYS_seccomp, args)
        }
    };
    assert_eq!(answer(stack(0)), 0, "another filter is allowed");
    assert_eq!(
        answer(stack(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)),
        -i64::from(libc::EPERM)
    );
}

#[test]
fn it_is_not_loaded_without_no_new_privs() {
    let got = answer(|| {
        rustix::thread::set_capabilities(
            None,
            rustix::thread::CapabilitySets {
                effective: rustix::thread::CapabilitySet::empty(),
                permitted: rustix::thread::CapabilitySet::empty(),
                inheritable: rustix::thread::CapabilitySet::empty(),
            },
        )
        .unwrap();
        match Program::native().load() {
            Ok(()) => 0,
            Err(error) => error.errno().into(),
        }
    });
    assert_eq!(got, i64::from(libc::EACCES));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_32_bit_entry_kills() {
    let enter = || {
        let answer: i64;
        // SAFETY: `getpid` of the 32-bit interface takes nothing and touches no memory.
        unsafe {
            std::arch::asm!("int 0x80", inlateout("rax") 20i64 => answer, out("r8") _, out("r9") _,
                out("r10") _, out("r11") _);
        }
        u8::from(answer <= 0)
    };
    let with = child(|| {
        forbid_new_privileges();
        Program::native().load().unwrap();
        enter()
    });
    match child(enter) {
        Ended::Status(0) => assert_eq!(with, Ended::Signal(libc::SIGSYS)),
        other => eprintln!("SKIP the_32_bit_entry_kills: this kernel has none ({other:?})"),
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_x32_entry_kills() {
    let enter = || {
        call(0x4000_0000 + libc::SYS_getpid, [0; 6]);
        0
    };
    assert_eq!(child(enter), Ended::Status(0));
    let with = child(|| {
        forbid_new_privileges();
        Program::native().load().unwrap();
        enter()
    });
    assert_eq!(with, Ended::Signal(libc::SIGSYS));
}
