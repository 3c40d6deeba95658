//! Control groups: what bounds, counts, freezes and kills a sandbox as a whole.
//!
//! Works on cgroup v2, on v1, and on hybrid hosts (v1 controllers beside a cgroup2 without
//! controllers, which then serves to kill, freeze, count processor time and see when all is gone).
//! As an ordinary user it takes what is delegated and says what is missing and why.
//!
//! Every group of ours is `<place>/leasehold-<instance>/<name>` in each hierarchy, so that a sweep
//! finds by name what a dead predecessor left (invariant I3). What can be said once is set on
//! `leasehold-<instance>`, so that a new sandbox costs few calls.
//!
//! # How a process gets in
//! Moving *another* process takes a global lock, and when nobody took it for some tens of
//! milliseconds that means waiting out an RCU grace period: 5 to 16 ms. Two ways avoid it:
//!
//! - cgroup2: `clone3` with `CLONE_INTO_CGROUP` and [`Group::into_cgroup`];
//! - v1: the new process, while it has one thread, writes `0` to each of [`Group::joins`]. Those are
//!   `tasks` files, and the kernel skips the lock for a thread that moves itself.
//!
//! [`Group::procs`] is the plain way (write the pid to each descriptor) and works everywhere;
//! [`warm_attach`] pays its wait ahead of time.
//!
//! This module must not decide which limits a sandbox gets, nor what an end is called.
//! Start reading at [`Cgroups::discover`].

mod base;
mod device;
mod events;
mod file;
mod group;
mod limits;
mod locate;
mod scope;
mod stray;
mod warm;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

pub use events::{GroupEvents, GroupUsage, OomWatch};
pub use group::{Group, Removed};
pub use limits::GroupLimits;
pub use scope::{
    PATIENCE as SCOPE_PATIENCE, ScopeError, scope_of, socket as scope_socket,
    thinkable as scope_thinkable,
};
pub use warm::warm_attach;

use locate::{Controller, Located, Set};

use crate::failpoint;

/// Most names [`Cgroups::list`] returns.
pub const LIST_MAX: usize = 65_536;
/// Most bytes of a group's name.
pub const NAME_MAX: usize = 64;
/// Where this process stands.
const OWN_GROUPS: &str = "/proc/self/cgroup";
/// Most bytes of an instance.
pub const INSTANCE_MAX: usize = 16;

/// What failed, with the values.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The instance is not 1 to [`INSTANCE_MAX`] characters of `a-z0-9`.
    #[error("instance {0:?} is not 1 to {INSTANCE_MAX} characters of a-z, 0-9")]
    Instance(String),
    /// The name is not 1 to [`NAME_MAX`] characters of `a-z0-9-`.
    #[error("group name {0:?} is not 1 to {NAME_MAX} characters of a-z, 0-9, -")]
    Name(String),
    /// Where hierarchies are could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A limit is wanted that no hierarchy here can hold (invariant I6).
    #[error("limit `{control}` cannot be enforced here: {reason}")]
    NotHere {
        /// `memory`, `pids` or `cpu`.
        control: &'static str,
        /// What is missing.
        reason: String,
    },
    /// A group could not be made.
    #[error("cannot make group {}", path.display())]
    Create {
        /// The group.
        path: PathBuf,
        /// Why; `AlreadyExists` when the name is taken.
        #[source]
        source: io::Error,
    },
    /// A group could not be opened.
    #[error("cannot open group {}", path.display())]
    Open {
        /// The group.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel refused a limit.
    #[error("cannot set {file} to {value}")]
    Limit {
        /// The file of the group.
        file: &'static str,
        /// The value.
        value: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file of a group could not be read or written.
    #[error("cannot use {file}")]
    File {
        /// The file of the group.
        file: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Processes are still there after the bound.
    #[error("{left} or more processes outlived being killed for {waited_ms} ms")]
    StillThere {
        /// How many were seen last.
        left: usize,
        /// How long, in milliseconds.
        waited_ms: u64,
    },
}

/// Which kind of host this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Only v1 hierarchies can be used.
    V1,
    /// Only the one cgroup2 hierarchy.
    V2,
    /// Both.
    Hybrid,
    /// None.
    None,
}

impl Layout {
    /// The word in records: `v1`, `v2`, `hybrid` or `none`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
            Self::Hybrid => "hybrid",
            Self::None => "none",
        }
    }
}

/// One thing that cannot be done here, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The field of [`Controls`] it is about, or `swap`.
    pub control: &'static str,
    /// Why, in words.
    pub reason: String,
}

/// What the groups made here can do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Controls {
    /// Limit and count memory.
    pub memory: bool,
    /// Limit and count processes and threads.
    pub pids: bool,
    /// Limit the processor share.
    pub cpu: bool,
    /// Count processor time.
    pub cpu_time: bool,
    /// Kill a whole group in one call that no fork can outrun (`cgroup.kill`). Without it
    /// [`Group::kill`] still converges wherever any group can be made, by closing the pids limit or
    /// freezing first where that is possible.
    pub kill: bool,
    /// Stop and resume a whole group.
    pub freeze: bool,
    /// Refuse device nodes beyond null, zero, full, random, urandom, tty, ptmx and pts.
    pub devices: bool,
    /// Why each of those that are false is, and further gaps.
    pub missing: Vec<Missing>,
}

