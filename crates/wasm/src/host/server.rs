//! The socket: frames in, frames out, and the table of modules and runs between.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use leasehold_protocol::socket::{FrameError, send_with_fds};
use leasehold_protocol::wasm::{
    FromHost, Load, Reader, Ready, Refused, Report, Start, ToHost, body, push_frame,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::epoch::Epochs;
use super::runs::{self, Run};
use crate::program::{Loader, Program};
use crate::run::{Remains, Task};

/// Most modules at one time.
const MODULES_MAX: usize = 64;
/// Most runs at one time; the pool has no more slots.
const RUNS_MAX: usize = 64;
/// Bytes that wait for the socket above which runs are held up.
const OUT_MAX: usize = 1 << 20;

/// Why the host ends otherwise than by the end of its socket.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The owner broke the protocol.
    #[error("protocol broken: {0}")]
    Protocol(String),
    /// A frame that is none.
    #[error("bad frame")]
    Frame(#[source] FrameError),
    /// The socket, or this process's events, failed.
    #[error("the host's socket failed")]
    Io(#[source] io::Error),
}

/// What all runs share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Frames that wait for the socket.
    out: RefCell<Vec<u8>>,
    /// There is something to send.
    more: Notify,
    /// There is room again.
    room: Notify,
    pub(super) runs: RefCell<HashMap<u32, Run>>,
    /// Of runs whose end is on its way: their memory is set back when it was sent, and before another begins.
    pub(super) remains: RefCell<Vec<Remains>>,
    pub(super) epochs: Epochs,
    /// Whether runs may be given directories.
    files: bool,
}

impl Shared {
    /// Appends a frame.
    pub(super) fn send(&self, kind: FromHost, id: u32, bytes: &[u8]) {
        // Bodies of ours are far below the bound.
        let _ = push_frame(&mut self.out.borrow_mut(), kind as u8, 0, id, bytes);
        self.more.notify_one();
    }

    pub(super) fn report(&self, id: u32, report: &Report) {
        self.send(FromHost::Ended, id, &body(report).unwrap_or_default());
    }

    fn refuse(&self, id: u32, message: String) {
        let refused = Refused { message };
        self.send(FromHost::Refused, id, &body(&refused).unwrap_or_default());
    }

    /// Sets the memory of runs back that are over. A defect in that is no end of those that go on.
    fn set_back(&self) {
        for remains in self.remains.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(remains)));
        }
    }

    /// Waits until the socket has taken enough.
    pub(super) async fn room(&self) {
        while self.out.borrow().len() > OUT_MAX {
            self.room.notified().await;
        }
    }
}

/// The loaders, one for each flavour, set up before the process confined itself.
#[derive(Debug)]
pub struct Loaders {
    /// For code that counts nothing.
    pub plain: Loader,
    /// For code that counts instructions.
    pub metered: Loader,
}

/// Serves one owner until its socket closes. `ready` is its first word. To be called on a runtime of one thread.
///
/// # Errors
/// When the owner breaks the protocol or the socket fails. Every run has ended then.
pub async fn serve(
    socket: OwnedFd,
    loaders: Loaders,
    ready: Ready,
    files: bool,
) -> Result<(), HostError> {
    // Not by the call of the standard library, which the seccomp program has no place for.
    let flags = rustix::fs::fcntl_getfl(&socket).map_err(|error| HostError::Io(error.into()))?;
    rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK)
        .map_err(|error| HostError::Io(error.into()))?;
    let socket = UnixStream::from_std(StdStream::from(socket)).map_err(HostError::Io)?;
    let engines = vec![
        loaders.plain.engine().clone(),
        loaders.metered.engine().clone(),
    ];
    let shared = Rc::new(Shared {
        out: RefCell::new(Vec::new()),
        more: Notify::new(),
        room: Notify::new(),
        runs: RefCell::new(HashMap::new()),
        remains: RefCell::default(),
        epochs: Epochs::start(engines).map_err(HostError::Io)?,
        files,
    });
    shared.send(FromHost::Ready, 0, &body(&ready).map_err(HostError::Frame)?);
    let local = LocalSet::new();
    let served = local.run_until(async {
        tokio::select! {
            read = read(&socket, &shared, &loaders) => read,
            written = write(&socket, &shared) => written,
        }
    });
    served.await
}

async fn write(socket: &UnixStream, shared: &Shared) -> Result<(), HostError> {
    loop {
        let bytes = std::mem::take(&mut *shared.out.borrow_mut());
        if bytes.is_empty() {
            shared.more.notified().await;
            continue;
        }
        let mut at = 0;
        while at < bytes.len() {
            let sent = socket.try_io(Interest::WRITABLE, || {
                send_with_fds(socket, &bytes[at..], &[])
            });
            match sent {
                Ok(sent) => at += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    shared.set_back();
                    socket.writable().await.map_err(HostError::Io)?;
                }
                Err(error) => return Err(HostError::Io(error)),
            }
        }
        shared.set_back();
        shared.room.notify_waiters();
    }
}

