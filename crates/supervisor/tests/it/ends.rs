//! Every way a run can end, as the record names it.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use leasehold_core::end::{EndReason, ExitStatus};
use leasehold_core::limits::{Limit, Limits, OnDenied, OnOutputLimit, Resource};
use leasehold_core::spec::{ExecSpec, SandboxSpec};
use leasehold_core::stage::Stage;
use leasehold_protocol::supervisor::{Event, Request};

use crate::harness::{Finished, Supervisor, agent_program, shell};

fn limited(change: impl FnOnce(&mut Limits)) -> SandboxSpec {
    let mut spec = SandboxSpec::default();
    change(&mut spec.limits);
    spec
}

fn clean(done: &Finished) {
    let cleanup = done.cleaned.cleanup.as_ref().unwrap();
    assert!(cleanup.clean(), "{cleanup:?}");
}

fn which(done: &Finished) -> Resource {
    match &done.ended.end {
        Some(EndReason::ResourceExceeded { hit, .. }) => hit.which,
        other => panic!(
            "{other:?}; stderr {:?}",
            String::from_utf8_lossy(&done.stderr)
        ),
    }
}

#[test]
fn a_command_that_returns_0_is_completed_in_seven_stages() {
    let Some(supervisor) = Supervisor::start("ends-true") else {
        return;
    };
    let done = supervisor
        .connect()
        .run(1, SandboxSpec::default(), ExecSpec::command(["true"]));
    assert_eq!(
        done.ended.end,
        Some(EndReason::Completed),
        "{}",
        supervisor.log()
    );
    let stages: Vec<Stage> = done.stages.iter().map(|time| time.stage).collect();
    assert_eq!(stages, Stage::ALL);
    clean(&done);
    assert_eq!(done.cleaned.stages.len(), 7);
    assert_eq!(supervisor.ledger(), [""; 0]);
    assert_eq!(supervisor.cgroups(), [""; 0].map(std::path::PathBuf::from));
}

#[test]
fn statuses_signals_and_missing_commands_are_told_apart() {
    let Some(supervisor) = Supervisor::start("ends-status") else {
        return;
    };
    let mut client = supervisor.connect();
    let tool = |exit| Some(EndReason::ToolError { exit });
    let cases = [
        (shell("exit 7"), tool(ExitStatus::Exit { code: 7 })),
        (shell("kill -9 $$"), tool(ExitStatus::Signal { number: 9 })),
        (ExecSpec::command(["/no/such"]), tool(ExitStatus::NotFound)),
        (ExecSpec::command(["no-such"]), tool(ExitStatus::NotFound)),
        (
            ExecSpec::command(["/etc/passwd"]),
            tool(ExitStatus::NotExecutable),
        ),
    ];
    for (at, (exec, end)) in cases.into_iter().enumerate() {
        let done = client.run(at as u8, SandboxSpec::default(), exec);
        assert_eq!(done.ended.end, end);
        clean(&done);
    }
    let exec = ExecSpec {
        cwd: Some("/no/such".into()),
        ..shell("true")
    };
    let done = client.run(99, SandboxSpec::default(), exec);
    assert!(matches!(
        done.ended.end,
        Some(EndReason::SandboxUnavailable { .. })
    ));
    clean(&done);
}

#[test]
fn the_wall_limit_ends_what_ignores_term_and_keeps_its_output() {
    let Some(supervisor) = Supervisor::start("ends-wall") else {
        return;
    };
    let spec = limited(|limits| {
        limits.wall_ms = Limit::asked(300);
        limits.grace_ms = 200;
    });
    let exec = shell("trap '' TERM; echo before; while :; do sleep 1; done");
    let done = supervisor.connect().run(1, spec, exec);
    assert_eq!(done.ended.end, Some(EndReason::Timeout { limit_ms: 300 }));
    assert_eq!(done.stdout, b"before\n");
    assert!(done.took.as_millis() < 1_500, "{:?}", done.took);
    clean(&done);
}

