//! The host process, from its owner's side of the socket.

use std::fs::File;
use std::os::fd::OwnedFd;

use leasehold_core::end::ExitStatus;
use leasehold_core::limits::Resource;
use leasehold_protocol::socket::send_with_fds;
use leasehold_protocol::wasm::{
    Flavour, FromHost, Load, Preopen, RunLimits, STDIN_WINDOW, ToHost, body, frame,
};

use crate::guests;
use crate::host::{Host, start};
use crate::rig::{limits, sealed};

#[test]
fn runs_one_after_another_and_at_once() {
    let mut host = Host::spawn(false);
    host.load(1, &guests::hello());
    host.load(2, &guests::spins());
    for id in 0..20 {
        host.start(id, &start(1, limits()), &[]);
        let (stdout, report) = host.ended(id);
        assert_eq!(stdout, b"hello\n");
        assert_eq!(report.exit, Some(ExitStatus::Exit { code: 0 }));
    }
    // One that computes for ever does not keep the others from ending.
    host.start(100, &start(2, limits()), &[]);
    for id in 101..111 {
        host.start(id, &start(1, limits()), &[]);
    }
    for id in 101..111 {
        assert_eq!(host.ended(id).0, b"hello\n");
    }
    host.send(ToHost::Cancel, 100, b"", &[]);
    assert!(host.ended(100).1.cancelled);
}

#[test]
fn input_is_streamed_within_its_window() {
    let mut host = Host::spawn(false);
    host.load(1, &guests::copies());
    let mut wanted = start(1, limits());
    wanted.stdin = true;
    host.start(5, &wanted, &[]);
    let bytes: Vec<u8> = (0..500_000u32).map(|at| (at % 253) as u8).collect();
    let (mut ahead, mut stdout) = (0u64, Vec::new());
    for piece in bytes.chunks(50_000) {
        while ahead + piece.len() as u64 > STDIN_WINDOW {
            let frame = host.next().unwrap();
            match FromHost::of(frame.kind).unwrap() {
                FromHost::StdinTaken => {
                    let taken: [u8; 4] = frame.body.as_slice().try_into().unwrap();
                    ahead -= u64::from(u32::from_le_bytes(taken));
                }
                FromHost::Stdout => stdout.extend_from_slice(&frame.body),
                other => panic!("{other:?}"),
            }
        }
        host.send(ToHost::Stdin, 5, piece, &[]);
        ahead += piece.len() as u64;
    }
    host.send(ToHost::StdinEnd, 5, b"", &[]);
    let (rest, report) = host.ended(5);
    stdout.extend(rest);
    assert_eq!(report.exit, Some(ExitStatus::Exit { code: 0 }));
    assert!(stdout == bytes, "{} bytes came back", stdout.len());
}

#[test]
fn clocks_tell_how_fine_they_are() {
    let mut host = Host::spawn(false);
    // Traps unless the answer is 1 ns to 1 s.
    let asks = |clock: u8| {
        format!(
            "(if (call $ask (i32.const {clock}) (i32.const 32)) (then unreachable))
             (if (i64.eqz (i64.load (i32.const 32))) (then unreachable))
             (if (i64.gt_u (i64.load (i32.const 32)) (i64.const 1000000000)) (then unreachable))"
        )
    };
    let text = format!(
        r#"(module
          (import "wasi_snapshot_preview1" "clock_res_get" (func $ask (param i32 i32) (result i32)))
          (memory (export "memory") 1)
          (func (export "_start") {} {}))"#,
        asks(0),
        asks(1)
    );
    host.load(1, &text);
    host.start(1, &start(1, limits()), &[]);
    let report = host.ended(1).1;
    assert_eq!(
        report.exit,
        Some(ExitStatus::Exit { code: 0 }),
        "{report:?}"
    );
}

#[test]
fn an_owner_that_breaks_the_protocol_loses_its_host() {
    let mut host = Host::spawn(false);
    host.load(1, &guests::sleeps());
    let mut wanted = start(1, limits());
    wanted.stdin = true;
    host.start(5, &wanted, &[]);
    for _ in 0..10 {
        let piece = frame(ToHost::Stdin as u8, 0, 5, &[0; 50_000]).unwrap();
        // The socket may be gone before the last.
        let _ = send_with_fds(&host.socket, &piece, &[]);
    }
    while host.next().is_some() {}
    assert!(!host.child.wait().unwrap().success());
}

