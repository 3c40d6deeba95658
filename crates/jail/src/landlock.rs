//! Landlock: what a workload may write, and whom a sandbox may reach.
//!
//! Two layers in a sandbox. [`Ruleset::scope`] goes on init and thereby on everything in the sandbox: no signal
//! and no abstract socket leaves it. [`Ruleset::workload`] goes on what a stub becomes: it reads and
//! executes everywhere and writes in a few places, or in an image of its own. A kernel without Landlock has [`abi`] 0; the host
//! says so in the result, and refuses where a contract asks for it. [`Ruleset::reading`] is for a
//! helper of ours outside of it.

#![allow(
    unsafe_code,
    reason = "the three landlock calls have no binding in libc or rustix"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_DIR: u64 = 1 << 4;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_DIR: u64 = 1 << 7;
const MAKE_REG: u64 = 1 << 8;
const MAKE_BLOCK: u64 = 1 << 11;
const MAKE_SYM: u64 = 1 << 12;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
/// What the first version of the interface knows.
const FIRST: u64 = (1 << 13) - 1;

/// Binding and connecting TCP ports.
const PORTS: u64 = 0b11;

const SCOPE_ABSTRACT_SOCKET: u64 = 1;
const SCOPE_SIGNAL: u64 = 1 << 1;

const READ: u64 = EXECUTE | READ_FILE | READ_DIR;
const DEVICE: u64 = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV;
const WRITABLE: u64 = !(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV);

/// Reading, and with it what makes and changes files, directories and links. No device, pipe or socket is made.
const BELOW: u64 = READ_FILE | READ_DIR;
const BELOW_WRITABLE: u64 = BELOW
    | WRITE_FILE
    | TRUNCATE
    | REFER
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_DIR
    | MAKE_REG
    | MAKE_SYM;

/// What the root of a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// The template's, which nobody inside can write.
    Template,
    /// An image's, with a layer of the sandbox's own over it that takes what is written. `/proc`, `/sys` and `/dev`
    /// are mounted read-only there too.
    Image,
}

/// Directories a workload may write below, whatever its root is. One that is not there cannot be written anyway.
pub const WRITABLE_DIRECTORIES: [&str; 5] =
    ["/workspace", "/tmp", "/var/tmp", "/dev/shm", "/home/user"];

/// Devices a workload may write to and send device calls to.
pub const DEVICES: [&str; 7] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
];

/// Where the terminals are.
const TERMINALS: &str = "/dev/pts";

/// Why a process is not restricted.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    /// The kernel took no ruleset.
    #[error("cannot make a Landlock ruleset")]
    Create(#[source] io::Error),
    /// A place could not be opened.
    #[error("cannot open {path} for a Landlock rule")]
    Open {
        /// The place.
        path: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel took no rule for it.
    #[error("cannot add a Landlock rule for {path}")]
    Rule {
        /// The place.
        path: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The process could not be restricted.
    #[error("cannot restrict this process by Landlock")]
    Restrict(#[source] io::Error),
}

impl LandlockError {
    /// The error number behind it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        let (Self::Create(source)
        | Self::Open { source, .. }
        | Self::Rule { source, .. }
        | Self::Restrict(source)) = self;
        source.raw_os_error().unwrap_or(libc::EIO)
    }
}

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// Version of the interface the kernel offers; 0 when it has none.
#[must_use]
pub fn abi() -> u32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: a null attribute of size 0 asks for the version.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<RulesetAttr>(),
            0usize,
            VERSION,
        )
    };
    u32::try_from(answer).unwrap_or(0)
}

/// The kinds of access a version knows. What is not handled is not restricted.
fn handled(abi: u32) -> u64 {
    let mut all = FIRST;
    for (since, access) in [(2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)] {
        if abi >= since {
            all |= access;
        }
    }
    all
}

/// A set of rules, made but not in force.
#[derive(Debug)]
pub struct Ruleset {
    fd: OwnedFd,
}

impl Ruleset {
    /// Nothing leaves: signals and abstract sockets stay within what descends from this process.
    /// `None` where the kernel has no such scopes (before version 6).
    ///
    /// # Errors
    /// When the kernel takes no ruleset or rule.
    pub fn scope() -> Result<Option<Self>, LandlockError> {
        if abi() < 6 {
            return Ok(None);
        }
        let set = Self::create(&RulesetAttr {
            handled_access_fs: REFER,
            handled_access_net: 0,
            scoped: SCOPE_ABSTRACT_SOCKET | SCOPE_SIGNAL,
        })?;
        // Any set of rules, also one about no files, forbids to move and link files between
        // directories unless it says otherwise.
        set.allow("/", REFER)?;
        Ok(Some(set))
    }

    /// What a workload may do with files, where it has such a root. `None` where the kernel has no Landlock.
    ///
    /// # Errors
    /// When the kernel takes no ruleset or rule, or a place is there but cannot be opened.
    pub fn workload(root: Root) -> Result<Option<Self>, LandlockError> {
        let handled = match abi() {
            0 => return Ok(None),
            abi => handled(abi),
        };
        let set = Self::create(&RulesetAttr {
            handled_access_fs: handled,
            handled_access_net: 0,
            scoped: 0,
        })?;
        let below = match root {
            Root::Template => READ,
            Root::Image => WRITABLE,
        };
        let rules = std::iter::once(("/", below))
            .chain(WRITABLE_DIRECTORIES.map(|path| (path, WRITABLE)))
            .chain(DEVICES.map(|path| (path, DEVICE)))
            .chain([(TERMINALS, DEVICE)]);
        for (path, access) in rules {
            set.allow(path, access & handled)?;
        }
        Ok(Some(set))
    }

