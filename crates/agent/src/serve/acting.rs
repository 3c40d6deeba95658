//! File work with the rights of the acting user.
//!
//! The agent is the sandbox's root and holds the access token, so it opens no path a caller or the
//! guest chose. Each operation is one child that first becomes the user (the workload posture) and
//! then does the work; what it may, the user may. It answers over a socket pair: one byte, `+` or
//! `-`, then JSON until the end, with at most one descriptor on the first byte. A caller that goes
//! away, or a time bound that is reached, kills the child; so nothing that blocks or never ends (a
//! FIFO, a tree that grows while it is removed) outlives its request.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use leasehold_jail::exec::{self, Child};
use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::socket::{recv_with_fds, send_with_fds};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Signal, WaitId, WaitIdOptions, WaitIdStatus};
use serde::de::DeserializeOwned;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::reply::NO_SPACE;
use super::state::Shared;
use super::users::User;
use super::{bounds, ready};

/// What the work gives back.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// The answer as JSON.
    pub(super) json: Vec<u8>,
    /// A file that was opened.
    pub(super) file: Option<OwnedFd>,
}

impl Done {
    /// An answer without a file.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub(super) fn json(value: &impl serde::Serialize) -> Result<Self, CallError> {
        let json = serde_json::to_vec(value)
            .map_err(|error| CallError::new(Code::Internal, error.to_string()))?;
        Ok(Self { json, file: None })
    }
}

/// Runs `work` as `user` and gives its answer, undecoded.
///
/// # Errors
/// What the work reports; `resource_exhausted` when no process can be made; `deadline_exceeded`
/// after `time`.
pub(super) async fn run(
    shared: &Shared,
    user: &User,
    time: Duration,
    work: impl FnOnce() -> Result<Done, CallError>,
) -> Result<Done, CallError> {
    let limited = async {
        let permits = if time > bounds::OPERATION_TIME {
            &shared.long_operations
        } else {
            &shared.operations
        };
        let permit = permits.acquire().await;
        let _permit = permit.map_err(|_| CallError::new(Code::Unavailable, "agent ends"))?;
        let (mut worker, socket) = start(shared, user, |socket| tell(&socket, work()))?;
        let answer = listen(&socket).await?;
        worker.finish().await;
        interpret(answer, worker.status)
    };
    match tokio::time::timeout(time, limited).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let message = format!("file operation took longer than {} s", time.as_secs());
            Err(CallError::new(Code::DeadlineExceeded, message))
        }
    }
}

/// As [`run`], with the answer decoded.
///
/// # Errors
/// As [`run`], or `internal` when the answer is no such value.
pub(super) async fn ask<T: DeserializeOwned>(
    shared: &Shared,
    user: &User,
    time: Duration,
    work: impl FnOnce() -> Result<Done, CallError>,
) -> Result<(T, Option<OwnedFd>), CallError> {
    let done = run(shared, user, time, work).await?;
    let value = serde_json::from_slice(&done.json)
        .map_err(|error| CallError::new(Code::Internal, format!("answer of file work: {error}")))?;
    Ok((value, done.file))
}

/// Starts a child that acts as `user`, with a conversation over a socket pair; the returned end does
/// not block.
///
/// # Errors
/// `resource_exhausted` when no descriptor or process can be made.
pub(super) fn start(
    shared: &Shared,
    user: &User,
    work: impl FnOnce(OwnedFd) -> u8,
) -> Result<(Worker, AsyncFd<OwnedFd>), CallError> {
    let failed = |error: io::Error| {
        CallError::new(
            Code::ResourceExhausted,
            format!("cannot start file work: {error}"),
        )
    };
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| failed(error.into()))?;
    rustix::io::ioctl_fionbio(&ours, true).map_err(|error| failed(error.into()))?;
    let child = exec::act(user.actor(), shared.files, theirs, work).map_err(failed)?;
    let worker = Worker::new(child, shared.reaper.clone()).map_err(failed)?;
    Ok((worker, ready::both_ways(ours).map_err(failed)?))
}

/// Child side: writes the answer. Returns the exit status.
fn tell(socket: &OwnedFd, outcome: Result<Done, CallError>) -> u8 {
    let (mark, json, file) = match outcome {
        Ok(done) if done.json.len() > bounds::ANSWER_BYTES => {
            let message = format!("answer is longer than {} bytes", bounds::ANSWER_BYTES);
            let error = CallError::new(Code::ResourceExhausted, message);
            (b'-', serde_json::to_vec(&error).unwrap_or_default(), None)
        }
        Ok(done) => (b'+', done.json, done.file),
        Err(error) => (b'-', serde_json::to_vec(&error).unwrap_or_default(), None),
    };
    let fds: Vec<_> = file.iter().map(AsFd::as_fd).collect();
    let sent = send_with_fds(socket, &[mark], &fds);
    u8::from(sent.is_err() || send_all(socket, &json).is_err())
}

