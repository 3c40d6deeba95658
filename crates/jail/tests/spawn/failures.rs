//! A sandbox that cannot be made leaves nothing, and the death of anybody ends what depends on it.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use leasehold_jail::spawn::{MakeStep, SpawnError, Spawner, SpawnerConfig};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use crate::rig::{expect, make, make_with, spawner, spec};
use crate::{Case, Outcome};

pub(crate) const CASES: &[Case] = &[
    ("failure_names_its_step_and_leaves_nothing", steps),
    ("failure_by_deadline_leaves_nothing", deadline),
    ("failure_of_the_spawner_is_told", lost_spawner),
    (
        "death_of_the_caller_ends_sandboxes_and_spawner",
        lost_caller,
    ),
    ("end_of_the_spawner_leaves_sandboxes_alive", dropped_spawner),
    ("texts_of_many_shapes_do_not_pile_up", shapes),
];

/// First argument of this program as the caller that is going to be killed.
pub(crate) const MARK: &str = "--as-doomed-caller";

/// Whether this process has a child that nobody reaped.
fn unreaped() -> bool {
    matches!(wait(WaitOptions::NOHANG), Ok(Some(_)))
}

fn failed(result: Result<crate::rig::Sandbox, SpawnError>, step: MakeStep) -> Outcome {
    let error = match result {
        Ok(_) => return Err(format!("made in spite of {step}")),
        Err(error) => error,
    };
    expect(
        error.step() == Some(step),
        format!("{step} failed as {error:?}"),
    )?;
    expect(error.errno().is_some(), format!("no number in {error:?}"))?;
    expect(!unreaped(), format!("{step} left a process"))
}

fn steps() -> Outcome {
    let text = memfd_create("text", MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&text, b"not a program").unwrap();
    let mut broken = Spawner::start(SpawnerConfig {
        init: text,
        rootless: None,
    })
    .map_err(|error| format!("{error:?}"))?;
    failed(make(&mut broken, &spec(), None), MakeStep::Exec)?;

    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let groups = [null.as_fd()];
    failed(
        make_with(&mut spawner, &spec(), None, None, &groups),
        MakeStep::Cgroup,
    )?;
    let mut order = spec();
    order.cores = vec![1_000];
    failed(make(&mut spawner, &order, None), MakeStep::Inherited)?;
    // The control, by the same spawner: the same order without the mistake.
    let sandbox = make(&mut spawner, &spec(), None).map_err(|error| format!("{error:?}"))?;
    sandbox.out("true").map(drop)
}

fn deadline() -> Outcome {
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let mut order = spec();
    order.deadline = Duration::from_millis(1);
    // A fast machine may make one in a millisecond; then it is a sandbox and not a failure.
    for _ in 0..20 {
        match make(&mut spawner, &order, None) {
            Ok(_) => {}
            Err(error) => {
                expect(
                    error.step() == Some(MakeStep::Deadline),
                    format!("{error:?}"),
                )?;
                expect(!unreaped(), "a process is left")?;
                let made = make(&mut spawner, &spec(), None);
                return made.map(drop).map_err(|error| format!("{error:?}"));
            }
        }
    }
    Err("SKIP: this machine makes a sandbox within a millisecond".into())
}

fn lost_spawner() -> Outcome {
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    rustix::process::pidfd_send_signal(spawner.pidfd(), Signal::KILL).unwrap();
    match make(&mut spawner, &spec(), None) {
        Err(error) => {
            expect(error.spawner_lost(), format!("{error:?}"))?;
            let again = make(&mut spawner, &spec(), None).err();
            expect(
                again.is_some_and(|error| error.spawner_lost()),
                "the lost spawner made something",
            )
        }
        Ok(_) => Err("a dead spawner made a sandbox".into()),
    }
}

fn dropped_spawner() -> Outcome {
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let sandbox = make(&mut spawner, &spec(), None).map_err(|error| format!("{error:?}"))?;
    let pid = spawner.pid();
    drop(spawner);
    expect(
        !std::path::Path::new(&format!("/proc/{pid}")).exists(),
        "the spawner is left",
    )?;
    sandbox.out("true").map(drop)
}

/// Makes a sandbox, tells the process ids, and waits to be killed.
pub(crate) fn doomed() -> ExitCode {
    let Ok(mut spawner) = spawner(None) else {
        return ExitCode::FAILURE;
    };
    let Ok(sandbox) = make(&mut spawner, &spec(), None) else {
        return ExitCode::FAILURE;
    };
    println!("{} {}", spawner.pid(), sandbox.made.pid);
    crate::rig::readable(std::io::stdin().as_fd(), 60);
    ExitCode::FAILURE
}

fn lost_caller() -> Outcome {
    let mut caller = Command::new("/proc/self/exe")
        .arg(MARK)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut line = String::new();
    BufReader::new(caller.stdout.take().unwrap())
        .read_line(&mut line)
        .map_err(|error| error.to_string())?;
    let pids: Vec<u32> = line
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect();
    let alive = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    expect(
        pids.len() == 2 && pids.iter().all(alive),
        format!("not alive: {line}"),
    )?;
    kill_process(Pid::from_child(&caller), Signal::KILL).unwrap();
    caller.wait().map_err(|error| error.to_string())?;
    let until = Instant::now() + Duration::from_secs(10);
    while pids.iter().any(alive) {
        if Instant::now() > until {
            return Err(format!("of spawner and init {pids:?} one is left"));
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn shapes() -> Outcome {
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let first = make(&mut spawner, &spec(), None).map_err(|error| format!("{error:?}"))?;
    for number in 1..=80_u64 {
        let mut order = spec();
        order.memory_bytes = (100 + number) << 20;
        let sandbox = make(&mut spawner, &order, None).map_err(|error| format!("{error:?}"))?;
        let total = sandbox.out("awk '/^MemTotal/ {print $2}' /proc/meminfo")?;
        expect(
            total == ((100 + number) << 10).to_string(),
            format!("shape {number} shows {total}"),
        )?;
    }
    // Its texts are long evicted, and shown all the same.
    let total = first.out("awk '/^MemTotal/ {print $2}' /proc/meminfo; nproc")?;
    expect(total == "262144\n1", format!("the first shows {total}"))?;
    let kept = std::fs::read_dir(format!("/proc/{}/root/sys", spawner.pid()))
        .map_err(|error| error.to_string())?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("limits-"))
        .count();
    expect(kept == 64, format!("{kept} sets are kept"))
}
