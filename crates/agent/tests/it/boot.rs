//! The life of init and of one command.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};

use leasehold_protocol::guest::{Control, ExecStep, ROUSE, SignalTarget, StubReply};
use rustix::io::Errno;

use crate::sandbox::{Sandbox, able, agent_program, drain, readable, request, run};

#[test]
fn a_command_runs_and_its_end_is_told() {
    if !able("a_command_runs_and_its_end_is_told") {
        return;
    }
    let sandbox = Sandbox::parked(&[]);
    let script = "read line; echo \"out $line\"; echo err >&2; pwd; exit 3";
    let outcome = sandbox.run(&request(&["sh", "-c", script]), b"hello\n");
    assert_eq!(outcome.stdout, "out hello\n/tmp\n");
    assert_eq!(outcome.stderr, "err\n");
    assert_eq!(outcome.code(), Some(3));
    // Init stays until it is told to go.
    sandbox.say(Control::Shutdown, &[]);
    sandbox.ended();
}

#[test]
fn the_standard_descriptors_open_by_name() {
    if !able("the_standard_descriptors_open_by_name") {
        return;
    }
    let script = "read a < /dev/stdin; echo \"$a\" > /dev/stdout; echo err > /dev/stderr";
    let outcome = Sandbox::parked(&[]).run(&request(&["bash", "-c", script]), b"in\n");
    assert_eq!((&*outcome.stdout, &*outcome.stderr), ("in\n", "err\n"));
}

#[test]
fn a_large_request_arrives_whole() {
    if !able("a_large_request_arrives_whole") {
        return;
    }
    let word = "x".repeat(100_000);
    let argv = [
        "sh",
        "-c",
        "echo $# ${#1} ${#5}",
        "sh",
        &word,
        &word,
        &word,
        &word,
        &word,
    ];
    let outcome = run(&argv);
    assert_eq!(outcome.stdout, "5 100000 100000\n");
}

fn failure(
    change: impl FnOnce(&mut leasehold_protocol::guest::ExecRequest),
) -> (ExecStep, Errno, i32) {
    let sandbox = Sandbox::parked(&[]);
    let mut request = request(&["true"]);
    change(&mut request);
    let pipes = sandbox.send(&request);
    let reply = sandbox.reply();
    let Some((StubReply::Failed { step, errno }, _)) = reply else {
        panic!("{reply:?}");
    };
    drop(pipes);
    let Some(Control::MainExited { status }) = sandbox.hear() else {
        panic!("the end was not told");
    };
    (step, Errno::from_raw_os_error(errno), status >> 8)
}

#[test]
fn what_stopped_a_command_is_told() {
    if !able("what_stopped_a_command_is_told") {
        return;
    }
    let missing = failure(|request| request.argv = vec![b"no-such-program".to_vec()]);
    assert_eq!(missing, (ExecStep::Exec, Errno::NOENT, 127));
    let forbidden = failure(|request| request.argv = vec![b"/etc/passwd".to_vec()]);
    assert_eq!(forbidden, (ExecStep::Exec, Errno::ACCESS, 126));
    let nowhere = failure(|request| request.cwd = b"/no/such/place".to_vec());
    assert_eq!(nowhere, (ExecStep::Cwd, Errno::NOENT, 126));
    // The directory is entered with the workload's rights, not with init's.
    let closed = failure(|request| request.cwd = b"/root".to_vec());
    assert_eq!(closed, (ExecStep::Cwd, Errno::ACCESS, 126));
    let nobody = failure(|request| request.ids = (70_000, 70_000));
    assert_eq!(nobody, (ExecStep::Posture, Errno::INVAL, 126));
    // Three descriptors came where none belongs.
    let terminal = failure(|request| request.tty = Some((24, 80)));
    assert_eq!(terminal, (ExecStep::Message, Errno::PROTO, 126));
}

#[test]
fn a_broken_message_ends_the_stub() {
    if !able("a_broken_message_ends_the_stub") {
        return;
    }
    let sandbox = Sandbox::parked(&[]);
    sandbox.transmit(&[0xff; 64], &[]);
    let reply = sandbox.reply().map(|(reply, _)| reply);
    let errno = Errno::PROTO.raw_os_error();
    let step = ExecStep::Message;
    assert_eq!(reply, Some(StubReply::Failed { step, errno }));
    assert!(matches!(sandbox.hear(), Some(Control::MainExited { .. })));
}

