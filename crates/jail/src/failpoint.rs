//! Test hooks, compiled only into debug builds: the supervisor dies by `SIGKILL` just before or just after a
//! resource of the host is made or removed, so that tests see what its successor makes of what is left.
//!
//! Armed once, before the first fork, and inherited by every process that makes sandboxes. The supervisor kills
//! itself and its spawner kills it. The first process of a sandbox cannot name it: it says by its own name
//! that it has come there ([`NAME`]), waits for the death of its spawner, and goes on.

#[cfg(debug_assertions)]
use std::sync::OnceLock;

#[cfg(debug_assertions)]
use rustix::process::{Pid, Signal, getpid, getppid, kill_process};

/// What is made and removed, in the order in which a run comes to it: by the supervisor,
pub const POINTS: [&str; 21] = [
    "folder",
    "spools",
    "record",
    "publish",
    "holder",
    "uids",
    "ledger",
    "cgroup",
    "cgroups",
    "image",
    "loop",
    "sockets",
    "order",
    "pipes",
    "message",
    "collector",
    "outcome",
    "cgroups_gone",
    "uids_gone",
    "ledger_gone",
    "last",
];
/// by its spawner,
pub const OF_SPAWNER: [&str; 3] = ["netns", "process", "userns"];
/// and by the first process of a sandbox.
pub const OF_CHILD: [&str; 3] = ["enter", "mounts", "identity"];

/// How a first process is called that has come to its point.
pub const NAME: &str = "lease-at-point";

/// How long a first process waits there.
#[cfg(debug_assertions)]
const WAIT: std::time::Duration = std::time::Duration::from_secs(20);

#[cfg(debug_assertions)]
static ARMED: OnceLock<(String, Pid)> = OnceLock::new();

/// Has the calling process, which is the supervisor, die at `before-X` or `after-X`; nonsense is none.
#[cfg_attr(
    not(debug_assertions),
    allow(unused_variables, reason = "debug builds alone read it")
)]
pub fn arm(point: &str) {
    #[cfg(debug_assertions)]
    if known(point) {
        let _ = ARMED.set((point.to_owned(), getpid()));
    }
}

#[cfg(debug_assertions)]
fn known(point: &str) -> bool {
    let name = point
        .strip_prefix("before-")
        .or_else(|| point.strip_prefix("after-"));
    let mut all = POINTS.iter().chain(&OF_SPAWNER).chain(&OF_CHILD);
    name.is_some_and(|name| all.any(|known| *known == name))
}

/// Does something that makes or removes a resource, with a point on each side.
pub fn around<T>(point: &str, work: impl FnOnce() -> T) -> T {
    pass("before-", point);
    let done = work();
    pass("after-", point);
    done
}

#[cfg_attr(
    not(debug_assertions),
    allow(unused_variables, reason = "debug builds alone read it")
)]
fn pass(when: &str, point: &str) {
    #[cfg(debug_assertions)]
    if let Some(supervisor) = due(when, point)
        && (getpid() == supervisor || getppid() == Some(supervisor))
    {
        let _ = kill_process(supervisor, Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}

/// The same in the first process of a sandbox, whose spawner is at the other end of a socket.
pub(crate) fn around_in_child<T>(
    point: &str,
    spawner: std::os::fd::BorrowedFd<'_>,
    work: impl FnOnce() -> T,
) -> T {
    wait("before-", point, spawner);
    let done = work();
    wait("after-", point, spawner);
    done
}

#[cfg_attr(
    not(debug_assertions),
    allow(unused_variables, reason = "debug builds alone read it")
)]
fn wait(when: &str, point: &str, spawner: std::os::fd::BorrowedFd<'_>) {
    #[cfg(debug_assertions)]
    if due(when, point).is_some() {
        let _ = rustix::thread::set_name(c"lease-at-point");
        let mut polled = [rustix::event::PollFd::new(
            &spawner,
            rustix::event::PollFlags::empty(),
        )];
        let limit = rustix::event::Timespec::try_from(WAIT).ok();
        let _ = rustix::event::poll(&mut polled, limit.as_ref());
    }
}

#[cfg(debug_assertions)]
fn due(when: &str, point: &str) -> Option<Pid> {
    let (armed, supervisor) = ARMED.get()?;
    let here = armed.strip_prefix(when).is_some_and(|rest| rest == point);
    here.then_some(*supervisor)
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn only_points_that_there_are_can_be_armed() {
        for name in POINTS.iter().chain(&OF_SPAWNER).chain(&OF_CHILD) {
            assert!(known(&format!("before-{name}")) && known(&format!("after-{name}")));
        }
        for text in [
            "",
            "ledger",
            "after-",
            "after-nothing",
            "before-before-ledger",
        ] {
            assert!(!known(text), "{text}");
        }
        assert_eq!(around("nothing", || 7), 7);
    }
}
