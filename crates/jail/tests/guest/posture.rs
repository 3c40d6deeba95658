//! The steps of the posture, each beside the same attempt without it.

use std::os::fd::AsRawFd as _;

use leasehold_jail::landlock::Root;
use leasehold_jail::{posture, rlimit, sys};
use rustix::process::{
    DumpableBehavior, Resource, WaitOptions, getrlimit, set_dumpable_behavior, waitpid,
};

use crate::child::{answer, call};

fn able(name: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIP {name}: needs root to change identity");
    }
    root
}

/// Whether one process of a user can read the environment of another of the same user.
fn readable(hide: bool) -> bool {
    let (ready, tell) = rustix::pipe::pipe().unwrap();
    let (wait, go) = rustix::pipe::pipe().unwrap();
    let target = sys::spawn_child(&[tell.as_raw_fd(), wait.as_raw_fd()], || {
        posture::become_workload(1000, 1000, 64, 0).unwrap();
        // What an exec would do: a change of identity alone hides already.
        set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
        if hide {
            posture::hide().unwrap();
        }
        rustix::io::write(&tell, b"r").unwrap();
        rustix::io::read(&wait, &mut [0; 1]).unwrap();
        0
    })
    .unwrap();
    rustix::io::read(&ready, &mut [0; 1]).unwrap();
    let path = format!("/proc/{}/environ", target.as_raw_nonzero());
    let read = answer(|| {
        posture::become_workload(1000, 1000, 64, 0).unwrap();
        i64::from(std::fs::read(&path).is_ok())
    });
    rustix::io::write(&go, b"g").unwrap();
    waitpid(Some(target), WaitOptions::empty()).unwrap();
    read == 1
}

#[test]
fn a_hidden_process_cannot_be_read_by_its_own_user() {
    if !able("a_hidden_process_cannot_be_read_by_its_own_user") {
        return;
    }
    assert!(readable(false), "without hiding it can");
    assert!(!readable(true));
}

#[test]
fn the_identity_of_a_workload_is_final() {
    if !able("the_identity_of_a_workload_is_final") {
        return;
    }
    let back = |uid, gid| {
        answer(move || {
            posture::become_workload(1000, 1000, 64, 0).unwrap();
            match posture::become_workload(uid, gid, 64, 0) {
                Ok(()) => 0,
                Err(error) => error.errno().into(),
            }
        })
    };
    assert_eq!(back(1000, 1000), 0);
    assert_eq!(back(0, 0), i64::from(libc::EPERM));
    assert_eq!(back(1001, 1000), i64::from(libc::EPERM));
    assert_eq!(back(u32::MAX, u32::MAX), i64::from(libc::EINVAL));
}

/// And nobody can unlock the securebits, which keep root from getting anything back at an exec.
#[test]
fn parking_leaves_only_the_change_of_identity() {
    if !able("parking_leaves_only_the_change_of_identity") {
        return;
    }
    let held = |park: bool| {
        answer(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            if park {
                posture::park_stub(Root::Template).unwrap();
            }
            let held = rustix::thread::capabilities(None).unwrap();
            held.permitted.bits() as i64
        })
    };
    assert_eq!(held(true), 1 << 6 | 1 << 7);
    assert_ne!(held(false), 1 << 6 | 1 << 7);
    let unlock = answer(|| {
        rustix::thread::set_no_new_privs(true).unwrap();
        posture::park_stub(Root::Template).unwrap();
        call(
            libc::SYS_prctl,
            [libc::PR_SET_SECUREBITS as u64, 0, 0, 0, 0, 0],
        )
    });
    assert_eq!(unlock, -i64::from(libc::EPERM));
}

#[test]
fn core_dumps_are_off_in_the_one_way_that_counts() {
    let limit = |off: bool| {
        answer(move || {
            if off {
                rlimit::no_core_dumps().unwrap();
            }
            let limit = getrlimit(Resource::Core);
            let number = |value: Option<u64>| value.map_or(-1, |value| value as i64);
            number(limit.current) << 32 | number(limit.maximum) & 0xffff_ffff
        })
    };
    assert_eq!(limit(true), 1 << 32 | 1);
    assert_ne!(limit(false), 1 << 32 | 1);
}

#[test]
fn limits_are_never_raised() {
    let files = |wanted: u32| {
        answer(move || {
            rlimit::run(50, 0).unwrap();
            rlimit::run(wanted, 0).unwrap();
            getrlimit(Resource::Nofile).maximum.unwrap() as i64
        })
    };
    assert_eq!(files(20), 20);
    assert_eq!(files(1 << 20), 50);
}
