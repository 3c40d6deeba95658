//! What an instance has on the host: the other half of every claim that nothing is left.
//!
//! Found by looking at the host, never by asking the product.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Things by kind: `processes`, `cgroups`, `mounts`, `netns`, `loops`, `uids`, `sockets`, `scratch`,
/// `temp`, `holders`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    instance: String,
    things: BTreeMap<&'static str, BTreeSet<String>>,
    pids: BTreeSet<i32>,
}

impl Inventory {
    /// What the instance `name` with its directories below `folder` has.
    pub(crate) fn of(name: &str, folder: &Path) -> Self {
        Self::at(name, folder, &folder.join("state"), &folder.join("run"))
    }

    /// What a daemon's worker has, whose group has this name: not the daemon itself.
    pub(crate) fn of_worker(name: &str, folder: &Path) -> Self {
        let (state, run) = (folder.join("state/worker"), folder.join("run/worker"));
        Self::at(name, &state, &state, &run)
    }

    fn at(name: &str, owner: &Path, state: &Path, run: &Path) -> Self {
        let mut inventory = Self {
            instance: name.to_owned(),
            ..Self::default()
        };
        inventory.groups(name);
        inventory.owners(owner);
        inventory.namespaces();
        inventory.mounts(owner);
        inventory.loops(owner);
        inventory.leases(owner);
        inventory.files(state, run);
        inventory
    }

    /// Whose it is: the name in the names of its groups.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.things.values().all(BTreeSet::is_empty)
    }

    /// How many of one kind.
    pub fn count(&self, kind: &str) -> usize {
        self.things.get(kind).map_or(0, BTreeSet::len)
    }

    /// The things of one kind.
    pub fn all(&self, kind: &str) -> Vec<String> {
        self.things
            .get(kind)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// What is here and was not in `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut news = Self::default();
        for (kind, things) in &self.things {
            let old = before.things.get(kind);
            for thing in things {
                if old.is_none_or(|old| !old.contains(thing)) {
                    news.add(kind, thing.clone());
                }
            }
        }
        news.pids = self.pids.difference(&before.pids).copied().collect();
        news
    }

    /// Process ids of everything found.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        self.pids.iter().copied()
    }

    /// Process ids on the host of every process that is process 1 of a namespace below ours.
    pub fn inits(&self) -> Vec<i32> {
        let first = |pid: &i32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            let ids: Vec<&str> = ids.unwrap_or_default().split_whitespace().collect();
            ids.len() > 1 && ids.last() == Some(&"1")
        };
        self.pids().filter(first).collect()
    }

    fn add(&mut self, kind: &'static str, thing: String) {
        self.things.entry(kind).or_default().insert(thing);
    }

    fn process(&mut self, pid: i32, how: &str) {
        // The pid of a zombie whose parent is the test itself counts as well: it is not reaped.
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        self.pids.insert(pid);
        self.add("processes", format!("{pid} {} ({how})", name.trim()));
    }

    /// Groups named for the instance in every hierarchy, and the processes in them.
    fn groups(&mut self, name: &str) {
        for hierarchy in hierarchies() {
            for group in named_groups(&hierarchy, &format!("leasehold-{name}"), 4) {
                self.group(&group);
            }
        }
    }

    fn group(&mut self, group: &Path) {
        self.add("cgroups", group.display().to_string());
        let members = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines().filter_map(|line| line.parse().ok()) {
            self.process(pid, "in its cgroup");
        }
        for below in folders(group) {
            self.group(&below);
        }
    }

    /// Processes that carry the instance's directories in their environment, or work in them.
    fn owners(&mut self, folder: &Path) {
        for pid in processes() {
            if carries(pid, folder) && pid != std::process::id().cast_signed() {
                self.process(pid, "has its directories");
            }
        }
    }

    /// Network namespaces of the processes found, other than our own.
    fn namespaces(&mut self) {
        let ours = fs::read_link("/proc/self/ns/net").ok();
        let pids: Vec<i32> = self.pids().collect();
        for pid in pids {
            let theirs = fs::read_link(format!("/proc/{pid}/ns/net")).ok();
            if let Some(theirs) = theirs.filter(|theirs| Some(theirs) != ours.as_ref()) {
                self.add("netns", theirs.display().to_string());
            }
        }
    }

    fn mounts(&mut self, folder: &Path) {
        let word = within(folder);
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for line in table.lines().filter(|line| line.contains(&word)) {
            self.add("mounts", line.to_owned());
        }
    }

    fn loops(&mut self, folder: &Path) {
        for device in folders(Path::new("/sys/block")) {
            let backing = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
            if backing.contains(&within(folder)) {
                self.add(
                    "loops",
                    format!("{} on {}", device.display(), backing.trim()),
                );
            }
        }
    }

    fn leases(&mut self, folder: &Path) {
        for lease in entries(Path::new("/run/leasehold-uids")) {
            let owner = fs::read_to_string(&lease).unwrap_or_default();
            if owner.contains(&within(folder)) {
                self.add("uids", format!("{} for {}", lease.display(), owner.trim()));
            }
        }
        for holder in entries(Path::new("/run/leasehold-holders")) {
            let owner = fs::read_to_string(&holder).unwrap_or_default();
            if owner.contains(&within(folder)) {
                self.add("holders", holder.display().to_string());
            }
        }
    }

    /// Sockets and scratch of the instance: files that should not outlive a run.
    fn files(&mut self, state: &Path, run: &Path) {
        for path in entries(run) {
            use std::os::unix::fs::FileTypeExt;
            if fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket()) {
                self.add("sockets", path.display().to_string());
            }
        }
        for (kind, place) in [
            ("scratch", "scratch"),
            ("scratch", "ledger"),
            ("temp", "blank"),
            ("temp", "open"),
        ] {
            for path in entries(&state.join(place)) {
                self.add(kind, path.display().to_string());
            }
        }
    }
}

