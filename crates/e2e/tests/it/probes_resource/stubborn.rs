//! P29: programs that do not want to end, past their deadline.

use std::time::{Duration, Instant};

use leasehold_e2e::{Instance, Running, patience};
use rustix::process::Signal;

use super::{PATIENCE, hostile};
use crate::record::{assert_nothing_left, reason};

const STUBBORN: &str = include_str!("../../../helpers/stubborn.c");
/// Every way, and whether TERM alone would end it.
const WAYS: [(&str, bool); 7] = [
    ("idle", true),
    ("spinning", true),
    ("fifo", true),
    ("deaf", false),
    ("handler", false),
    ("stopped", false),
    ("vfork", false),
];
const DEADLINE: Duration = Duration::from_secs(1);

#[test]
fn p29_every_way_ends_at_the_deadline_with_its_output() {
    let instance = Instance::new();
    let test = "p29_every_way_ends_at_the_deadline";
    let Some(stubborn) = hostile(test, &instance, "stubborn", STUBBORN) else {
        return;
    };
    let limits = ["--json", "--timeout", "1s", "--grace", "300ms"];
    let runs: Vec<Running> = WAYS
        .iter()
        .map(|(way, _)| stubborn.inside(&instance, &limits, &[way, "/tmp/fifo"]))
        .collect();
    for ((way, _), run) in WAYS.iter().zip(runs) {
        let outcome = run.wait(PATIENCE).status_is(124);
        let record = outcome.json();
        assert_eq!(reason(&record), "timeout", "{way}: {record:#}");
        let took = Duration::from_micros(record["usage"]["wall_micros"].as_u64().unwrap());
        let latest = DEADLINE + Duration::from_millis(300) + Duration::from_secs(1);
        assert!(
            took >= DEADLINE && took < latest * patience(),
            "{way} took {took:?}"
        );
        let kept = std::fs::read(record["files"]["stdout"].as_str().unwrap()).unwrap();
        assert_eq!(kept, b"before\n", "{way}");
    }
    assert_nothing_left(&instance);
}

/// The control: outside, nothing ends them, and TERM ends only those that let it.
#[test]
fn p29_control_they_are_stubborn_outside() {
    let instance = Instance::new();
    let test = "p29_control_they_are_stubborn_outside";
    let Some(stubborn) = hostile(test, &instance, "stubborn", STUBBORN) else {
        return;
    };
    let folder = instance.scratch("fifos");
    let runs: Vec<(Running, bool)> = WAYS
        .iter()
        .map(|(way, ends)| {
            let fifo = folder.join(way).display().to_string();
            let run = stubborn.outside(&instance, &[way, &fifo]);
            run.await_out("before", PATIENCE);
            (run, *ends)
        })
        .collect();
    std::thread::sleep(DEADLINE + Duration::from_millis(500));
    for ((run, ends), (way, _)) in runs.into_iter().zip(WAYS) {
        assert!(alive(&run), "{way} ended by itself");
        run.signal(Signal::TERM);
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end && alive(&run) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(alive(&run), !ends, "{way} after TERM");
    }
}

/// Whether it is there and no zombie.
fn alive(run: &Running) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", run.pid())).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]);
    state.is_some_and(|state| state != b'Z')
}
