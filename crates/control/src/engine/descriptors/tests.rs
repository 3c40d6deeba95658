//! What is set aside is for ends alone. Each test changes the bound of its process, and so has one of its own.

use rustix::process::{Rlimit, setrlimit};

use super::*;

/// Whether this is a process for this test alone; else it has been run in one.
fn alone(test: &str) -> bool {
    const ALONE: &str = "ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut own = std::process::Command::new(std::env::current_exe().unwrap());
    own.args(["--exact", "--nocapture"])
        .arg(format!("engine::descriptors::tests::{test}"))
        .env(ALONE, "1");
    let done = own.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// Sets the bound for a while.
struct Cut(u64);

impl Cut {
    fn to(current: u64) -> Self {
        let before = limit();
        set(current);
        Self(before)
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        set(self.0);
    }
}

fn set(current: u64) {
    let found = getrlimit(Resource::Nofile);
    let current = Some(current);
    setrlimit(Resource::Nofile, Rlimit { current, ..found }).unwrap();
}

/// One above the highest number in use that is followed by no other.
fn used() -> u64 {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    numbers.max().unwrap() + 1
}

#[tokio::test]
#[allow(
    clippy::await_holding_lock,
    reason = "one test at a time changes the bound"
)]
async fn with_none_left_nothing_begins_and_an_end_has_what_was_set_aside() {
    if !alone("with_none_left_nothing_begins_and_an_end_has_what_was_set_aside") {
        return;
    }
    let all = Descriptors::set_aside().unwrap();
    assert!(all.for_a_run().is_some() && !all.are_scarce());
    assert!(all.for_an_end().await.is_none(), "there are others");
    let room = all.for_a_run().unwrap();
    let cut = Cut::to(used());
    let taken: Vec<OwnedFd> = std::iter::from_fn(|| all.number()).collect();
    drop(room);
    // Numbers for one run are free, and none beyond.
    let room = all.for_a_run().unwrap();
    assert!(all.for_a_run().is_none());
    let ending = all.for_an_end().await.expect("what was set aside");
    let opened: Vec<_> = (0..OF_AN_END).map(|_| all.number()).collect();
    assert!(opened.iter().all(Option::is_some), "{opened:?}");
    assert!(all.are_scarce() && all.for_a_run().is_none());
    // Callers have theirs beside.
    let callers: Vec<_> = std::iter::from_fn(|| all.for_a_caller()).collect();
    assert_eq!(callers.len(), OF_CALLERS);
    drop((opened, ending, callers));
    assert!(all.for_a_run().is_none(), "no number is free");
    drop((taken, room));
    assert!(all.for_a_run().is_some() && !all.are_scarce());
    drop(cut);
}

#[tokio::test]
#[allow(
    clippy::await_holding_lock,
    reason = "one test at a time changes the bound"
)]
async fn callers_leave_an_end_what_it_needs() {
    if !alone("callers_leave_an_end_what_it_needs") {
        return;
    }
    let all = Descriptors::set_aside().unwrap();
    let callers: Vec<_> = std::iter::from_fn(|| all.for_a_caller()).collect();
    assert_eq!(callers.len(), OF_CALLERS);
    let _cut = Cut::to(used());
    let taken: Vec<OwnedFd> = std::iter::from_fn(|| all.number()).collect();
    assert!(all.for_an_end().await.is_some());
    drop((taken, callers));
    assert!(!all.are_scarce());
}

#[test]
fn numbers_beyond_a_bound_that_was_cut_are_taken_anew_below_it() {
    if !alone("numbers_beyond_a_bound_that_was_cut_are_taken_anew_below_it") {
        return;
    }
    let low: Vec<File> = (0..32).map(|_| File::open("/dev/null").unwrap()).collect();
    let all = Descriptors::set_aside().unwrap();
    let lowest = low.iter().map(AsRawFd::as_raw_fd).min().unwrap();
    drop(low);
    let _cut = Cut::to(u64::try_from(lowest).unwrap() + 24);
    assert!(!all.are_scarce());
    let below = |fd: &OwnedFd| u64::try_from(fd.as_raw_fd()).unwrap() < limit();
    assert!(all.state().aside.iter().all(below));
}

#[test]
fn lower_numbers_are_taken_as_they_come_free() {
    if !alone("lower_numbers_are_taken_as_they_come_free") {
        return;
    }
    let low: Vec<File> = (0..32).map(|_| File::open("/dev/null").unwrap()).collect();
    let all = Descriptors::set_aside().unwrap();
    let highest = |all: &Descriptors| {
        let state = all.state();
        state.aside.iter().map(AsRawFd::as_raw_fd).max().unwrap()
    };
    let before = highest(&all);
    drop(low);
    all.settle();
    assert!(highest(&all) < before);
    assert!(!all.are_scarce());
}

#[test]
fn a_small_process_carries_one_run_and_a_large_one_what_it_is_told() {
    assert_eq!(runs_carried(64, 16), 1);
    assert_eq!(runs_carried(1_024, 256), 118);
    assert!(runs_carried(65_536, 1_024) > 10_000);
}
