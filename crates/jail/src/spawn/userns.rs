//! User namespaces: the maps of a sandbox, the maker's own namespace of an ordinary user, and the
//! namespaces that translate the owners of a host directory.

use std::ffi::CString;
use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Instant;

use leasehold_core::image::User;
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{
    Signal, WaitId, WaitIdOptions, pidfd_send_signal, set_parent_process_death_signal, waitid,
};
use rustix::thread::{
    CapabilitiesSecureBits, UnshareFlags, set_capabilities_secure_bits, set_thread_res_uid,
};

use super::clone::{Beside, Bomb, Side, end, fork, unshare};
use super::spec::{IdBlock, WORKLOAD_ID};
use super::step::{Failed, MakeStep};
use super::wire::{self, Progress};

/// Namespaces kept ready.
const READY: usize = 4;

/// Uids that own the user namespaces of root's sandboxes: just below all leased blocks. No process
/// has one for longer than it takes to make a namespace.
const OWNERS_FIRST: u32 = 0x5fff_0000;
/// How many.
const OWNERS: u32 = 0xffff;

/// First id of the owners of files that are not the workload's: above all leased blocks, and nobody's.
const STRANGERS_FIRST: u32 = 0x8000_0000;
/// How many: all ids below those of sandboxes.
const STRANGERS: u32 = OWNERS_FIRST;

/// What an ordinary user may map into a user namespace of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootlessIds {
    /// A range from `/etc/subuid` and `/etc/subgid`, mapped by `newuidmap` and `newgidmap`.
    Range {
        /// First host uid.
        uid_first: u32,
        /// First host gid.
        gid_first: u32,
        /// How many of each.
        count: u32,
    },
    /// Nothing but the own uid and gid: init and workload share them.
    Single,
}

/// Who the maker of sandboxes is, which decides how ids inside are mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Maker {
    /// Root of the host.
    Root,
    /// An ordinary user, root in the spawner's user namespace.
    Rootless(RootlessIds),
}

impl Maker {
    /// Whether init and workload have one uid.
    pub(super) fn single_uid(self) -> bool {
        self == Self::Rootless(RootlessIds::Single)
    }

    /// The lines of `uid_map` and `gid_map` of a sandbox.
    pub(super) fn map(self, ids: IdBlock) -> String {
        let IdBlock { host_base, count } = ids;
        match self {
            Self::Root => format!("0 {host_base} {count}\n"),
            // The workload is the caller (0 in the spawner's namespace), all others are of the range.
            Self::Rootless(RootlessIds::Range { .. }) => {
                let rest = WORKLOAD_ID + 1;
                let mut map = format!("0 {host_base} {WORKLOAD_ID}\n{WORKLOAD_ID} 0 1\n");
                if count > rest {
                    let _ = writeln!(map, "{rest} {} {}", host_base + rest, count - rest);
                }
                map
            }
            Self::Rootless(RootlessIds::Single) => format!("{WORKLOAD_ID} 0 1\n"),
        }
    }

    /// The id inside that the first process takes.
    pub(super) fn first_id(self) -> u32 {
        if self.single_uid() { WORKLOAD_ID } else { 0 }
    }

    /// Whose the files are, as the maker's own user namespace counts, that an image says are of these ids. As an
    /// ordinary user all of them are the caller's.
    pub(super) fn of_image(self, ids: IdBlock, uid: u32, gid: u32) -> Owner {
        match self {
            Self::Root => Owner {
                uid: ids.host_base + uid,
                gid: ids.host_base + gid,
            },
            Self::Rootless(_) => Owner::of(0),
        }
    }

    /// The workload's and init's ids as the maker's own user namespace counts them. As an ordinary user the
    /// workload is the caller, whoever the command is.
    pub(super) fn owners(self, ids: IdBlock, user: User) -> Owners {
        match self {
            Self::Root => Owners {
                init: Owner::of(ids.host_base),
                workload: self.of_image(ids, user.uid, user.gid),
            },
            Self::Rootless(RootlessIds::Range { .. }) => Owners {
                init: Owner::of(ids.host_base),
                workload: Owner::of(0),
            },
            Self::Rootless(RootlessIds::Single) => Owners {
                init: Owner::of(0),
                workload: Owner::of(0),
            },
        }
    }
}