impl fmt::Display for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing");
        }
        for (kind, things) in &self.things {
            for thing in things {
                writeln!(f, "{kind}: {thing}")?;
            }
        }
        Ok(())
    }
}

/// The supervisor of the instance below `folder`: the process that has its directories and whose
/// arguments are `supervisor`, and that is not one of its spawner's, which have the same.
pub(crate) fn supervisor_of(folder: &Path) -> Option<u32> {
    processes()
        .into_iter()
        .filter(|pid| carries(*pid, folder))
        .find(|pid| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            comm.trim() != "lease-spawner"
                && words
                    .split(|byte| *byte == 0)
                    .any(|word| word == b"supervisor")
        })
        .and_then(|pid| u32::try_from(pid).ok())
}

fn carries(pid: i32, folder: &Path) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let states = environment
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(b"LEASEHOLD_STATE_DIR="));
    let mut states = states.map(|state| Path::new(OsStr::from_bytes(state)));
    states.any(|state| state.starts_with(folder))
}

/// How each path in a folder begins: no other folder's, whose name may begin with the name of this one.
fn within(folder: &Path) -> String {
    format!("{}/", folder.display())
}

fn processes() -> Vec<i32> {
    let mut pids: Vec<i32> = folders(Path::new("/proc"))
        .iter()
        .filter_map(|path| path.file_name()?.to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids
}

/// Mount points of every cgroup hierarchy.
fn hierarchies() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            right
                .starts_with("cgroup")
                .then(|| PathBuf::from(left.split(' ').nth(4).unwrap_or("/")))
        })
        .collect()
}

/// Groups of this name down to `depth` below `top`.
fn named_groups(top: &Path, name: &str, depth: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in folders(top) {
        if folder
            .file_name()
            .is_some_and(|own| own.as_bytes() == name.as_bytes())
        {
            found.push(folder);
        } else if depth > 0 {
            found.extend(named_groups(&folder, name, depth - 1));
        }
    }
    found
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    entries(folder)
        .into_iter()
        .filter(|path| path.is_dir())
        .collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(listing) = fs::read_dir(folder) else {
        return Vec::new();
    };
    listing
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_belongs_to_its_own_instance_and_to_none_with_a_shorter_name() {
        let mut command = std::process::Command::new("sleep");
        command
            .arg("60")
            .env("LEASEHOLD_STATE_DIR", "/tmp/x-12/state/worker");
        let mut child = command.spawn().unwrap();
        let pid = child.id().cast_signed();
        for (folder, wanted) in [
            ("/tmp/x-12", true),
            ("/tmp/x-12/state/worker", true),
            ("/tmp/x-1", false),
            ("/tmp/x-12/state/work", false),
        ] {
            // Its environment is there once it has become the program.
            crate::until(
                "its environment",
                std::time::Duration::from_secs(30),
                || carries(pid, Path::new("/tmp/x-12")).then_some(()),
            );
            assert_eq!(carries(pid, Path::new(folder)), wanted, "{folder}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
