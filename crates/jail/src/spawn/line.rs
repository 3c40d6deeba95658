//! Sandboxes that are being made at the same time, as many as there are processors to make them on.
//! Their answers are told in the order of the orders.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use super::spec::Namespaces;
use super::step::{At, Failed, MakeStep};
use super::wire::{self, Answer, Progress};

/// What went wrong, and the killed process the supervisor has to reap.
pub(super) type Unmade = (Failed, Option<OwnedFd>);

/// What is told of one order: the sandbox with its descriptors, or why there is none.
type Outcome = Result<(Answer, Vec<OwnedFd>), Unmade>;

/// A first process at work.
pub(super) struct Work {
    pub(super) pid: u32,
    pub(super) pidfd: OwnedFd,
    /// Our end of its socket; its end is the end of the work.
    pub(super) progress: OwnedFd,
    /// When it must be init.
    pub(super) until: Instant,
    /// Whether init and workload have one uid.
    pub(super) single_uid: bool,
}

enum Making {
    Open(Work),
    Over(Outcome),
}

/// What a wait has seen of the supervisor's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing.
    Nothing,
    /// An order, or the socket's end.
    Order,
}

/// The orders that have no answer yet, oldest first.
pub(super) struct Line {
    makings: VecDeque<Making>,
    most: usize,
}

/// Processors the caller may run on, at least one.
fn processors() -> usize {
    let set = rustix::thread::sched_getaffinity(None);
    set.map_or(1, |set| (set.count() as usize).max(1))
}

impl Line {
    pub(super) fn new() -> Self {
        Self {
            makings: VecDeque::new(),
            most: processors(),
        }
    }

    /// Whether nothing is being made or to be told.
    pub(super) fn is_empty(&self) -> bool {
        self.makings.is_empty()
    }

    /// Adds the newest order, begun or failed.
    pub(super) fn push(&mut self, begun: Result<Work, Unmade>) {
        self.makings.push_back(match begun {
            Ok(work) => Making::Open(work),
            Err(unmade) => Making::Over(Err(unmade)),
        });
    }

    fn open(&self) -> impl Iterator<Item = &Work> {
        self.makings.iter().filter_map(|making| match making {
            Making::Open(work) => Some(work),
            Making::Over(_) => None,
        })
    }

    /// Waits for the end of some work, its deadline, or, while there is room for one more, an order;
    /// at most so long. Work that is over is settled.
    pub(super) fn wait(&mut self, socket: BorrowedFd<'_>, most: Duration) -> Result<Seen, Errno> {
        let orders = if self.open().count() < self.most {
            PollFlags::IN
        } else {
            // The end of the socket is told in any case.
            PollFlags::empty()
        };
        let end = Instant::now() + most;
        let end = self.open().map(|work| work.until).fold(end, Instant::min);
        let ended: Vec<bool> = {
            let mut fds = vec![PollFd::from_borrowed_fd(socket, orders)];
            // Only the end counts: what is said before wakes nobody and can be read then.
            let ends = self
                .open()
                .map(|work| PollFd::new(&work.progress, PollFlags::empty()));
            fds.extend(ends);
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            fds.iter().map(|fd| !fd.revents().is_empty()).collect()
        };
        let mut ended = ended.into_iter();
        let ordered = ended.next().unwrap_or(false);
        let now = Instant::now();
        for making in &mut self.makings {
            if let Making::Open(work) = making {
                let over = ended.next().unwrap_or(false);
                if over || work.until <= now {
                    settle(making, over);
                }
            }
        }
        Ok(if ordered { Seen::Order } else { Seen::Nothing })
    }

    /// Tells what is over, up to the oldest that is not.
    pub(super) fn answer(&mut self, socket: BorrowedFd<'_>) -> std::io::Result<()> {
        while let Some(Making::Over(outcome)) = self.makings.front() {
            match outcome {
                Ok((answer, fds)) => {
                    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                    wire::send_answer(socket, *answer, &fds)?;
                }
                Err((failed, pidfd)) => {
                    let fds: Vec<BorrowedFd<'_>> = pidfd.iter().map(AsFd::as_fd).collect();
                    wire::send_answer(socket, Answer::Failed(*failed), &fds)?;
                }
            }
            self.makings.pop_front();
        }
        Ok(())
    }
}

/// Makes an outcome of work that is over, or too late.
fn settle(making: &mut Making, over: bool) {
    let deadline = Failed {
        step: MakeStep::Deadline,
        errno: Errno::TIMEDOUT,
    };
    let before = std::mem::replace(making, Making::Over(Err((deadline, None))));
    if let Making::Open(work) = before {
        *making = Making::Over(outcome(work, over.then_some(()).ok_or(deadline)));
    }
}

fn outcome(work: Work, over: Result<(), Failed>) -> Outcome {
    match over.and_then(|()| stood(&work)) {
        Ok((namespaces, copied, rest)) => {
            let answer = Answer::Made {
                pid: work.pid,
                namespaces,
                single_uid: work.single_uid,
                copied,
            };
            let fds = std::iter::once(work.pidfd).chain(rest).collect();
            Ok((answer, fds))
        }
        Err(failed) => {
            // It may be dead already; then this says so and nothing else is to be done.
            let _ = pidfd_send_signal(&work.pidfd, Signal::KILL);
            Err((failed, Some(work.pidfd)))
        }
    }
}

fn stood(work: &Work) -> Result<(Namespaces, bool, Vec<OwnedFd>), Failed> {
    let stands = standing(work.progress.as_fd())?;
    if wire::readable(work.pidfd.as_fd(), Instant::now()).at(MakeStep::Answer)? {
        return Err(Errno::SRCH).at(MakeStep::Died);
    }
    Ok(stands)
}

/// What a first process said before its socket ended.
fn standing(progress: BorrowedFd<'_>) -> Result<(Namespaces, bool, Vec<OwnedFd>), Failed> {
    let mut stands = None;
    let mut reset = false;
    loop {
        let (said, fds) = match wire::receive_progress(progress) {
            Ok(Some(said)) => said,
            Ok(None) => break,
            // It ended without having read that it may go; what it said comes after this.
            Err(Errno::CONNRESET) if !reset => {
                reset = true;
                continue;
            }
            Err(errno) => return Err(errno).at(MakeStep::Answer),
        };
        match said {
            Progress::Standing { namespaces, copied } if fds.len() == 2 => {
                stands = Some((namespaces, copied, fds));
            }
            Progress::Standing { .. } | Progress::Parked => {
                return Err(Errno::BADMSG).at(MakeStep::Answer);
            }
            Progress::Failed(failed) => return Err(failed),
        }
    }
    stands.ok_or(Failed {
        step: MakeStep::Died,
        errno: Errno::SRCH,
    })
}
