//! A process of ours that unpacks a layer of somebody's image, and confines itself first: its root is the
//! directory it unpacks into, it reads the layers below, and reaches no other file, socket, program or process.
//!
//! As root it becomes nobody and keeps what giving files away needs; the rules of Landlock and its root hold it
//! then. To be called while the process has one thread, before any byte of the layer is read.

#![allow(unsafe_code, reason = "unshare(2) has no safe binding")]

use std::os::fd::BorrowedFd;

use rustix::process::{
    DumpableBehavior, Gid, Resource, Signal, Uid, chroot, fchdir, set_dumpable_behavior,
    set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid, unshare_unsafe,
};

use crate::landlock::Ruleset;
use crate::posture::{self, PostureError, step};
use crate::seccomp::Program;
use crate::{caps, rlimit, sys};

/// Ids of nobody.
const NOBODY: u32 = 65_534;

/// What giving files away needs: owners, modes of what is another's, and set-group-id on directories.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// What such a process is held to.
#[derive(Debug, Clone, Copy)]
pub struct Unpacking<'a> {
    /// Its root: what it may make files in.
    pub target: BorrowedFd<'a>,
    /// What it may read besides.
    pub lowers: &'a [BorrowedFd<'a>],
    /// Most bytes of one file.
    pub file_bytes: u64,
    /// Most bytes of its own data.
    pub memory_bytes: u64,
    /// Processor seconds after which the kernel ends it.
    pub cpu_seconds: u32,
    /// Most descriptors: standard ones, directories on the way, and what is open of every lower layer.
    pub open_files: u64,
}

/// What holds the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Its root is the target.
    pub root: bool,
    /// Landlock is in force.
    pub landlock: bool,
    /// It gives files to the owners that an archive names.
    pub owners: bool,
}

/// Confines this process for good.
///
/// # Errors
/// The first step that failed, or that neither a root of its own nor Landlock can be had. The process must end
/// then.
pub fn confine(to: &Unpacking<'_>) -> Result<Held, PostureError> {
    step("reset signals", sys::reset_signals())?;
    step("turn off core dumps", rlimit::no_core_dumps())?;
    step("give up new privileges", set_no_new_privs(true))?;
    let held = step("read capabilities", capabilities(None))?.effective;
    let owners = held.contains(
        KEPT.union(CapabilitySet::SETUID)
            .union(CapabilitySet::SETGID),
    );
    let root = enter(to, held)?;
    if owners {
        become_nobody(held)?;
    } else {
        posture::drop_all()?;
    }
    step("hide", set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    step(
        "die with the parent",
        set_parent_process_death_signal(Some(Signal::KILL)),
    )?;
    take_limits(to)?;
    let rules = Ruleset::unpacking(to.target, to.lowers).map_err(PostureError::Landlock)?;
    let landlock = rules.is_some();
    if !root && !landlock {
        return Err(PostureError::NotSo(
            "a root of its own or Landlock holds the process",
        ));
    }
    if let Some(rules) = rules {
        rules.restrict().map_err(PostureError::Landlock)?;
    }
    Program::unpacker().load().map_err(PostureError::Seccomp)?;
    Ok(Held {
        root,
        landlock,
        owners,
    })
}

/// Makes the target its root; whether that could be had.
fn enter(to: &Unpacking<'_>, held: CapabilitySet) -> Result<bool, PostureError> {
    if !held.contains(CapabilitySet::SYS_CHROOT) {
        // In a user namespace of its own it may change its root; it gains nothing outside of it.
        // SAFETY: the process has one thread, shares nothing with another, and keeps its descriptors.
        if unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }.is_err() {
            return Ok(false);
        }
    }
    step("enter the target", fchdir(to.target))?;
    step("make the target its root", chroot("."))?;
    Ok(true)
}

/// Another user, with what it keeps and nothing more.
fn become_nobody(held: CapabilitySet) -> Result<(), PostureError> {
    if held.contains(CapabilitySet::SETPCAP) {
        posture::bind(KEPT)?;
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        step("leave all groups", set_thread_groups(&[]))?;
        step("take the group", set_thread_res_gid(group, group, group))?;
        step("take the user", set_thread_res_uid(user, user, user))?;
    }
    step("give up capabilities", caps::reduce(KEPT))
}

