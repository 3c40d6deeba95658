//! Many callers: two hundred under one key (P69), and one tenant that floods beside one that does not (P34).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold_e2e::{Answer, Daemon, patience};
use serde_json::Value;

use super::{SOON, assert_nothing_left, reason, script, tenant};

/// Callers under one key.
const CALLERS: usize = 200;
/// What a flooding tenant asks for, and how many of it run at once: all of ten places but the one that is
/// for tenants that hold none.
const FLOOD: usize = 1_000;
const QUOTA: usize = 9;
/// How long each run of the flood holds its computer.
const HELD: Duration = Duration::from_secs(1);
/// Runs of the other tenant, one each second.
const CALM: usize = 10;

fn create(daemon: &Daemon, key: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let path = "/v1/runs?wait=none";
    let asked = daemon.ask("POST", path, key, headers, Some(body));
    asked.unwrap_or_else(|error| panic!("no answer: {error}"))
}

#[test]
fn p69_two_hundred_creates_under_one_key_are_one_sandbox() {
    let daemon = Daemon::start(&["--warm", "0"], &[]);
    let other = tenant(&daemon, "other", "{running: 4}");
    let headers = [("idempotency-key", "the-one")];
    let body = script("echo x; sleep 2");
    let runs: BTreeSet<String> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| scope.spawn(|| create(&daemon, daemon.key(), &headers, &body)))
            .collect();
        let answers = callers.into_iter().map(|caller| caller.join().unwrap());
        answers.map(|answer| answer.status_is(202).run()).collect()
    });
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert!(daemon.sandboxes().len() <= 1, "{:?}", daemon.sandboxes());
    let conflict = create(&daemon, daemon.key(), &headers, &script("echo y"));
    assert_eq!(conflict.status_is(409).json["error"]["code"], "conflict");
    let apart = create(&daemon, &other, &headers, &script("echo y")).status_is(202);
    assert!(!runs.contains(&apart.run()), "tenants are apart");
    let run = runs.first().unwrap();
    let hidden = daemon.ask("GET", &format!("/v1/runs/{run}"), &other, &[], None);
    assert_eq!(hidden.unwrap().status, 404, "another tenant's run");
    assert_eq!(reason(&daemon.sealed(run, SOON)), "completed");
    assert_eq!(reason(&daemon.sealed(&apart.run(), SOON)), "completed");
    assert_eq!(daemon.taken(), 2, "one for each tenant");
    // Also when it is over.
    let late = create(&daemon, daemon.key(), &headers, &body);
    assert_eq!(&late.status_is(202).run(), run);
    assert_nothing_left(&daemon);
}

fn p95(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[(times.len() * 95).div_ceil(100) - 1]
}

/// The runs of a calm tenant, one each second; gives how long each took.
fn calm(daemon: &Daemon, key: &str, count: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        let asked = daemon.ask("POST", "/v1/runs", key, &[], Some(&script("true")));
        assert_eq!(reason(&asked.unwrap().status_is(200).json), "completed");
        times.push(begun.elapsed());
        std::thread::sleep(Duration::from_secs(1).saturating_sub(begun.elapsed()));
    }
    times
}

/// Runs of a tenant that hold a computer now.
fn running(daemon: &Daemon, key: &str) -> usize {
    let asked = daemon.ask("GET", "/v1/runs?state=running&limit=500", key, &[], None);
    let page = asked.unwrap().status_is(200).json;
    page["runs"].as_array().map_or(0, Vec::len)
}

#[test]
fn p34_a_thousand_queued_runs_do_not_move_another_tenants_p95() {
    let daemon = Daemon::start(&["--warm", "2", "--running-max", "10"], &[]);
    let share = "{running: 10, queued: 2000, per_minute: 100000}";
    let (noisy, quiet) = (
        tenant(&daemon, "noisy", share),
        tenant(&daemon, "quiet", share),
    );
    let alone = p95(calm(&daemon, &quiet, 3));
    let (stop, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
    let flood = script(&format!("sleep {}", HELD.as_secs()));
    let (times, most) = std::thread::scope(|scope| {
        let floods: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..FLOOD / 8 {
                        let answer = create(&daemon, &noisy, &[], &flood);
                        refused.fetch_add(usize::from(answer.status != 202), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !stop.load(Ordering::Relaxed) {
                most = most.max(running(&daemon, &noisy));
                std::thread::sleep(Duration::from_millis(50));
            }
            most
        });
        for flood in floods {
            flood.join().unwrap();
        }
        let times = calm(&daemon, &quiet, CALM);
        stop.store(true, Ordering::Relaxed);
        (times, watch.join().unwrap())
    });
    assert_eq!(refused.load(Ordering::Relaxed), 0, "all fit in the queue");
    assert_eq!(most, QUOTA, "it never has more, and uses what it may have");
    let queued = daemon.ask("GET", "/v1/runs?state=queued&limit=500", &noisy, &[], None);
    let queued = queued.unwrap().json["runs"].as_array().map_or(0, Vec::len);
    assert!(queued > 100, "the flood is still there: {queued}");
    let crowded = p95(times);
    eprintln!("p95 alone {alone:?}, beside {FLOOD} queued runs {crowded:?}");
    // The length of one run of the other tenant, and what making and ending one takes on a busy host.
    let bound = alone + (HELD + Duration::from_millis(500)) * patience();
    assert!(crowded <= bound, "{crowded:?} beyond {bound:?}");
}
