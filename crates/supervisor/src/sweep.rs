//! The sweep: removes what dead predecessors left and completes the records of their runs.
//!
//! Garbage is, for whoever holds the lock: every ledger entry, since its owner is dead; every uid lease
//! that names an entry of this ledger, or one that does not exist any more while no process has an id
//! of the block; every disk image without an entry; every empty control group of this instance. It
//! is idempotent and converges from any half-made state (invariant I11). With nothing to do it costs a
//! few directory reads.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold_core::end::EndReason;
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::record::{Observed, RunRecord, StreamRecord};
use leasehold_jail::cgroup::{CgroupError, Cgroups};
use rustix::process::geteuid;
use serde::Serialize;

use crate::held::Seen;
use crate::ledger::{Entry, Ledger};
use crate::lock::{Lock, LockError};
use crate::paths::{Paths, PathsError};
use crate::records::{RecordError, Records};
use crate::remove::{groups_row, inferred, residue};
use crate::scratch;
use crate::uids::{self, Uids, blocks_in_use};

/// How long the processes of all a dead predecessor's sandboxes may take to end.
const DEATH_BOUND: Duration = Duration::from_secs(2);

/// Why nothing was swept.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The directories cannot be used.
    #[error(transparent)]
    Paths(#[from] PathsError),
    /// The locks cannot be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The records cannot be read.
    #[error(transparent)]
    Records(#[from] RecordError),
    /// The control groups cannot be found.
    #[error("control groups cannot be looked at")]
    Cgroups(#[source] CgroupError),
    /// The ledger cannot be read.
    #[error("the ledger cannot be read")]
    Ledger(#[source] io::Error),
    /// The registry of uid leases cannot be used.
    #[error("the registry of uid leases `{}` cannot be used", uids::REGISTRY)]
    Uids(#[source] io::Error),
}

/// One sandbox of a dead predecessor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Which.
    pub sandbox: SandboxId,
    /// What was seen after its removal; empty in a dry run.
    pub observed: Observed,
}

/// What a sweep found and did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct SweepReport {
    /// A supervisor is alive: what is there is its own, and nothing was touched.
    pub live: bool,
    /// Nothing was touched since nothing was to be.
    pub dry_run: bool,
    /// Sandboxes that were removed, or would be.
    pub sandboxes: Vec<Swept>,
    /// Runs whose records were completed, or would be.
    pub runs: Vec<RunId>,
    /// First ids of uid blocks that were given back, or would be.
    pub uid_blocks: Vec<u32>,
    /// Disk images without an entry that were removed, or would be.
    pub images: Vec<String>,
    /// Empty control groups without an entry that were removed, or would be.
    pub groups: Vec<String>,
    /// A socket nobody listens on was removed, or would be.
    pub socket: bool,
}

impl SweepReport {
    /// Whether everything found is gone.
    #[must_use]
    pub fn clean(&self) -> bool {
        self.sandboxes.iter().all(|swept| swept.observed.clean())
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn nothing(&self) -> bool {
        self.sandboxes.is_empty()
            && self.runs.is_empty()
            && self.uid_blocks.is_empty()
            && self.images.is_empty()
            && self.groups.is_empty()
            && !self.socket
    }
}

/// Sweeps, unless a supervisor is alive.
///
/// # Errors
/// When directories, locks or control groups cannot be used.
pub fn sweep(paths: &Paths, dry_run: bool) -> Result<SweepReport, SweepError> {
    paths.create()?;
    let Some(lock) = Lock::try_take(paths)? else {
        return Ok(SweepReport {
            live: true,
            dry_run,
            ..SweepReport::default()
        });
    };
    let cgroups = Cgroups::discover(paths.instance()).map_err(SweepError::Cgroups)?;
    let registry = open_registry(paths).map_err(SweepError::Uids)?;
    let depth = if dry_run { Depth::Look } else { Depth::Whole };
    let (mut report, _) = sweep_locked(paths, &lock, &cgroups, registry.as_ref(), depth)?;
    // Who listens holds the lock that is ours now.
    report.socket = if dry_run {
        paths.socket().exists()
    } else {
        std::fs::remove_file(paths.socket()).is_ok()
    };
    cgroups.remove_base();
    Ok(report)
}

/// The host's registry of uid blocks; none for an ordinary user.
pub(crate) fn open_registry(paths: &Paths) -> io::Result<Option<Uids>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let (registry, holders) = (Path::new(uids::REGISTRY), Path::new(uids::HOLDERS));
    Uids::open(registry, holders, &paths.ledger()).map(Some)
}

/// How far a sweep goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Looks everywhere and touches nothing.
    Look,
    /// What the ledger and the registry name, and more only where they name something: a start is
    /// on somebody's way.
    Start,
    /// Everything.
    Whole,
}

/// Sweeps as the holder of the lock. Also returns the entries that did not go.
pub(crate) fn sweep_locked(
    paths: &Paths,
    _lock: &Lock,
    cgroups: &Cgroups,
    registry: Option<&Uids>,
    depth: Depth,
) -> Result<(SweepReport, Vec<Entry>), SweepError> {
    let dry_run = depth == Depth::Look;
    let ledger = Ledger::open(paths).map_err(SweepError::Ledger)?;
    let records = Records::open(paths)?;
    let sweeper = Sweeper {
        paths,
        cgroups,
        uids: registry,
        ledger: &ledger,
    };
    let entries = ledger.entries().map_err(SweepError::Ledger)?;
    let mut report = SweepReport {
        dry_run,
        ..SweepReport::default()
    };
    let mut stuck = Vec::new();
    let mut seen = BTreeMap::new();
    if !dry_run {
        // All at once first, so that they die side by side.
        entries.iter().for_each(|entry| sweeper.kill(entry));
    }
    let end = Instant::now() + DEATH_BOUND;
    for entry in entries {
        let left = end.saturating_duration_since(Instant::now());
        let observed = if dry_run {
            Observed::default()
        } else {
            sweeper.remove(&entry, left)
        };
        seen.insert(entry.sandbox.clone(), observed.clone());
        report.sandboxes.push(Swept {
            sandbox: entry.sandbox.clone(),
            observed: observed.clone(),
        });
        if !observed.clean() {
            stuck.push(entry);
        }
    }
    if !dry_run {
        records.settle_blanks();
    }
    report.runs = complete_records(&records, &seen, dry_run)?;
    let search = depth != Depth::Start || !report.sandboxes.is_empty();
    sweeper.strays(&seen, dry_run, search, &mut report);
    Ok((report, stuck))
}

/// Completes the records of runs whose supervisor died.
fn complete_records(
    records: &Records,
    seen: &BTreeMap<SandboxId, Observed>,
    dry_run: bool,
) -> Result<Vec<RunId>, SweepError> {
    let mut runs = Vec::new();
    for run in records.unfinished()? {
        if dry_run {
            runs.push(run);
            continue;
        }
        // A mark without a record is a run that was never accepted.
        if let Ok(Some(mut record)) = records.read(&run)
            && let Ok(mut folder) = records.folder(&run)
        {
            let observed = seen.get(&record.sandbox);
            complete(&mut record, observed, &folder);
            folder.write(&record)?;
            records.close(&run);
            records.let_go(&record);
        }
        records.close(&run);
        runs.push(run);
    }
    Ok(runs)
}

fn complete(record: &mut RunRecord, seen: Option<&Observed>, folder: &crate::records::RunFolder) {
    if record.end.is_none() {
        record.end = Some(EndReason::HostLost);
        let size = |name| {
            let spool = folder.read_spool(name).ok()?;
            u64::try_from(rustix::fs::fstat(spool).ok()?.st_size).ok()
        };
        for (stream, name) in [
            (&mut record.stdout, "stdout"),
            (&mut record.stderr, "stderr"),
        ] {
            let kept = size(name).unwrap_or(0);
            *stream = StreamRecord {
                written: kept.max(stream.written),
                kept,
                truncated: stream.truncated,
            };
        }
    }
    if record.cleanup.is_none() {
        record.cleanup = Some(seen.cloned().unwrap_or_else(|| Observed {
            residues: vec![residue(
                "ledger",
                true,
                "no entry: nothing was made for it, or its removal was complete",
            )],
        }));
    }
}

/// Removes what a ledger entry names, from names alone.
pub(crate) struct Sweeper<'a> {
    pub(crate) paths: &'a Paths,
    pub(crate) cgroups: &'a Cgroups,
    pub(crate) uids: Option<&'a Uids>,
    pub(crate) ledger: &'a Ledger,
}

