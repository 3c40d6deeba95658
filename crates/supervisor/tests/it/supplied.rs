//! Programs that come with their run: what is taken, what they are given, what is believed of their report,
//! and that bound ones go with their caller.

use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use leasehold_core::digest::Digest;
use leasehold_core::end::{EndReason, ExitStatus};
use leasehold_core::error::ErrorKind;
use leasehold_core::isolation::Isolation;
use leasehold_core::limits::{Limit, Resource};
use leasehold_core::spec::{ExecSpec, ModuleSpec, SandboxSpec, TtySize, Warm, WorkspaceMode};
use leasehold_core::stage::Stage;
use leasehold_protocol::memory;
use leasehold_protocol::supervisor::{Event, PASSED_MAX, Request, SandboxStatus, Supplied, Target};
use leasehold_protocol::wasm::REPORT_LEN;
use leasehold_supervisor::records::Records;
use rustix::fs::SealFlags;

use crate::harness::{Client, Finished, Supervisor, eventually, open_directory, run_id, shell};

/// A file's bytes, as whoever supplies a program makes them.
fn sealed(path: &str) -> OwnedFd {
    memory::sealed("program", &std::fs::read(path).unwrap()).unwrap()
}

fn supplied(argv: &[&str]) -> Supplied {
    Supplied {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        passed: 0,
        report: false,
        bound: false,
        digest: Digest::of(b"the caller's word"),
    }
}

/// What the record tells of a module.
fn module() -> ExecSpec {
    ExecSpec {
        module: Some(ModuleSpec {
            digest: Digest::of(b"module"),
            name: "tool.wasm".to_owned(),
            script: None,
            determinism: None,
            fuel: None,
        }),
        ..ExecSpec::command(["tool.wasm", "argument"])
    }
}

fn borrowed(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(|fd| fd.as_fd()).collect()
}

fn send(client: &mut Client, letter: u8, exec: ExecSpec, told: Supplied, fds: &[OwnedFd]) -> u64 {
    let target = Target::New(SandboxSpec::default());
    let request = Request::run_supplied(run_id(letter), target, exec, told);
    client.send(request, &borrowed(fds))
}

fn run(
    client: &mut Client,
    letter: u8,
    (spec, exec): (SandboxSpec, ExecSpec),
    told: Supplied,
    fds: &[OwnedFd],
) -> Finished {
    let started = Instant::now();
    let request = Request::run_supplied(run_id(letter), Target::New(spec), exec, told);
    client.send(request, &borrowed(fds));
    client.follow(started)
}

/// A shell in the place of a WebAssembly host: its report is descriptor 3.
fn reports(client: &mut Client, letter: u8, spec: SandboxSpec, script: &str) -> Finished {
    let told = Supplied {
        report: true,
        ..supplied(&["sh", "-c", script])
    };
    run(client, letter, (spec, module()), told, &[sealed("/bin/sh")])
}

