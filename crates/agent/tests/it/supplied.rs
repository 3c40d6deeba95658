//! A program that comes by descriptor, and what is passed to it.

use std::os::fd::OwnedFd;

use leasehold_protocol::guest::{EXEC_PASSED_MAX, ExecRequest, ExecStep, StubReply};
use leasehold_protocol::memory;
use rustix::io::Errno;

use crate::sandbox::{Outcome, Sandbox, able, request};

fn program(path: &str) -> OwnedFd {
    memory::sealed("program", &std::fs::read(path).unwrap()).unwrap()
}

fn supplied(argv: &[&str], passed: u8) -> ExecRequest {
    ExecRequest {
        env: Vec::new(),
        passed: Some(passed),
        ..request(argv)
    }
}

/// Runs the program of a file with so many descriptors, each a memory file that holds its place.
fn run(path: &str, argv: &[&str], passed: u8) -> Outcome {
    let program = program(path);
    let files: Vec<OwnedFd> = (0..passed)
        .map(|place| memory::sealed("passed", &[b'a' + place]).unwrap())
        .collect();
    let more: Vec<&OwnedFd> = std::iter::once(&program).chain(&files).collect();
    Sandbox::parked(&[]).run_with(&supplied(argv, passed), b"", &more)
}

fn stopped(request: &ExecRequest, more: &[&OwnedFd], arguments: &[&str]) -> (ExecStep, Errno) {
    let sandbox = Sandbox::parked(arguments);
    let _pipes = sandbox.send_with(request, more);
    match sandbox.reply() {
        Some((StubReply::Failed { step, errno }, _)) => (step, Errno::from_raw_os_error(errno)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_supplied_program_is_executed_and_has_an_empty_environment() {
    if !able("a_supplied_program_is_executed_and_has_an_empty_environment") {
        return;
    }
    // No file of that name is anywhere: what runs is what came.
    let outcome = run("/usr/bin/env", &["leasehold-no-such-program"], 0);
    assert_eq!((&*outcome.stdout, outcome.code()), ("", Some(0)));
    let words = ["cat", "/proc/self/cmdline", "/proc/self/status"];
    let outcome = run("/bin/cat", &words, 0);
    assert!(outcome.stdout.starts_with("cat\0/proc/self/cmdline\0"));
    for line in [
        "Uid:\t1000\t1000\t1000\t1000",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(outcome.stdout.contains(line), "{line}: {}", outcome.stdout);
    }
    // The control: a program of the sandbox has what is declared.
    let outcome = Sandbox::parked(&[]).run(&request(&["env"]), b"");
    assert!(outcome.stdout.contains("HOME=/home/user"));
}

#[test]
fn it_has_exactly_what_it_was_passed_and_in_order() {
    if !able("it_has_exactly_what_it_was_passed_and_in_order") {
        return;
    }
    for passed in [0, 1, EXEC_PASSED_MAX] {
        let outcome = run("/bin/ls", &["ls", "/proc/self/fd"], passed);
        // The last is the directory that it lists.
        let most = 3 + u32::from(passed);
        let wanted: Vec<u32> = (0..=most).collect();
        let mut seen: Vec<u32> = outcome
            .stdout
            .lines()
            .map(|line| line.parse().unwrap())
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, wanted, "{passed}: {}", outcome.stderr);
    }
    let names: Vec<String> = (0..EXEC_PASSED_MAX)
        .map(|place| format!("/proc/self/fd/{}", 3 + place))
        .collect();
    let mut words = vec!["cat"];
    words.extend(names.iter().map(String::as_str));
    let outcome = run("/bin/cat", &words, EXEC_PASSED_MAX);
    assert_eq!(outcome.stdout, "abcdefg", "{}", outcome.stderr);
}

#[test]
fn what_cannot_be_executed_is_told_whatever_is_passed() {
    if !able("what_cannot_be_executed_is_told_whatever_is_passed") {
        return;
    }
    let text = memory::sealed("text", b"no program at all").unwrap();
    let files: Vec<OwnedFd> = (0..EXEC_PASSED_MAX)
        .map(|_| memory::sealed("passed", b"x").unwrap())
        .collect();
    let more: Vec<&OwnedFd> = std::iter::once(&text).chain(&files).collect();
    let wanted = supplied(&["x"], EXEC_PASSED_MAX);
    let told = stopped(&wanted, &more, &[]);
    assert_eq!(told, (ExecStep::Exec, Errno::NOEXEC));
    // Fewer or more than the message says.
    for count in [0, 1, 4, 7] {
        let told = stopped(&wanted, &more[..count], &[]);
        assert_eq!(told, (ExecStep::Message, Errno::PROTO), "{count}");
    }
    let told = stopped(&supplied(&["x"], 0), &more[..2], &[]);
    assert_eq!(told, (ExecStep::Message, Errno::PROTO));
}

#[test]
fn a_waiting_interpreter_takes_none() {
    let python = std::path::Path::new("/usr/bin/python3").exists();
    if !python || !able("a_waiting_interpreter_takes_none") {
        return;
    }
    let program = program("/bin/true");
    let warm = ["--warm", "python"];
    let told = stopped(&supplied(&["true"], 0), &[&program], &warm);
    assert_eq!(told, (ExecStep::Message, Errno::PROTO));
    // Neither without a descriptor too many, which would be reason enough.
    let told = stopped(&supplied(&["true"], 0), &[], &warm);
    assert_eq!(told, (ExecStep::Message, Errno::PROTO));
}