/// The word that the message may come soon is no part of it, alone or with it, early or in vain.
#[test]
fn a_roused_stub_takes_its_message_or_sleeps_again() {
    if !able("a_roused_stub_takes_its_message_or_sleeps_again") {
        return;
    }
    let message = request(&["sh", "-c", "echo $0"]);
    let together = Sandbox::parked(&[]);
    let pipe = || rustix::pipe::pipe().unwrap();
    let ((input, _to), (from, output), (_from_error, error)) = (pipe(), pipe(), pipe());
    together.transmit(&[ROUSE; 3], &[]);
    together.transmit(&message.encode(), &[&input, &output, &error]);
    drop((input, output, error));
    assert_eq!(drain(from), "sh\n");
    let late = Sandbox::parked(&[]);
    for _ in 0..2 {
        late.transmit(&[ROUSE], &[]);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(late.run(&message, b"").stdout, "sh\n");
    let vain = Sandbox::parked(&[]);
    vain.transmit(&[ROUSE], &[]);
    rustix::net::shutdown(&vain.stub, rustix::net::Shutdown::Both).unwrap();
    assert_eq!(vain.hear(), Some(Control::MainExited { status: 0 }));
}

/// Init and stub have one memory and take turns with it: a stub that ends while it has the turn gives it back,
/// and init serves its agent meanwhile or afterwards, but always.
#[test]
fn init_goes_on_when_its_stub_ends_amid_a_message() {
    if !able("init_goes_on_when_its_stub_ends_amid_a_message") {
        return;
    }
    let sandbox = Sandbox::parked(&[]);
    let message = request(&["sh", "-c", "exit 3"]).encode();
    sandbox.transmit(&message[..message.len() - 4], &[]);
    std::thread::sleep(std::time::Duration::from_millis(20));
    rustix::net::shutdown(&sandbox.stub, rustix::net::Shutdown::Write).unwrap();
    assert!(matches!(
        sandbox.reply(),
        Some((StubReply::Failed { .. }, _))
    ));
    let status = 126 << 8;
    assert_eq!(sandbox.hear(), Some(Control::MainExited { status }));
    sandbox.say(Control::Shutdown, &[]);
    sandbox.ended();
}

/// What the command has is memory of its own: nothing of init's is in it, and init's is closed to it.
#[test]
fn a_command_has_memory_of_its_own() {
    if !able("a_command_has_memory_of_its_own") {
        return;
    }
    let script = "cat /proc/self/maps | grep -c leasehold-init; \
        for f in mem maps environ; do cat /proc/1/$f > /dev/null 2>&1 && echo $f; done; echo over";
    let outcome = run(&["sh", "-c", script]);
    assert_eq!(outcome.stdout, "0\nover\n", "{outcome:?}");
}

#[test]
fn a_stub_that_nobody_needs_ends_quietly() {
    if !able("a_stub_that_nobody_needs_ends_quietly") {
        return;
    }
    let sandbox = Sandbox::parked(&[]);
    rustix::net::shutdown(&sandbox.stub, rustix::net::Shutdown::Both).unwrap();
    assert_eq!(sandbox.hear(), Some(Control::MainExited { status: 0 }));
}

#[test]
fn a_terminal_is_the_commands_own() {
    if !able("a_terminal_is_the_commands_own") {
        return;
    }
    let sandbox = Sandbox::parked(&[]);
    let script = "tty; stty size; read line; echo \"got $line\"; ls -ln $(tty)";
    let mut wanted = request(&["sh", "-c", script]);
    wanted.tty = Some((33, 101));
    sandbox.transmit(&wanted.encode(), &[]);
    let Some((StubReply::Tty, mut fds)) = sandbox.reply() else {
        panic!("no terminal came");
    };
    assert!(sandbox.reply().is_none());
    let mut master = std::fs::File::from(fds.remove(0));
    master.write_all(b"hello\n").unwrap();
    let mut text = String::new();
    let mut part = [0; 4096];
    // The end of a terminal is an error, not 0 bytes.
    while let Ok(got @ 1..) = master.read(&mut part) {
        text.push_str(&String::from_utf8_lossy(&part[..got]));
    }
    for want in ["/dev/pts/0", "33 101", "got hello", "crw--w---- 1 1000"] {
        assert!(text.contains(want), "{want}: {text}");
    }
}

#[test]
fn signals_reach_the_group_of_the_command() {
    if !able("signals_reach_the_group_of_the_command") {
        return;
    }
    let sandbox = Sandbox::parked(&[]);
    let (to, from, error) = sandbox.send(&request(&["sh", "-c", "sleep 100 & echo on; wait"]));
    assert!(sandbox.reply().is_none());
    readable(&from);
    let target = SignalTarget::Main;
    sandbox.say(Control::Signal { signal: 15, target }, &[]);
    assert_eq!(sandbox.hear(), Some(Control::MainExited { status: 15 }));
    // `sleep` was in the group: nobody holds the pipe any more.
    assert_eq!(drain(from), "on\n");
    drop((to, error));
}

#[test]
fn signals_reach_everything_but_init() {
    if !able("signals_reach_everything_but_init") {
        return;
    }
    let sandbox = Sandbox::parked(&[]);
    let script = "trap '' TERM; setsid sleep 100 & echo on; wait";
    let (to, from, error) = sandbox.send(&request(&["sh", "-c", script]));
    assert!(sandbox.reply().is_none());
    readable(&from);
    let target = SignalTarget::Main;
    sandbox.say(Control::Signal { signal: 9, target }, &[]);
    assert_eq!(sandbox.hear(), Some(Control::MainExited { status: 9 }));
    let target = SignalTarget::Everything;
    sandbox.say(Control::Signal { signal: 9, target }, &[]);
    assert_eq!(drain(from), "on\n");
    sandbox.say(Control::Shutdown, &[]);
    sandbox.ended();
    drop((to, error));
}

#[test]
fn the_end_of_the_control_socket_ends_everything() {
    if !able("the_end_of_the_control_socket_ends_everything") {
        return;
    }
    let sandbox = Sandbox::parked(&[]);
    let (to, from, error) = sandbox.send(&request(&["sh", "-c", "echo on; sleep 100"]));
    assert!(sandbox.reply().is_none());
    readable(&from);
    rustix::net::shutdown(&sandbox.control, rustix::net::Shutdown::Write).unwrap();
    assert_eq!(drain(from), "on\n");
    drop((to, error));
}

#[test]
fn a_message_that_is_init_s_own_ends_the_sandbox() {
    if !able("a_message_that_is_init_s_own_ends_the_sandbox") {
        return;
    }
    let sandbox = Sandbox::parked(&[]);
    sandbox.say(Control::Ready { stub: 1 }, &[]);
    sandbox.ended();
}

#[test]
fn orphans_are_collected() {
    if !able("orphans_are_collected") {
        return;
    }
    // Each `true` loses its parent at once; none may stay as a zombie of init. A zombie is in `/proc` as well.
    let script = "for i in 1 2 3 4 5; do sh -c '(true &)'; done; n=0; set -- /proc/[0-9]*; \
        while [ $# -gt 2 ] && [ $n -lt 500 ]; do n=$((n+1)); sleep 0.01; set -- /proc/[0-9]*; done; \
        echo $#";
    let outcome = run(&["sh", "-c", script]);
    // Init and the shell.
    assert_eq!(outcome.stdout, "2\n", "{outcome:?}");
}

#[test]
fn the_agent_is_started_on_a_channel() {
    if !able("the_agent_is_started_on_a_channel") {
        return;
    }
    let sandbox = Sandbox::parked(&[]);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let theirs = OwnedFd::from(theirs);
    // Neither without a channel nor without a program.
    for fds in [&[][..], &[&theirs]] {
        sandbox.say(Control::StartAgent, fds);
        let errno = Errno::INVAL.raw_os_error();
        assert_eq!(sandbox.hear(), Some(Control::Agent { pid: 0, errno }));
    }
    sandbox.say(Control::StartAgent, &[&theirs, &agent_program()]);
    let told = sandbox.hear();
    assert!(
        matches!(told, Some(Control::Agent { pid: 3.., errno: 0 })),
        "{told:?}"
    );
    drop((ours, theirs));
    let _ = sandbox.control.as_fd();
}
