//! A scope of systemd's for this process: control groups for whoever may make none where he stands.
//!
//! The process of a login stands in a group of systemd's that its user may not write. systemd gives a
//! *delegated* one on request: a transient unit of our own, `leasehold-<instance>-<pid>.scope`, with
//! this process moved into it, which goes when its last process goes. No other unit is touched, and a
//! failure leaves everything as it was.
//!
//! The manager's own socket is asked, at its fixed place: no broker, no environment variable and no
//! library is between. [`enter`] is the way in.

mod bus;
#[cfg(test)]
mod tests;
mod wire;

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use super::locate::{Located, Set};
use super::{base, file, make_dir};
use bus::Bus;
use wire::{Method, Value, Writer};

/// How long systemd may take.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// The group within the scope in which our own processes stand: a group with processes in it cannot
/// pass controllers on.
const OWN: &str = "supervisor";
/// Most bytes read of `/proc/<pid>/cgroup`.
const READ_MAX: u64 = 64 << 10;

/// Why there is no scope.
#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    /// The socket is not there or nobody listens.
    #[error("no systemd manager of this user listens at {}", path.display())]
    NoManager {
        /// The socket.
        path: PathBuf,
    },
    /// The socket cannot be used.
    #[error("cannot talk to systemd at {}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another user's process listens.
    #[error("a process of uid {uid} listens at {}", path.display())]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// Its user.
        uid: u32,
    },
    /// The conversation broke.
    #[error("talking to systemd failed: {0}")]
    Talk(io::Error),
    /// The other side went away.
    #[error("systemd closed the connection")]
    Closed,
    /// Time is over.
    #[error("systemd did not answer within {} ms", PATIENCE.as_millis())]
    Silent,
    /// What came is no answer.
    #[error("systemd's answer makes no sense: {0}")]
    Nonsense(&'static str),
    /// systemd said no.
    #[error("systemd refused: {text} ({name})")]
    Refused {
        /// The error's name.
        name: String,
        /// The error's text.
        text: String,
    },
    /// The job of starting the scope failed.
    #[error("systemd could not start the scope: its job is `{0}`")]
    Job(String),
    /// The job was done and the process is somewhere else.
    #[error("systemd started the scope and this process is not in it but in `{0}`")]
    Elsewhere(String),
    /// The group within the scope cannot be made or entered.
    #[error("the scope cannot be used: {}: {source}", path.display())]
    Unusable {
        /// The group.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Whether a scope may be what is lacking: systemd manages this host, cgroup2 has the controllers, and
/// this user may not make groups at the top. Looks and changes nothing.
#[must_use]
pub fn thinkable() -> bool {
    Located::read(super::OWN_GROUPS).is_ok_and(|located| {
        helps(&located) && located.v2.iter().all(|one| closed_to_us(&one.mount))
    })
}

/// Whether it is this user who may not write there. Nobody may where it is mounted read-only, and no
/// scope changes that.
fn closed_to_us(mount: &Path) -> bool {
    let read_only = rustix::fs::statvfs(mount)
        .is_ok_and(|facts| facts.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    !read_only && rustix::fs::access(mount, rustix::fs::Access::WRITE_OK).is_err()
}

/// Whether there is a systemd that could give controllers: it delegates those of cgroup2 alone.
pub(super) fn helps(located: &Located) -> bool {
    let wanted = Set::of(&base::WANTED);
    Path::new("/run/systemd/system").exists()
        && !located.v2.is_empty()
        && located
            .v1
            .iter()
            .all(|one| one.controllers.and(wanted).is_empty())
}

/// The scope of ours in which a process stands: its unit's name. `None` when it is in none, or
/// cannot be looked at.
#[must_use]
pub fn scope_of(pid: u32) -> Option<String> {
    ours_of(&read_groups(&format!("/proc/{pid}/cgroup"))?)
}

fn ours_of(groups: &str) -> Option<String> {
    own_group(groups)?.components().find_map(|part| match part {
        Component::Normal(name) => {
            let name = name.to_str()?;
            (name.starts_with("leasehold-") && name.ends_with(".scope")).then(|| name.to_owned())
        }
        _ => None,
    })
}

/// Moves this process into a scope of its own and there into a group of its own. Processes that it
/// forked before stay where they are.
pub(super) fn enter(located: &Located, instance: &str) -> Result<(), ScopeError> {
    let pid = std::process::id();
    let name = format!("leasehold-{instance}-{pid}.scope");
    ask(&socket(), Instant::now() + PATIENCE, &name, pid)?;
    let groups = read_groups(super::OWN_GROUPS).unwrap_or_default();
    let own = own_group(&groups).unwrap_or(Path::new(""));
    if own.file_name().is_none_or(|last| last != name.as_str()) {
        return Err(ScopeError::Elsewhere(own.display().to_string()));
    }
    settle(located, own)
}

/// Makes [`OWN`] in the scope and goes there.
fn settle(located: &Located, own: &Path) -> Result<(), ScopeError> {
    let relative = own.strip_prefix("/").unwrap_or(own);
    let mut path = PathBuf::new();
    let mut tried = || -> io::Result<()> {
        let mount = located.v2.first().ok_or(io::ErrorKind::NotFound)?;
        path = mount.mount.join(relative);
        let (scope, _) = base::open_mount(&path, true)?;
        let name = CString::new(OWN)?;
        make_dir(&scope, &name)?;
        let inner = file::open_dir(scope.as_fd(), &name)?;
        file::write(inner.as_fd(), c"cgroup.procs", b"0")?;
        Ok(())
    };
    tried().map_err(|source| ScopeError::Unusable { path, source })
}

/// Where the systemd manager of this user listens, if there is one.
#[must_use]
pub fn socket() -> PathBuf {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        PathBuf::from("/run/systemd/private")
    } else {
        PathBuf::from(format!("/run/user/{}/systemd/private", uid.as_raw()))
    }
}

/// Asks for the scope and waits until it is there.
fn ask(socket: &Path, deadline: Instant, name: &str, pid: u32) -> Result<(), ScopeError> {
    let method = Method {
        destination: "org.freedesktop.systemd1",
        path: "/org/freedesktop/systemd1",
        interface: "org.freedesktop.systemd1.Manager",
        member: "StartTransientUnit",
        signature: "ssa(sv)a(sa(sv))",
    };
    Bus::open(socket, deadline)?.call_job(&method, &request(name, pid))
}

/// Name, what to do about a unit of that name (fail), its properties, no further units.
fn request(name: &str, pid: u32) -> Vec<u8> {
    let controllers: Vec<&str> = base::WANTED.iter().map(|one| one.name()).collect();
    let mut out = Writer::default();
    out.string(name);
    out.string("fail");
    out.array(8, |out| {
        out.property("Description", &Value::Text("Leasehold's sandboxes"));
        out.property("PIDs", &Value::Processes(&[pid]));
        // Naming controllers is what delegates.
        out.property("DelegateControllers", &Value::Texts(&controllers));
        // Sandboxes have limits of their own; the user's slice bounds all of them.
        out.property("TasksMax", &Value::Number(u64::MAX));
        // Also a scope that failed is forgotten when it is empty.
        out.property("CollectMode", &Value::Text("inactive-or-failed"));
    });
    out.array(8, |_| {});
    out.bytes()
}

fn read_groups(path: &str) -> Option<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).ok()?;
    io::Read::read_to_string(&mut io::Read::take(file, READ_MAX), &mut text).ok()?;
    Some(text)
}

/// The path behind `0::`.
fn own_group(groups: &str) -> Option<&Path> {
    groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .map(Path::new)
}
