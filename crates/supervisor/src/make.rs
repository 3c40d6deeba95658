//! Making a sandbox: the supervisor's half, in the order that lets a sweep find whatever a crash
//! leaves. The ledger entry comes before the first resource (invariant I3). What the spawner does of it
//! is ordered in `order.rs`.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::record::Usage;
use leasehold_core::sandbox::state::Action;
use leasehold_core::spec::SandboxSpec;
use leasehold_jail::cgroup::{Group, GroupLimits};
use leasehold_jail::failpoint;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::admit::{Admitted, Host};
use crate::calls::unix_ms;
use crate::image::ImageFds;
use crate::ledger::Entry;
use crate::log;
use crate::sandbox::{Role, Sandbox};
use crate::scratch::{FORMAT_BOUND, Formatting, image_path};
use crate::server::{Server, Timer};
use crate::source::{Key, Source};
use crate::uids;

/// Tasks of our own in a sandbox that are counted beside its limit: init. The stub is counted as the
/// workload that it becomes, an agent when it is started.
const OWN_TASKS: u32 = 1;
/// What is said when there is no image.
const NO_DISK: &str = "its disk could not be made";
/// Most blocks tried before giving up on a uid lease.
const LEASE_ATTEMPTS: u32 = 256;

/// A pair of connected sockets: ours, which does not block, and the other's.
pub(crate) fn socket_pair(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fcntl_setfl(&ours, rustix::fs::OFlags::NONBLOCK)?;
    Ok((ours, theirs))
}

/// The limits a control group holds, as far as this host can, with so many agents in it: the workload
/// has its whole number of tasks, and not one more.
pub(crate) fn group_limits(host: &Host, admitted: &Admitted, agents: u32) -> GroupLimits {
    let Admitted { limits, beside, .. } = admitted;
    let memory = limits.memory_bytes.value + beside.memory_bytes;
    let tasks = limits.pids.value + OWN_TASKS + beside.tasks + agents;
    GroupLimits {
        memory_bytes: host.memory.is_none().then_some(memory),
        pids: host.pids.is_none().then_some(tasks),
        cpu_milli: host.cpu.is_none().then_some(limits.cpu_milli.value),
    }
}

/// What stopped the making of a sandbox, for the record: no host paths.
pub(crate) type Stopped = String;