    /// Reading files and directories below one place and nothing else: no writing, making, removing
    /// or executing anywhere, no port, no signal, no abstract socket. What is open already stays usable.
    /// `None` where the kernel has no Landlock.
    ///
    /// # Errors
    /// When the kernel takes no ruleset or rule.
    pub fn reading(place: BorrowedFd<'_>) -> Result<Option<Self>, LandlockError> {
        Self::below(place, BELOW)
    }

    /// The same, and making, changing and removing files, directories and links there.
    ///
    /// # Errors
    /// As [`Ruleset::reading`].
    pub fn writing(place: BorrowedFd<'_>) -> Result<Option<Self>, LandlockError> {
        Self::below(place, BELOW_WRITABLE)
    }

    /// Reading below some places, and in one making, changing and removing files, directories, links and the
    /// marks of removed names, which are character devices. `None` where the kernel has no Landlock.
    ///
    /// # Errors
    /// As [`Ruleset::reading`].
    #[cfg(feature = "host")]
    pub fn unpacking(
        target: BorrowedFd<'_>,
        lowers: &[BorrowedFd<'_>],
    ) -> Result<Option<Self>, LandlockError> {
        let Some(set) = Self::below(target, BELOW_WRITABLE | MAKE_CHAR)? else {
            return Ok(None);
        };
        for lower in lowers {
            set.add(*lower, BELOW & handled(abi()))
                .map_err(|source| LandlockError::Rule {
                    path: "a lower layer",
                    source,
                })?;
        }
        Ok(Some(set))
    }

    fn below(place: BorrowedFd<'_>, access: u64) -> Result<Option<Self>, LandlockError> {
        let Some(set) = Self::nothing(false)? else {
            return Ok(None);
        };
        set.add(place, access & handled(abi()))
            .map_err(|source| LandlockError::Rule {
                path: "the one directory",
                source,
            })?;
        Ok(Some(set))
    }

    /// Nothing: no file below any place, no port, no signal, no abstract socket. What is open already stays
    /// usable. With `files` it says nothing about files. `None` where the kernel has no Landlock.
    ///
    /// # Errors
    /// When the kernel takes no ruleset.
    pub fn nothing(files: bool) -> Result<Option<Self>, LandlockError> {
        let abi = abi();
        let attr = RulesetAttr {
            handled_access_fs: if files { 0 } else { handled(abi) },
            handled_access_net: if abi >= 4 { PORTS } else { 0 },
            scoped: match abi {
                6.. => SCOPE_ABSTRACT_SOCKET | SCOPE_SIGNAL,
                _ => 0,
            },
        };
        let handles = attr.handled_access_fs | attr.handled_access_net | attr.scoped;
        if abi == 0 || handles == 0 {
            return Ok(None);
        }
        Self::create(&attr).map(Some)
    }

    fn create(attr: &RulesetAttr) -> Result<Self, LandlockError> {
        // Kernels before version 6 take the longer structure as long as what they do not know is 0.
        // SAFETY: `attr` is a whole structure and lives through the call.
        let number = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                std::ptr::from_ref(attr),
                size_of::<RulesetAttr>(),
                0 as libc::c_uint,
            )
        };
        if number < 0 {
            return Err(LandlockError::Create(io::Error::last_os_error()));
        }
        // SAFETY: the kernel just gave this descriptor to us, close-on-exec.
        let fd = unsafe { OwnedFd::from_raw_fd(number as i32) };
        Ok(Self { fd })
    }

    /// Allows access below a place, if it is there. Follows links: what counts is what it leads to.
    fn allow(&self, path: &'static str, access: u64) -> Result<(), LandlockError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let place = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Ok(place) => place,
            Err(Errno::NOENT) if path != "/" => return Ok(()),
            Err(error) => {
                let source = error.into();
                return Err(LandlockError::Open { path, source });
            }
        };
        self.add(place.as_fd(), access)
            .map_err(|source| LandlockError::Rule { path, source })
    }

    fn add(&self, place: BorrowedFd<'_>, access: u64) -> io::Result<()> {
        const PATH_BENEATH: libc::c_int = 1;
        let attr = PathBeneathAttr {
            allowed_access: access,
            parent_fd: place.as_raw_fd(),
        };
        // SAFETY: `attr` is a whole structure and lives through the call.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.fd.as_raw_fd(),
                PATH_BENEATH,
                &raw const attr,
                0 as libc::c_uint,
            )
        };
        if answer < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Puts the rules in force for this thread and what it starts, for good. `no_new_privs` must be
    /// set.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn restrict(self) -> Result<(), LandlockError> {
        // SAFETY: touches no memory.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_landlock_restrict_self,
                self.fd.as_raw_fd(),
                0 as libc::c_uint,
            )
        };
        if answer < 0 {
            return Err(LandlockError::Restrict(io::Error::last_os_error()));
        }
        Ok(())
    }
}
