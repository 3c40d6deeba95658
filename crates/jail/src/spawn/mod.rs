//! Making a sandbox from outside: the spawner, the template tree, and one sandbox from it.
//!
//! The caller holds a [`Spawner`], which is a process forked from it. Each [`Spawner::make`] has the
//! spawner clone a first process as a *child of the caller*, which furnishes its own namespaces and
//! becomes init. Start reading at [`Spawner`], then `process.rs` (the spawner), `child.rs` (the
//! order of steps inside), `template.rs` and `tree.rs` (what is mounted).
//!
//! Nothing here knows runs, tenants or policy; nothing prints.

mod child;
mod clone;
mod copy;
mod etc;
mod image;
mod line;
mod netns;
mod process;
mod spec;
mod step;
mod synthetic;
mod template;
mod tree;
mod userns;
mod wire;
mod workspace;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

pub use self::spec::{
    CGROUPS_MAX, CORES_MAX, DEADLINE_MAX, Disk, IdBlock, ImageSpec, Made, MakeFds, MakeSpec,
    Namespaces, WORKLOAD_ID, Warm, WorkspaceMode,
};
pub use self::step::{MakeStep, SpawnError};
pub use self::userns::RootlessIds;

use self::clone::{Side, fork};
use self::process::Start;
use self::step::Failed;
use self::userns::Maker;
use self::wire::{Answer, Copies};
use crate::mount::{self, Reach};

/// Time the spawner has to build its template.
const START_WAIT: Duration = Duration::from_secs(30);
/// Time beyond an order's own deadline before the spawner counts as stuck.
const SLACK: Duration = Duration::from_secs(2);
/// Time a spawner has to end by itself.
const END_WAIT: Duration = Duration::from_millis(500);
/// Time a killed process has to be gone.
const DEATH_WAIT: Duration = Duration::from_secs(5);

/// Most orders a caller may have open with one spawner: what its socket surely holds.
pub const ORDERS_MAX: usize = 32;

/// What a spawner is made of.
#[derive(Debug)]
pub struct SpawnerConfig {
    /// Init's program, a sealed memfd. It is executed from the descriptor.
    pub init: OwnedFd,
    /// As an ordinary user: the ids it may map. `None` as root.
    pub rootless: Option<RootlessIds>,
}

/// The host's hand on its spawner. Dropping it ends the spawner and none of the sandboxes.
#[derive(Debug)]
pub struct Spawner {
    pid: u32,
    pidfd: OwnedFd,
    socket: Option<OwnedFd>,
    maker: Maker,
    ready: bool,
}

impl Spawner {
    /// Forks the spawner and waits until it takes orders.
    ///
    /// # Errors
    /// As [`Spawner::begin`] and [`Spawner::await_ready`].
    pub fn start(config: SpawnerConfig) -> Result<Self, SpawnError> {
        let mut spawner = Self::begin(config)?;
        // On failure the handle is dropped, which ends and reaps the process.
        spawner.await_ready()?;
        Ok(spawner)
    }

    /// Forks the spawner. It enters its namespaces, builds the template and closes every descriptor
    /// it does not need, while the caller does something else. It dies with the calling *thread* and
    /// with the handle.
    ///
    /// Call it before there are other threads and before much memory is in use. Orders need not wait
    /// for [`Spawner::await_ready`], nor for init's program to be written: none is executed
    /// before it is sealed.
    ///
    /// # Errors
    /// The step that failed; nothing is left then.
    pub fn begin(config: SpawnerConfig) -> Result<Self, SpawnError> {
        let maker = config.rootless.map_or(Maker::Root, Maker::Rootless);
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(at(MakeStep::Fork))?;
        let start = Start {
            socket: theirs,
            init: config.init,
            maker,
            supervisor: Some(rustix::process::getpid()),
        };
        let (pid, pidfd) = match fork().map_err(at(MakeStep::Fork))? {
            Side::Child => {
                std::mem::forget(ours);
                process::run(start)
            }
            Side::Parent { pid, pidfd } => (pid, pidfd),
        };
        beside_us(pid);
        drop(start);
        Ok(Self {
            pid,
            pidfd,
            socket: Some(ours),
            maker,
            ready: false,
        })
    }

    /// Waits until a spawner that was begun has built its template.
    ///
    /// # Errors
    /// The step of its set-up that failed; the handle is of no use then.
    pub fn await_ready(&mut self) -> Result<(), SpawnError> {
        self.stand(Instant::now() + START_WAIT, START_WAIT)
    }

    fn stand(&mut self, until: Instant, wait: Duration) -> Result<(), SpawnError> {
        if self.ready {
            return Ok(());
        }
        match self.answer(until, wait)? {
            (Answer::Ready, _) => {
                self.ready = true;
                Ok(())
            }
            (Answer::Failed(failed), _) => Err(failed.into()),
            (Answer::Made { .. }, _) => Err(SpawnError::Answer),
        }
    }

    /// Whether [`Spawner::await_ready`] has come back well.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Makes one sandbox. Its first process is a child of the caller, which must reap it.
    ///
    /// Blocks up to the deadline of the order and two seconds. Not to be mixed with orders whose
    /// answers have not been taken.
    ///
    /// # Errors
    /// The bound that is broken or the step that failed; nothing is left of the sandbox then. Where
    /// [`SpawnError::spawner_lost`] holds, this handle is of no more use.
    pub fn make(&mut self, spec: &MakeSpec, fds: MakeFds<'_>) -> Result<Made, SpawnError> {
        self.order(spec, fds)?;
        self.take(spec.deadline + SLACK)
    }

