//! Removing a sandbox and looking at what is left (invariants I7, I11).
//!
//! Each row of the inventory is looked at after the fact, or says that it is inferred, from what was looked
//! at (docs/THREAT_MODEL.md has the predicate of each). What is not gone is said, the ledger entry
//! stays with the uid block, and removal is tried again from the entry alone, as a sweep does it.

use std::time::{Duration, Instant};

use leasehold_core::id::SandboxId;
use leasehold_core::record::{Observed, Residue};
use leasehold_core::sandbox::state::Action;
use leasehold_jail::cgroup::Removed;
use leasehold_jail::failpoint;
use leasehold_protocol::supervisor::Event;

use crate::calls::unix_ms;
use crate::image::ImageFds;
use crate::ledger::Entry;
use crate::log;
use crate::sandbox::Role;
use crate::scratch;
use crate::server::{Server, Timer};
use crate::source::Key;
use crate::sweep::Sweeper;

/// How long control groups of a dead sandbox may take to go: the kernel needs a moment after the
/// last process.
const GROUPS_BOUND: Duration = Duration::from_millis(100);
/// Pause until the first attempt at what did not go; doubled with each, up to the second.
const STUCK_AFTER: Duration = Duration::from_secs(10);
const STUCK_AFTER_MAX: Duration = Duration::from_secs(600);

/// A sandbox whose removal did not converge. It holds its uid block and its place among those that fit.
#[derive(Debug)]
pub(crate) struct Stuck {
    pub(crate) entry: Entry,
    /// The image that its processes may still have as their root.
    _image: Option<ImageFds>,
    /// Attempts since.
    tries: u32,
    /// When the next one is due.
    due: Instant,
}

impl Stuck {
    pub(crate) fn new(entry: Entry, image: Option<ImageFds>) -> Self {
        Self {
            entry,
            _image: image,
            tries: 0,
            due: Instant::now() + STUCK_AFTER,
        }
    }

    /// It is still there.
    fn again(&mut self, now: Instant) {
        self.tries = self.tries.saturating_add(1);
        self.due = now + stuck_pause(self.tries);
    }
}

fn stuck_pause(tries: u32) -> Duration {
    let doubled = STUCK_AFTER.saturating_mul(1 << tries.min(16));
    doubled.min(STUCK_AFTER_MAX)
}

/// What was seen of a sandbox's processes and control groups.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    processes: Residue,
    cgroups: Residue,
}

/// One row.
pub(crate) fn residue(resource: &str, clean: bool, detail: impl Into<String>) -> Residue {
    Residue {
        resource: resource.to_owned(),
        clean,
        detail: detail.into(),
        inferred: false,
    }
}

/// One row of a resource that nobody looked at: once init is reaped no process of the sandbox lives, since the
/// kernel ends all that are in a pid namespace before its init can be reaped.
pub(crate) fn inferred(resource: &str, clean: bool, detail: impl Into<String>) -> Residue {
    Residue {
        inferred: true,
        ..residue(resource, clean, detail)
    }
}

/// The inventory of a run whose sandbox was never made, or was removed when making it failed.
pub(crate) fn nothing_made() -> Observed {
    Observed {
        residues: vec![residue("ledger", true, "no entry: nothing was made for it")],
    }
}

/// What a removal of control groups saw, as a row.
pub(crate) fn groups_row(removed: &Removed) -> Residue {
    if removed.complete() {
        let (now, before) = (removed.removed, removed.already_gone);
        return residue(
            "cgroups",
            true,
            format!("{now} removed, {before} already gone"),
        );
    }
    let left: Vec<&str> = removed.left.iter().map(|(_, why)| why.as_str()).collect();
    residue(
        "cgroups",
        false,
        format!("{} left: {}", left.len(), left.join(", ")),
    )
}

