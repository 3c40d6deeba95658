//! Many cycles, with deaths of parts and without (P88): what daemon and worker hold is back at its base.

use std::fs;
use std::time::{Duration, Instant};

use leasehold_e2e::{Daemon, Inventory, patience, until};
use rustix::process::{Pid, Signal, kill_process};

use super::{SOON, agree, assert_nothing_left, script};

/// How many cycles with deaths; `cargo xtask soak` does 2,000 of both kinds.
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
fn p88_after_cycles_with_deaths_the_daemon_holds_what_it_held() {
    let count = asked(CYCLES);
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
                for number in (caller..count).step_by(CALLERS) {
                    cycle(daemon, number);
                }
            });
        }
    });
    let rows = daemon.rows("");
    assert!(rows.len() >= count.min(500), "{}", rows.len());
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

/// How many cycles without deaths.
const FLAT: usize = 200;
/// How many short ones go before the base is taken: caches and arenas are filled by then, and not before.
const BEFORE: usize = 800;

fn lines_of(path: &str) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// What must not grow with the number of runs, of the daemon, its worker, the spawner and the host.
fn sizes(daemon: &Daemon) -> Vec<(String, usize)> {
    let inventory = daemon.inventory();
    let mut sizes: Vec<(String, usize)> = [
        "processes",
        "cgroups",
        "netns",
        "mounts",
        "loops",
        "uids",
        "scratch",
        "temp",
        "holders",
    ]
    .map(|kind| (kind.to_owned(), inventory.count(kind)))
    .to_vec();
    let spawner = inventory.all("processes").into_iter().find_map(|line| {
        let named = line.contains("lease-spawner");
        line.split(' ')
            .next()
            .filter(|_| named)?
            .parse::<u32>()
            .ok()
    });
    for (who, pid) in [
        ("daemon", Some(daemon.pid())),
        ("worker", daemon.supervisor()),
        ("spawner", spawner),
    ] {
        let pid = pid.unwrap_or_else(|| panic!("no {who}"));
        let held = held(pid);
        let mut add = |what: &str, size: usize| sizes.push((format!("{who}: {what}"), size));
        add("descriptors", held.fds);
        add("threads", held.threads);
        add("resident KiB", usize::try_from(held.rss_kib).unwrap());
        add("mounts", lines_of(&format!("/proc/{pid}/mountinfo")));
    }
    let (own, worker) = (
        daemon.instance().state().join("daemon"),
        daemon.worker_state(),
    );
    for (what, folder) in [
        ("half objects", own.join("objects/incoming")),
        ("trees", own.join("trees")),
        ("folders made ahead", worker.join("blank")),
        ("open records", worker.join("open")),
        ("spare files", worker.join("spare")),
    ] {
        let count = fs::read_dir(folder).map_or(0, Iterator::count);
        sizes.push((what.to_owned(), count));
    }
    sizes
}

/// How many cycles; more where that is asked for.
fn asked(usual: usize) -> usize {
    let told = std::env::var("LEASEHOLD_SOAK").ok();
    told.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// So many create, execute and destroy cycles, a few at a time; one in three is cancelled.
fn cycles(daemon: &Daemon, count: usize) {
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            scope.spawn(move || {
                for number in (caller..count).step_by(CALLERS) {
                    let text = ["true", "echo x", "sleep 5"][number % 3];
                    let path = "/v1/runs?wait=none";
                    let asked = daemon.ask("POST", path, daemon.key(), &[], Some(&script(text)));
                    let run = asked.expect("an answer").status_is(202).run();
                    if number % 3 == 2 {
                        let path = format!("/v1/runs/{run}/cancel");
                        let asked = daemon.ask("POST", &path, daemon.key(), &[], None);
                        asked.expect("an answer");
                    }
                    daemon.sealed(&run, SOON);
                }
            });
        }
    });
}

/// Short runs, so many that what is kept for speed is as large as it gets.
fn fill(daemon: &Daemon) {
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                for _ in 0..BEFORE / CALLERS {
                    let path = "/v1/runs?wait=cleanup";
                    daemon.post(path, &[], &script("true")).status_is(200);
                }
            });
        }
    });
}

/// Within five hundredths, and never less than what one more of a thing, or one arena of memory, is.
fn within(name: &str, base: usize, now: usize) -> bool {
    let most = match name.ends_with("KiB") {
        true => base + base / 20 + 1_024,
        false => base + (base / 20).max(1),
    };
    now <= most
}

#[test]
fn p88_after_many_cycles_daemon_worker_and_host_hold_what_they_held() {
    let daemon = Daemon::start(&["--warm", "1"], &[]);
    fill(&daemon);
    cycles(&daemon, 24);
    agree_but_pool(&daemon);
    let base = sizes(&daemon);
    let (count, worker) = (asked(FLAT), daemon.supervisor());
    let begun = Instant::now();
    cycles(&daemon, count);
    eprintln!("{count} cycles in {:?}", begun.elapsed());
    agree_but_pool(&daemon);
    let end = Instant::now() + SOON * patience();
    loop {
        let now = sizes(&daemon);
        let grown: Vec<String> = base
            .iter()
            .zip(&now)
            .filter(|((name, base), (_, now))| !within(name, *base, *now))
            .map(|((name, base), (_, now))| format!("{name}: {base} to {now}"))
            .collect();
        if grown.is_empty() {
            eprintln!("{base:?}\n{now:?}");
            break;
        }
        assert!(Instant::now() < end, "grown: {grown:?}\n{base:?}\n{now:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(daemon.supervisor(), worker, "the same worker all the time");
    // The control: the same look sees what is held on to.
    let before = held(daemon.pid()).fds;
    let address = daemon
        .url()
        .strip_prefix("http://")
        .expect("its address")
        .to_owned();
    let held_on: Vec<_> = (0..40)
        .map(|_| std::net::TcpStream::connect(&address).expect("reach it"))
        .collect();
    until("connections that are seen", SOON, || {
        (!within("descriptors", before, held(daemon.pid()).fds)).then_some(())
    });
    drop(held_on);
    let left = daemon.stopped_inventory();
    assert!(left.is_empty(), "left on the host:\n{left}");
}

/// Nothing is left but the sandbox that waits.
fn agree_but_pool(daemon: &Daemon) {
    until("nothing but the pool", SOON, || {
        let rows = ["running", "ended", "queued"];
        let over = rows
            .iter()
            .all(|state| daemon.rows(&format!("&state={state}")).is_empty());
        (over && daemon.sandboxes().len() == 1 && daemon.inventory().inits().len() == 1)
            .then_some(())
    });
}