/// Writes everything to a blocking socket.
///
/// # Errors
/// As `sendmsg(2)`.
pub(super) fn send_all(socket: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = send_with_fds(&socket, bytes, &[])?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

/// Reads until the end.
async fn listen(socket: &AsyncFd<OwnedFd>) -> Result<(Vec<u8>, Vec<OwnedFd>), CallError> {
    let (mut bytes, mut fds) = (Vec::new(), Vec::new());
    let mut piece = vec![0; 16 << 10];
    loop {
        let got = receive(socket, &mut piece, &mut fds)
            .await
            .map_err(|error| CallError::new(Code::Internal, format!("file work: {error}")))?;
        bytes.extend_from_slice(&piece[..got]);
        if bytes.len() > bounds::ANSWER_BYTES + 1 || fds.len() > 1 {
            return Err(CallError::new(Code::Internal, "file work answers too much"));
        }
        if got == 0 {
            return Ok((bytes, fds));
        }
    }
}

/// Receives once, waiting for it. 0 is the end.
///
/// # Errors
/// As `recvmsg(2)`.
pub(super) async fn receive(
    socket: &AsyncFd<OwnedFd>,
    piece: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    loop {
        let mut guard = socket.readable().await?;
        match guard.try_io(|socket| match recv_with_fds(socket.get_ref(), piece, fds) {
            // A child that was killed while it wrote looks like this.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(0),
            other => other,
        }) {
            Ok(outcome) => return outcome,
            Err(_would_block) => {}
        }
    }
}

fn interpret(
    (mut bytes, mut fds): (Vec<u8>, Vec<OwnedFd>),
    status: Option<i32>,
) -> Result<Done, CallError> {
    let wrong = |what: String| CallError::new(Code::Internal, what);
    match bytes.first() {
        Some(b'+') if status == Some(0) => {
            bytes.remove(0);
            Ok(Done {
                json: bytes,
                file: fds.pop(),
            })
        }
        Some(b'-') => Err(serde_json::from_slice(&bytes[1..])
            .unwrap_or_else(|error| wrong(format!("error of file work: {error}")))),
        _ if status == Some(i32::from(exec::POSTURE_FAILED)) => {
            Err(wrong("cannot take the rights of the user".to_owned()))
        }
        _ => Err(wrong(format!(
            "file work ended early with status {status:?}"
        ))),
    }
}

/// A child that acts for somebody. Dropped before its end, it is killed.
#[derive(Debug)]
pub(super) struct Worker {
    pidfd: Option<AsyncFd<OwnedFd>>,
    reaper: Reaper,
    /// Exit status, once [`Worker::finish`] saw it.
    status: Option<i32>,
}

impl Worker {
    fn new(child: Child, reaper: Reaper) -> io::Result<Self> {
        let pidfd = ready::to_read(child.pidfd)?;
        Ok(Self {
            pidfd: Some(pidfd),
            reaper,
            status: None,
        })
    }

    /// Waits for the end of the child and reaps it.
    pub(super) async fn finish(&mut self) {
        if let Some(pidfd) = &self.pidfd {
            let _ = pidfd.readable().await;
            let status = reap(pidfd.get_ref());
            self.status = status.and_then(|status| status.exit_status());
            self.pidfd = None;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(pidfd) = self.pidfd.take() {
            let pidfd = pidfd.into_inner();
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            self.reaper.take(pidfd);
        }
    }
}

/// Reaps an ended child without waiting.
pub(super) fn reap(pidfd: impl AsFd) -> Option<WaitIdStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options).ok()?
}

/// Killed children that can wait to be reaped.
const KILLED: usize = bounds::OPERATIONS + bounds::LONG_OPERATIONS + bounds::WATCHERS;

/// Takes over children that were killed and reaps them when they are dead.
#[derive(Debug, Clone)]
pub(super) struct Reaper(mpsc::Sender<OwnedFd>);

impl Reaper {
    /// A reaper, and what must be awaited for it to work.
    pub(super) fn new() -> (Self, impl Future<Output = ()>) {
        let (sender, mut killed) = mpsc::channel::<OwnedFd>(KILLED);
        let work = async move {
            while let Some(pidfd) = killed.recv().await {
                if reap(&pidfd).is_some() {
                    continue;
                }
                if let Ok(pidfd) = ready::to_read(pidfd) {
                    let _ = pidfd.readable().await;
                    reap(pidfd.get_ref());
                }
            }
        };
        (Self(sender), work)
    }

    fn take(&self, pidfd: OwnedFd) {
        // With no room left, or after the end of the agent's work, init inherits it.
        let _ = self.0.try_send(pidfd);
    }
}

/// What an error number means to a caller.
pub(super) fn refused(what: &str, errno: Errno) -> CallError {
    let code = match errno {
        Errno::NOENT | Errno::NOTDIR => Code::NotFound,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => Code::PermissionDenied,
        Errno::EXIST => Code::AlreadyExists,
        Errno::NOSPC | Errno::DQUOT => {
            return CallError::new(Code::ResourceExhausted, NO_SPACE);
        }
        Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::AGAIN => Code::ResourceExhausted,
        Errno::LOOP | Errno::BUSY | Errno::NOTEMPTY | Errno::TXTBSY => Code::FailedPrecondition,
        Errno::NAMETOOLONG | Errno::ISDIR | Errno::INVAL | Errno::NXIO | Errno::XDEV => {
            Code::InvalidArgument
        }
        _ => Code::Internal,
    };
    CallError::new(code, format!("{what}: {errno}"))
}