/// Logs what stopped it, and puts it into one line.
pub(crate) fn stopped(what: &str, error: &dyn std::error::Error) -> Stopped {
    log::failure(what, error);
    let mut text = format!("{what}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Descriptors that a sandbox is made of.
#[derive(Debug, Default)]
pub(crate) struct Came {
    /// The host directory of its workspace.
    pub(crate) directory: Option<OwnedFd>,
    /// Its image.
    pub(crate) image: Option<ImageFds>,
}

impl Server {
    /// Begins to make a sandbox; it is parked later, when its init and stub say so. The caller notes
    /// whose it is and then has it ordered ([`Server::order_waiting`]), which may fail it at once.
    ///
    /// # Errors
    /// Says what could not be made; nothing is left then, or it is quarantined.
    pub(crate) fn make(
        &mut self,
        id: SandboxId,
        spec: SandboxSpec,
        admitted: Admitted,
        role: Role,
        run: Option<RunId>,
        came: Came,
    ) -> Result<Key, Stopped> {
        let key = self.new_key();
        let mut sandbox = Sandbox::new(id, spec, admitted, role);
        let built = self.build(key, &mut sandbox, run, came);
        sandbox.making = built.is_ok();
        self.sandbox_ids.insert(sandbox.id.clone(), key);
        self.sandboxes.insert(key, sandbox);
        match built {
            Ok(()) => Ok(key),
            Err(detail) => {
                self.remove(key);
                Err(detail)
            }
        }
    }

    fn build(
        &mut self,
        key: Key,
        sandbox: &mut Sandbox,
        run: Option<RunId>,
        came: Came,
    ) -> Result<(), Stopped> {
        self.enter_ledger(sandbox, run)?;
        sandbox.act(Action::Create);
        let limits = &sandbox.admitted.limits;
        let wanted = group_limits(&self.host, &sandbox.admitted, 0);
        let name = sandbox.id.as_str();
        let group = failpoint::around("cgroups", || self.cgroups.create(name, &wanted))
            .map_err(|error| stopped("its control groups could not be made", &error))?;
        sandbox.oom = group.oom_watch();
        sandbox.group = Some(group);
        if sandbox.admitted.image {
            let path = image_path(&self.paths.scratch(), &sandbox.id);
            let (bytes, files) = (limits.disk_bytes.value, limits.inodes.value);
            let begin = || Formatting::begin(&path, bytes, files);
            let formatting =
                failpoint::around("image", begin).map_err(|error| stopped(NO_DISK, &error))?;
            self.sources
                .add(&formatting, Source::Format(key))
                .map_err(|error| stopped(NO_DISK, &error))?;
            self.timers
                .set(Timer::Format(key), Instant::now(), FORMAT_BOUND);
            sandbox.formatting = Some(formatting);
        } else {
            self.waiting.push_back(key);
        }
        sandbox.directory = came.directory;
        sandbox.rootfs = came.image;
        Ok(())
    }

    /// The disk of a sandbox is made, or is not to be had.
    pub(crate) fn on_formatted(&mut self, key: Key) {
        let Some(formatting) = self.take_formatting(key) else {
            return;
        };
        match failpoint::around("loop", || formatting.finish()) {
            Ok(image) => {
                if let Some(sandbox) = self.sandboxes.get_mut(&key) {
                    sandbox.image = Some(image);
                }
                self.waiting.push_back(key);
                self.order_waiting();
            }
            Err(error) => {
                let detail = stopped(NO_DISK, &error);
                self.not_made(key, detail);
            }
        }
    }

    /// The disk of a sandbox takes too long.
    pub(crate) fn on_format_late(&mut self, key: Key) {
        if self.take_formatting(key).is_some() {
            let bound = FORMAT_BOUND.as_secs();
            let detail = format!("{NO_DISK}: `mkfs.ext4` did not end within {bound} s");
            self.not_made(key, detail);
        }
    }

    fn take_formatting(&mut self, key: Key) -> Option<Formatting> {
        self.timers.clear(Timer::Format(key));
        let formatting = self.sandboxes.get_mut(&key)?.formatting.take()?;
        self.sources.forget(&formatting);
        Some(formatting)
    }

    /// Writes the ledger entry with the uid block it is about to lease, then leases the block.
    fn enter_ledger(&mut self, sandbox: &mut Sandbox, run: Option<RunId>) -> Result<(), Stopped> {
        let mut entry = Entry {
            version: 1,
            sandbox: sandbox.id.clone(),
            run,
            uid_base: 0,
            image: sandbox.admitted.image,
            supervisor: std::process::id(),
            written_unix_ms: unix_ms(),
            stuck: false,
            namespaces: None,
        };
        let failed = |error: io::Error| stopped("it could not be entered in the ledger", &error);
        let Some(uids) = &mut self.uids else {
            sandbox.uid_range = self.own_range;
            return self.ledger.enter(&entry, &mut self.spares).map_err(failed);
        };
        for attempt in 0..LEASE_ATTEMPTS {
            entry.uid_base = uids.candidate();
            if attempt == 0 {
                self.ledger
                    .enter(&entry, &mut self.spares)
                    .map_err(failed)?;
            } else {
                self.ledger.write(&entry).map_err(failed)?;
            }
            if uids.lease().map_err(failed)? {
                sandbox.uid_range = (entry.uid_base, uids::BLOCK);
                sandbox.leased = true;
                return Ok(());
            }
        }
        Err(format!(
            "no uid block is free after {LEASE_ATTEMPTS} attempts"
        ))
    }

    /// Makes the sandbox of a run; a failure becomes the end of the run.
    pub(crate) fn make_for_run(
        &mut self,
        run: Key,
        id: SandboxId,
        spec: SandboxSpec,
        admitted: Admitted,
        came: Came,
    ) {
        let name = self.runs.get(&run).map(|run| run.record.run.clone());
        let made = self.make(id, spec, admitted, Role::Run(run), name, came);
        let Some(run) = self.runs.get_mut(&run) else {
            return;
        };
        match made {
            Ok(key) => {
                run.sandbox = Some(key);
                self.order_waiting();
            }
            Err(detail) => {
                run.seen.never_started = Some(detail);
                run.abort = true;
            }
        }
    }
}

impl Sandbox {
    /// What it uses now.
    pub(crate) fn usage(&self) -> Usage {
        let group = self.group.as_ref().map(Group::usage);
        let group = group.unwrap_or_default();
        Usage {
            wall_micros: crate::run::micros(self.begun.elapsed()),
            cpu_micros: group.cpu_micros,
            memory_peak_bytes: group.memory_peak_bytes,
            throttled_micros: group.throttled_micros,
            disk_bytes: self.disk().map(|disk| disk.bytes),
        }
    }

    /// The shortest time in which what is left of its disk can be filled: about a byte in a nanosecond,
    /// a file in five microseconds.
    pub(crate) fn until_full(&self) -> Duration {
        let limits = &self.admitted.limits;
        let used = self.disk().unwrap_or_default();
        let bytes = limits.disk_bytes.value.saturating_sub(used.bytes);
        let files = limits.inodes.value.saturating_sub(used.inodes);
        Duration::from_nanos(bytes.min(files.saturating_mul(5_000)))
    }

    /// How full its disk is.
    pub(crate) fn disk(&self) -> Option<DiskUse> {
        let scratch = &self.made.as_ref()?.scratch;
        let seen = rustix::fs::fstatvfs(scratch).ok()?;
        let used = seen.f_blocks.saturating_sub(seen.f_bfree);
        Some(DiskUse {
            bytes: used.saturating_mul(seen.f_frsize),
            inodes: seen.f_files.saturating_sub(seen.f_ffree),
            bytes_full: seen.f_bavail == 0,
            inodes_full: seen.f_ffree == 0,
        })
    }
}

/// What is used of a sandbox's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DiskUse {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    pub(crate) bytes_full: bool,
    pub(crate) inodes_full: bool,
}
