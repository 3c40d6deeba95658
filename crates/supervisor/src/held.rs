//! Whether the namespaces of a dead sandbox are gone: the rows of the inventory that say so, the wait for what
//! the kernel takes down a moment later, and who of the host holds what is left.
//!
//! The kernel tells by handles (`leasehold_jail::namespaces`); where it has none the rows are inferred: with init
//! reaped no process of the sandbox lives, and what else of the host may hold a namespace is not looked for,
//! since that is a look at every process for each run.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use leasehold_core::record::Residue;
use leasehold_jail::namespaces::{Handles, Kind};

use crate::ledger::{Entry, Marks};
use crate::log;
use crate::remove::{inferred, residue};
use crate::sandbox::{Role, Sandbox};
use crate::server::{Server, Timer};
use crate::source::Key;

/// How long namespaces may be there after the last process is gone: the kernel closes some sockets later.
const LINGER: Duration = Duration::from_millis(500);
/// First pause between two looks; doubled with each, up to the second.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// Least time between two searches for whoever holds what is left, most processes and descriptors of one.
const SEARCH_EVERY: Duration = Duration::from_secs(10);
const PROCESSES_MAX: usize = 4_096;
const DESCRIPTORS_MAX: usize = 16_384;

/// What was seen of the namespaces of a dead sandbox.
#[derive(Debug)]
pub(crate) enum Seen {
    /// Nobody looked, for this reason.
    Inferred(&'static str),
    /// These are there.
    There(Vec<Kind>),
    /// They were of a boot before this one.
    Before,
}

impl Seen {
    fn of(handles: Option<&Handles>, why: &'static str) -> Self {
        match handles.map(Handles::there) {
            Some(Ok(there)) => Self::There(there),
            Some(Err(_)) | None => Self::Inferred(why),
        }
    }

    /// What a ledger entry tells of them.
    pub(crate) fn of_entry(entry: &Entry) -> Self {
        let why = "no process of it is left and its supervisor is dead";
        match &entry.namespaces {
            Some(marks) if boot().is_some_and(|boot| boot != marks.boot) => Self::Before,
            Some(marks) => Self::of(Handles::parse(&marks.handles).as_ref(), why),
            None => Self::Inferred(why),
        }
    }

    fn row(&self, resource: &str, kinds: &[Kind], alive: bool) -> Residue {
        const ALIVE: &str = "a process may still hold it";
        let there = match self {
            Self::Inferred(_) if alive => return inferred(resource, false, ALIVE),
            Self::Inferred(why) => return inferred(resource, true, *why),
            Self::Before => return residue(resource, true, "the host was started anew since"),
            Self::There(there) => there,
        };
        let left = kinds.iter().filter(|kind| there.contains(kind));
        let left: Vec<&str> = left.map(|kind| kind.word()).collect();
        match (left.is_empty(), alive) {
            (true, _) => residue(resource, true, "the kernel has none of it any more"),
            (false, true) => residue(resource, false, ALIVE),
            (false, false) => {
                let what = left.join(", ");
                let detail = format!("{what}: held by something else of the host");
                residue(resource, false, detail)
            }
        }
    }

    /// The rows of mounts, network, other namespaces and sockets; `ours` says what became of our ends.
    pub(crate) fn rows(&self, alive: bool, ours: Residue) -> [Residue; 4] {
        let netns = self.row("netns", &[Kind::Network], alive);
        let sockets = match (netns.inferred, netns.clean) {
            (false, true) => Residue {
                detail: format!("{}; those made inside went with its network", ours.detail),
                ..ours
            },
            (false, false) => residue("sockets", false, "those made inside may be in its network"),
            (true, _) => ours,
        };
        let others = [Kind::Ipc, Kind::Uts, Kind::Cgroup];
        [
            self.row("mounts", &[Kind::Mount], alive),
            netns,
            self.row("namespaces", &others, alive),
            sockets,
        ]
    }
}

/// The id of this boot.
fn boot() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

impl Sandbox {
    /// Notes what will tell whether its namespaces are gone, while its init is there.
    pub(crate) fn note_namespaces(&mut self) {
        let made = self.made.as_ref();
        self.namespaces = made.and_then(|made| Handles::of(made.pidfd.as_fd()).ok());
    }

    /// What is seen of them now.
    pub(crate) fn seen_namespaces(&self) -> Seen {
        let why = "no process of it is left and our descriptors are closed";
        Seen::of(self.namespaces.as_ref(), why)
    }

