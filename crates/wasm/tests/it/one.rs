//! A host for one run, as a process of its own: streams of its own, a report in a file, signals.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use leasehold_core::end::ExitStatus as Exit;
use leasehold_core::limits::Resource;
use leasehold_protocol::memory;
use leasehold_protocol::wasm::{
    Flavour, Kind, Load, One, Preopen, REPORT_LEN, Report, RunLimits, Start,
};
use leasehold_wasm::compile::Compiler;

use crate::components::component;
use crate::guests;
use crate::host::start;
use crate::rig::limits;

struct Process {
    child: Child,
    report: File,
}

/// What came of it.
#[derive(Debug)]
struct Ended {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    report: Option<Report>,
}

fn compiled(text: &str, flavour: Flavour) -> (Kind, OwnedFd) {
    let wasm = wat::parse_str(text).unwrap();
    let (kind, code) = Compiler::new(flavour).unwrap().compile(&wasm).unwrap();
    (kind, memory::sealed("code", &code).unwrap())
}

fn one(kind: Kind, flavour: Flavour, start: Start) -> OwnedFd {
    let one = One {
        load: Load { kind, flavour },
        start,
    };
    memory::sealed("one", &serde_json::to_vec(&one).unwrap()).unwrap()
}

/// Starts a host in a shell, which puts the descriptors where it looks for them.
fn spawn(words: &str, config: &OwnedFd, code: &OwnedFd) -> Process {
    spawn_under("", words, config, code)
}

/// The same by another program, given with its arguments.
fn spawn_under(under: &str, words: &str, config: &OwnedFd, code: &OwnedFd) -> Process {
    let report = memory::create("report").unwrap();
    rustix::fs::ftruncate(&report, REPORT_LEN as u64).unwrap();
    let inherited = [config.as_fd(), code.as_fd(), report.as_fd()]
        .map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 100).unwrap());
    for fd in &inherited {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).unwrap();
    }
    let [config, code, file] = inherited.each_ref().map(AsRawFd::as_raw_fd);
    let host = env!("CARGO_BIN_EXE_leasehold-wasm-host");
    let script = format!(
        "exec 3<&{config} 4<&{code} 5<&{file} {config}<&- {code}<&- {file}<&-; exec {under} {host} one {words}"
    );
    let child = Command::new("/bin/bash")
        .args(["-c", &script])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        // Other tests step into directories of theirs, and remove them.
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    Process {
        child,
        report: report.into(),
    }
}

impl Process {
    fn started(text: &str, start: Start) -> Self {
        let (kind, code) = compiled(text, Flavour::Plain);
        spawn("", &one(kind, Flavour::Plain, start), &code)
    }

