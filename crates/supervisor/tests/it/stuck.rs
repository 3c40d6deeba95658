//! A sandbox that outlives its kill, in earnest: frozen by a v1 freezer, in which `SIGKILL` waits until
//! it is thawed, as it does for a process that the kernel does not let go.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold_core::end::{CancelledBy, EndReason};
use leasehold_core::error::ErrorKind;
use leasehold_core::record::Observed;
use leasehold_core::sandbox::state::State;
use leasehold_core::spec::SandboxSpec;
use leasehold_core::stage::Stage;
use leasehold_protocol::supervisor::{Event, Request, SandboxStatus, Target};
use leasehold_supervisor::records::Records;

use crate::harness::{Client, Supervisor, eventually, run_id, sees_namespaces, shell};

/// Where a v1 freezer is mounted, if one is.
const FREEZER: &str = "/sys/fs/cgroup/freezer";
/// How long a killed sandbox may take to die.
const BOUND: Duration = Duration::from_secs(5);

/// A group of the v1 freezer. What is in it is thawed, and the group removed, on drop.
struct Ice(PathBuf);

impl Ice {
    /// Freezes every process of a supervisor's sandboxes; none where this machine cannot.
    fn over(test: &str, supervisor: &Supervisor) -> Option<Self> {
        let ice = Self(Path::new(FREEZER).join(format!("{test}-{}", std::process::id())));
        if let Err(error) = fs::create_dir(&ice.0) {
            eprintln!("SKIP {test}: no v1 freezer: {error}");
            return None;
        }
        let mut pids = 0;
        for group in supervisor.cgroups() {
            let procs = fs::read_to_string(group.join("cgroup.procs")).unwrap();
            for pid in procs.lines() {
                fs::write(ice.0.join("cgroup.procs"), pid).unwrap();
                pids += 1;
            }
        }
        assert!(pids > 0, "nothing to freeze");
        fs::write(ice.0.join("freezer.state"), "FROZEN").unwrap();
        eventually("all is frozen", || ice.state() == "FROZEN");
        Some(ice)
    }

    fn state(&self) -> String {
        let state = fs::read_to_string(self.0.join("freezer.state")).unwrap_or_default();
        state.trim().to_owned()
    }

    fn thaw(&self) {
        fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
    }
}