fn take_limits(to: &Unpacking<'_>) -> Result<(), PostureError> {
    let rows = [
        (Resource::Fsize, to.file_bytes),
        (Resource::Data, to.memory_bytes),
        (Resource::Nproc, 0),
        (Resource::Memlock, 0),
        (Resource::Cpu, to.cpu_seconds.into()),
        (Resource::Nofile, to.open_files),
    ];
    step("lower a resource limit", rlimit::cap(rows))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, linkat, mknodat, openat, openat2};
    use rustix::process::{WaitOptions, waitpid};

    use super::*;

    /// Bits of what a process can do: read a file of the host by name, and by the way of a lower layer; write
    /// there; make a file in the target; mark a removed name there; make a real device; make a pipe; open a socket;
    /// start a process.
    fn tries(target: BorrowedFd<'_>, lower: BorrowedFd<'_>) -> u32 {
        let none = rustix::fs::ResolveFlags::empty();
        let open = |from: BorrowedFd<'_>, path: &str, flags: OFlags| {
            let makes = flags.contains(OFlags::CREATE);
            let mode = if makes { Mode::RUSR } else { Mode::empty() };
            openat2(from, path, flags, mode, none).is_ok()
        };
        let device =
            |name: &str, kind, number| mknodat(target, name, kind, Mode::empty(), number).is_ok();
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            None,
        );
        let nobody: [BorrowedFd<'_>; 0] = [];
        let all = [
            open(CWD, "/etc/passwd", OFlags::RDONLY),
            open(lower, "inside", OFlags::RDONLY),
            open(lower, "made", OFlags::WRONLY | OFlags::CREATE),
            open(target, "made", OFlags::WRONLY | OFlags::CREATE),
            device("mark", FileType::CharacterDevice, 0),
            device("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
            device("pipe", FileType::Fifo, 0),
            socket.is_ok(),
            sys::spawn_child(&nobody, || 0).is_ok(),
            open(lower, "../../../../../../etc/passwd", OFlags::RDONLY),
            linkat(lower, "inside", target, "link", AtFlags::empty()).is_ok(),
        ];
        all.iter()
            .enumerate()
            .map(|(at, can)| u32::from(*can) << at)
            .sum()
    }

    /// What a child can do, confined or not; as root or as somebody without rights.
    fn outcome(confined: bool, ordinary: bool) -> u32 {
        let name = format!(
            "leasehold-unpacking-{}-{confined}-{ordinary}",
            std::process::id()
        );
        let path = std::env::temp_dir().join(name);
        for part in ["target", "lower"] {
            std::fs::create_dir_all(path.join(part)).unwrap();
            std::os::unix::fs::chown(path.join(part), Some(12_345), Some(12_345)).unwrap();
        }
        std::fs::write(path.join("lower/inside"), "x").unwrap();
        let told = path.join("told");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |part: &str| openat(CWD, path.join(part), flags, Mode::empty()).unwrap();
        let (target, lower) = (open("target"), open("lower"));
        let out = std::fs::File::create(&told).unwrap();
        let keep = [target.as_fd(), lower.as_fd(), out.as_fd()];
        let child = sys::spawn_child(&keep, || {
            if ordinary {
                let (user, group) = (Uid::from_raw(12_345), Gid::from_raw(12_345));
                let became = set_thread_groups(&[])
                    .and_then(|()| set_thread_res_gid(group, group, group))
                    .and_then(|()| set_thread_res_uid(user, user, user));
                if became.is_err() {
                    return 97;
                }
            }
            let to = Unpacking {
                target: target.as_fd(),
                lowers: &[lower.as_fd()],
                file_bytes: 1_000,
                memory_bytes: 512 << 20,
                cpu_seconds: 10,
                open_files: 64,
            };
            if confined && confine(&to).is_err() {
                return 98;
            }
            let bits = tries(target.as_fd(), lower.as_fd());
            match rustix::io::write(&out, &bits.to_le_bytes()) {
                Ok(4) => 0,
                _ => 99,
            }
        });
        let (_, status) = waitpid(Some(child.unwrap()), WaitOptions::empty())
            .unwrap()
            .unwrap();
        assert_eq!(status.exit_status(), Some(0));
        let bits = std::fs::read(&told).unwrap();
        std::fs::remove_dir_all(path).unwrap();
        u32::from_le_bytes(bits.try_into().unwrap())
    }

    /// With the guard off each of these is possible; with it, reading the lower layer, and making files and marks in
    /// the target.
    #[test]
    fn what_unpacks_reaches_its_target_and_the_layers_below_alone() {
        if !rustix::process::geteuid().is_root() || crate::landlock::abi() == 0 {
            return;
        }
        assert_eq!(outcome(false, false), 0b111_1111_1111);
        assert_eq!(outcome(true, false), 0b000_0001_1010);
        // Somebody without rights makes no device anyway, and no other name of what is another's.
        assert_eq!(outcome(true, true), 0b000_0001_1010);
    }
}
