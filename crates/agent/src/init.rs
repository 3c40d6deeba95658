//! PID 1 of a sandbox: starts the stub, collects the dead, relays signals, starts the agent.
//!
//! It takes its posture first and lives on one thread in one loop. When its control socket closes or
//! says so it ends, and the kernel ends everything else in the sandbox with it.
//!
//! The stub shares its memory until it is its command. So init gives its turn with that memory while it
//! waits, and has it at all other times.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use leasehold_jail::landlock::Root;
use leasehold_jail::sharing::{Turns, spawn_sharing};
use leasehold_jail::{posture, sys};
use leasehold_protocol::guest::{CONTROL_LEN, Control, INIT_FD, STUB_FD, SetupStep, SignalTarget};
use leasehold_protocol::socket::{recv_with_fds, send_with_fds};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions};

use crate::program::DEFAULT_PATH;
use crate::stub;
use crate::warm::Warm;

/// A step of set-up that failed, and the error number.
type Failure = (SetupStep, i32);

fn io_errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}

/// Why the loop goes on or ends.
#[derive(PartialEq, Eq)]
enum Next {
    Go,
    End,
}

struct Init {
    control: OwnedFd,
    events: OwnedFd,
    /// Notice of the stub, until it came.
    notice: Option<OwnedFd>,
    stub: Pid,
    main_ended: bool,
    agent: Option<Pid>,
    /// There may be more to collect than was at the last turn.
    backlog: bool,
}

/// Whose turn it is with the memory of init and its one stub.
static TURNS: Turns = Turns::new();

/// Most children collected in one turn, so that a command that makes orphans cannot keep init from
/// hearing the host.
const COLLECT_MAX: usize = 256;

/// Runs PID 1. Returns when the sandbox is to end.
#[must_use]
pub fn main(warm: Option<Warm>, root: Root) -> ExitCode {
    let (Ok(control), Ok(socket)) = (sys::inherited(INIT_FD), sys::inherited(STUB_FD)) else {
        return ExitCode::FAILURE;
    };
    match Init::set_up(control, socket, warm, root) {
        Ok(mut init) => init.run(),
        Err((control, (step, errno))) => {
            let step = step as u32;
            // The host sees the end of the socket when this fails.
            let _ = send_with_fds(
                &control,
                &Control::SetupFailed { step, errno }.encode(),
                &[],
            );
            ExitCode::FAILURE
        }
    }
}

impl Init {
    fn set_up(
        control: OwnedFd,
        socket: OwnedFd,
        warm: Option<Warm>,
        root: Root,
    ) -> Result<Self, (OwnedFd, Failure)> {
        match Self::prepare(&control, socket, warm, root) {
            Ok((events, notice, stub)) => Ok(Self {
                control,
                events,
                notice: Some(notice),
                stub,
                main_ended: false,
                agent: None,
                backlog: false,
            }),
            Err(failure) => Err((control, failure)),
        }
    }

    /// Posture, child events, the stub.
    fn prepare(
        control: &OwnedFd,
        socket: OwnedFd,
        warm: Option<Warm>,
        root: Root,
    ) -> Result<(OwnedFd, OwnedFd, Pid), Failure> {
        let in_loop = |errno: Errno| (SetupStep::Loop, errno.raw_os_error());
        rustix::io::fcntl_setfd(control, FdFlags::CLOEXEC).map_err(in_loop)?;
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(in_loop)?;
        posture::init().map_err(|error| (stub::setup_step(&error), error.errno()))?;
        let events = sys::child_events().map_err(|error| (SetupStep::Loop, io_errno(&error)))?;
        let (notice, ready) = pipe_with(PipeFlags::CLOEXEC).map_err(in_loop)?;
        let stub = start_stub(socket, ready, warm, root)?;
        Ok((events, notice, stub))
    }

    fn run(&mut self) -> ExitCode {
        loop {
            match self.turn() {
                Ok(Next::Go) => {}
                Ok(Next::End) => return ExitCode::SUCCESS,
                Err(_) => return ExitCode::FAILURE,
            }
        }
    }

    /// Waits for something and handles it.
    fn turn(&mut self) -> rustix::io::Result<Next> {
        let (control, events, notice) = {
            let mut waited = vec![
                PollFd::new(&self.control, PollFlags::IN),
                PollFd::new(&self.events, PollFlags::IN),
            ];
            if let Some(notice) = &self.notice {
                waited.push(PollFd::new(notice, PollFlags::IN));
            }
            let at_once = Timespec::default();
            let limit = self.backlog.then_some(&at_once);
            TURNS.give();
            let polled = rustix::io::retry_on_intr(|| poll(&mut waited, limit));
            TURNS.take();
            polled?;
            let seen = |at: usize| waited.get(at).is_some_and(|fd| !fd.revents().is_empty());
            (seen(0), seen(1), seen(2))
        };
        // What the stub says of itself comes before the news of its end.
        if notice && let Some(notice) = self.notice.take() {
            self.stub_said(&notice);
        }
        if events || self.backlog {
            self.collect()?;
        }
        if control {
            return Ok(self.command());
        }
        Ok(Next::Go)
    }

    fn say(&self, message: Control) {
        // A host that is gone is seen at the next turn.
        let _ = send_with_fds(&self.control, &message.encode(), &[]);
    }

