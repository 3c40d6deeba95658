//! Counts of a group whose files are open.

use std::time::Duration;

use leasehold_jail::cgroup::{GroupLimits, GroupUsage};

use super::rig::{Bench, Way, bomb, fork_in};

/// Files that are opened before anything happens tell what happens afterwards, as files opened anew do.
#[test]
fn counts_that_are_kept_open_are_of_the_moment_they_are_read() {
    const TEST: &str = "counts_that_are_kept_open_are_of_the_moment_they_are_read";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let limits = GroupLimits {
        pids: Some(8),
        memory_bytes: Some(64 << 20),
        cpu_milli: Some(1_000),
    };
    let [mut kept, anew] = ["kept", "anew"].map(|name| bench.group(name, limits));
    kept.keep_counts();
    kept.keep_counts();
    let before = kept.usage_so_far();
    assert_eq!(kept.events().pids_denied, 0);
    for group in [&kept, &anew] {
        let mut child = fork_in(Some(group), Way::Born, || bomb(20));
        assert_eq!(child.end() >> 8, 7, "itself and seven more");
    }
    let (after, other) = (kept.usage_so_far(), anew.usage_so_far());
    assert!(kept.events().pids_denied >= 1 && anew.events().pids_denied >= 1);
    assert!(after.cpu_micros > before.cpu_micros, "{before:?} {after:?}");
    assert!(after.memory_peak_bytes > before.memory_peak_bytes);
    let told = |usage: GroupUsage| {
        (
            usage.cpu_micros.is_some(),
            usage.memory_peak_bytes.is_some(),
            usage.throttled_micros.is_some(),
        )
    };
    assert_eq!(told(after), told(other));
    for group in [&kept, &anew] {
        group.kill().unwrap();
    }
    // An open file keeps no group.
    assert!(kept.destroy(Duration::from_secs(5)).complete());
    assert_eq!(kept.usage_so_far().memory_peak_bytes, None);
}
