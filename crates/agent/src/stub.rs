//! The parked child that becomes one command.
//!
//! It has every restriction that does not depend on the command, says so, and waits for its one
//! message. It never returns to waiting: it vanishes into the program, or says why not and ends.
//!
//! It shares init's memory, which makes the way from the message to the program short, and takes turns
//! with init: it gives its turn when it waits and keeps it from its message on, until the program has
//! memory of its own. No process of a workload is there before that, and the memory is closed to all
//! others (`posture::hide`), also when the identity is the workload's already.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use leasehold_jail::landlock::Root;
use leasehold_jail::posture::{self, PostureError};
use leasehold_jail::sharing::Turns;
use leasehold_jail::sys;
use leasehold_protocol::guest::{
    EXEC_HEADER_LEN, ExecHeader, ExecRequest, ExecStep, ROUSE, STUB_FD, SetupStep, StubReply,
};
use leasehold_protocol::socket::{recv_with_fds, send_with_fds};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::warm::{self, Warm};
use crate::{program, terminal};

/// Status of a stub that could not park or become its command, as a shell would have it.
const CANNOT: u8 = 126;
/// Status of a stub whose program was not found.
const NOT_FOUND: u8 = 127;
/// First number of the descriptors that a program which came by descriptor is passed.
const PASSED_FD: i32 = 3;
/// Descriptor number of the notice to init, in a warm interpreter.
const NOTICE_FD: i32 = 5;

/// How long a roused stub stays awake for its message.
const AWAKE: Duration = Duration::from_micros(500);

/// Bytes of the notice a stub gives init: what failed (0 when parked) and the error number.
pub const NOTICE_LEN: usize = 8;

/// A notice as bytes.
#[must_use]
pub fn notice(step: u32, errno: i32) -> [u8; NOTICE_LEN] {
    let mut bytes = [0; NOTICE_LEN];
    bytes[..4].copy_from_slice(&step.to_le_bytes());
    bytes[4..].copy_from_slice(&errno.to_le_bytes());
    bytes
}

/// What a posture error is called in a report of set-up.
#[must_use]
pub fn setup_step(error: &PostureError) -> SetupStep {
    match error {
        PostureError::Seccomp(_) => SetupStep::Seccomp,
        PostureError::Landlock(_) => SetupStep::Landlock,
        PostureError::Step { .. } | PostureError::Limits(_) | PostureError::NotSo(_) => {
            SetupStep::Posture
        }
    }
}

/// What stopped a stub on the way to its command.
type Failure = (ExecStep, i32);

fn at<T>(step: ExecStep, result: rustix::io::Result<T>) -> Result<T, Failure> {
    result.map_err(|errno| (step, errno.raw_os_error()))
}

fn io_errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}

fn posture_failure(error: &PostureError) -> Failure {
    let step = match error {
        PostureError::Limits(_) => ExecStep::Rlimits,
        _ => ExecStep::Posture,
    };
    (step, error.errno())
}