    fn stub_said(&self, notice: &OwnedFd) {
        let mut bytes = [0; stub::NOTICE_LEN];
        let got = rustix::io::retry_on_intr(|| rustix::io::read(notice, &mut bytes));
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let stub = self.stub.as_raw_nonzero().get().cast_unsigned();
        self.say(match got {
            Ok(stub::NOTICE_LEN) if word(0) == 0 => Control::Ready { stub },
            Ok(stub::NOTICE_LEN) => Control::SetupFailed {
                step: word(0),
                errno: word(4).cast_signed(),
            },
            _ => Control::SetupFailed {
                step: SetupStep::Stub as u32,
                errno: Errno::CHILD.raw_os_error(),
            },
        });
    }

    /// Collects children that ended, up to [`COLLECT_MAX`]. The end of the main command is told once.
    fn collect(&mut self) -> rustix::io::Result<()> {
        let mut drain = [0; 512];
        // Only the level counts: which children ended is asked below.
        let _ = rustix::io::read(&self.events, &mut drain);
        self.backlog = false;
        for _ in 0..COLLECT_MAX {
            let (pid, status) = match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(ended)) => ended,
                Ok(None) | Err(Errno::CHILD) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            };
            if pid == self.stub && !self.main_ended {
                self.main_ended = true;
                if let Some(notice) = self.notice.take() {
                    self.stub_said(&notice);
                }
                let status = status.as_raw();
                self.say(Control::MainExited { status });
            }
            if self.agent == Some(pid) {
                self.agent = None;
            }
        }
        self.backlog = true;
        Ok(())
    }

    /// Takes one message of the host.
    fn command(&mut self) -> Next {
        let mut bytes = [0; CONTROL_LEN + 1];
        let mut fds = Vec::new();
        let got = match recv_with_fds(&self.control, &mut bytes, &mut fds) {
            Ok(0) | Err(_) => return Next::End,
            Ok(got) => got,
        };
        match Control::decode(&bytes[..got]) {
            Ok(Control::Signal { signal, target }) => self.signal(signal.cast_signed(), target),
            Ok(Control::StartAgent) => self.start_agent(&fds),
            Ok(Control::Shutdown) | Err(_) => return Next::End,
            // Ours to say, not to hear.
            Ok(
                Control::Ready { .. }
                | Control::MainExited { .. }
                | Control::Agent { .. }
                | Control::SetupFailed { .. },
            ) => return Next::End,
        }
        Next::Go
    }

    fn signal(&self, signal: i32, target: SignalTarget) {
        let target = match target {
            SignalTarget::Main => -self.stub.as_raw_nonzero().get(),
            SignalTarget::Everything => -1,
        };
        // There may be nobody left to signal.
        let _ = sys::kill(target, signal);
    }

    fn start_agent(&mut self, fds: &[OwnedFd]) {
        let started = match (fds, self.agent) {
            ([channel, program], None) => start_agent(program, channel),
            ([_, _], Some(_)) => Err(Errno::ALREADY.raw_os_error()),
            _ => Err(Errno::INVAL.raw_os_error()),
        };
        let (pid, errno) = match started {
            Ok(pid) => {
                self.agent = Some(pid);
                (pid.as_raw_nonzero().get().cast_unsigned(), 0)
            }
            Err(errno) => (0, errno),
        };
        self.say(Control::Agent { pid, errno });
    }
}

/// Its ends of the socket and of the notice are closed here when it has them. Comes back when it waits.
fn start_stub(
    socket: OwnedFd,
    ready: OwnedFd,
    warm: Option<Warm>,
    root: Root,
) -> Result<Pid, Failure> {
    spawn_sharing(&TURNS, [socket, ready], move |[socket, ready]| {
        stub::run(&socket, Some((&ready, &TURNS)), warm, root)
    })
    .map_err(|error| (SetupStep::Stub, io_errno(&error)))
}

/// Starts the agent, whose program came along, with the channel as its descriptor 3. Waits until the
/// kernel took it.
fn start_agent(program: &OwnedFd, channel: &OwnedFd) -> Result<Pid, i32> {
    let (outcome, report) = pipe_with(PipeFlags::CLOEXEC).map_err(Errno::raw_os_error)?;
    let path = [b"PATH=".as_slice(), DEFAULT_PATH].concat();
    let text = |bytes: &[u8]| CString::new(bytes).unwrap_or_default();
    let argv = [text(b"leasehold-agent")];
    let env = [text(&path), text(b"LANG=C.UTF-8")];
    let keep = [program.as_fd(), channel.as_fd(), report.as_fd()];
    let pid = sys::spawn_child(&keep, || {
        let errno = match sys::close_on_exec_from(3)
            .and_then(|()| sys::reset_signals())
            .and_then(|()| sys::place(channel.as_fd(), INIT_FD))
        {
            Ok(()) => io_errno(&sys::exec_fd(program.as_fd(), &argv, &env)),
            Err(error) => io_errno(&error),
        };
        let _ = rustix::io::write(&report, &errno.to_le_bytes());
        1
    })
    .map_err(|error| io_errno(&error))?;
    drop(report);
    let mut bytes = [0; 4];
    match rustix::io::retry_on_intr(|| rustix::io::read(&outcome, &mut bytes)) {
        Ok(0) => Ok(pid),
        Ok(_) => Err(i32::from_le_bytes(bytes)),
        Err(errno) => Err(errno.raw_os_error()),
    }
}