#[test]
fn a_command_that_heeds_term_ends_within_the_grace_as_a_timeout() {
    let Some(supervisor) = Supervisor::start("ends-term") else {
        return;
    };
    let spec = limited(|limits| {
        limits.wall_ms = Limit::asked(200);
        limits.grace_ms = 20_000;
    });
    let exec = shell("trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done");
    let done = supervisor.connect().run(1, spec, exec);
    assert_eq!(done.ended.end, Some(EndReason::Timeout { limit_ms: 200 }));
    assert_eq!(done.stdout, b"bye\n");
    assert_eq!(done.ended.exit, Some(ExitStatus::Exit { code: 0 }));
    assert!(done.took.as_secs() < 5);
}

#[test]
fn memory_ends_the_whole_sandbox_whichever_process_was_chosen() {
    let Some(supervisor) = Supervisor::start("ends-memory") else {
        return;
    };
    let spec = limited(|limits| limits.memory_bytes = Limit::asked(64 << 20));
    let hog = "python3 -c 'x = bytearray(200 << 20)'; echo survived; sleep 60";
    let done = supervisor.connect().run(1, spec, shell(hog));
    assert_eq!(which(&done), Resource::Memory);
    assert_eq!(done.stdout, b"", "the rest of it went on");
    assert!(done.ended.usage.memory_peak_bytes.unwrap() > 32 << 20);
    clean(&done);
    let control = supervisor.connect().run(
        2,
        limited(|limits| limits.memory_bytes = Limit::asked(512 << 20)),
        shell("python3 -c 'x = bytearray(200 << 20)'; echo survived"),
    );
    assert_eq!(control.stdout, b"survived\n");
}

#[test]
fn processor_time_ends_a_spinner_however_many_processes_spin() {
    let Some(supervisor) = Supervisor::start("ends-cpu") else {
        return;
    };
    let spec = limited(|limits| limits.cpu_time_ms = Some(Limit::asked(300)));
    let spin = "for i in 1 2 3; do (while :; do :; done) & done; wait";
    let done = supervisor.connect().run(1, spec, shell(spin));
    assert_eq!(which(&done), Resource::CpuTime);
    let used = done.ended.usage.cpu_micros.unwrap();
    assert!((300_000..600_000).contains(&used), "{used}");
}

#[test]
fn a_fork_bomb_a_full_disk_and_too_many_files_are_named() {
    let Some(supervisor) = Supervisor::start("ends-denied") else {
        return;
    };
    let mut client = supervisor.connect();
    let pids = limited(|limits| limits.pids = Limit::asked(8));
    let bomb = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 5 & done; wait; exit 3";
    let done = client.run(1, pids, shell(bomb));
    assert_eq!(which(&done), Resource::Pids);
    let disk = limited(|limits| limits.disk_bytes = Limit::asked(1 << 20));
    let fill = "head -c 4000000 /dev/zero > /workspace/big";
    let done = client.run(2, disk.clone(), shell(fill));
    assert_eq!(which(&done), Resource::Disk);
    let inodes = limited(|limits| limits.inodes = Limit::asked(64));
    let many = "i=0; while [ $i -lt 200 ]; do : > /workspace/f$i || exit 9; i=$((i+1)); done";
    let done = client.run(3, inodes, shell(many));
    assert_eq!(which(&done), Resource::Inodes);
    // What a program survives is no failure, and is listed.
    let done = client.run(4, disk, shell(&format!("{fill} 2>&-; exit 0")));
    assert_eq!(done.ended.end, Some(EndReason::Completed));
    assert_eq!(done.ended.limits_hit[0].which, Resource::Disk);
}