    fn ended(mut self) -> Ended {
        drop(self.child.stdin.take());
        let out = self.child.wait_with_output().unwrap();
        let mut bytes = vec![0; REPORT_LEN];
        self.report.read_exact_at(&mut bytes, 0).unwrap();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap();
        Ended {
            status: out.status,
            stdout: out.stdout,
            stderr: out.stderr,
            report: (end > 0).then(|| serde_json::from_slice(&bytes[..end]).unwrap()),
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

fn told(text: &str, start: Start) -> (Vec<u8>, Report) {
    let ended = Process::started(text, start).ended();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(
        ended.stderr,
        b"",
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    let report = ended.report.unwrap();
    assert_eq!(report.crashed, None);
    (ended.stdout, report)
}

#[test]
fn one_run_is_told_in_its_report() {
    let (stdout, report) = told(&guests::hello(), start(0, limits()));
    assert_eq!(stdout, b"hello\n");
    assert_eq!(report.exit, Some(Exit::Exit { code: 0 }));
    for status in [0, 1, 125, 126, 137, 255] {
        let (_, report) = told(&guests::exits(status), start(0, limits()));
        let code = u8::try_from(status).unwrap();
        assert_eq!(report.exit, Some(Exit::Exit { code }));
    }
    let (_, report) = told(&guests::module("unreachable"), start(0, limits()));
    assert!(
        matches!(&report.exit, Some(Exit::Trap { name }) if name.contains("unreachable")),
        "{report:?}"
    );
    assert!(!report.backtrace.is_empty());
    let short = RunLimits {
        wall_ms: 200,
        ..limits()
    };
    let (_, report) = told(&guests::sleeps(), start(0, short));
    assert!(report.wall_expired, "{report:?}");
}

#[test]
fn a_component_runs_as_a_module_does() {
    let component = component("(i32.const 0)");
    let (_, report) = told(&component, start(0, limits()));
    assert_eq!(report.exit, Some(Exit::Exit { code: 0 }), "{report:?}");
}

#[test]
fn streams_pass_as_they_come_and_are_not_cut_here() {
    let mut wanted = start(
        0,
        RunLimits {
            output_bytes: 7,
            output_kill: true,
            ..limits()
        },
    );
    wanted.stdin = true;
    let mut process = Process::started(&guests::copies(), wanted);
    let mut input = process.child.stdin.take().unwrap();
    let mut output = process.child.stdout.take().unwrap();
    // One piece after another: each comes back before the next is given.
    for piece in [&b"one"[..], b"two", b"three"] {
        input.write_all(piece).unwrap();
        let mut back = vec![0; piece.len()];
        output.read_exact(&mut back).unwrap();
        assert_eq!(back, piece);
    }
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let copy = bytes.clone();
    let writer = std::thread::spawn(move || input.write_all(&copy).unwrap());
    let mut back = Vec::new();
    output.read_to_end(&mut back).unwrap();
    writer.join().unwrap();
    assert!(back == bytes, "{} bytes came back", back.len());
    let report = process.ended().report.unwrap();
    assert_eq!(report.exit, Some(Exit::Exit { code: 0 }), "{report:?}");
    assert!(report.killed_by.is_none() && report.denied.is_empty());
}

#[test]
fn a_reader_that_goes_away_holds_nothing_up() {
    let wanted = start(0, limits());
    let mut process = Process::started(&guests::floods(128), wanted);
    drop(process.child.stdout.take());
    let report = process.ended().report.unwrap();
    assert_eq!(report.exit, Some(Exit::Exit { code: 0 }), "{report:?}");
    assert!(report.stdout.total >= 4 << 20);
}

#[test]
fn a_wish_for_its_end_ends_it_wherever_it_is() {
    let says = "(drop (call $put (i32.const 1) (i32.const 0) (i32.const 1)))";
    for body in [guests::SLEEPS, guests::SPINS] {
        let text = guests::module(&format!("{says} {body}"));
        let mut process = Process::started(&text, start(0, limits()));
        // It has begun.
        let mut output = process.child.stdout.take().unwrap();
        output.read_exact(&mut [0]).unwrap();
        process.signal(rustix::process::Signal::TERM);
        let ended = process.ended();
        assert!(ended.status.success(), "{ended:?}");
        let report = ended.report.unwrap();
        assert!(report.cancelled && report.exit.is_none(), "{report:?}");
    }
}

/// As in a sandbox: an ordinary user without a capability to give up.
#[test]
fn an_ordinary_user_confines_itself_as_well() {
    if !rustix::process::geteuid().is_root() {
        // Every other test of this file is this one then.
        return;
    }
    let (kind, code) = compiled(&guests::hello(), Flavour::Plain);
    let config = one(kind, Flavour::Plain, start(0, limits()));
    let switch =
        "setpriv --reuid 1000 --regid 1000 --clear-groups --bounding-set=-all --no-new-privs --";
    let ended = spawn_under(switch, "", &config, &code).ended();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.stdout, b"hello\n");
}

#[test]
fn what_cannot_be_run_is_told_as_ours() {
    let (kind, code) = compiled(&guests::hello(), Flavour::Plain);
    let crashed = |config: &OwnedFd, code: &OwnedFd, words: &str| {
        let ended = spawn(words, config, code).ended();
        assert!(ended.status.success(), "{ended:?}");
        ended.report.unwrap().crashed.unwrap()
    };
    let plain = |start| one(kind, Flavour::Plain, start);
    let broken = memory::sealed("one", b"{").unwrap();
    assert!(crashed(&broken, &code, "").contains("broken"));
    let none = memory::sealed("code", b"no code").unwrap();
    crashed(&plain(start(0, limits())), &none, "");
    let fuel = RunLimits {
        fuel: Some(1),
        ..limits()
    };
    assert!(crashed(&plain(start(0, fuel)), &code, "").contains("metered"));
    let place = |writable| {
        let mut start = start(0, limits());
        start.preopens.push(Preopen {
            guest: "/workspace".to_owned(),
            writable,
        });
        start
    };
    assert!(crashed(&plain(place(false)), &code, "").contains("no other directory"));
}

#[test]
fn memory_and_fuel_are_bounded_as_in_a_host_of_many() {
    let small = RunLimits {
        memory_bytes: 2 << 20,
        memory_kill: true,
        ..limits()
    };
    let (_, report) = told(
        &guests::module("(drop (memory.grow (i32.const 100)))"),
        start(0, small),
    );
    assert_eq!(report.killed_by.unwrap().which, Resource::Memory);
    let fuel = RunLimits {
        fuel: Some(10_000),
        ..limits()
    };
    let (kind, code) = compiled(&guests::spins(), Flavour::Metered);
    let ended = spawn("", &one(kind, Flavour::Metered, start(0, fuel)), &code).ended();
    assert_eq!(
        ended.report.unwrap().killed_by.unwrap().which,
        Resource::Fuel
    );
}
