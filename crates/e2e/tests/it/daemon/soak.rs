//! Three hundred cycles with random deaths of parts (P88): what the daemon holds is back at its base.

use std::fs;
use std::time::{Duration, Instant};

use leasehold_e2e::{Daemon, Inventory, patience, until};
use rustix::process::{Pid, Signal, kill_process};

use super::{SOON, agree, assert_nothing_left, script};

const CYCLES: usize = 300;
/// Callers at once.
const CALLERS: usize = 4;
/// Every so many cycles something is killed: 5 %.
const DEATH_EVERY: usize = 20;
/// What may be held beyond the base: descriptors (a caller's connection or two), threads (of the runtime's
/// pool, which come and go), memory in KiB (arenas and caches; 300 rows of runs are not in memory).
const FDS: usize = 4;
const THREADS: usize = 4;
const RSS_KIB: u64 = 24 << 10;

/// Descriptors, threads and memory of a process.
#[derive(Debug, Clone, Copy)]
struct Held {
    fds: usize,
    threads: usize,
    rss_kib: u64,
}

fn held(pid: u32) -> Held {
    let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let rss = rss.and_then(|text| text.split_whitespace().next()?.parse().ok());
    Held {
        fds: count("fd"),
        threads: count("task"),
        rss_kib: rss.unwrap_or(0),
    }
}

/// What the descriptors of a process are, a line each.
fn descriptors(pid: u32) -> String {
    let all = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let links = all.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links.map(|link| format!("{}\n", link.display())).collect()
}

/// Kinds of things that a sandbox is made of.
fn things(inventory: &Inventory) -> Vec<usize> {
    let kinds = ["cgroups", "mounts", "loops", "uids", "scratch", "temp"];
    kinds.map(|kind| inventory.count(kind)).to_vec()
}

fn kill(pid: Option<i32>) {
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        kill_process(pid, Signal::KILL).ok();
    }
}

/// One death of a part: in turn an init, the spawner, the supervisor.
fn strike(daemon: &Daemon, turn: usize) {
    let inventory = daemon.inventory();
    match turn % 5 {
        4 => kill(daemon.supervisor().map(u32::cast_signed)),
        3 => {
            let spawner = inventory
                .all("processes")
                .into_iter()
                .find(|process| process.contains("lease-spawner"));
            kill(spawner.and_then(|process| process.split(' ').next()?.parse().ok()));
        }
        _ => kill(inventory.inits().last().copied()),
    }
}

fn cycle(daemon: &Daemon, number: usize) {
    let text = ["true", "echo x; sleep 0.05", "sleep 5"][number % 3];
    let key = daemon.key();
    let path = "/v1/runs?wait=none";
    let asked = daemon.ask("POST", path, key, &[], Some(&script(text)));
    let run = asked.expect("an answer").status_is(202).run();
    if number % 3 == 2 {
        let path = format!("/v1/runs/{run}/cancel");
        daemon
            .ask("POST", &path, key, &[], None)
            .expect("an answer");
    }
    if number.is_multiple_of(DEATH_EVERY) {
        strike(daemon, number / DEATH_EVERY);
    }
    daemon.sealed(&run, SOON);
}

#[test]
fn p88_after_three_hundred_cycles_with_deaths_the_daemon_holds_what_it_held() {
    let daemon = Daemon::start(&["--warm", "0"], &[]);
    // What is made once, on first use, is not what is looked for.
    for number in 0..12 {
        if number % DEATH_EVERY != 0 {
            cycle(&daemon, number);
        }
    }
    agree(&daemon, Duration::from_secs(4));
    let (base, made) = (held(daemon.pid()), things(&daemon.inventory()));
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let daemon = &daemon;
            scope.spawn(move || {
                for number in (caller..CYCLES).step_by(CALLERS) {
                    cycle(daemon, number);
                }
            });
        }
    });
    let rows = daemon.rows("");
    assert!(rows.len() > CYCLES, "{}", rows.len());
    assert!(rows.iter().all(|row| row["state"] == "sealed"));
    agree(&daemon, Duration::from_secs(4));
    // A worker that was killed last is started by whoever needs it.
    daemon
        .post("/v1/runs?wait=cleanup", &[], &script("true"))
        .status_is(200);
    until("the host back at its base", SOON, || {
        (things(&daemon.inventory()) == made).then_some(())
    });
    let end = Instant::now() + SOON * patience();
    let now = loop {
        let now = held(daemon.pid());
        if now.fds <= base.fds + FDS && now.threads <= base.threads + THREADS {
            break now;
        }
        let open = descriptors(daemon.pid());
        assert!(Instant::now() < end, "{base:?}, {now:?}:\n{open}");
        std::thread::sleep(Duration::from_millis(100));
    };
    eprintln!("base {base:?}, now {now:?}");
    assert!(now.rss_kib <= base.rss_kib + RSS_KIB, "{base:?} {now:?}");
    assert_nothing_left(&daemon);
}
