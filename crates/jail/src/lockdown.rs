//! A program of ours that is about to be given somebody's code, and confines itself first: no files, no
//! sockets, no other program, no privilege, and a bound on what it may use.
//!
//! It is not a process of a sandbox, which takes `posture`, and may be inside one all the same: each step only
//! takes away. To be called while the process has one thread, before any byte of anybody's is read.

use std::os::fd::BorrowedFd;

use rustix::process::{DumpableBehavior, Gid, Resource, Uid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

use crate::landlock::{LandlockError, Ruleset};
use crate::posture::{self, PostureError, step};
use crate::rlimit;
use crate::seccomp::Program;

/// Ids of nobody.
const NOBODY: u32 = 65_534;

/// A directory that a program keeps access to.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Opened before, by any way.
    pub directory: BorrowedFd<'a>,
    /// Whether it may make, change and remove what is below.
    pub writable: bool,
}

/// What such a program is.
#[derive(Debug, Clone, Copy)]
pub enum Role<'a> {
    /// It compiles one module and ends.
    Compiler,
    /// It runs compiled modules; `files` where runs are given directories.
    Host {
        /// Whether calls about files reach the kernel. Landlock cannot hold files then: the directories come
        /// later than the rules. What it can reach is its root, which is empty in a sandbox, and what it is
        /// passed.
        files: bool,
    },
    /// It runs one module, with one directory or none. Landlock holds it to that.
    One(Option<Place<'a>>),
}

impl Role<'_> {
    fn rules(self) -> Result<Option<Ruleset>, LandlockError> {
        match self {
            Role::Compiler | Role::One(None) => Ruleset::nothing(false),
            Role::Host { files } => Ruleset::nothing(files),
            Role::One(Some(place)) if place.writable => Ruleset::writing(place.directory),
            Role::One(Some(place)) => Ruleset::reading(place.directory),
        }
    }

    fn program(self) -> Program {
        match self {
            Role::Compiler => Program::wasm_compiler(),
            Role::Host { files } => Program::wasm_host(files),
            Role::One(place) => Program::wasm_host(place.is_some()),
        }
    }
}

/// What it may use.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Address space in bytes; none for a host, which reserves far more than it uses.
    pub address_bytes: Option<u64>,
    /// Processor seconds after which the kernel ends it; none for a host, whose owner ends it.
    pub cpu_seconds: Option<u32>,
    /// Most bytes of any file it writes.
    pub file_bytes: u64,
    /// Most open files.
    pub open_files: u64,
}

/// Confines this process for good and says whether Landlock holds its files.
///
/// # Errors
/// The first step that failed. The process must end then.
pub fn lock_down(role: Role<'_>, bounds: &Bounds) -> Result<bool, PostureError> {
    step("turn off core dumps", rlimit::no_core_dumps())?;
    step("give up new privileges", set_no_new_privs(true))?;
    become_nobody()?;
    step("hide", set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    let rows = [
        (Resource::As, bounds.address_bytes),
        (Resource::Cpu, bounds.cpu_seconds.map(u64::from)),
        (Resource::Fsize, Some(bounds.file_bytes)),
        (Resource::Nofile, Some(bounds.open_files)),
        (Resource::Memlock, Some(0)),
    ];
    let rows = rows.into_iter();
    let bounded = rows.filter_map(|(resource, value)| Some((resource, value?)));
    step("lower a resource limit", rlimit::cap(bounded))?;
    let rules = role.rules().map_err(PostureError::Landlock)?;
    let held = rules.is_some() && !matches!(role, Role::Host { files: true });
    if let Some(rules) = rules {
        rules.restrict().map_err(PostureError::Landlock)?;
    }
    role.program().load().map_err(PostureError::Seccomp)?;
    Ok(held)
}

/// No capability is left, and where this process could be another user it is nobody.
fn become_nobody() -> Result<(), PostureError> {
    let held = step("read capabilities", capabilities(None))?.effective;
    if held.contains(CapabilitySet::SETPCAP) {
        posture::bind(CapabilitySet::empty())?;
    }
    if held.contains(CapabilitySet::SETGID) && held.contains(CapabilitySet::SETUID) {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        let became = set_thread_groups(&[])
            .and_then(|()| set_thread_res_gid(group, group, group))
            .and_then(|()| set_thread_res_uid(user, user, user));
        match became {
            // A user namespace without such an id; its only id is what the process has.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return step("become nobody", Err(error)),
        }
    }
    posture::drop_all()
}