    /// The same for a process after this one.
    pub(crate) fn marks(&self) -> Option<Marks> {
        Some(Marks {
            boot: boot()?,
            handles: self.namespaces.as_ref()?.to_text(),
        })
    }
}

impl Server {
    /// Whether nothing of a dead sandbox is left that goes by itself a moment later. If something is, it is
    /// looked at again, and this says so once it is gone or was waited for long enough.
    pub(crate) fn settled(&mut self, key: Key) -> bool {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return true;
        };
        let there = matches!(sandbox.seen_namespaces(), Seen::There(left) if !left.is_empty());
        if sandbox.overdue || !there {
            return true;
        }
        let now = Instant::now();
        let waited = now.duration_since(*sandbox.lingers.get_or_insert(now));
        if waited >= LINGER {
            return true;
        }
        let pause = waited.clamp(LOOK_AGAIN.0, LOOK_AGAIN.1);
        self.timers.set(Timer::Linger(key), now, pause);
        false
    }

    /// Looks again.
    pub(crate) fn on_linger(&mut self, key: Key) {
        match self.sandboxes.get(&key).map(|sandbox| sandbox.role) {
            Some(Role::Run(run)) => self.step(run),
            Some(Role::Pool(_) | Role::Provisioned(_)) => self.end_sandbox(key),
            None => {}
        }
    }

    /// Tells the log which processes hold what is left of a sandbox: whoever runs this host can end them.
    pub(crate) fn log_holders(&mut self, sandbox: &Sandbox, seen: &Seen) {
        let (Seen::There(there), Some(made)) = (seen, &sandbox.made) else {
            return;
        };
        if there.is_empty() || self.searched.is_some_and(|at| at.elapsed() < SEARCH_EVERY) {
            return;
        }
        self.searched = Some(Instant::now());
        let links: Vec<String> = there
            .iter()
            .map(|kind| {
                let own = made.namespaces;
                let inode = match kind {
                    Kind::Mount => own.mnt,
                    Kind::Network => own.net,
                    Kind::Ipc => own.ipc,
                    Kind::Uts => own.uts,
                    Kind::Cgroup => own.cgroup,
                };
                format!("{}:[{inode}]", kind.word())
            })
            .collect();
        let pids: Vec<String> = holders(&links).iter().map(ToString::to_string).collect();
        let who = match pids.is_empty() {
            true => "no process that was looked at".to_owned(),
            false => format!("process {}", pids.join(", ")),
        };
        let what = links.join(", ");
        log::line(&format!("sandbox {}: {what} is held by {who}", sandbox.id));
    }
}

/// Processes that are in one of these namespaces or have one open, as far as they may be looked at.
fn holders(links: &[String]) -> Vec<u32> {
    let is_one = |path: &std::path::Path| {
        let link = std::fs::read_link(path).ok();
        link.is_some_and(|link| links.iter().any(|one| link.as_os_str() == one.as_str()))
    };
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut descriptors = 0;
    let mut found = Vec::new();
    for pid in pids.take(PROCESSES_MAX) {
        let place = std::path::PathBuf::from(format!("/proc/{pid}"));
        let kinds = links.iter().filter_map(|link| link.split(':').next());
        let inside = kinds.map(|kind| place.join("ns").join(kind));
        let open = std::fs::read_dir(place.join("fd")).into_iter().flatten();
        let open = open.flatten().map(|entry| entry.path());
        let left = DESCRIPTORS_MAX - descriptors;
        let mut looked = 0;
        let mut each = inside.chain(open.take(left).inspect(|_| looked += 1));
        if each.any(|path| is_one(&path)) {
            found.push(pid);
        }
        descriptors += looked;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> Residue {
        residue("sockets", true, "our ends are closed")
    }

    #[test]
    fn what_is_there_is_named_and_what_nobody_looked_at_says_so() {
        let none = Seen::There(Vec::new()).rows(false, ours());
        assert!(none.iter().all(|row| row.clean && !row.inferred));
        let [mounts, netns, others, sockets] =
            Seen::There(vec![Kind::Network, Kind::Uts]).rows(false, ours());
        assert!(mounts.clean && !netns.clean && !others.clean && !sockets.clean);
        assert_eq!(others.detail, "uts: held by something else of the host");
        let [mounts, netns, others, sockets] = Seen::There(vec![Kind::Mount]).rows(false, ours());
        assert!(!mounts.clean && netns.clean && others.clean && sockets.clean);
        let rows = Seen::Inferred("why").rows(false, ours());
        assert!(rows.iter().all(|row| row.clean));
        assert_eq!(rows.map(|row| row.inferred), [true, true, true, false]);
        let rows = Seen::Inferred("why").rows(true, ours());
        assert_eq!(rows.map(|row| row.clean), [false, false, false, true]);
    }

    #[test]
    fn a_holder_is_found_by_its_descriptor() {
        let own = std::fs::File::open("/proc/self/ns/uts").unwrap();
        let link = std::fs::read_link("/proc/self/ns/uts").unwrap();
        let link = link.to_str().unwrap().to_owned();
        assert!(holders(std::slice::from_ref(&link)).contains(&std::process::id()));
        drop(own);
        assert_eq!(holders(&["uts:[1]".to_owned()]), [0_u32; 0]);
    }
}