#[test]
fn output_beyond_its_limit_is_cut_or_ends_the_run_as_the_contract_says() {
    let Some(supervisor) = Supervisor::start("ends-output") else {
        return;
    };
    let mut client = supervisor.connect();
    let cut = limited(|limits| limits.output_bytes = Limit::asked(1000));
    let done = client.run(1, cut, shell("head -c 3000 /dev/zero; echo x >&2"));
    assert_eq!(done.ended.end, Some(EndReason::Completed));
    assert_eq!(done.stdout.len(), 1000);
    let seen = done.ended.stdout;
    assert_eq!(
        (seen.written, seen.kept, seen.truncated),
        (3000, 1000, true)
    );
    assert!(!done.ended.stderr.truncated);
    let kill = limited(|limits| {
        limits.output_bytes = Limit::asked(1000);
        limits.on_output_limit = OnOutputLimit::Kill;
    });
    let done = client.run(2, kill, shell("yes"));
    assert_eq!(which(&done), Resource::Output);
    clean(&done);
}

#[test]
fn a_limit_that_denies_ends_the_run_where_the_contract_says_so() {
    let Some(supervisor) = Supervisor::start("ends-denied") else {
        return;
    };
    let mut client = supervisor.connect();
    let disk = |limits: &mut Limits| limits.disk_bytes = Limit::asked(1 << 20);
    let fill = "head -c 4194304 /dev/zero > /workspace/f; echo went on; sleep 5; exit 0";
    let done = client.run(1, limited(disk), shell(&fill.replace("sleep 5; ", "")));
    assert_eq!(done.ended.end, Some(EndReason::Completed));
    assert_eq!(done.stdout, b"went on\n");
    for (letter, script) in [
        // One that would go on, and one that is over before anybody looks.
        (2, fill.to_owned()),
        (3, fill.replace("sleep 5; ", "")),
    ] {
        let kill = limited(|limits| {
            disk(limits);
            limits.on_denied = OnDenied::Kill;
        });
        let begun = std::time::Instant::now();
        let done = client.run(letter, kill, shell(&script));
        assert_eq!(which(&done), Resource::Disk);
        assert_eq!(done.ended.limits_hit.len(), 1);
        assert!(begun.elapsed() < std::time::Duration::from_secs(4));
        clean(&done);
    }
    let kill = limited(|limits| {
        limits.pids = Limit::asked(4);
        limits.on_denied = OnDenied::Kill;
    });
    let bomb = "for i in 1 2 3 4 5 6 7 8; do sleep 9 & done; sleep 9; exit 0";
    let done = client.run(4, kill, shell(bomb));
    assert_eq!(which(&done), Resource::Pids);
    clean(&done);
}

/// `pids` is the number of tasks of the workload, its first one counted: no more, no less.
#[test]
fn so_many_tasks_as_are_allowed_can_live_and_not_one_more() {
    let Some(supervisor) = Supervisor::start("ends-tasks") else {
        return;
    };
    let mut client = supervisor.connect();
    let script = "for i in 1 2 3 4 5 6 7 8; do sleep 5 & echo $i; done";
    for (letter, pids) in [(1, 1_u32), (2, 5)] {
        let mut spec = SandboxSpec::default();
        spec.limits.pids = Limit::asked(pids);
        let done = client.run(letter, spec, shell(script));
        let more = String::from_utf8(done.stdout).unwrap().lines().count();
        // The shell is one of them.
        assert_eq!(more + 1, pids as usize, "{pids}");
        let hits = &done.ended.limits_hit;
        assert!(hits.iter().any(|hit| hit.which == Resource::Pids));
    }
    // An agent takes nothing of it.
    let mut sandbox = SandboxSpec::default();
    sandbox.limits.pids = Limit::asked(1);
    let Event::Provisioned { sandbox, .. } = client
        .ask(Request::Provision {
            sandbox,
            held: false,
        })
        .0
    else {
        panic!("not provisioned");
    };
    let program = agent_program();
    for _ in 0..2 {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let sandbox = sandbox.clone();
            match client
                .ask_with(Request::Agent { sandbox }, &[program.as_fd()])
                .0
            {
                Event::Channel => break,
                // One is on its way still, and says so.
                Event::Refused(error) if error.kind.retryable() && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