impl Controls {
    /// Whether every limit of a sandbox can be held.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.memory && self.pids && self.cpu
    }

    /// Why a control is missing; a general word where nothing was recorded.
    #[must_use]
    pub fn reason(&self, control: &str) -> &str {
        self.missing
            .iter()
            .find(|missing| missing.control == control)
            .map_or("no control group hierarchy offers it", |missing| {
                &missing.reason
            })
    }
}

/// One hierarchy in which `leasehold-<instance>` exists.
#[derive(Debug)]
struct Tree {
    v2: bool,
    /// Controllers that groups in it really have.
    set: Set,
    /// Whether memory and swap together can be bounded.
    swap: bool,
    /// `leasehold-<instance>` itself.
    base: OwnedFd,
    /// Its path, for messages and removal.
    path: PathBuf,
    /// Left by a predecessor that stood elsewhere; goes when its last group goes.
    stray: bool,
}

impl Tree {
    /// Whether all sandboxes sit in `leasehold-<instance>` itself: a v1 devices hierarchy, where one
    /// set of rules serves all.
    fn shared(&self) -> bool {
        self.set == Set::of(&[Controller::Devices])
    }
}

/// The hierarchies of this host, found once, and our own directory in each, held by descriptor.
#[derive(Debug)]
pub struct Cgroups {
    instance: String,
    trees: Vec<Arc<Tree>>,
    controls: Controls,
    located: Located,
    strays: OnceLock<Vec<Arc<Tree>>>,
}

impl Cgroups {
    /// Finds the hierarchies and makes `leasehold-<instance>` in each that is of use: on cgroup2 as
    /// root at the top, as a user in the nearest delegated group that really takes it; on v1 below
    /// our own group. A host without any is no error: see [`Cgroups::layout`].
    ///
    /// # Errors
    /// When the instance is no name or `/proc/self` cannot be read.
    pub fn discover(instance: &str) -> Result<Self, CgroupError> {
        let located = Located::read(OWN_GROUPS)?;
        Self::lay(instance, &located, located.clone())
    }

    /// The same, from where another process stands: what it would find.
    ///
    /// # Errors
    /// As [`Cgroups::discover`], and when there is no such process.
    pub fn discover_beside(instance: &str, pid: u32) -> Result<Self, CgroupError> {
        let located = Located::read(&format!("/proc/{pid}/cgroup"))?;
        Self::lay(instance, &located, located.clone())
    }

    /// The same on a host that systemd manages: where its own unit does not give an ordinary user
    /// memory, pids and cpu, and a host does not give them to root, this process first moves into a
    /// delegated scope of its own, which takes [`SCOPE_PATIENCE`] at most. Without one everything is as
    /// with [`Cgroups::discover`], and the reasons say why. What this process forked before does not
    /// move along.
    ///
    /// # Errors
    /// As [`Cgroups::discover`].
    pub fn discover_or_ask(instance: &str) -> Result<Self, CgroupError> {
        let located = Located::read(OWN_GROUPS)?;
        if !scope::helps(&located) {
            return Self::lay(instance, &located, located.clone());
        }
        let places = match rustix::process::geteuid().is_root() {
            true => located.clone(),
            false => located.within_own_unit(),
        };
        let found = Self::lay(instance, &places, located)?;
        if found.controls.complete() {
            return Ok(found);
        }
        found.remove_base();
        let entered = scope::enter(&found.located, instance);
        let mut found = Self::discover(instance)?;
        if let Err(error) = entered {
            for missing in &mut found.controls.missing {
                if ["memory", "pids", "cpu"].contains(&missing.control) {
                    missing.reason.push_str(&format!("; {error}"));
                }
            }
        }
        Ok(found)
    }

    /// Makes our directories at `places`, all of which are in `located`.
    fn lay(instance: &str, places: &Located, located: Located) -> Result<Self, CgroupError> {
        let good = (1..=INSTANCE_MAX).contains(&instance.len())
            && instance
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if !good {
            return Err(CgroupError::Instance(instance.chars().take(64).collect()));
        }
        let (trees, controls) = base::lay(places, &directory_name(instance));
        Ok(Self {
            instance: instance.to_owned(),
            trees: trees.into_iter().map(Arc::new).collect(),
            controls,
            located,
            strays: OnceLock::new(),
        })
    }

    /// The kind of host, by what is in use.
    #[must_use]
    pub fn layout(&self) -> Layout {
        let v2 = self.trees.iter().any(|tree| tree.v2);
        match (v2, self.trees.iter().any(|tree| !tree.v2)) {
            (true, true) => Layout::Hybrid,
            (true, false) => Layout::V2,
            (false, true) => Layout::V1,
            (false, false) => Layout::None,
        }
    }