impl Server {
    /// Ends a sandbox that no run has, and removes it once it is dead.
    pub(crate) fn end_sandbox(&mut self, key: Key) {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return;
        };
        sandbox.act(Action::Stop);
        self.timers.clear(Timer::Ready(key));
        if sandbox.dead() || sandbox.overdue {
            if self.settled(key) {
                self.remove(key);
            }
        } else {
            self.kill_sandbox(key);
        }
    }

    /// Removes a dead sandbox whole.
    pub(crate) fn remove(&mut self, key: Key) -> Observed {
        let groups = self.remove_groups(key);
        self.remove_rest(key, groups)
    }

    /// Removes its control groups and sees whether a process is left.
    pub(crate) fn remove_groups(&mut self, key: Key) -> Groups {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return Groups {
                processes: residue("processes", true, "removed before"),
                cgroups: residue("cgroups", true, "removed before"),
            };
        };
        sandbox.act(Action::Stop);
        let reaped = sandbox.dead();
        let Some(group) = &sandbox.group else {
            let detail = if reaped {
                "init was reaped"
            } else {
                "init is still there"
            };
            return Groups {
                processes: residue("processes", reaped, detail),
                cgroups: residue("cgroups", true, "none were made"),
            };
        };
        let fault = self.failpoints.fault("cgroups");
        let removed = if fault {
            None
        } else {
            let bound = if reaped { GROUPS_BOUND } else { Duration::ZERO };
            Some(failpoint::around("cgroups_gone", || group.destroy(bound)))
        };
        let empty = removed.as_ref().is_some_and(Removed::complete)
            || matches!(group.populated(), Ok(false));
        let detail = match (reaped, empty) {
            (true, true) => "init was reaped and the control group is empty",
            (true, false) => "init was reaped, but processes are in the control group",
            (false, _) => "init is still there after its kill",
        };
        Groups {
            processes: residue("processes", reaped && empty, detail),
            cgroups: match &removed {
                Some(removed) => groups_row(removed),
                None => residue("cgroups", false, "removal failed by a test's wish"),
            },
        }
    }

    /// Removes everything else and gives the uid block back, if all is clean by then.
    pub(crate) fn remove_rest(&mut self, key: Key, groups: Groups) -> Observed {
        let Some(mut sandbox) = self.sandboxes.remove(&key) else {
            return nothing_made();
        };
        self.sandbox_ids.remove(&sandbox.id);
        self.dismiss_lookout(key, &mut sandbox);
        for timer in [Timer::Ready(key), Timer::Bound(key), Timer::Linger(key)] {
            self.timers.clear(timer);
        }
        for socket in [sandbox.init.take(), sandbox.stub.take()]
            .into_iter()
            .flatten()
        {
            self.sources.forget(&socket);
        }
        if let Some(oom) = sandbox.oom.take() {
            self.sources.forget(&oom);
        }
        if sandbox.blank.take().is_some() {
            self.records.remove_blank(sandbox.id.as_str());
        }
        let alive = !groups.processes.clean;
        let seen = sandbox.seen_namespaces();
        if !alive {
            self.log_holders(&sandbox, &seen);
        }
        if let Some(made) = sandbox.made.take() {
            self.sources.forget(&made.pidfd);
            if sandbox.death.is_none() {
                self.adopt(made.pid, made.pidfd);
            }
        }
        let mut rows = vec![groups.processes, groups.cgroups];
        rows.extend(seen.rows(alive, residue("sockets", true, "our ends are closed")));
        let held = rows
            .iter()
            .any(|row| row.resource == "mounts" && !row.clean);
        rows.push(self.scratch_row(&sandbox.id, sandbox.admitted.image, held));
        let clean = rows.iter().all(|row| row.clean);
        rows.push(self.uids_row(&sandbox, clean));
        let observed = Observed { residues: rows };
        sandbox.act(if observed.clean() {
            Action::Clear
        } else {
            Action::Quarantine
        });
        let image = sandbox.rootfs.take();
        self.close_entry(&sandbox, image, observed.clean());
        for (from, tag, _) in sandbox.agents {
            let error = leasehold_core::error::PublicError::new(
                leasehold_core::error::ErrorKind::Unavailable,
                "the sandbox ended before its agent started",
            );
            self.notify(from, tag, Event::Refused(error));
        }
        for (from, tag) in sandbox.destroyers {
            self.notify(from, tag, Event::Destroyed(observed.clone()));
        }
        observed
    }

    fn scratch_row(&self, id: &SandboxId, image: bool, held: bool) -> Residue {
        if self.failpoints.fault("scratch") {
            return residue("scratch", false, "removal failed by a test's wish");
        }
        if !image {
            let detail = if held {
                "in memory, held with its mount namespace"
            } else {
                "in memory, freed with its mount namespace"
            };
            return inferred("scratch", !held, detail);
        }
        match scratch::remove(&scratch::image_path(&self.paths.scratch(), id)) {
            Ok(()) => residue("scratch", true, "image removed, loop device free"),
            Err(detail) => residue("scratch", false, detail),
        }
    }

    fn uids_row(&self, sandbox: &crate::sandbox::Sandbox, clean: bool) -> Residue {
        let (Some(uids), Some((base, _))) = (&self.uids, sandbox.leased_range()) else {
            return residue("uids", true, "none were leased");
        };
        if !clean {
            return residue("uids", false, "the block is quarantined with what is left");
        }
        if self.failpoints.fault("uids") {
            return residue("uids", false, "release failed by a test's wish");
        }
        match failpoint::around("uids_gone", || uids.give_back(base)) {
            true => residue("uids", true, "the block was given back"),
            false => residue("uids", false, "the block could not be given back"),
        }
    }

    fn close_entry(
        &mut self,
        sandbox: &crate::sandbox::Sandbox,
        image: Option<ImageFds>,
        clean: bool,
    ) {
        if clean {
            if let Err(error) = self.ledger.retire(&sandbox.id, &mut self.spares) {
                log::failure("a ledger entry could not be removed", &error);
            }
            return;
        }
        let entry = Entry {
            version: 1,
            sandbox: sandbox.id.clone(),
            run: match sandbox.role {
                Role::Run(run) => self.runs.get(&run).map(|run| run.record.run.clone()),
                Role::Pool(_) | Role::Provisioned(_) => None,
            },
            uid_base: sandbox.leased_range().map_or(0, |(base, _)| base),
            image: sandbox.admitted.image,
            supervisor: std::process::id(),
            written_unix_ms: unix_ms(),
            stuck: true,
            namespaces: sandbox.marks(),
        };
        log::line(&format!(
            "sandbox {}: removal is not clean; quarantined",
            sandbox.id
        ));
        if let Err(error) = self.ledger.write(&entry) {
            log::failure("a ledger entry could not be written", &error);
        }
        self.stuck
            .insert(entry.sandbox.clone(), Stuck::new(entry, image));
        self.start_stuck();
    }

    /// Arms the next attempt at what is stuck.
    pub(crate) fn start_stuck(&mut self) {
        let now = Instant::now();
        match self.stuck.values().map(|stuck| stuck.due).min() {
            Some(due) => {
                let wait = due.saturating_duration_since(now);
                self.timers.set(Timer::Stuck, now, wait);
            }
            None => self.timers.clear(Timer::Stuck),
        }
    }

    /// A process that was in the way is gone: all that is stuck is tried at once.
    pub(crate) fn hurry_stuck(&mut self) {
        self.try_stuck(|_| true);
    }

    /// Tries again what is due, from the ledger entries alone.
    pub(crate) fn retry_stuck(&mut self) {
        let now = Instant::now();
        self.try_stuck(|stuck| stuck.due <= now);
    }

    fn try_stuck(&mut self, wanted: impl Fn(&Stuck) -> bool) {
        let sweeper = Sweeper {
            paths: &self.paths,
            cgroups: &self.cgroups,
            uids: self.uids.as_ref(),
            ledger: &self.ledger,
        };
        self.stuck.retain(|id, stuck| {
            if !wanted(stuck) {
                return true;
            }
            let observed = sweeper.remove(&stuck.entry, Duration::ZERO);
            if observed.clean() {
                log::line(&format!("sandbox {id}: removed at last"));
                return false;
            }
            stuck.again(Instant::now());
            let left = observed.residues.iter().filter(|row| !row.clean);
            let left: Vec<&str> = left.map(|row| row.resource.as_str()).collect();
            let (tries, left) = (stuck.tries, left.join(", "));
            log::line(&format!("sandbox {id}: attempt {tries}: not clean: {left}"));
            true
        });
        self.start_stuck();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stuck_is_tried_ever_more_rarely_and_never_given_up() {
        let pauses = [0, 1, 2, 5, 6, 7, u32::MAX].map(|tries| stuck_pause(tries).as_secs());
        assert_eq!(pauses, [10, 20, 40, 320, 600, 600, 600]);
    }
}
