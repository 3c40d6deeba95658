//! Finding the supervisor, and starting it where there is none.
//!
//! The supervisor is a program of its own, which the command line carries. It becomes leader by a lock of its
//! own; of two starters one wins and the other's child leaves with status 0, so starting is always safe. It
//! leaves the caller's session by itself. Nothing here removes a lock or a socket.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use leasehold_protocol::{leash, memory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use super::client::ClientError;

/// Name of the socket in the run directory.
pub const SOCKET_NAME: &str = "supervisor.sock";
/// Name of the supervisor's log in the run directory.
pub const LOG_NAME: &str = "supervisor.log";
/// Environment variable that tells the supervisor its state directory.
pub const STATE_DIR_VAR: &str = "LEASEHOLD_STATE_DIR";
/// Environment variable that tells the supervisor its run directory.
pub const RUN_DIR_VAR: &str = "LEASEHOLD_RUN_DIR";

/// What lists of processes call it, whatever it was executed from.
const NAME: &str = "leasehold";

/// A log longer than this is begun anew at the next start.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the log quoted in an error.
const LOG_TAIL: u64 = 2_048;
/// Pause between two looks at the socket while our child says nothing. It says when it listens, so
/// this is for a socket of somebody else's; to look often would take a core from the child.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// First pause once the child is gone, doubled up to [`LOOK_EVERY`].
const LOOK_SOON: Duration = Duration::from_millis(1);
/// How long another supervisor that holds the lock may take to listen before ours tries again,
/// doubled up to [`OTHER_LEADER_MAX`].
const OTHER_LEADER: Duration = Duration::from_millis(50);
const OTHER_LEADER_MAX: Duration = Duration::from_secs(1);

/// How long a supervisor that hung up may take to end.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Where the supervisor of one state directory is, and how to start it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Directory with socket, lock and log. It must exist, belong to this user, and be closed to
    /// all others; who makes an endpoint has checked that.
    pub run_dir: PathBuf,
    /// Directory with ledger and records.
    pub state_dir: PathBuf,
    /// Program to start.
    pub program: PathBuf,
    /// What its standard input is made to hold: the program that every sandbox begins as.
    pub init: &'static [u8],
    /// The agent's program, which a sandbox is given when one is asked for.
    pub agent: &'static [u8],
    /// Arguments that make it the supervisor.
    pub args: Vec<String>,
    /// How long a start may take, its sweep of what a dead predecessor left included.
    pub patience: Duration,
}

impl Endpoint {
    /// An endpoint whose supervisor is `program supervisor`, leashed, and which brings no programs.
    #[must_use]
    pub fn new(run_dir: PathBuf, state_dir: PathBuf, program: PathBuf) -> Self {
        Self {
            run_dir,
            state_dir,
            program,
            init: &[],
            agent: &[],
            args: vec!["supervisor".to_owned(), leash::FLAG.to_owned()],
            patience: Duration::from_secs(20),
        }
    }

    /// The socket's path.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join(SOCKET_NAME)
    }

    /// The log's path.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.run_dir.join(LOG_NAME)
    }
}

/// Connects to the socket of a supervisor, if one listens there.
///
/// # Errors
/// When something else than "nobody there" comes back, or another user's process listens.
pub(super) fn connect(socket: &Path) -> Result<Option<UnixStream>, ClientError> {
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(source) => {
            return Err(ClientError::Connect {
                socket: socket.to_owned(),
                source,
            });
        }
    };
    let peer =
        rustix::net::sockopt::socket_peercred(&stream).map_err(|errno| ClientError::Connect {
            socket: socket.to_owned(),
            source: errno.into(),
        })?;
    let own = rustix::process::geteuid();
    if peer.uid != own {
        return Err(ClientError::Stranger {
            socket: socket.to_owned(),
            uid: peer.uid.as_raw(),
        });
    }
    Ok(Some(stream))
}

/// A supervisor whose program is loaded and that does nothing before it is told to; it leaves when it
/// never is. So it can be begun before it is known whether one is wanted.
#[derive(Debug)]
pub struct Begun {
    child: Child,
    leash: UnixStream,
    init: OwnedFd,
}

impl Begun {
    /// Tells it that it is wanted. One that is gone by now is seen where its words are waited for.
    fn go(&mut self) {
        let _ = self.leash.write_all(&[leash::GO]);
    }

    /// Gives it the program of its sandboxes.
    fn give(&mut self, init: &[u8]) -> std::io::Result<()> {
        memory::fill(&self.init, init)?;
        let _ = self.leash.write_all(&[leash::WHOLE]);
        Ok(())
    }
}

/// Begins a supervisor unless there is the socket of one: whether somebody listens there is seen when one is
/// asked for. The run directory must exist.
///
/// # Errors
/// When the program cannot be started.
pub fn begin(endpoint: &Endpoint) -> Result<Option<Begun>, ClientError> {
    match endpoint.socket().exists() {
        true => Ok(None),
        false => spawn(endpoint).map(Some),
    }
}

