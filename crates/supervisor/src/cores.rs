//! Which of the host's cores a sandbox has: the least used ones. At its making those are where the fewest
//! sandboxes wait; at its claim, those where the fewest commands run and not we, since what we do next
//! would be in its way, and it in ours.

use leasehold_core::limits::Limits;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::sandbox::Sandbox;
use crate::server::Server;
use crate::source::Key;

/// So many cores, those with the least load, each in the order it was given among equals.
fn least(cores: &[u32], count: usize, load: impl Fn(u32) -> usize) -> Vec<u32> {
    let mut sorted = cores.to_vec();
    sorted.sort_by_key(|core| load(*core));
    sorted.truncate(count);
    sorted
}

impl Server {
    /// Cores for a sandbox that is to be made.
    pub(crate) fn cores_to_wait_on(&self, limits: &Limits) -> Vec<u32> {
        let used = |core| on(self.sandboxes.values(), core);
        least(&self.cores, limits.visible_cores() as usize, used)
    }

    /// Moves a parked sandbox that is claimed to the least used cores, if it is not there. It sleeps, so
    /// that nothing but two words of the kernel changes.
    pub(crate) fn place(&mut self, slot: Key) {
        let here = rustix::thread::sched_getcpu();
        let running = self.runs.values().filter_map(|run| run.sandbox);
        let running: Vec<&Sandbox> = running
            .filter_map(|sandbox| self.sandboxes.get(&sandbox))
            .collect();
        let used = |core| {
            let ours = usize::from(core as usize == here);
            2 * (on(running.iter().copied(), core) + ours) + ours
        };
        let Some(sandbox) = self.sandboxes.get(&slot) else {
            return;
        };
        let count = sandbox.cores.len();
        let most = |cores: &[u32]| cores.iter().map(|core| used(*core)).max();
        let better = least(&self.cores, count, used);
        if most(&better) >= most(&sandbox.cores) {
            return;
        }
        if let Some(sandbox) = self.sandboxes.get_mut(&slot)
            && sandbox.tasks.len() == 2
            && sandbox.tasks.iter().all(|task| pin(*task, &better))
        {
            sandbox.cores = better;
        }
    }
}

/// How many of these have a core.
fn on<'a>(sandboxes: impl Iterator<Item = &'a Sandbox>, core: u32) -> usize {
    sandboxes.filter(|it| it.cores.contains(&core)).count()
}

fn pin(task: Pid, cores: &[u32]) -> bool {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core as usize);
    }
    sched_setaffinity(Some(task), &set).is_ok()
}

/// Init and its stub, by their numbers here: init is ours to reap and reaps the stub, whose end it tells, so
/// that as long as the sandbox is parked the numbers are theirs. Less where the kernel does not tell.
pub(crate) fn tasks(init: u32) -> Vec<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{init}/task/{init}/children"));
    let children = children.unwrap_or_default();
    let numbers = children.split_whitespace().map(|word| word.parse().ok());
    std::iter::once(i32::try_from(init).ok())
        .chain(numbers)
        .filter_map(|number| Pid::from_raw(number?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_used_cores_come_first_and_equals_in_order() {
        let load = |core: u32| [3, 1, 1, 0][core as usize];
        let cores = [0, 1, 2, 3];
        assert_eq!(least(&cores, 1, load), [3]);
        assert_eq!(least(&cores, 3, load), [3, 1, 2]);
        assert_eq!(least(&cores, 9, load), [3, 1, 2, 0]);
        assert_eq!(least(&[2, 1], 1, load), [2]);
    }

    #[test]
    fn a_process_is_pinned_to_the_cores_it_is_given() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let before = rustix::thread::sched_getaffinity(Some(pid)).unwrap();
        let first = (0..1024).find(|core| before.is_set(*core)).unwrap();
        assert!(pin(pid, &[first as u32]));
        let after = rustix::thread::sched_getaffinity(Some(pid)).unwrap();
        assert!(after.count() == 1 && after.is_set(first));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!pin(pid, &[first as u32]), "it is gone");
    }
}
