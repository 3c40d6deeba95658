//! What a supervisor has, and has not, of whoever happened to start it; and what is said when it
//! cannot work.

use std::process::Command;
use std::time::Duration;

use leasehold_e2e::{Instance, Outcome, Running};

const SOON: Duration = Duration::from_secs(20);

/// `leasehold` with these arguments, from a shell that did this first.
fn after(instance: &Instance, first: &str, args: &[&str]) -> Outcome {
    let plain = instance.command(args);
    let mut command = Command::new("bash");
    command
        .args(["-c", &format!("{first}; exec \"$0\" \"$@\"")])
        .arg(plain.get_program())
        .args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Running::start(&mut command, None).wait(SOON)
}

fn proc(pid: u32, name: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find(|line| line.starts_with(name));
    line.expect(name).split_whitespace().nth(1).unwrap()
}

/// Soft and hard limit, as `/proc` shows them.
fn limit(pid: u32, name: &str) -> (String, String) {
    let limits = proc(pid, "limits");
    let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
    let mut words = line[name.len()..].split_whitespace().map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

/// Limits, mask, signals and place of the first caller are not those of the second.
#[test]
fn a_supervisor_does_not_keep_the_state_of_its_starter() {
    let instance = Instance::new();
    let place = instance.scratch("place");
    let state = format!(
        "ulimit -S -f 4096 -n 64 -t 50 -d 4000000 -v 4000000; trap '' HUP TERM CHLD USR1; \
         umask 0; cd {}",
        place.display()
    );
    after(&instance, &state, &["run", "-q", "--", "true"]).status_is(0);
    let supervisor = instance.supervisor().expect("a supervisor");
    for name in [
        "Max file size",
        "Max open files",
        "Max cpu time",
        "Max data size",
        "Max address space",
    ] {
        let (soft, hard) = limit(supervisor, name);
        assert_eq!(soft, hard, "{name}");
    }
    let status = proc(supervisor, "status");
    // SIGPIPE is ignored by every program of ours.
    assert_eq!(field(&status, "SigIgn:"), "0000000000001000", "{status}");
    assert_eq!(field(&status, "Umask:"), "0077", "{status}");
    let cwd = std::fs::read_link(format!("/proc/{supervisor}/cwd")).unwrap();
    assert_eq!(cwd.to_str(), Some("/"));
    let stat = proc(supervisor, "stat");
    let after_name: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    assert_eq!(after_name[3], supervisor.to_string(), "its session: {stat}");
    assert_eq!(after_name[4], "0", "its terminal: {stat}");
    let script = "ulimit -S -f; ulimit -S -v; ulimit -S -t; umask; \
                  head -c 8000000 /dev/zero > /tmp/eight; stat -c %s /tmp/eight";
    let outcome = instance.run(["--", "bash", "-c", script]).status_is(0);
    assert_eq!(
        outcome.out(),
        "unlimited\nunlimited\nunlimited\n0022\n8000000\n",
        "{}",
        outcome.story()
    );
    // The control: a process that was started with the same state has it.
    let mut control = Command::new("bash");
    control.args([
        "-c",
        &format!("{state}; ulimit -S -f; exec grep SigIgn /proc/self/status"),
    ]);
    let control = Running::start(&mut control, None).wait(SOON);
    assert!(control.out().starts_with("4096\n"), "{}", control.story());
    assert!(
        !control.out().contains("\t0000000000000000"),
        "{}",
        control.story()
    );
}

/// A hard limit cannot be raised by just anybody: one that leaves no room is a refusal that names it.
#[test]
fn a_start_under_a_hard_limit_that_leaves_no_room_is_refused() {
    for (flags, named) in [
        ("-f 1000", "bytes of one file is 1024000"),
        ("-t 100", "seconds of processor time is 100"),
        ("-v 100000", "bytes of address space is 102400000"),
    ] {
        let instance = Instance::new();
        // Root may raise what it likes, unless it is told not to.
        let first = format!("ulimit {flags}");
        let mut probe = Command::new("bash");
        probe.args([
            "-c",
            &format!("{first} && ulimit -H {} unlimited", &flags[..2]),
        ]);
        if Running::start(&mut probe, None).wait(SOON).status == 0 {
            leasehold_e2e::skip("starting", "hard limits can be raised here");
            return;
        }
        let outcome = after(&instance, &first, &["run", "--", "true"]).status_is(125);
        assert!(
            outcome.err().contains(named) && outcome.err().contains("`ulimit -"),
            "{}",
            outcome.story()
        );
        assert_eq!(instance.supervisor(), None);
        instance.run(["--", "true"]).status_is(0);
    }
}

/// One that leaves room is told with every run.
#[test]
fn a_hard_limit_that_stays_is_in_the_posture() {
    let instance = Instance::new();
    let first = "ulimit -f 1048576";
    after(&instance, first, &["run", "-q", "--", "true"]).status_is(0);
    let record = instance.last_record();
    let missing = record["contract"]["posture"]["missing"].to_string();
    let supervisor = instance.supervisor().expect("a supervisor");
    if limit(supervisor, "Max file size").1 == "unlimited" {
        leasehold_e2e::skip("starting", "hard limits can be raised here");
        return;
    }
    assert!(missing.contains("rlimit fsize 1073741824"), "{missing}");
}

/// A supervisor is begun before the flags of a run are read; one that nobody wants then leaves no trace.
#[test]
fn a_refused_flag_leaves_no_supervisor() {
    let instance = Instance::new();
    instance.run(["--", "true"]).status_is(0);
    let before = instance.stopped_inventory();
    let log = std::fs::read_to_string(instance.run_folder().join("supervisor.log")).unwrap();
    for refused in [&["run", "--no-such", "--", "true"][..], &["run", "--help"]] {
        let outcome = instance.cli(refused);
        assert!(outcome.out().contains("Usage") || outcome.status == 2);
        leasehold_e2e::until("what was begun to leave", SOON, || {
            instance.supervisor().is_none().then_some(())
        });
    }
    assert_eq!(instance.inventory(), before);
    let after = std::fs::read_to_string(instance.run_folder().join("supervisor.log")).unwrap();
    assert_eq!(after, log, "it said something");
    // The control: one that is wanted stays.
    instance.run(["--", "true"]).status_is(0);
    assert!(instance.supervisor().is_some());
}

/// Several starters at once: every run is served, by one supervisor.
#[test]
fn starters_at_once_are_served_by_one_supervisor() {
    let instance = Instance::new();
    let runs: Vec<Running> = (0..6)
        .map(|_| instance.start(["run", "--json", "--", "true"]))
        .collect();
    for run in runs {
        run.wait(Duration::from_secs(60)).status_is(0);
    }
    let log = std::fs::read_to_string(instance.run_folder().join("supervisor.log")).unwrap();
    assert!(!log.contains("cannot"), "{log}");
}

/// The socket of a killed supervisor goes with the rest, and a list tells no dead run as alive.
#[test]
fn what_a_dead_supervisor_left_is_seen_by_whoever_looks() {
    let instance = Instance::new();
    let run = instance.start(["run", "--", "sh", "-c", "echo up; sleep 60"]);
    run.await_out("up", SOON);
    let supervisor = instance.supervisor().expect("a supervisor");
    run.signal(rustix::process::Signal::KILL);
    let pid = rustix::process::Pid::from_raw(supervisor.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    run.wait(SOON);
    leasehold_e2e::until("the supervisor to be gone", SOON, || {
        instance.supervisor().is_none().then_some(())
    });
    let socket = instance.run_folder().join("supervisor.sock");
    assert!(socket.exists(), "the control: it was left");
    let listed = instance.cli(["runs", "--json"]).status_is(0).json();
    assert_eq!(listed[0]["end"]["reason"], "host_lost", "{listed:#}");
    assert!(!socket.exists(), "a stale socket is left");
    let said = instance.cli(["sweep"]).status_is(0).out();
    assert_eq!(said, "nothing is left behind\n");
}