impl Sweeper<'_> {
    fn kill(&self, entry: &Entry) {
        if let Ok(Some(group)) = self.cgroups.open(entry.sandbox.as_str()) {
            let _ = group.kill();
        }
    }

    /// Kills and removes; waits at most `bound` for the end of processes. The entry goes when all is
    /// clean. Idempotent.
    pub(crate) fn remove(&self, entry: &Entry, bound: Duration) -> Observed {
        let (processes, cgroups) = self.remove_group(entry, bound);
        let alive = !processes.clean;
        let closed = inferred(
            "sockets",
            true,
            "ours are closed: nobody has its supervisor's lock",
        );
        let mut rows = vec![processes, cgroups];
        rows.extend(Seen::of_entry(entry).rows(alive, closed));
        let held = rows
            .iter()
            .any(|row| row.resource == "mounts" && !row.clean);
        rows.push(if entry.image {
            let path = scratch::image_path(&self.paths.scratch(), &entry.sandbox);
            match scratch::remove(&path) {
                Ok(()) => residue("scratch", true, "no image is left"),
                Err(detail) => residue("scratch", false, detail),
            }
        } else {
            let detail = "in memory, freed with its mount namespace";
            inferred("scratch", !held, detail)
        });
        let clean = rows.iter().all(|row| row.clean);
        rows.push(self.release(entry, clean));
        let observed = Observed { residues: rows };
        if observed.clean() {
            let _ = self.ledger.remove(&entry.sandbox);
        } else {
            let stuck = Entry {
                stuck: true,
                ..entry.clone()
            };
            let _ = self.ledger.write(&stuck);
        }
        observed
    }

    fn remove_group(
        &self,
        entry: &Entry,
        bound: Duration,
    ) -> (
        leasehold_core::record::Residue,
        leasehold_core::record::Residue,
    ) {
        let group = match self.cgroups.open(entry.sandbox.as_str()) {
            Ok(Some(group)) => group,
            Ok(None) => {
                // Without a group only the ids tell whether something lives.
                let used = entry.uid_base != 0
                    && blocks_in_use().is_ok_and(|used| used.contains(&entry.uid_base));
                let detail = if used {
                    "a process has an id of the block"
                } else {
                    "no control group is left and no process has an id of the block"
                };
                return (
                    residue("processes", !used, detail),
                    residue("cgroups", true, "already gone"),
                );
            }
            Err(error) => {
                let detail = error.to_string();
                return (
                    residue("processes", false, "its control group cannot be opened"),
                    residue("cgroups", false, detail),
                );
            }
        };
        let killed = group.kill();
        let end = Instant::now() + bound;
        while group.populated().unwrap_or(true) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let empty = matches!(group.populated(), Ok(false));
        let removed = if empty {
            group.destroy(Duration::from_millis(200))
        } else {
            group.try_destroy()
        };
        let detail = match (empty, killed) {
            (true, _) => "the control group is empty after its kill".to_owned(),
            (false, Ok(())) => "processes outlived the kill of their control group".to_owned(),
            (false, Err(error)) => error.to_string(),
        };
        (residue("processes", empty, detail), groups_row(&removed))
    }

    fn release(&self, entry: &Entry, clean: bool) -> leasehold_core::record::Residue {
        let (Some(registry), true) = (self.uids, entry.uid_base != 0) else {
            return residue("uids", true, "none were leased");
        };
        if !clean {
            return residue("uids", false, "the block is quarantined with what is left");
        }
        match registry.release(entry.uid_base) {
            true => residue("uids", true, "the block is given back"),
            false => residue("uids", false, "the block could not be given back"),
        }
    }

    /// What no entry names.
    fn strays(
        &self,
        entries: &BTreeMap<SandboxId, Observed>,
        dry_run: bool,
        search: bool,
        report: &mut SweepReport,
    ) {
        self.stray_images(entries, dry_run, report);
        if search {
            // Looks through every hierarchy for groups of ours in unusual places.
            self.stray_groups(entries, dry_run, report);
        }
        let Some(registry) = self.uids else { return };
        if !dry_run {
            registry.tidy();
        }
        let mut suspects = registry.suspects().unwrap_or_default();
        // Those of entries that did not go are quarantined.
        let kept = self.ledger.entries().unwrap_or_default();
        suspects.retain(|lease| !kept.iter().any(|entry| entry.uid_base == lease.base));
        if suspects.is_empty() {
            return;
        }
        let Ok(used) = blocks_in_use() else { return };
        for lease in suspects
            .into_iter()
            .filter(|lease| !used.contains(&lease.base))
        {
            if dry_run || registry.give_back(lease.base) {
                report.uid_blocks.push(lease.base);
            }
        }
    }

    fn stray_images(
        &self,
        entries: &BTreeMap<SandboxId, Observed>,
        dry_run: bool,
        report: &mut SweepReport,
    ) {
        let Ok(found) = std::fs::read_dir(self.paths.scratch()) else {
            return;
        };
        for entry in found.flatten() {
            let path: PathBuf = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let id = name
                .strip_suffix(".img")
                .and_then(|name| SandboxId::parse(name).ok());
            if id.is_some_and(|id| !entries.contains_key(&id))
                && (dry_run || scratch::remove(&path).is_ok())
            {
                report.images.push(name);
            }
        }
    }

    fn stray_groups(
        &self,
        entries: &BTreeMap<SandboxId, Observed>,
        dry_run: bool,
        report: &mut SweepReport,
    ) {
        for name in self.cgroups.list().unwrap_or_default() {
            let known = SandboxId::parse(&name).is_ok_and(|id| entries.contains_key(&id));
            let Ok(Some(group)) = self.cgroups.open(&name) else {
                continue;
            };
            // One that lives and no entry names may belong to an instance in a container.
            if known || !matches!(group.populated(), Ok(false)) {
                continue;
            }
            if dry_run || group.try_destroy().complete() {
                report.groups.push(name);
            }
        }
    }
}