/// Parks and becomes the command that comes over `socket`. Returns the status to end with when it
/// could not. `init` is its notice and the turns with its memory, where the stub is its child; `warm` is
/// an interpreter to wait in, `root` what it may write below.
#[must_use]
pub fn run(
    socket: &OwnedFd,
    init: Option<(&OwnedFd, &'static Turns)>,
    warm: Option<Warm>,
    root: Root,
) -> u8 {
    let (ready, turns) = init.unzip();
    if let Err((step, errno)) = park(root) {
        tell(ready, step as u32, errno);
        return CANNOT;
    }
    if let Some(warm) = warm {
        let errno = wait_warm(warm, socket, ready);
        tell(ready, SetupStep::Stub as u32, errno);
        return CANNOT;
    }
    if send_with_fds(socket, &StubReply::Ready.encode(), &[]).is_err() {
        return CANNOT;
    }
    tell(ready, 0, 0);
    let (step, errno) = match receive(socket, turns) {
        // Nobody needs this sandbox any more.
        Ok(None) => return 0,
        Ok(Some((request, fds))) => match request.passed {
            Some(_) => return become_supplied(&request, fds, socket),
            None => become_command(&request, &fds, socket),
        },
        Err(failure) => failure,
    };
    failed(socket, step, errno)
}

/// Says what stopped it. Returns the status to end with.
fn failed(socket: &OwnedFd, step: ExecStep, errno: i32) -> u8 {
    let reply = StubReply::Failed { step, errno };
    // Whoever asked is gone when this fails; the status remains.
    let _ = send_with_fds(socket, &reply.encode(), &[]);
    if step == ExecStep::Exec && errno == Errno::NOENT.raw_os_error() {
        NOT_FOUND
    } else {
        CANNOT
    }
}

fn tell(ready: Option<&OwnedFd>, step: u32, errno: i32) {
    if let Some(ready) = ready {
        // Init sees the end of the pipe when this fails.
        let _ = rustix::io::write(ready, &notice(step, errno));
    }
}

/// Everything that does not depend on the command.
fn park(root: Root) -> Result<(), (SetupStep, i32)> {
    rustix::process::setsid().map_err(|errno| (SetupStep::Stub, errno.raw_os_error()))?;
    sys::reset_signals().map_err(|error| (SetupStep::Stub, io_errno(&error)))?;
    posture::park_stub(root).map_err(|error| (setup_step(&error), error.errno()))
}

/// Waits in an interpreter, as the workload already. Comes back only when it could not be started.
fn wait_warm(warm: Warm, socket: &OwnedFd, ready: Option<&OwnedFd>) -> i32 {
    let (uid, gid) = warm::workload_ids();
    if let Err((_, errno)) = take_identity(uid, gid, warm::FILES, 0) {
        return errno;
    }
    let placed = ready
        .map_or(Ok(()), |ready| sys::place(ready.as_fd(), NOTICE_FD))
        .and_then(|()| sys::place(socket.as_fd(), STUB_FD));
    match placed {
        Ok(()) => program::become_program(&warm.argv(), &warm.env()),
        Err(error) => io_errno(&error),
    }
}

/// The identity of the workload. What is in a memory that is common to init stays closed: some hosts
/// open it at a change of identity.
fn take_identity(uid: u32, gid: u32, files: u32, cpu_seconds: u32) -> Result<(), Failure> {
    posture::become_user(uid, gid, files, cpu_seconds)
        .and_then(|()| posture::hide())
        .map_err(|error| posture_failure(&error))
}

/// Takes the one message. `None` when the other side went away without one.
fn receive(
    socket: &OwnedFd,
    turns: Option<&Turns>,
) -> Result<Option<(ExecRequest, Vec<OwnedFd>)>, Failure> {
    let protocol = (ExecStep::Message, Errno::PROTO.raw_os_error());
    let mut fds = Vec::new();
    let mut fixed = [0; EXEC_HEADER_LEN];
    let mut got = 0;
    while got == 0 {
        at(ExecStep::Message, await_message(socket, turns))?;
        got = recv_with_fds(socket, &mut fixed, &mut fds)
            .map_err(|error| (ExecStep::Message, io_errno(&error)))?;
        if got == 0 {
            return Ok(None);
        }
        let roused = fixed[..got].iter().take_while(|byte| **byte == ROUSE);
        let roused = roused.count();
        fixed.copy_within(roused..got, 0);
        got -= roused;
        if got == 0 {
            stays_awake(socket);
        }
    }
    got += fill(socket, &mut fixed[got..], &mut fds)?;
    if got < fixed.len() {
        return Err(protocol);
    }
    let header = ExecHeader::decode(&fixed).map_err(|_| protocol)?;
    let mut payload = vec![0; header.payload_len()];
    if fill(socket, &mut payload, &mut fds)? < payload.len() {
        return Err(protocol);
    }
    let request = header.with_payload(&payload).map_err(|_| protocol)?;
    if fds.len() != request.descriptors() {
        return Err(protocol);
    }
    Ok(Some((request, fds)))
}

/// Waits for something to read, without a turn.
fn await_message(socket: &OwnedFd, turns: Option<&Turns>) -> rustix::io::Result<()> {
    let mut waited = [PollFd::new(socket, PollFlags::IN)];
    if let Some(turns) = turns {
        turns.give();
    }
    let polled = rustix::io::retry_on_intr(|| poll(&mut waited, None));
    if let Some(turns) = turns {
        turns.take();
    }
    polled.map(drop)
}

/// Looks for the message again and again in place of sleeping, for [`AWAKE`] at most: whoever roused it
/// is about to send it, and a process that sleeps takes longer to be there than all that is left to do.
fn stays_awake(socket: &OwnedFd) {
    let end = Instant::now() + AWAKE;
    let mut waited = [PollFd::new(socket, PollFlags::IN)];
    while matches!(poll(&mut waited, Some(&Timespec::default())), Ok(0)) && Instant::now() < end {}
}

/// Reads until the buffer is full or the other side is done. Returns the bytes read.
fn fill(socket: &OwnedFd, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize, Failure> {
    let mut got = 0;
    while got < bytes.len() {
        match recv_with_fds(socket, &mut bytes[got..], fds) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(error) => return Err((ExecStep::Message, io_errno(&error))),
        }
    }
    Ok(got)
}

/// Becomes the command. Comes back only with what stopped it.
fn become_command(request: &ExecRequest, fds: &[OwnedFd], socket: &OwnedFd) -> Failure {
    match prepare(request, fds, socket) {
        Ok(()) => {
            let errno = program::become_program(&request.argv, &request.env);
            (ExecStep::Exec, errno)
        }
        Err(failure) => failure,
    }
}

/// Becomes the program that came along. Returns the status to end with when it could not.
fn become_supplied(request: &ExecRequest, mut fds: Vec<OwnedFd>, socket: &OwnedFd) -> u8 {
    let above = PASSED_FD + i32::from(request.passed.unwrap_or(0));
    // Everything that is still needed leaves the numbers that the passed ones are to have.
    let moved = |fd: &OwnedFd| at(ExecStep::Stdio, fcntl_dupfd_cloexec(fd, above));
    let theirs = fds.split_off(3.min(fds.len()));
    let theirs: Result<Vec<_>, _> = theirs.iter().map(moved).collect();
    let (socket, theirs) = match (moved(socket), theirs) {
        (Ok(moved), Ok(theirs)) => (moved, theirs),
        (Err((step, errno)), _) | (_, Err((step, errno))) => return failed(socket, step, errno),
    };
    let (step, errno) = match (prepare(request, &fds, &socket), &theirs[..]) {
        (Ok(()), [program, passed @ ..]) => match pass(passed) {
            Ok(()) => {
                let errno = program::become_file(program, &request.argv, &request.env);
                (ExecStep::Exec, errno)
            }
            Err(failure) => failure,
        },
        (Ok(()), []) => (ExecStep::Message, Errno::PROTO.raw_os_error()),
        (Err(failure), _) => failure,
    };
    failed(&socket, step, errno)
}

/// Puts descriptors where the program looks for them.
fn pass(passed: &[OwnedFd]) -> Result<(), Failure> {
    for (number, fd) in (PASSED_FD..).zip(passed) {
        sys::place(fd.as_fd(), number).map_err(|error| (ExecStep::Stdio, io_errno(&error)))?;
    }
    Ok(())
}

fn prepare(request: &ExecRequest, fds: &[OwnedFd], socket: &OwnedFd) -> Result<(), Failure> {
    let (uid, gid) = request.ids;
    take_identity(uid, gid, request.files, request.cpu_seconds)?;
    match (request.tty, fds) {
        (Some((rows, columns)), _) => {
            let master = at(ExecStep::Tty, terminal::take(rows, columns))?;
            let reply = StubReply::Tty.encode();
            send_with_fds(socket, &reply, &[master.as_fd()])
                .map_err(|error| (ExecStep::Tty, io_errno(&error)))?;
        }
        (None, [input, output, error]) => {
            at(ExecStep::Stdio, rustix::stdio::dup2_stdin(input))?;
            at(ExecStep::Stdio, rustix::stdio::dup2_stdout(output))?;
            at(ExecStep::Stdio, rustix::stdio::dup2_stderr(error))?;
        }
        (None, _) => return Err((ExecStep::Stdio, Errno::BADF.raw_os_error())),
    }
    sys::close_on_exec_from(3).map_err(|error| (ExecStep::Stdio, io_errno(&error)))?;
    at(ExecStep::Cwd, rustix::process::chdir(&request.cwd[..]))?;
    let place = at(ExecStep::Cwd, rustix::process::getcwd(Vec::new()))?;
    // The kernel says so when a directory cannot be reached from the root.
    if place.as_bytes().first() != Some(&b'/') {
        return Err((ExecStep::Cwd, Errno::XDEV.raw_os_error()));
    }
    Ok(())
}