/// Waits for bytes. Returns whether the owner is still there.
async fn fill(reader: &mut Reader, socket: &UnixStream) -> Result<bool, HostError> {
    loop {
        let mut broken = None;
        let got = socket.try_io(Interest::READABLE, || match reader.fill(socket) {
            Ok(there) => Ok(there),
            Err(FrameError::Io(error)) => Err(error),
            Err(error) => {
                broken = Some(error);
                Ok(false)
            }
        });
        match (got, broken) {
            (_, Some(error)) => return Err(HostError::Frame(error)),
            (Ok(there), None) => return Ok(there),
            (Err(error), None) if error.kind() == io::ErrorKind::WouldBlock => {
                socket.readable().await.map_err(HostError::Io)?;
            }
            (Err(error), None) => return Err(HostError::Io(error)),
        }
    }
}

async fn read(
    socket: &UnixStream,
    shared: &Rc<Shared>,
    loaders: &Loaders,
) -> Result<(), HostError> {
    let mut reader = Reader::new(true);
    let mut modules: HashMap<u32, Program> = HashMap::new();
    loop {
        if !fill(&mut reader, socket).await? {
            return Ok(());
        }
        while let Some(frame) = reader.take().map_err(HostError::Frame)? {
            let kind = ToHost::of(frame.kind).ok_or_else(|| {
                HostError::Protocol(format!("frame kind {} is unknown", frame.kind))
            })?;
            match kind {
                ToHost::Load => {
                    let load: Load = frame.read().map_err(HostError::Frame)?;
                    match load_module(loaders, &load, frame.fds, modules.len()) {
                        Ok(program) => {
                            modules.insert(frame.id, program);
                            shared.send(FromHost::Loaded, frame.id, b"");
                        }
                        Err(message) => shared.refuse(frame.id, message),
                    }
                }
                ToHost::Unload => drop(modules.remove(&frame.id)),
                ToHost::Start => {
                    let start: Start = frame.read().map_err(HostError::Frame)?;
                    if let Err(message) = begin(shared, &modules, frame.id, start, frame.fds) {
                        shared.refuse(frame.id, message);
                    }
                }
                ToHost::Stdin | ToHost::StdinEnd => {
                    runs::feed(shared, kind, frame.id, &frame.body)?
                }
                ToHost::Cancel => runs::cancel(shared, frame.id),
            }
        }
    }
}

fn load_module(
    loaders: &Loaders,
    load: &Load,
    mut fds: Vec<OwnedFd>,
    there: usize,
) -> Result<Program, String> {
    use leasehold_protocol::wasm::Flavour;
    if there >= MODULES_MAX {
        return Err(format!("{there} modules are loaded: most is {MODULES_MAX}"));
    }
    let (Some(fd), true) = (fds.pop(), fds.is_empty()) else {
        return Err("a module comes with one descriptor".to_owned());
    };
    let loader = match load.flavour {
        Flavour::Plain => &loaders.plain,
        Flavour::Metered => &loaders.metered,
    };
    loader
        .load(load.kind, load.flavour, File::from(fd))
        .map_err(|error| error.to_string())
}

fn begin(
    shared: &Rc<Shared>,
    modules: &HashMap<u32, Program>,
    id: u32,
    start: Start,
    fds: Vec<OwnedFd>,
) -> Result<(), String> {
    let program = modules
        .get(&start.module)
        .ok_or_else(|| format!("module {} is not loaded", start.module))?;
    let running = shared.runs.borrow().len();
    if running >= RUNS_MAX {
        return Err(format!("{running} runs are here: most is {RUNS_MAX}"));
    }
    if shared.runs.borrow().contains_key(&id) {
        return Err(format!("run {id} is here already"));
    }
    if !start.preopens.is_empty() && !shared.files {
        return Err("this host was not made for directories".to_owned());
    }
    if start.preopens.len() != fds.len() {
        return Err("each directory comes with one descriptor".to_owned());
    }
    let mut task = Task::new("", start.limits);
    task.argv = start.argv;
    task.env = start.env;
    task.preopens = start.preopens.into_iter().zip(fds).collect();
    task.determinism = start.determinism;
    if start.stdin {
        task.stdin = crate::input::Input::default();
    }
    task.check(program)?;
    runs::begin(shared, program.clone(), id, task);
    Ok(())
}