fn refused(
    client: &mut Client,
    letter: u8,
    exec: ExecSpec,
    told: Supplied,
    fds: &[OwnedFd],
) -> String {
    let tag = send(client, letter, exec, told, fds);
    match client.next() {
        Some((notice, _)) if notice.tag == tag => match notice.event {
            Event::Refused(error) => {
                assert_eq!(error.kind, ErrorKind::Invalid);
                error.message
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn status(client: &mut Client) -> Vec<SandboxStatus> {
    match client.ask(Request::Status).0 {
        Event::Status { sandboxes } => sandboxes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_supplied_program_runs_from_its_descriptor_alone() {
    let Some(supervisor) = Supervisor::start("supplied-runs") else {
        return;
    };
    let mut client = supervisor.connect();
    // What is told of it says nothing of what is executed, and no variable of it reaches the program.
    let mut exec = ExecSpec::command(["no-such-program"]);
    exec.env.insert("LD_PRELOAD".into(), "/evil.so".into());
    let told = supplied(&["env"]);
    let spec = SandboxSpec::default;
    let done = run(
        &mut client,
        1,
        (spec(), exec.clone()),
        told,
        &[sealed("/usr/bin/env")],
    );
    assert_eq!(
        done.ended.end,
        Some(EndReason::Completed),
        "{}",
        supervisor.log()
    );
    assert_eq!((&*done.stdout, &*done.stderr), (&b""[..], &b""[..]));
    let contract = done.ended.contract.unwrap();
    assert_eq!(
        (&*contract.backend, contract.isolation),
        ("process", Isolation::Process)
    );
    assert_eq!(
        (contract.argv, contract.env_names),
        (exec.argv.clone(), vec!["LD_PRELOAD".to_owned()])
    );
    assert!(contract.posture.host.is_none() && contract.program.is_none());
}

#[test]
fn it_has_what_it_was_passed_in_a_sandbox_of_any_kind() {
    let Some(supervisor) = Supervisor::start("supplied-passed") else {
        return;
    };
    let mut client = supervisor.connect();
    let (spec, exec) = (SandboxSpec::default, ExecSpec::command(["no-such-program"]));
    // Two that were passed and a report; the last is the directory that is listed.
    let told = Supplied {
        passed: 2,
        report: true,
        ..supplied(&[
            "sh",
            "-c",
            "ls /proc/self/fd; pwd; cat <&3 <&4; cat /proc/self/fd/4; echo '{\"exit\":{\"kind\":\"exit\",\"code\":0}}' >&5",
        ])
    };
    let passed = |text: &[u8]| memory::sealed("passed", text).unwrap();
    let fds = [sealed("/bin/sh"), passed(b"three"), passed(b"four")];
    let done = run(&mut client, 2, (spec(), exec.clone()), told, &fds);
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(said.starts_with("0\n1\n2\n3\n4\n5\n6\n/\n"), "{said}");
    assert!(said.ends_with("fourfour"), "{said}");
    assert_eq!(done.ended.end, Some(EndReason::Completed));
    // From a sandbox that waited, and with a workspace directory before it.
    let sandbox = match client
        .ask(Request::Provision {
            sandbox: spec(),
            held: false,
        })
        .0
    {
        Event::Provisioned { sandbox, .. } => sandbox,
        other => panic!("{other:?}"),
    };
    let request = Request::run_supplied(
        run_id(3),
        Target::Parked(sandbox),
        exec.clone(),
        supplied(&["cat", "/proc/self/comm"]),
    );
    client.send(request, &borrowed(&[sealed("/bin/cat")]));
    let done = client.follow(Instant::now());
    assert_eq!(done.ended.end, Some(EndReason::Completed));
    let place = supervisor.paths.state().join("given");
    let directory = open_directory(&place);
    std::fs::write(place.join("file"), "of the host").unwrap();
    let spec = SandboxSpec {
        workspace: WorkspaceMode::ReadOnly,
        ..SandboxSpec::default()
    };
    let told = supplied(&["cat", "/workspace/file"]);
    let done = run(
        &mut client,
        4,
        (spec, exec),
        told,
        &[directory, sealed("/bin/cat")],
    );
    assert_eq!(
        done.stdout,
        b"of the host",
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

#[test]
fn what_could_change_or_lead_out_is_refused_and_the_next_call_has_its_own() {
    let Some(supervisor) = Supervisor::start("supplied-refused") else {
        return;
    };
    let mut client = supervisor.connect();
    let cat = || sealed("/bin/cat");
    let open = |seals| {
        let mut file = std::fs::File::from(memory::create("program").unwrap());
        file.write_all(&std::fs::read("/bin/cat").unwrap()).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        OwnedFd::from(file)
    };
    let plain = || ExecSpec::command(["x"]);
    let fd_of = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
    for program in [
        open(SealFlags::empty()),
        open(SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK),
        open(SealFlags::WRITE | SealFlags::GROW | SealFlags::SEAL),
        fd_of("/bin/cat"),
    ] {
        let why = refused(&mut client, 1, plain(), supplied(&["cat"]), &[program]);
        assert!(why.contains("not a sealed memory file"), "{why}");
    }
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    for passed in [
        fd_of("/"),
        fd_of("/etc/passwd"),
        fd_of("/dev/null"),
        pipe,
        open(SealFlags::empty()),
    ] {
        let told = Supplied {
            passed: 1,
            ..supplied(&["cat"])
        };
        let why = refused(&mut client, 1, plain(), told, &[cat(), passed]);
        assert!(why.contains("descriptor 1 is neither"), "{why}");
    }
    // None of all those descriptors is left for somebody else's call.
    let request = (SandboxSpec::default(), plain());
    let told = supplied(&["cat", "/proc/self/cmdline"]);
    let done = run(&mut client, 2, request, told, &[cat()]);
    assert_eq!(done.stdout, b"cat\0/proc/self/cmdline\0");
}

#[test]
fn what_does_not_go_together_is_refused() {
    let Some(supervisor) = Supervisor::start("supplied-together") else {
        return;
    };
    let mut client = supervisor.connect();
    let cat = || sealed("/bin/cat");
    let plain = || ExecSpec::command(["x"]);
    let told = |passed| Supplied {
        passed,
        ..supplied(&["cat"])
    };
    let why = refused(&mut client, 1, plain(), told(2), &[cat(), cat()]);
    assert!(why.contains("3 descriptors, and 2 came"), "{why}");
    let many: Vec<OwnedFd> = (0..8).map(|_| cat()).collect();
    let why = refused(&mut client, 1, plain(), told(PASSED_MAX + 1), &many);
    assert!(why.contains("`passed` is 7: most is 6"), "{why}");
    for argv in [&[][..], &[""], &["a\0b"]] {
        let why = refused(&mut client, 1, plain(), supplied(argv), &[cat()]);
        assert!(why.contains("supplied program's `command`"), "{why}");
    }
    let tty = ExecSpec {
        tty: Some(TtySize { rows: 2, cols: 2 }),
        ..plain()
    };
    let why = refused(&mut client, 1, tty, supplied(&["cat"]), &[cat()]);
    assert!(why.contains("terminal"), "{why}");
    let why = refused(&mut client, 1, module(), supplied(&["cat"]), &[cat()]);
    assert!(why.contains("reports"), "{why}");
    let spec = SandboxSpec {
        warm: Some(Warm::Python),
        ..SandboxSpec::default()
    };
    let request = Request::run_supplied(run_id(1), Target::New(spec), plain(), supplied(&["cat"]));
    let tag = client.send(request, &borrowed(&[cat()]));
    let (notice, _) = client.next().unwrap();
    assert!(
        notice.tag == tag && matches!(notice.event, Event::Refused(_)),
        "{notice:?}"
    );
    let alone = Request::run(run_id(1), Target::New(SandboxSpec::default()), module());
    assert!(matches!(client.ask(alone).0, Event::Refused(_)));
    // As above.
    let request = || (SandboxSpec::default(), plain());
    let done = run(
        &mut client,
        2,
        request(),
        supplied(&["cat", "/proc/self/cmdline"]),
        &[cat()],
    );
    assert_eq!(done.stdout, b"cat\0/proc/self/cmdline\0");
    // What is no program at all is ours to answer for, and no missing command.
    let text = memory::sealed("text", b"#!/bin/sh\necho no\n").unwrap();
    let done = run(&mut client, 3, request(), supplied(&["cat"]), &[text]);
    assert!(
        matches!(&done.ended.end, Some(EndReason::SandboxCrashed { diagnostics }) if diagnostics.contains("cannot be executed")),
        "{:?}",
        done.ended.end
    );
}

const WELL: &str = r#"printf '{"exit":{"kind":"exit","code":0}}' >&3"#;

#[test]
fn a_report_tells_the_end_of_a_module() {
    let Some(supervisor) = Supervisor::start("supplied-report") else {
        return;
    };
    let mut client = supervisor.connect();
    let spec = SandboxSpec::default;
    let done = reports(&mut client, 1, spec(), &format!("echo out; {WELL}"));
    assert_eq!(
        done.ended.end,
        Some(EndReason::Completed),
        "{}",
        supervisor.log()
    );
    assert_eq!(done.stdout, b"out\n");
    let contract = done.ended.contract.unwrap();
    assert_eq!(
        (&*contract.backend, contract.isolation),
        ("wasm", Isolation::Wasm)
    );
    assert_eq!(contract.argv, ["tool.wasm", "argument"]);
    assert_eq!(contract.program, module().module);
    let host = contract.posture.host.unwrap();
    assert_eq!(host.program, Digest::of(b"the caller's word"));
    assert!(
        host.engine.starts_with("wasmtime-") && host.places.is_empty(),
        "{host:?}"
    );
    let trap = r#"printf '{"exit":{"kind":"trap","name":"unreachable"},"backtrace":["f +0x1"],"fuel_used":9}' >&3"#;
    let done = reports(&mut client, 2, spec(), trap);
    let exit = ExitStatus::Trap {
        name: "unreachable".to_owned(),
    };
    assert_eq!(
        done.ended.end,
        Some(EndReason::ToolError { exit: exit.clone() })
    );
    assert_eq!(done.ended.exit, Some(exit));
    let told = done.ended.module.unwrap();
    assert_eq!(
        (told.backtrace, told.fuel_used),
        (vec!["f +0x1".to_owned()], Some(9))
    );
    // One of another process of the sandbox counts as well, if it came before the end of all.
    let done = reports(&mut client, 3, spec(), &format!("({WELL})"));
    assert_eq!(done.ended.end, Some(EndReason::Completed));
}

#[test]
fn a_report_cannot_hide_what_the_host_saw() {
    let Some(supervisor) = Supervisor::start("supplied-lies") else {
        return;
    };
    let mut client = supervisor.connect();
    let spec = |change: fn(&mut SandboxSpec)| {
        let mut spec = SandboxSpec::default();
        change(&mut spec);
        spec
    };
    let plain = || spec(|_| ());
    // Each lie beside the same without what it hides, which is believed.
    let small = |spec: &mut SandboxSpec| spec.limits.memory_bytes = Limit::asked(32 << 20);
    let done = reports(&mut client, 1, spec(small), WELL);
    assert_eq!(done.ended.end, Some(EndReason::Completed));
    let done = reports(
        &mut client,
        2,
        spec(small),
        &format!("{WELL}; tail /dev/zero; exit 0"),
    );
    assert!(
        matches!(&done.ended.end, Some(EndReason::ResourceExceeded { hit, .. }) if hit.which == Resource::Memory && hit.limit == 32 << 20),
        "{:?}",
        done.ended.end
    );
    let short = |spec: &mut SandboxSpec| spec.limits.wall_ms = Limit::asked(300);
    let done = reports(&mut client, 3, spec(short), &format!("{WELL}; sleep 100"));
    assert_eq!(done.ended.end, Some(EndReason::Timeout { limit_ms: 300 }));
    let done = reports(
        &mut client,
        4,
        spec(short),
        &format!("trap '{WELL}; exit 0' TERM; while :; do sleep 0.01; done"),
    );
    assert_eq!(done.ended.end, Some(EndReason::Timeout { limit_ms: 300 }));
    let crashed = |done: Finished| match done.ended.end {
        Some(EndReason::SandboxCrashed { diagnostics }) => diagnostics,
        other => panic!("{other:?}"),
    };
    let rows = [
        ("exit 0", "it ended without a report"),
        ("exit 3", "it ended with status 3"),
        ("kill -9 $$", "signal 9 ended it"),
        ("echo '{}' >&3", "its report tells no end"),
        ("echo '{\"exit' >&3", "its report is none"),
        (
            r#"echo '{"cancelled":true}' >&3"#,
            "a cancellation that nobody asked for",
        ),
        (
            r#"echo '{"killed_by":{"which":"pids","limit":1,"observed":2}}' >&3"#,
            "holds `pids`, which it does not",
        ),
    ];
    for (letter, (script, why)) in (10..).zip(rows) {
        let told = crashed(reports(&mut client, letter, plain(), script));
        assert!(told.contains(why), "{script}: {told}");
    }
    let told = crashed(reports(
        &mut client,
        20,
        plain(),
        &format!("{WELL}; exit 1"),
    ));
    assert!(told.contains("it ended with status 1"), "{told}");
    // Its file has a length that nobody changes.
    let long = format!("head -c {} /dev/zero >&3 && {WELL}", REPORT_LEN + 1);
    let told = crashed(reports(&mut client, 21, plain(), &long));
    assert!(told.contains("status 1"), "{told}");
    let fill = format!("head -c {REPORT_LEN} /dev/zero >&3 && exit 9");
    let told = crashed(reports(&mut client, 22, plain(), &fill));
    assert!(told.contains("status 9"), "{told}");
}

#[test]
fn a_host_has_room_beside_the_limits_of_its_module() {
    let Some(supervisor) = Supervisor::start("supplied-room") else {
        return;
    };
    let mut client = supervisor.connect();
    let mut spec = SandboxSpec::default();
    spec.limits.pids = Limit::asked(1);
    spec.limits.files = Limit::asked(16);
    spec.limits.memory_bytes = Limit::asked(8 << 20);
    let script = format!("sh -c true && ulimit -n && {WELL}");
    let done = reports(&mut client, 1, spec.clone(), &script);
    assert_eq!(
        done.ended.end,
        Some(EndReason::Completed),
        "{:?}",
        done.stderr
    );
    assert_eq!(done.stdout, b"80\n");
    let contract = done.ended.contract.unwrap();
    assert_eq!(
        (contract.limits.pids.value, contract.limits.files.value),
        (1, 16)
    );
    // A slot that waited is given the same room.
    let pool = Request::Pool {
        sandbox: spec.clone(),
        count: 1,
        held: false,
    };
    assert_eq!(client.ask(pool).0, Event::Done);
    let done = reports(&mut client, 2, spec.clone(), &script);
    assert!(done.ended.warm);
    assert_eq!(
        done.ended.end,
        Some(EndReason::Completed),
        "{:?}",
        done.stderr
    );
    // The control: a command has what it asked for and no more.
    let done = client.run(3, spec, shell("ulimit -n; sh -c true"));
    assert_eq!(done.stdout, b"16\n");
    assert_ne!(done.ended.end, Some(EndReason::Completed));
}

/// Starts one that sleeps, and waits until it does.
fn sleeps(client: &mut Client, letter: u8, bound: bool) {
    let told = Supplied {
        bound,
        ..supplied(&["sleep", "1000"])
    };
    let sleep = [sealed("/bin/sleep")];
    send(client, letter, ExecSpec::command(["work"]), told, &sleep);
    while !matches!(client.next().unwrap().0.event, Event::Stage(t) if t.stage == Stage::Inject) {}
}

#[test]
fn a_bound_run_goes_with_its_caller_and_is_told_in_no_list() {
    let Some(supervisor) = Supervisor::start("supplied-bound") else {
        return;
    };
    let (mut caller, mut other) = (supervisor.connect(), supervisor.connect());
    let records = Records::open(&supervisor.paths).unwrap();
    sleeps(&mut caller, 1, true);
    sleeps(&mut caller, 2, false);
    let seen = status(&mut other);
    let runs: Vec<_> = seen
        .iter()
        .map(|one| (one.bound, one.run.clone()))
        .collect();
    assert_eq!(runs.len(), 2);
    assert!(
        runs.contains(&(true, None)) && runs.contains(&(false, Some(run_id(2)))),
        "{runs:?}"
    );
    let listed: Vec<_> = records
        .list(9)
        .unwrap()
        .into_iter()
        .map(|one| one.run)
        .collect();
    assert_eq!(listed, [run_id(2)]);
    // It is on record all the same while it lives, for a sweep to find.
    assert!(records.read(&run_id(1)).unwrap().unwrap().bound);
    assert_eq!(supervisor.ledger().len(), 2);
    let bound = seen.iter().find(|one| one.bound).unwrap().init_pid;
    drop(caller);
    eventually("the bound one is gone", || supervisor.ledger().len() == 1);
    assert!(!std::path::Path::new(&format!("/proc/{bound}")).exists());
    eventually("its record is gone", || {
        records.read(&run_id(1)).unwrap().is_none()
    });
    let left = status(&mut other);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].run, Some(run_id(2)), "the unbound one lives");
    // One that ends by itself is told to its caller and then forgotten.
    let told = Supplied {
        bound: true,
        ..supplied(&["cat", "/proc/self/comm"])
    };
    let request = (SandboxSpec::default(), ExecSpec::command(["work"]));
    let done = run(&mut other, 3, request, told, &[sealed("/bin/cat")]);
    assert_eq!(done.ended.end, Some(EndReason::Completed));
    assert!(done.cleaned.cleanup.unwrap().clean());
    assert_eq!(records.read(&run_id(3)).unwrap(), None);
}

#[test]
fn bound_runs_die_with_a_supervisor_that_is_killed_and_leave_nothing() {
    let Some(mut supervisor) = Supervisor::start("supplied-crash") else {
        return;
    };
    let mut caller = supervisor.connect();
    sleeps(&mut caller, 1, true);
    sleeps(&mut caller, 2, false);
    let pids: Vec<u32> = status(&mut caller).iter().map(|one| one.init_pid).collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| *pid > 0));
    supervisor.kill();
    eventually("every init is dead", || {
        let lives = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
        !pids.iter().any(lives)
    });
    supervisor.succeed();
    assert_eq!(supervisor.ledger(), [""; 0]);
    assert!(supervisor.cgroups().is_empty());
    let records = Records::open(&supervisor.paths).unwrap();
    assert!(records.unfinished().unwrap().is_empty());
    assert_eq!(
        records.read(&run_id(1)).unwrap(),
        None,
        "nobody asks for it again"
    );
    let end = records.read(&run_id(2)).unwrap().unwrap().end;
    assert_eq!(end, Some(EndReason::HostLost));
}