/// The lines of a map that translates owners of files: `owner` is the workload, id `n` of anybody else
/// is `n` above [`STRANGERS_FIRST`]. Such an id is in no user namespace, so it looks like nobody's
/// inside, no process can take it and no capability reaches its files; but the kernel knows whose
/// they are, so that they can be listed, read where everybody may, and removed from a directory of
/// the workload's own. Ids of sandboxes themselves have no line: such files are untouchable.
pub(super) fn owners_map(owner: u32, workload: u32) -> String {
    let mut map = format!("{owner} {workload} 1\n");
    let cut = owner.min(STRANGERS);
    for (first, end) in [(0, cut), (cut.saturating_add(1), STRANGERS)] {
        if first < end {
            let _ = writeln!(map, "{first} {} {}", STRANGERS_FIRST + first, end - first);
        }
    }
    map
}

/// Whose a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Owner {
    /// A user whose group has the same number.
    pub(super) fn of(id: u32) -> Self {
        Self { uid: id, gid: id }
    }

    /// As the calls that give files away take them.
    pub(super) fn ids(self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }
}

/// Ids in the maker's user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owners {
    pub(super) init: Owner,
    pub(super) workload: Owner,
}

/// Who a command is where nobody says.
pub(super) const WORKLOAD: User = User {
    uid: WORKLOAD_ID,
    gid: WORKLOAD_ID,
};