    /// Orders one sandbox and does not wait for it: [`Spawner::take`] gives it. As many orders as
    /// the spawner has processors to run on are carried out at a time; answers come in the order of
    /// the orders. A caller has at most
    /// [`ORDERS_MAX`] orders open.
    ///
    /// # Errors
    /// As [`Spawner::make`].
    pub fn order(&mut self, spec: &MakeSpec, fds: MakeFds<'_>) -> Result<(), SpawnError> {
        spec.check(&fds)?;
        let (copy, below);
        let workspace = match (fds.workspace, self.maker) {
            // Only a process of the host's mount namespace can copy a mount of it.
            (Some(directory), Maker::Root) => {
                let reach = match spec.workspace {
                    WorkspaceMode::ReadWrite => Reach::Tree,
                    _ => Reach::One,
                };
                copy = mount::clone_at(directory, reach).map_err(at(MakeStep::Workspace))?;
                Some(copy.as_fd())
            }
            (directory, _) => directory,
        };
        let layers = match (fds.layers, self.maker) {
            (Some(directory), Maker::Root) => {
                below = mount::clone_at(directory, Reach::One).map_err(at(MakeStep::Layers))?;
                Some(below.as_fd())
            }
            (directory, _) => directory,
        };
        let copies = Copies { workspace, layers };
        let socket = self.socket.as_ref().ok_or(SpawnError::Gone)?;
        wire::send_order(socket.as_fd(), spec, &fds, copies).map_err(|_| SpawnError::Gone)
    }

    /// What becomes readable when [`Spawner::take`] has something; none when the spawner is lost.
    #[must_use]
    pub fn answers(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Takes the answer to the oldest open order, waiting for it at most so long. Its first process
    /// is a child of the caller, which must reap it.
    ///
    /// # Errors
    /// As [`Spawner::make`]. A spawner that is silent so long is killed.
    pub fn take(&mut self, wait: Duration) -> Result<Made, SpawnError> {
        let until = Instant::now() + wait;
        let answer = self
            .stand(until, wait)
            .and_then(|()| self.answer(until, wait));
        let (answer, beside) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                self.socket = None;
                let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
                return Err(error);
            }
        };
        match answer {
            Answer::Made {
                pid,
                namespaces,
                single_uid,
                copied,
            } => {
                let [pidfd, workspace, scratch]: [OwnedFd; 3] =
                    beside.try_into().map_err(|_| SpawnError::Answer)?;
                Ok(Made {
                    pid,
                    pidfd,
                    workspace,
                    scratch,
                    namespaces,
                    single_uid,
                    copied,
                })
            }
            Answer::Failed(failed) => {
                for pidfd in &beside {
                    reap(pidfd)?;
                }
                Err(failed.into())
            }
            Answer::Ready => Err(SpawnError::Answer),
        }
    }

    fn answer(&self, until: Instant, wait: Duration) -> Result<(Answer, Vec<OwnedFd>), SpawnError> {
        let socket = self.socket.as_ref().ok_or(SpawnError::Gone)?.as_fd();
        let ready = wire::readable(socket, until).map_err(|_| SpawnError::Gone)?;
        if !ready {
            return Err(SpawnError::Silent {
                waited_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            });
        }
        match wire::receive_answer(socket) {
            Ok(Some((Some(answer), fds))) => Ok((answer, fds)),
            Ok(Some((None, _))) => Err(SpawnError::Answer),
            Ok(None) | Err(_) => Err(SpawnError::Gone),
        }
    }

    /// The spawner's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The spawner's process; readable when it is dead.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.socket = None;
        // It ends with its socket and ends its own children first. Dead or stuck it has none that
        // matter, and it is ours to reap in any case.
        let until = Instant::now() + END_WAIT;
        if !wire::readable(self.pidfd.as_fd(), until).unwrap_or(false) {
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        }
        let _ = reap(&self.pidfd);
    }
}

/// Reaps a child that was killed. One that somebody else has reaped is reaped.
fn reap(pidfd: &OwnedFd) -> Result<(), SpawnError> {
    let until = Instant::now() + DEATH_WAIT;
    let dead = wire::readable(pidfd.as_fd(), until).map_err(at(MakeStep::Died))?;
    if !dead {
        return Err(at(MakeStep::Died)(Errno::TIMEDOUT));
    }
    match waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {
        Ok(_) | Err(Errno::CHILD) => Ok(()),
        Err(errno) => Err(at(MakeStep::Died)(errno)),
    }
}

/// Has a new child begin on another core than the caller, where there is one: with both on one, a
/// kernel that does not preempt lets the child wait for a whole tick while another core is idle.
fn beside_us(child: u32) {
    let Some(pid) = rustix::process::Pid::from_raw(child.cast_signed()) else {
        return;
    };
    let Ok(all) = rustix::thread::sched_getaffinity(None) else {
        return;
    };
    let mut others = all;
    others.unset(rustix::thread::sched_getcpu());
    if others.count() > 0 && rustix::thread::sched_setaffinity(Some(pid), &others).is_ok() {
        let _ = rustix::thread::sched_setaffinity(Some(pid), &all);
    }
}

fn at(step: MakeStep) -> impl Fn(Errno) -> SpawnError {
    move |errno| Failed { step, errno }.into()
}