/// Starts a supervisor, or has the one go on that was begun, and waits until somebody listens: our child,
/// or another's that won. One that leaves the field to another is started again after a while, since the
/// other may have been about to end.
///
/// # Errors
/// When it cannot be started, ends by a failure, or takes longer than the endpoint allows.
pub(super) fn start(
    endpoint: &Endpoint,
    mut begun: Option<Begun>,
) -> Result<(UnixStream, Child), ClientError> {
    let deadline = Instant::now() + endpoint.patience;
    let mut patience = OTHER_LEADER;
    loop {
        let mut started = match begun.take() {
            Some(begun) => begun,
            None => spawn(endpoint)?,
        };
        started.go();
        match wait(endpoint, &mut started, deadline, patience) {
            Ok(Some(stream)) => {
                // It has children at work by now, which need that program last of all; nothing was asked of it yet.
                started
                    .give(endpoint.init)
                    .map_err(cannot_start(endpoint))?;
                return Ok((stream, started.child));
            }
            Ok(None) => patience = (patience * 2).min(OTHER_LEADER_MAX),
            Err(error) => {
                // A child that never listened is ours to end.
                let _ = started.child.kill();
                let _ = started.child.wait();
                return Err(error);
            }
        }
    }
}

fn cannot_start(endpoint: &Endpoint) -> impl Fn(std::io::Error) -> ClientError {
    |source| ClientError::Start {
        program: endpoint.program.clone(),
        source,
    }
}

fn spawn(endpoint: &Endpoint) -> Result<Begun, ClientError> {
    let begin = || -> std::io::Result<Begun> {
        let log = open_log(&endpoint.log())?;
        let init = memory::create("leasehold-init")?;
        let (ours, theirs) = UnixStream::pair()?;
        let child = Command::new(&endpoint.program)
            .arg0(NAME)
            .args(&endpoint.args)
            .env_clear()
            .envs(own_variables(std::env::vars_os()))
            .env(STATE_DIR_VAR, &endpoint.state_dir)
            .env(RUN_DIR_VAR, &endpoint.run_dir)
            .current_dir("/")
            .stdin(init.try_clone()?)
            .stdout(OwnedFd::from(theirs))
            .stderr(log)
            .spawn()?;
        Ok(Begun {
            child,
            leash: ours,
            init,
        })
    };
    begin().map_err(cannot_start(endpoint))
}

/// What the supervisor keeps of the caller's environment: our own variables but the key for a daemon. Tokens
/// and proxies of the caller are nothing to it or to its children, which live on after the caller.
fn own_variables(
    all: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    all.filter(|(name, _)| {
        name.as_encoded_bytes().starts_with(b"LEASEHOLD_") && name != "LEASEHOLD_API_KEY"
    })
}

fn open_log(path: &Path) -> std::io::Result<File> {
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    if log.metadata()?.size() > LOG_BYTES_MAX {
        log.set_len(0)?;
    }
    Ok(log)
}

/// Waits for the socket. The child's end of its leash tells of readiness or death at once; the
/// socket is looked at in growing steps too, since another starter's supervisor may be the one
/// that listens. `None` when the child left the field to another who does not listen either.
fn wait(
    endpoint: &Endpoint,
    begun: &mut Begun,
    deadline: Instant,
    patience: Duration,
) -> Result<Option<UnixStream>, ClientError> {
    let mut pause = LOOK_SOON;
    let mut left: Option<Instant> = None;
    let mut speaks = true;
    loop {
        if let Some(stream) = connect(&endpoint.socket())? {
            return Ok(Some(stream));
        }
        if Instant::now() >= deadline {
            return Err(ClientError::StartTimeout {
                waited: endpoint.patience,
                log: tail(&endpoint.log()),
            });
        }
        match left {
            Some(since) if since.elapsed() >= patience => return Ok(None),
            Some(_) => {}
            None => {
                if let Some(status) = ended(endpoint, &mut begun.child)? {
                    if !status.success() {
                        return Err(ClientError::Ended {
                            status: status.to_string(),
                            log: tail(&endpoint.log()),
                        });
                    }
                    left = Some(Instant::now());
                    continue;
                }
            }
        }
        if speaks {
            speaks = sleep_until_told(&mut begun.leash, LOOK_EVERY);
        } else {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK_EVERY);
        }
    }
}

/// Why a child that listened went away before it answered anybody.
pub(super) fn failed(endpoint: &Endpoint, child: &mut Child) -> ClientError {
    let deadline = Instant::now() + LAST_WORDS;
    while Instant::now() < deadline {
        match ended(endpoint, child) {
            Ok(Some(status)) if !status.success() => {
                return ClientError::Ended {
                    status: status.to_string(),
                    log: tail(&endpoint.log()),
                };
            }
            Ok(None) => std::thread::sleep(LOOK_SOON),
            Ok(Some(_)) => break,
            Err(error) => return error,
        }
    }
    ClientError::Gone
}

fn ended(endpoint: &Endpoint, child: &mut Child) -> Result<Option<ExitStatus>, ClientError> {
    child.try_wait().map_err(|source| ClientError::Start {
        program: endpoint.program.clone(),
        source,
    })
}

/// Waits for words or the end of the child's end of its leash, at most `pause`; whether it can still say something.
fn sleep_until_told(leash: &mut UnixStream, pause: Duration) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(leash.as_fd(), PollFlags::IN)];
    let limit = Timespec::try_from(pause).ok();
    !matches!(poll(&mut polled, limit.as_ref()), Ok(count) if count > 0)
        || leash.read(&mut [0; 512]).is_ok_and(|count| count > 0)
}

/// The end of the log, for an error text.
fn tail(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut log = File::open(path)?;
        let length = log.metadata()?.len();
        log.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
        let mut bytes = Vec::new();
        log.take(LOG_TAIL).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    match read() {
        Ok(text) if text.is_empty() => "its log is empty".to_owned(),
        Ok(text) => text,
        Err(error) => format!("its log cannot be read: {error}"),
    }
}