fn write_once(proc: BorrowedFd<'_>, path: String, text: &str) -> Result<(), Errno> {
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(proc, path, flags, Mode::empty())?;
    match rustix::io::write(file, text.as_bytes())? {
        written if written == text.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// Gives the spawner's own, just unshared user namespace the caller's single ids.
pub(super) fn write_own_single(proc: BorrowedFd<'_>, uid: u32, gid: u32) -> Result<(), Errno> {
    write_once(proc, "self/setgroups".into(), "deny")?;
    write_once(proc, "self/uid_map".into(), &format!("0 {uid} 1\n"))?;
    write_once(proc, "self/gid_map".into(), &format!("0 {gid} 1\n"))
}

/// A process outside the spawner's own user namespace that maps a range into it by the host's
/// set-user-id programs: inside they have no rights.
#[derive(Debug)]
pub(super) struct Mapper {
    pidfd: OwnedFd,
    leash: OwnedFd,
}

impl Mapper {
    /// Starts it. To be called before the user namespace is made.
    pub(super) fn begin((uid_first, gid_first, count): (u32, u32, u32)) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (leash, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let spawner = std::process::id();
        match fork()? {
            Side::Child => {
                let _bomb = Bomb;
                drop(leash);
                let mapped = set_parent_process_death_signal(Some(Signal::KILL))
                    .and_then(|()| wire::await_go(theirs.as_fd()))
                    .and_then(|_| map_range(spawner, (uid_first, gid_first, count)));
                let said = match mapped {
                    Ok(()) => Progress::Parked,
                    Err(errno) => Progress::Failed(Failed {
                        step: MakeStep::MakerIds,
                        errno,
                    }),
                };
                let _ = wire::send_progress(theirs.as_fd(), said, &[]);
                end(0)
            }
            Side::Parent { pidfd, .. } => Ok(Self { pidfd, leash }),
        }
    }

    /// Has it map the ids of the namespace the caller is in by now, and waits for that.
    pub(super) fn map(self, until: Instant) -> Result<(), Errno> {
        wire::go(self.leash.as_fd(), &[])?;
        let said = if wire::readable(self.leash.as_fd(), until)? {
            wire::receive_progress(self.leash.as_fd())
        } else {
            Err(Errno::TIMEDOUT)
        };
        // It may have ended by itself.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)?;
        match said? {
            Some((Progress::Parked, _)) => Ok(()),
            Some((Progress::Failed(failed), _)) => Err(failed.errno),
            _ => Err(Errno::SRCH),
        }
    }
}

/// Maps users and groups side by side.
fn map_range(pid: u32, (uid_first, gid_first, count): (u32, u32, u32)) -> Result<(), Errno> {
    let own = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let start = |program: &str, own: u32, first: u32| {
        let numbers = [pid, 0, own, 1, 1, first, count].map(|number| number.to_string());
        let path = ["/usr/bin", "/bin", "/usr/local/bin"]
            .into_iter()
            .map(|directory| std::path::Path::new(directory).join(program))
            .find(|path| path.exists())
            .ok_or(Errno::NOENT)?;
        Command::new(path)
            .args(numbers)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
    let both = [
        start("newuidmap", own.0, uid_first),
        start("newgidmap", own.1, gid_first),
    ];
    both.map(|child| match child?.wait() {
        Ok(status) if status.success() => Ok(()),
        // The program is there and refuses: the range is not this user's.
        Ok(_) => Err(Errno::PERM),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    })
    .into_iter()
    .collect()
}

/// A new user namespace below the spawner's, without ids yet, in which no further one can be made, and
/// no process.
#[derive(Debug)]
struct Blank {
    namespace: OwnedFd,
    /// Its `setgroups`, `uid_map` and `gid_map`.
    settings: [OwnedFd; 3],
}

impl Blank {
    fn new(proc: BorrowedFd<'_>, owner: Option<u32>) -> Result<Self, Errno> {
        let maker = Beside::run(&mut || own_namespace(proc, owner))?;
        Self::open(proc, maker.pid())
    }

    fn open(proc: BorrowedFd<'_>, pid: i32) -> Result<Self, Errno> {
        let open = |name: &str, flags: OFlags| {
            let path = CString::new(format!("{pid}/{name}")).map_err(|_| Errno::INVAL)?;
            rustix::fs::openat(proc, path, flags | OFlags::CLOEXEC, Mode::empty())
        };
        Ok(Self {
            namespace: open("ns/user", OFlags::RDONLY)?,
            settings: [
                open("setgroups", OFlags::WRONLY)?,
                open("uid_map", OFlags::WRONLY)?,
                open("gid_map", OFlags::WRONLY)?,
            ],
        })
    }

    fn map(self, uid_map: &str, gid_map: &str) -> Result<OwnedFd, Errno> {
        for (file, text) in self.settings.iter().zip(["deny", uid_map, gid_map]) {
            if rustix::io::write(file, text.as_bytes())? != text.len() {
                return Err(Errno::IO);
            }
        }
        Ok(self.namespace)
    }
}

/// Makes the namespace, as this uid where one is given: the kernel counts inotify instances, locked
/// memory, queues and signals of everybody inside against the uid that made it, too. Were that root
/// for all, one sandbox could use up what the host's root and all other sandboxes may have. Runs beside
/// the spawner: it allocates nothing.
fn own_namespace(proc: BorrowedFd<'_>, owner: Option<u32>) -> Result<(), Errno> {
    if let Some(owner) = owner {
        // Capabilities outlive the change of identity; some hosts want one for what comes next.
        let keep = CapabilitiesSecureBits::NO_SETUID_FIXUP;
        set_capabilities_secure_bits(keep)?;
        let owner = rustix::thread::Uid::from_raw(owner);
        set_thread_res_uid(owner, owner, owner)?;
    }
    unshare(UnshareFlags::NEWUSER)?;
    let path = c"sys/user/max_user_namespaces";
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(proc, path, flags, Mode::empty())?;
    match rustix::io::write(&file, b"0")? {
        1 => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// User namespaces kept ready.
#[derive(Debug)]
pub(super) struct Blanks {
    /// As root, how many there were so far: each has an owner of its own.
    made: Option<u32>,
    ready: Vec<Blank>,
}

impl Blanks {
    pub(super) fn new(maker: Maker) -> Self {
        // Two spawners begin at different places, mostly.
        let start = std::process::id().wrapping_mul(1_009);
        Self {
            made: (maker == Maker::Root).then_some(start),
            ready: Vec::new(),
        }
    }

    fn blank(&mut self, proc: BorrowedFd<'_>) -> Result<Blank, Errno> {
        let owner = self.made.as_mut().map(|made| {
            *made = made.wrapping_add(1);
            OWNERS_FIRST + *made % OWNERS
        });
        Blank::new(proc, owner)
    }

    /// A user namespace below the caller's with these maps, in which no process is. It exists as
    /// long as its descriptor, a mount that uses it, or a process that enters it. `proc` shows the
    /// caller's processes.
    pub(super) fn with_maps(
        &mut self,
        proc: BorrowedFd<'_>,
        uid_map: &str,
        gid_map: &str,
    ) -> Result<OwnedFd, Errno> {
        let blank = match self.ready.pop() {
            Some(blank) => blank,
            None => self.blank(proc)?,
        };
        blank.map(uid_map, gid_map)
    }

    /// Whether fewer are ready than should be.
    pub(super) fn wants(&self) -> bool {
        self.ready.len() < READY
    }

    /// Makes one more.
    pub(super) fn fill_one(&mut self, proc: BorrowedFd<'_>) -> Result<(), Errno> {
        let blank = self.blank(proc)?;
        self.ready.push(blank);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: IdBlock = IdBlock {
        host_base: 5_000,
        count: 65_536,
    };
    const RANGE: Maker = Maker::Rootless(RootlessIds::Range {
        uid_first: 100_000,
        gid_first: 100_000,
        count: 65_536,
    });
    const SINGLE: Maker = Maker::Rootless(RootlessIds::Single);

    #[test]
    fn no_map_of_root_holds_the_makers_own_id() {
        assert_eq!(Maker::Root.map(IDS), "0 5000 65536\n");
    }

    /// Every id has at most one meaning and none but the owner's is of a sandbox.
    #[test]
    fn owners_of_files_are_the_workload_or_nobody() {
        let map = |owner: u32| -> Vec<(u32, u32, u32)> {
            let numbers = |line: &str| {
                let mut words = line.split(' ').map(|word| word.parse().unwrap());
                let mut next = || words.next().unwrap();
                (next(), next(), next())
            };
            owners_map(owner, 7_000).lines().map(numbers).collect()
        };
        assert_eq!(map(0), [(0, 7_000, 1), (1, 0x8000_0001, 0x5ffe_ffff)]);
        assert_eq!(
            map(1_000),
            [
                (1_000, 7_000, 1),
                (0, 0x8000_0000, 1_000),
                (1_001, 0x8000_03e9, 0x5ffe_fc17),
            ]
        );
        assert_eq!(
            map(0x6000_03e8),
            [(0x6000_03e8, 7_000, 1), (0, 0x8000_0000, 0x5fff_0000)]
        );
        assert_eq!(map(0x5ffe_ffff).len(), 2);
        for owner in [0, 1, 1_000, 0x5ffe_ffff, 0x5fff_0000, u32::MAX - 1] {
            for (_, outside, count) in &map(owner)[1..] {
                assert!(*outside >= STRANGERS_FIRST && *count < STRANGERS_FIRST);
            }
        }
    }

    #[test]
    fn an_ordinary_users_workload_is_the_caller() {
        assert_eq!(RANGE.map(IDS), "0 5000 1000\n1000 0 1\n1001 6001 64535\n");
        assert_eq!(RANGE.owners(IDS, WORKLOAD).workload, Owner::of(0));
        let user = User { uid: 0, gid: 33 };
        let Owner { uid, gid } = Maker::Root.owners(IDS, user).workload;
        assert_eq!((uid, gid), (5_000, 5_033));
        assert_eq!(RANGE.first_id(), 0);
        assert_eq!(SINGLE.map(IDS), "1000 0 1\n");
        assert_eq!(SINGLE.first_id(), WORKLOAD_ID);
        assert!(SINGLE.single_uid() && !RANGE.single_uid());
    }
}