    /// What groups made here can do.
    #[must_use]
    pub fn can(&self) -> &Controls {
        &self.controls
    }

    /// Our directory in each hierarchy, for reports.
    #[must_use]
    pub fn places(&self) -> Vec<PathBuf> {
        self.trees.iter().map(|tree| tree.path.clone()).collect()
    }

    /// Makes a group in every hierarchy and sets its limits. Leaves nothing behind on failure.
    ///
    /// The pids limit counts every process of the sandbox: a caller that has processes of its own in
    /// there (init and stub: 2) adds them.
    ///
    /// # Errors
    /// When a limit cannot be enforced here, the name is taken, or the kernel refuses.
    pub fn create(&self, name: &str, limits: &GroupLimits) -> Result<Group, CgroupError> {
        let name = group_name(name)?;
        limits.check(&self.controls)?;
        let mut group = Group::empty(name);
        for tree in &self.trees {
            let made = failpoint::around("cgroup", || group.add_new(tree));
            if let Err(source) = made {
                group.undo();
                return Err(CgroupError::Create {
                    path: tree.path.join(group.name()),
                    source: source.into(),
                });
            }
        }
        if let Err(error) = group.first_limits(limits) {
            group.undo();
            return Err(error);
        }
        Ok(group)
    }

    /// Opens what there is of a group, for a sweep: `None` when no hierarchy has it. Also finds it
    /// where a predecessor that was started from another group made it.
    ///
    /// # Errors
    /// When it exists and cannot be opened.
    pub fn open(&self, name: &str) -> Result<Option<Group>, CgroupError> {
        let mut group = Group::empty(group_name(name)?);
        for tree in &self.trees {
            group.add_present(tree)?;
        }
        let own = self.trees.iter().filter(|tree| !tree.shared()).count();
        if group.count() < own {
            for tree in self.strays() {
                group.add_present(tree)?;
            }
        }
        Ok((group.count() > 0).then_some(group))
    }

    /// Names of groups of this instance in any hierarchy, sorted, at most [`LIST_MAX`]. A container
    /// on this host may run an instance of the same name: kill only names that a ledger knows.
    ///
    /// # Errors
    /// When a directory of ours cannot be read.
    pub fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for tree in self.trees.iter().chain(self.strays()) {
            stray::each_directory(tree.base.as_fd(), &mut |name| {
                if names.len() < LIST_MAX {
                    names.extend(name.to_str().ok().map(str::to_owned));
                }
            })?;
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Removes our directory from each hierarchy where it is empty. Idempotent; afterwards this
    /// value can make no groups, so it is the last thing a supervisor does.
    pub fn remove_base(&self) {
        for tree in &self.trees {
            // Refused while a group is in it, which is what is wanted.
            let _ = std::fs::remove_dir(&tree.path);
        }
    }

    fn strays(&self) -> &[Arc<Tree>] {
        self.strays.get_or_init(|| {
            let ours: Vec<_> = self.trees.iter().map(|tree| tree.path.as_path()).collect();
            let name = directory_name(&self.instance);
            stray::find(&self.located, &name, &ours)
                .into_iter()
                .map(Arc::new)
                .collect()
        })
    }
}

/// `leasehold-<instance>`.
fn directory_name(instance: &str) -> CString {
    // An instance was checked to hold no NUL byte.
    CString::new(format!("leasehold-{instance}")).unwrap_or_default()
}

fn group_name(name: &str) -> Result<CString, CgroupError> {
    let good = (1..=NAME_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    good.then(|| CString::new(name).ok())
        .flatten()
        .ok_or_else(|| CgroupError::Name(name.chars().take(NAME_MAX).collect()))
}

/// Makes a directory that may be there already. Returns whether it was made now.
fn make_dir(parent: &OwnedFd, name: &CString) -> rustix::io::Result<bool> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a directory; one that is gone is no error. Returns whether it was there.
fn remove_dir(parent: &OwnedFd, name: &CString) -> rustix::io::Result<bool> {
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT | Errno::NODEV) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_climb_or_clash_are_refused() {
        for name in ["", ".", "..", "a/b", "cgroup.procs", "A", "a b", "a\0"] {
            assert!(group_name(name).is_err(), "{name:?} was taken");
        }
        assert!(group_name(&"a".repeat(NAME_MAX + 1)).is_err());
        assert!(group_name("s77777777777777777777").is_ok());
        for instance in ["", "a-b", "0123456789abcdef0", "../x"] {
            assert!(matches!(
                Cgroups::discover(instance),
                Err(CgroupError::Instance(_))
            ));
        }
    }

    #[test]
    fn a_reason_is_always_there() {
        let controls = Controls {
            missing: vec![Missing {
                control: "memory",
                reason: "so".to_owned(),
            }],
            ..Controls::default()
        };
        assert_eq!(controls.reason("memory"), "so");
        assert!(!controls.reason("pids").is_empty());
    }
}