#[test]
fn what_cannot_be_started_is_refused_and_the_host_goes_on() {
    let mut host = Host::spawn(false);
    host.load(1, &guests::hello());
    host.start(1, &start(9, limits()), &[]);
    assert!(host.refused().contains("not loaded"));
    host.start(
        1,
        &start(
            1,
            RunLimits {
                fuel: Some(1),
                ..limits()
            },
        ),
        &[],
    );
    assert!(host.refused().contains("metered"));
    let mut wanted = start(1, limits());
    wanted.preopens.push(Preopen {
        guest: "/w".to_owned(),
        writable: false,
    });
    host.start(1, &wanted, &[]);
    assert!(host.refused().contains("directories"));
    host.send(
        ToHost::Load,
        3,
        &body(&Load {
            kind: leasehold_protocol::wasm::Kind::Core,
            flavour: Flavour::Plain,
        })
        .unwrap(),
        &[sealed(b"no code").into()],
    );
    host.refused();
    host.start(2, &start(1, limits()), &[]);
    assert_eq!(host.ended(2).0, b"hello\n");
}

#[test]
fn hostile_modules_end_alone() {
    let mut host = Host::spawn(false);
    let deep = guests::with("(func $deep (call $deep) (call $deep))", "(call $deep)");
    let cases = [
        (deep, Resource::Stack),
        (guests::floods(-1), Resource::Output),
        (
            guests::module("(loop $a (drop (memory.grow (i32.const 16))) (br $a))"),
            Resource::Memory,
        ),
        (guests::spins(), Resource::CpuTime),
    ];
    host.load(0, &guests::hello());
    for (at, (text, which)) in (1..).zip(cases) {
        host.load(at, &text);
        let hard = RunLimits {
            memory_kill: true,
            output_kill: true,
            cpu_time_ms: Some(200),
            ..limits()
        };
        host.start(at, &start(at, hard), &[]);
        let (_, report) = host.ended(at);
        assert_eq!(
            report.killed_by.map(|hit| hit.which),
            Some(which),
            "{report:?}"
        );
        host.start(90, &start(0, limits()), &[]);
        assert_eq!(host.ended(90).0, b"hello\n");
    }
    for body in ["unreachable", "(drop (i32.load (i32.const -1)))"] {
        host.load(50, &guests::module(body));
        host.start(50, &start(50, limits()), &[]);
        assert!(matches!(
            host.ended(50).1.exit,
            Some(ExitStatus::Trap { .. })
        ));
    }
}

#[test]
fn a_panic_in_what_a_module_calls_ends_its_run_alone() {
    let mut host = Host::spawn(false);
    let panics = r#"(module
        (import "leasehold_failpoint" "panic" (func $panic))
        (func (export "_start") (call $panic)))"#;
    host.load(1, panics);
    host.load(2, &guests::sleeps());
    host.load(3, &guests::hello());
    host.start(2, &start(2, limits()), &[]);
    host.start(1, &start(1, limits()), &[]);
    let report = host.ended(1).1;
    assert!(report.crashed.unwrap().contains("failpoint"));
    assert_eq!(report.exit, None);
    host.start(3, &start(3, limits()), &[]);
    assert_eq!(host.ended(3).0, b"hello\n");
    host.send(ToHost::Cancel, 2, b"", &[]);
    assert!(host.ended(2).1.cancelled, "the other run went on");
}

#[test]
fn a_host_is_locked_down_before_its_first_module() {
    let host = Host::spawn(false);
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.child.id())).unwrap();
    let field = |name: &str| -> String {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].trim().to_owned()
    };
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("Seccomp:"), "2");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    if rustix::process::geteuid().is_root() {
        assert_eq!(field("Uid:"), "65534\t65534\t65534\t65534");
        assert_eq!(field("CapBnd:"), "0000000000000000");
    }
}

#[test]
fn a_host_with_files_reaches_what_it_is_given() {
    let folder = std::env::temp_dir().join(format!("leasehold-wasm-host-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("there"), "x").unwrap();
    let opens = |name: &str| {
        guests::with(
            &format!("(data (i32.const 0) {name:?})"),
            &format!(
                "(call $tell (call $path_open (i32.const 3) (i32.const 1) (i32.const 0) (i32.const {})
                   (i32.const 0) (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 64)))",
                name.len()
            ),
        )
    };
    let mut wanted = start(1, limits());
    wanted.preopens.push(Preopen {
        guest: "/in".to_owned(),
        writable: false,
    });
    let given = || vec![OwnedFd::from(File::open(&folder).unwrap())];
    let mut host = Host::spawn(true);
    host.load(1, &opens("there"));
    host.load(2, &opens("../../etc/passwd"));
    host.start(1, &wanted, &given());
    assert_eq!(host.ended(1).0, b"00 ");
    wanted.module = 2;
    host.start(2, &wanted, &given());
    assert_ne!(host.ended(2).0, b"00 ");
    // A host that was not made for files says so.
    let mut host = Host::spawn(false);
    host.load(1, &opens("there"));
    wanted.module = 1;
    host.start(1, &wanted, &given());
    assert!(host.refused().contains("directories"));
    std::fs::remove_dir_all(&folder).unwrap();
}