impl Drop for Ice {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        let end = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn status(client: &mut Client) -> Vec<SandboxStatus> {
    match client.ask(Request::Status).0 {
        Event::Status { sandboxes } => sandboxes,
        other => panic!("{other:?}"),
    }
}

fn provision(client: &mut Client) -> Result<(), ErrorKind> {
    let sandbox = SandboxSpec::default();
    match client
        .ask(Request::Provision {
            sandbox,
            held: false,
        })
        .0
    {
        Event::Provisioned { .. } => Ok(()),
        Event::Refused(error) => Err(error.kind),
        other => panic!("{other:?}"),
    }
}

/// Starts a run that does not end by itself.
fn begin(client: &mut Client, letter: u8) {
    let exec = shell("sleep 1000");
    client.start(letter, Target::New(SandboxSpec::default()), exec, &[]);
    while !matches!(client.next().unwrap().0.event, Event::Stage(t) if t.stage == Stage::Inject) {}
}

fn leases(supervisor: &Supervisor) -> usize {
    let ledger = supervisor.paths.ledger();
    let found = fs::read_dir(leasehold_supervisor::uids::REGISTRY).unwrap();
    let holders = found.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    holders
        .filter(|holder| *holder == ledger.to_string_lossy())
        .count()
}

fn attempts(supervisor: &Supervisor) -> usize {
    supervisor.log().matches(": attempt ").count()
}

#[track_caller]
fn names_what_lives(observed: &Observed) {
    assert!(!observed.clean());
    let rows = &observed.residues;
    let unseen = !sees_namespaces();
    for resource in ["processes", "cgroups", "mounts", "netns", "uids"] {
        let row = rows.iter().find(|row| row.resource == resource).unwrap();
        assert!(!row.clean, "{resource}: {rows:?}");
        let inferred = unseen && matches!(resource, "mounts" | "netns");
        assert_eq!(row.inferred, inferred, "{resource}: {rows:?}");
    }
    assert!(
        rows[0].detail.contains("still there after its kill"),
        "{rows:?}"
    );
}

/// P89: named within the bound, held apart, tried again now and then, and freed when it is gone.
#[test]
fn p89_a_sandbox_that_outlives_its_kill_is_told_held_apart_and_freed_at_last() {
    // Two sandboxes fit so many descriptors.
    let Some(mut supervisor) = Supervisor::start_with("stuck-run", &[("NOFILE", "184")]) else {
        return;
    };
    let mut client = supervisor.connect();
    begin(&mut client, 1);
    let init = status(&mut client)[0].init_pid;
    let Some(ice) = Ice::over("stuck-run", &supervisor) else {
        return;
    };
    let killed = Instant::now();
    let (run, by, at_once) = (run_id(1), CancelledBy::Caller, true);
    client.send(Request::Cancel { run, by, at_once }, &[]);
    let record = loop {
        if let Event::Cleaned(record) = client.next().unwrap().0.event {
            break record;
        }
    };
    let took = killed.elapsed();
    assert!(
        took >= BOUND && took < BOUND + Duration::from_secs(2),
        "{took:?}"
    );
    assert!(matches!(record.end, Some(EndReason::Cancelled { .. })));
    names_what_lives(&record.cleanup.unwrap());
    let records = Records::open(&supervisor.paths).unwrap();
    names_what_lives(&records.read(&run_id(1)).unwrap().unwrap().cleanup.unwrap());
    assert!(
        Path::new(&format!("/proc/{init}")).exists(),
        "the control: it lives"
    );

    // Its block and its place are taken.
    assert_eq!(status(&mut client)[0].state, State::Stuck);
    assert_eq!((leases(&supervisor), supervisor.ledger().len()), (1, 1));
    assert_eq!(provision(&mut client), Ok(()));
    assert_eq!(provision(&mut client), Err(ErrorKind::NoCapacity));

    // One attempt in 10 s, and next to no work for it.
    let (begun, before) = (Instant::now(), supervisor.cpu_ms().0);
    eventually("an attempt", || attempts(&supervisor) > 0);
    assert!(killed.elapsed() > BOUND + Duration::from_secs(9));
    std::thread::sleep(Duration::from_secs(14).saturating_sub(begun.elapsed()));
    assert_eq!(attempts(&supervisor), 1, "{}", supervisor.log());
    assert!(supervisor.cpu_ms().0 - before < 500);
    assert_eq!(leases(&supervisor), 2, "{}", supervisor.log());

    // Gone at last: nobody has to ask, and nothing waits for the next attempt.
    ice.thaw();
    let thawed = Instant::now();
    eventually("its block and its place are free", || {
        leases(&supervisor) == 1 && status(&mut client).len() == 1
    });
    assert!(
        thawed.elapsed() < Duration::from_secs(3),
        "{}",
        supervisor.log()
    );
    assert!(!Path::new(&format!("/proc/{init}")).exists(), "a zombie");
    assert_eq!(provision(&mut client), Ok(()));
    drop(ice);
    supervisor.kill();
    supervisor.succeed();
    assert!(supervisor.ledger().is_empty());
}

/// The end of the supervisor does not wait for what does not end, and its successor neither: it
/// carries on with what it cannot remove.
#[test]
fn stop_and_the_next_start_do_not_wait_for_sandboxes_that_outlive_their_kill() {
    let Some(mut supervisor) = Supervisor::start("stuck-stop") else {
        return;
    };
    let mut client = supervisor.connect();
    for letter in 1..=3 {
        begin(&mut client, letter);
    }
    let Some(ice) = Ice::over("stuck-stop", &supervisor) else {
        return;
    };
    let stopped = Instant::now();
    client.send(Request::Stop, &[]);
    let mut not_clean = 0;
    while let Some((notice, _)) = client.next() {
        if let Event::Cleaned(record) = notice.event {
            names_what_lives(&record.cleanup.unwrap());
            not_clean += 1;
        }
    }
    assert!(stopped.elapsed() < BOUND + Duration::from_secs(4));
    assert_eq!(not_clean, 3);
    assert!(supervisor.child.wait().unwrap().success());
    assert_eq!((leases(&supervisor), supervisor.ledger().len()), (3, 3));

    let begun = Instant::now();
    supervisor.succeed();
    let mut client = supervisor.connect();
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    let stuck = status(&mut client);
    assert_eq!(stuck.len(), 3);
    assert!(stuck.iter().all(|one| one.state == State::Stuck));
    let done = client.run(9, SandboxSpec::default(), shell("echo x"));
    assert_eq!(done.stdout, b"x\n");
    ice.thaw();
    eventually("all is removed", || status(&mut client).is_empty());
    assert_eq!((leases(&supervisor), supervisor.ledger().len()), (0, 0));
}
